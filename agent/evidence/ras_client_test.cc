// The protocol against a server of one's own, that does as NCCL's does (src/ras/client_support.cc of NCCL 2.28), or not.
#include "agent/evidence/ras_client.h"

#include <sys/socket.h>

#include <string>
#include <thread>

#include "agent/evidence/testing/ras_server.h"
#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::evidence {
namespace {

using std::chrono::milliseconds;
using ::taskd::testing::FreePort;
using ::taskd::testing::Greet;
using ::taskd::testing::kHangLimit;
using ::taskd::testing::RasServer;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Ask(const RasServer& server, milliseconds timeout = kHangLimit,
                                const std::string& host = "127.0.0.1") {
  return AskRas({host, server.port()}, size_t{64} << 10, timeout);
}

// contract: NCCL 2.28, src/ras/client_support.cc, rasClientEventLoop: "client protocol" is answered with the server's,
// "timeout" and "set format" with OK, "status" with the state, and behind that the server closes (rasClientRun).
TEST(RasClient, AnswerIsWhatComesUntilTheServerCloses) {
  RasServer server([](RasServer& server) {
    Greet(server);
    server.Say("{\"communicators\": [");
    server.Say("]}\n");
  });
  EXPECT_EQ(*Ask(server), "{\"communicators\": []}\n");
  server.Join();
  EXPECT_THAT(server.lines(), ::testing::ElementsAre("CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "STATUS"));
}

// contract: src/ras/client.cc: the client reads in any case (strncasecmp), and goes on though the versions differ.
TEST(RasClient, AnotherVersionIsSpokenWith) {
  RasServer server([](RasServer& server) {
    server.Line();
    server.Say("server protocol 3\n");
    server.Line();
    server.Say("Ok\r\n");
    server.Line();
    server.Say("ok\n");
    server.Line();
    server.Say("{}");
  });
  EXPECT_EQ(*Ask(server), "{}");
}

// contract: rasClientEventLoop: a release that knows no formats calls the command unknown.
TEST(RasClient, ReleaseWithoutJson) {
  RasServer server([](RasServer& server) {
    server.Line();
    server.Say("SERVER PROTOCOL 2\n");
    server.Line();
    server.Say("OK\n");
    server.Line();
    server.Say("ERROR: Unknown command SET FORMAT json\n");
  });
  EXPECT_THAT(std::string(Ask(server).status().message()), HasSubstr("NCCL before 2.28.7 gives no JSON"));
}

// contract: rasClientInitSocket: NCCL_RAS_ADDR has the form that NCCL's addresses have; without it the port is 28028.
TEST(RasClient, AddressIsThatOfNccl) {
  EXPECT_EQ(FormatHostPort(*RasAddress({})), "localhost:28028");
  EXPECT_EQ(FormatHostPort(*RasAddress({{"NCCL_RAS_ADDR", "[::1]:4711"}, {"NCCL_RAS_ENABLE", "1"}})), "[::1]:4711");
  EXPECT_TRUE(absl::IsNotFound(RasAddress({{"NCCL_RAS_ENABLE", "0"}}).status()));
  EXPECT_THAT(std::string(RasAddress({{"NCCL_RAS_ADDR", "here"}}).status().message()), HasSubstr("NCCL_RAS_ADDR"));
}

TEST(RasClient, NobodyListens) {
  const int port = FreePort();
  EXPECT_TRUE(absl::IsNotFound(AskRas({"127.0.0.1", port}, 1000, kHangLimit).status()));
  EXPECT_TRUE(absl::IsNotFound(AskRas({"localhost", port}, 1000, kHangLimit).status()));
}

TEST(RasClient, LocalhostIsOfEitherFamily) {
  RasServer server(
      [](RasServer& server) {
        Greet(server);
        server.Say("{}");
      },
      AF_INET6);
  if (server.port() == 0) GTEST_SKIP() << "no IPv6 here";
  EXPECT_EQ(*Ask(server, kHangLimit, "localhost"), "{}");
}

TEST(RasClient, SomethingElseListens) {
  RasServer http([](RasServer& server) {
    server.Line();
    server.Say("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  EXPECT_THAT(std::string(Ask(http).status().message()), HasSubstr("no RAS"));
  RasServer binary([](RasServer& server) {
    const std::string noise(4096, '\xff');
    while (server.Say(noise)) {
    }
  });
  EXPECT_THAT(std::string(Ask(binary).status().message()), HasSubstr("no lines"));
  RasServer closes([](RasServer&) {});
  EXPECT_EQ(Ask(closes).status().code(), absl::StatusCode::kUnavailable);
  RasServer text([](RasServer& server) {
    Greet(server);
    server.Say("Job summary\n");
  });
  EXPECT_THAT(std::string(Ask(text).status().message()), HasSubstr("no JSON"));
  RasServer nothing([](RasServer& server) { Greet(server); });
  EXPECT_THAT(std::string(Ask(nothing).status().message()), HasSubstr("empty"));
}

TEST(RasClient, SilenceAndDripEndAtTheDeadline) {
  RasServer silent([](RasServer& server) {
    server.Line();
    server.Line();  // until the client has gone
  });
  EXPECT_THAT(std::string(Ask(silent, milliseconds(200)).status().message()), HasSubstr("in time"));
  RasServer drips([](RasServer& server) {
    Greet(server);
    while (server.Say(" ")) std::this_thread::sleep_for(milliseconds(1));  // what is put in
  });
  EXPECT_THAT(std::string(Ask(drips, milliseconds(500)).status().message()), HasSubstr("in time"));
}

TEST(RasClient, AnswerWithoutEndIsBounded) {
  RasServer endless([](RasServer& server) {
    Greet(server);
    const std::string more(4096, '{');
    while (server.Say(more)) {
    }
  });
  EXPECT_THAT(std::string(Ask(endless).status().message()), HasSubstr("longer than 64 KiB"));
}

}  // namespace
}  // namespace taskd::evidence
