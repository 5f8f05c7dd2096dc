// NCCL's log: the same report in whatever parts it comes, and one that agrees with itself.
#include <cstdio>
#include <cstdlib>

#include "agent/rdma/nccl_log.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t part = 1 + data[0];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  taskd::rdma::NcclLogClassifier whole, parts;
  whole.Add(text);
  for (size_t at = 0; at < text.size(); at += part) parts.Add(text.substr(at, part));
  const taskd::rdma::NcclLogReport report = whole.Finish();
  const taskd::rdma::NcclLogReport other = parts.Finish();
  FUZZ_CHECK(report.gdrdma == other.gdrdma && report.rdma == other.rdma && report.socket == other.socket &&
             report.intra == other.intra && report.first_offending_line == other.first_offending_line &&
             report.first_offending_text == other.first_offending_text && report.verdict() == other.verdict());
  const bool offended = report.rdma + report.socket > 0;
  FUZZ_CHECK(offended == (report.first_offending_line > 0));
  FUZZ_CHECK(offended || report.verdict() == (report.gdrdma > 0 ? "gdrdma" : "unknown"));
  FUZZ_CHECK(report.first_offending_text.size() <= text.size());
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  return {
      "\x10node0:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
      "node0:12:34 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/0\n"
      "node0:12:34 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [receive] via NET/Socket/0\r\n"
      "node0:12:34 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/IPC\n",
      "\x01\x1b[32mnode0 NCCL INFO Channel 00 : 0 -> 1 via SHM/direct\x1b[0mx NCCL INFO Channel 00 : 0 -> 8 via "
      "NET/IB/0/GDRDMA/Shared",
      "\x03"
      "Channel via Channel via NET/"};
}
