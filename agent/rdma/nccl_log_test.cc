#include "agent/rdma/nccl_log.h"

#include <gtest/gtest.h>

namespace taskd::rdma {
namespace {

NcclLogReport Read(std::string_view text, size_t step = std::string_view::npos) {
  NcclLogClassifier classifier;
  for (size_t at = 0; at < text.size(); at += std::min(step, text.size())) classifier.Add(text.substr(at, step));
  return classifier.Finish();
}

std::string Channel(std::string_view way) {
  return "node:12:34 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via " + std::string(way) + "\n";
}

TEST(NcclLog, EachWay) {
  const struct {
    const char *way, *counted;
  } cases[] = {{"NET/IBext/0/GDRDMA", "gdrdma"},
               {"NET/IB/0/GDRDMA", "gdrdma"},
               {"NET/IBext_v8/3/GDRDMA", "gdrdma"},
               {"NET/IB/0/GDRDMA(PCI)", "gdrdma"},
               {"NET/IB/0/GDRDMA/Shared", "gdrdma"},
               {"NET/IB/0(1)/GDRDMA", "gdrdma"},
               {"NET/IB/0(1)/GDRDMA/Shared", "gdrdma"},
               {"NET/AWS Libfabric/0/GDRDMA", "gdrdma"},
               {"NET/Libfabric/0", "rdma"},
               {"NET/GPUDirectTCPX_v7/0", "socket"},
               {"NET/GPUDirectTCPX_v7/0/GDRDMA", "socket"},
               {"NET/IB/0", "rdma"},
               {"NET/IB/0(1)", "rdma"},
               {"NET/IB/0/Shared", "rdma"},
               {"NET/IBext_v6/1 comm 0x1 nRanks 16", "rdma"},
               {"NET/Socket/0", "socket"},
               {"NET/Socket/1/Shared", "socket"},
               {"P2P/IPC", "intra"},
               {"P2P/CUMEM/read", "intra"},
               {"P2P/direct pointer", "intra"},
               {"SHM/direct/direct", "intra"},
               {"NET/IB", "none"},
               {"NET/", "none"},
               {"NET//0", "none"},
               {"COLLNET/SHARP/0", "none"},
               {"", "none"}};
  for (const auto& one : cases) {
    const NcclLogReport report = Read(Channel(one.way));
    const std::string counted = report.gdrdma   ? "gdrdma"
                                : report.rdma   ? "rdma"
                                : report.socket ? "socket"
                                : report.intra  ? "intra"
                                                : "none";
    EXPECT_EQ(counted, one.counted) << one.way;
    EXPECT_LE(report.gdrdma + report.rdma + report.socket + report.intra, 1) << one.way;
    EXPECT_EQ(report.first_offending_line != 0, counted == "rdma" || counted == "socket") << one.way;
  }
}

TEST(NcclLog, Verdicts) {
  const std::string gdrdma = Channel("NET/IB/0/GDRDMA"), rdma = Channel("NET/IB/0"), socket = Channel("NET/Socket/0"),
                    intra = Channel("SHM/direct");
  EXPECT_EQ(Read("").verdict(), "unknown");
  EXPECT_EQ(Read(intra + intra).verdict(), "unknown");
  EXPECT_EQ(Read(gdrdma + intra).verdict(), "gdrdma");
  EXPECT_EQ(Read(gdrdma + rdma).verdict(), "rdma");
  EXPECT_EQ(Read(rdma + intra).verdict(), "rdma");
  EXPECT_EQ(Read(socket + intra).verdict(), "socket");
  EXPECT_EQ(Read(socket + gdrdma).verdict(), "mixed");
  EXPECT_EQ(Read(rdma + socket).verdict(), "mixed");
}

TEST(NcclLog, ProviderOfLibfabricIsThatOfTheProcess) {
  const std::string over_tcp =
      "n1:10:11 [0] NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)\n"
      "n2:10:11 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)\n"
      "n1:10:11 [0] NCCL INFO Using network Libfabric\n"
      "n1:10:12 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA\n";
  EXPECT_EQ(Read(over_tcp).verdict(), "socket");
  EXPECT_EQ(Read(over_tcp).first_offending_line, 4);
  const std::string other = "n2:10:13 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA\n";
  EXPECT_EQ(Read(over_tcp + other).verdict(), "mixed");
  for (const char* provider : {"sockets", "udp;ofi_rxd", "tcp"}) {
    const std::string log = "[1,0]<stdout>:n1:10:11 [0] NCCL INFO NET/OFI Selected Provider is " +
                            std::string(provider) +
                            "\n[1,0]<stdout>:n1:10:12 [0] NCCL INFO Channel 0 : 1 -> 0 via NET/AWS Libfabric/0\n";
    EXPECT_EQ(Read(log).verdict(), "socket") << provider;
  }
  for (const char* provider : {"efa", "verbs;ofi_rxm", "cxi (found 4 nics)", "psm3"}) {
    const std::string log = "n1:10:11 [0] NCCL INFO NET/OFI Selected Provider is " + std::string(provider) +
                            "\nn1:10:12 [0] NCCL INFO Channel 0 : 1 -> 0 via NET/AWS Libfabric/0\n";
    EXPECT_EQ(Read(log).verdict(), "rdma") << provider;
  }
}

TEST(NcclLog, NetworkThatWasChosenBeforeTheFirstChannel) {
  const std::string socket = "n:1:2 [0] NCCL INFO Using network Socket\n",
                    ib = "m:1:2 [0] NCCL INFO Using network IB\n";
  EXPECT_EQ(Read(socket).verdict(), "socket");
  EXPECT_EQ(Read("start\n" + socket).first_offending_line, 2);
  EXPECT_EQ(Read(socket + ib).verdict(), "mixed");
  EXPECT_EQ(Read(ib).verdict(), "unknown");
  EXPECT_EQ(Read(R"({"log":"n:1:2 [0] NCCL INFO Using network Socket\n","stream":"stdout"})").verdict(), "socket");
  // On one node no channel leaves it, and in the end channels count.
  EXPECT_EQ(Read(socket + Channel("P2P/IPC")).verdict(), "unknown");
  EXPECT_EQ(Read(socket + Channel("P2P/IPC")).first_offending_line, 0);
  EXPECT_EQ(Read(socket + Channel("NET/IB/0/GDRDMA")).verdict(), "gdrdma");
  EXPECT_EQ(Read(socket + Channel("NET/IB/0/GDRDMA")).first_offending_line, 0);
  EXPECT_EQ(Read(socket + Channel("NET/Socket/0")).first_offending_line, 2);
}

TEST(NcclLog, NamesTheFirstOffendingLine) {
  const std::string log = "start\n" + Channel("NET/IB/0/GDRDMA") +
                          "\x1b[31m[1] NCCL INFO Channel 01 : 0[8000] -> 1[9000] via "
                          "NET/Socket/0\x1b[0m\r\n" +
                          Channel("NET/IB/0");
  const NcclLogReport whole = Read(log);
  EXPECT_EQ(whole.first_offending_line, 3);
  EXPECT_EQ(whole.first_offending_text, "[1] NCCL INFO Channel 01 : 0[8000] -> 1[9000] via NET/Socket/0");
  const NcclLogReport parts = Read(log, 1);
  EXPECT_EQ(parts.first_offending_text, whole.first_offending_text);
  EXPECT_EQ(parts.gdrdma + parts.rdma + parts.socket, 3);
}

TEST(NcclLog, OtherLinesDoNotCount) {
  EXPECT_EQ(Read("NCCL INFO Using network NET/Socket/0\nNCCL INFO Channel 00/08 : 0 1 2 3\n"
                 "our Channel goes via NET/Socket/0\nNCCL INFO NET/Socket : Using [0]eth0 via NET/Socket/0\n")
                .socket,
            0);
}

TEST(NcclLog, SeveralInOneLine) {
  const std::string one = "NCCL INFO Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0/GDRDMA";
  const NcclLogReport report =
      Read(one + "node:1:2 " + one + "NCCL INFO Channel 0NCCL INFO Channel 03 : 1 -> 2 via NET/Socket/0");
  EXPECT_EQ(report.gdrdma, 2);
  EXPECT_EQ(report.socket, 1);
  EXPECT_EQ(report.first_offending_line, 1);
}

TEST(NcclLog, HostileInput) {
  const NcclLogReport report = Read(std::string(3 << 20, 'x') + Channel("NET/Socket/0") +
                                    std::string("\0\xff via\n", 7) + "Channel 0 via \nChannel 0 via" +
                                    "\nChannel 1 via NET/IB/0(" + "\n\x1b[" + "\n\x1b\n" + Channel("NET/IB/0/GDRDMA"));
  EXPECT_EQ(report.socket, 0);  // behind the longest line that is kept
  EXPECT_EQ(report.gdrdma, 1);
  std::string channels;
  while (channels.size() < 100'000) channels += "Channel 0 via ";
  EXPECT_EQ(Read(channels).verdict(), "unknown");
}

}  // namespace
}  // namespace taskd::rdma
