#include "proto/plain_connection.h"

#include <algorithm>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/test_http2_client.h"

namespace taskd::proto {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr std::string_view kEcho = "/test.Service/Echo";    // answers at once
constexpr std::string_view kWatch = "/test.Service/Watch";  // does not
const std::string kMagic(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
const std::string kEmptySettings = Http2Frame(NGHTTP2_SETTINGS, 0, 0, "");
const std::string kSettingsAck = Http2Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");

class PlainConnectionTest : public ::testing::Test, public PlainConnection::Calls {
 protected:
  absl::Status Check(std::string_view path) override {
    return path == kEcho || path == kWatch ? absl::OkStatus() : absl::UnauthenticatedError("100 % secret\n\xc3\xa9");
  }
  void Begin(int32_t stream, const std::string& path, std::string message) override {
    running.push_back(stream);
    if (path != kEcho) return;
    server->Write(stream, message, now_ns);
    server->Finish(stream, absl::OkStatus());
  }
  void Over(int32_t stream) override {
    EXPECT_EQ(std::erase(running, stream), 1u) << stream;
    over.push_back(stream);
  }

  // Passes bytes on until neither side has any. `part`: how many at a time.
  void Exchange(size_t part = SIZE_MAX) {
    for (bool moved = true; moved;) {
      std::string bytes = client.Output();
      moved = !bytes.empty();
      for (size_t at = 0; at < bytes.size(); at += std::min(part, bytes.size() - at)) {
        server->Receive(std::string_view(bytes).substr(at, part), now_ns);
      }
      for (std::string_view output = server->Output(); !output.empty(); output = server->Output()) {
        moved = true;
        const size_t size = std::min(part, output.size());
        client.Receive(output.substr(0, size));
        server->Sent(size, now_ns);
      }
    }
  }
  // A client that writes its own frames: they get in, and what comes out of it. Until it is closed.
  std::string Say(const std::string& bytes) {
    if (!bytes.empty()) server->Receive(bytes, now_ns);
    std::string all;
    for (std::string_view output = server->Output(); !output.empty(); output = server->Output()) {
      all += output;
      server->Sent(output.size(), now_ns);
    }
    return all;
  }
  void Pass(int64_t ms) {
    const int64_t end_ns = now_ns + ms * kMs;
    while (server->due_ns() <= end_ns) {
      now_ns = std::max(now_ns, server->due_ns());
      server->Tick(now_ns);
      Exchange();
      if (server->closed()) break;
    }
    now_ns = end_ns;
  }

  int64_t now_ns = 1'000 * kMs;
  std::optional<PlainConnection> server{std::in_place, this, now_ns};
  TestHttp2Client client;
  std::vector<int32_t> running, over;
};

TEST_F(PlainConnectionTest, AnswersACall) {
  const int32_t stream = client.Call(std::string(kEcho), GrpcMessage("hello"));
  Exchange();
  const auto& answer = client.answers[stream];
  EXPECT_EQ(answer.fields.at(":status"), "200");
  EXPECT_EQ(answer.fields.at("content-type"), "application/grpc");
  EXPECT_THAT(answer.messages(), ElementsAre("hello"));
  EXPECT_EQ(answer.status(), "0");
  EXPECT_FALSE(answer.fields.contains("grpc-message"));
  EXPECT_TRUE(answer.closed);
  EXPECT_EQ(answer.error, 0u);
  EXPECT_THAT(over, ElementsAre(stream));
  EXPECT_FALSE(server->closed());
}

TEST_F(PlainConnectionTest, AnswersWhateverThePartsTheBytesComeIn) {
  const int32_t first = client.Call(std::string(kEcho), GrpcMessage("one")),
                second = client.Call(std::string(kEcho), GrpcMessage(std::string(8000, 'x')));
  Exchange(1);
  EXPECT_THAT(client.answers[first].messages(), ElementsAre("one"));
  EXPECT_THAT(client.answers[second].messages(), ElementsAre(std::string(8000, 'x')));
  EXPECT_EQ(client.answers[second].status(), "0");
}

TEST_F(PlainConnectionTest, AnswersOneCallAfterAnotherForAsLongAsTheClientLikes) {
  for (int i = 0; i < 3000; ++i) {
    const int32_t stream = client.Call(std::string(kEcho), GrpcMessage("x"));
    client.Ping();
    Exchange();
    ASSERT_EQ(client.answers[stream].status(), "0") << i << " " << server->why_closed();
  }
  EXPECT_FALSE(server->closed());
}

TEST_F(PlainConnectionTest, OtherPathsGetTheirStatusInPercentEncoding) {
  const int32_t stream = client.Call("/other.Service/Method", GrpcMessage("hello"));
  Exchange();
  const auto& answer = client.answers[stream];
  EXPECT_EQ(answer.status(), "16");
  EXPECT_EQ(answer.text(), "100 %25 secret%0A%C3%A9");
  EXPECT_THAT(answer.messages(), IsEmpty());
  EXPECT_TRUE(answer.closed);
  EXPECT_EQ(answer.error, static_cast<uint32_t>(NGHTTP2_NO_ERROR));
  EXPECT_THAT(over, IsEmpty());
}

TEST_F(PlainConnectionTest, WhatIsNoCallOfGrpcs) {
  auto status = [&](const std::string& type, const std::string& method) {
    const int32_t stream = client.Call(std::string(kEcho), "", {}, type, method);
    Exchange();
    return client.answers[stream].fields[":status"];
  };
  EXPECT_EQ(status("text/html", "POST"), "415");
  EXPECT_EQ(status("application/grpcx", "POST"), "415");
  EXPECT_EQ(status("application/grpc", "PUT"), "405");
  EXPECT_EQ(status("application/grpc+proto", "POST"), "200");
  auto code = [&](const std::string& body, const TestHttp2Client::Fields& more = {}) {
    const int32_t stream = client.Call(std::string(kEcho), body, more);
    Exchange();
    return client.answers[stream].status();
  };
  EXPECT_EQ(code(GrpcMessage("x", 1), {{"grpc-encoding", "gzip"}}), "12") << "compressed";
  EXPECT_EQ(code(""), "3");
  EXPECT_EQ(code(GrpcMessage("x") + GrpcMessage("y")), "3");
  EXPECT_EQ(code(GrpcMessage("x", 2)), "3");
  EXPECT_EQ(code(std::string("\0\xff\xff\xff\xff", 5)), "3");
  EXPECT_EQ(code(GrpcMessage("x"), {{"grpc-timeout", "1 year"}}), "3");
  EXPECT_EQ(code(GrpcMessage(std::string(kPlainMessageBytes, 'x'))), "0");
  EXPECT_EQ(code(GrpcMessage(std::string(kPlainMessageBytes + 1, 'x'))), "8");
  EXPECT_EQ(code(GrpcMessage("x")), "0") << "and the connection goes on";
}

TEST_F(PlainConnectionTest, AStreamsMessagesComeInOrderUntilItsStatus) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  EXPECT_THAT(running, ElementsAre(stream));
  for (const char* message : {"1", "2", ""}) {
    server->Write(stream, message, now_ns);
    Exchange();
  }
  server->Write(stream, "4", now_ns);
  server->Finish(stream, absl::UnavailableError("over"));
  server->Write(stream, "late", now_ns);
  server->Finish(stream, absl::OkStatus());
  EXPECT_THAT(over, IsEmpty());
  Exchange();
  EXPECT_THAT(client.answers[stream].messages(), ElementsAre("1", "2", "", "4"));
  EXPECT_EQ(client.answers[stream].status(), "14");
  EXPECT_THAT(over, ElementsAre(stream));
}

TEST_F(PlainConnectionTest, BigAnswersWaitForTheClientsWindow) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  std::vector<std::string> sent;
  for (int i = 0; i < 40; ++i) {
    sent.emplace_back(10'000, static_cast<char>('a' + i % 26));
    server->Write(stream, sent.back(), now_ns);
    Exchange();
  }
  EXPECT_EQ(client.answers[stream].messages(), sent);
}

TEST_F(PlainConnectionTest, TheClientGivesUp) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  client.Cancel(stream);
  Exchange();
  EXPECT_THAT(over, ElementsAre(stream));
  server->Write(stream, "late", now_ns);
  Exchange();
  EXPECT_FALSE(server->closed());
}

TEST_F(PlainConnectionTest, ADeadlineEndsTheCall) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""), {{"grpc-timeout", "1500m"}});
  Exchange();
  Pass(1499);
  EXPECT_THAT(over, IsEmpty());
  Pass(1);
  EXPECT_EQ(client.answers[stream].status(), "4");
  EXPECT_THAT(over, ElementsAre(stream));
}

TEST_F(PlainConnectionTest, ARequestThatDoesNotEndIsEnded) {
  const int32_t stream =
      client.Call(std::string(kEcho), GrpcMessage("x").substr(0, 3), {}, "application/grpc", "POST", false);
  Exchange();
  Pass(kPlainRequestMs - 1);
  EXPECT_EQ(client.answers[stream].status(), "");
  Pass(1);
  EXPECT_EQ(client.answers[stream].status(), "4");
  EXPECT_TRUE(client.answers[stream].closed);
  EXPECT_THAT(over, IsEmpty()) << "it was never begun";
}

TEST_F(PlainConnectionTest, WhoWatchesStaysAndWhoIdlesGoes) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  server->Write(stream, "state", now_ns);
  Exchange();
  Pass(3'600'000);
  EXPECT_FALSE(server->closed());
  EXPECT_EQ(client.pings, 360) << "keepalive, which it answers";
  client.Cancel(stream);
  Exchange();
  Pass(kPlainIdleMs - 1);
  EXPECT_EQ(client.goaway, -1);
  Pass(1);
  EXPECT_EQ(client.goaway, NGHTTP2_NO_ERROR);
  EXPECT_FALSE(server->closed()) << "the client may close first";
  Pass(kPlainLingerMs);
  EXPECT_TRUE(server->closed());
}

TEST_F(PlainConnectionTest, AClientThatIsGoneSilentlyIsClosed) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  server->Write(stream, "state", now_ns);
  Exchange();
  now_ns += kPlainKeepaliveMs * kMs;
  server->Tick(now_ns);
  EXPECT_EQ(Say("").size(), 17u) << "a PING";
  now_ns += kPlainKeepaliveMs * kMs;
  server->Tick(now_ns);
  EXPECT_TRUE(server->closed());
}

TEST_F(PlainConnectionTest, WhoNeverAcknowledgesSettingsIsServedForATime) {
  Say(kMagic + kEmptySettings);
  const std::string call = Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kEcho)) +
                           Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, GrpcMessage("hello"));
  EXPECT_NE(Say(call).find("hello"), std::string::npos);
  now_ns += kPlainSettleMs * kMs;
  server->Tick(now_ns);
  EXPECT_TRUE(server->closed());
}

TEST_F(PlainConnectionTest, NoMoreThanEightCallsAtATime) {
  std::vector<int32_t> streams;
  for (size_t i = 0; i < kPlainStreams + 4; ++i) streams.push_back(client.Call(std::string(kWatch), GrpcMessage("")));
  const std::string opening = client.Output();  // before it has our SETTINGS
  server->Receive(opening, now_ns);
  Exchange();
  EXPECT_EQ(running.size(), kPlainStreams);
  EXPECT_FALSE(server->closed());
  size_t refused = 0;
  for (const int32_t stream : streams) {
    refused += client.answers[stream].closed && client.answers[stream].error == NGHTTP2_REFUSED_STREAM;
  }
  EXPECT_EQ(refused, 4u);
}

TEST_F(PlainConnectionTest, AnAnswerThatIsNotTakenIsBounded) {
  TestHttp2Client slow(0);
  const int32_t stream = slow.Call(std::string(kWatch), GrpcMessage(""));
  slow.Receive(Say(slow.Output()));
  Say(slow.Output());
  const size_t before = server->held_bytes();
  for (int i = 0; i < 100'000; ++i) server->Write(stream, std::string(50, 'x'), now_ns);
  EXPECT_LT(server->held_bytes(), before + kPlainUnsentBytes + 4096);
  slow.Receive(Say(""));
  EXPECT_EQ(slow.answers[stream].error, static_cast<uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_THAT(over, ElementsAre(stream));
}

TEST_F(PlainConnectionTest, AClientThatTakesNothingIsClosed) {
  const std::string call = Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kWatch)) +
                           Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, GrpcMessage(""));
  Say(kMagic + Http2Frame(NGHTTP2_SETTINGS, 0, 0, std::string("\0\4\0\0\0\0", 6)) + kSettingsAck + call);
  server->Write(1, "state", now_ns);
  for (int i = 0; i < 30 && !server->closed(); ++i) {
    now_ns += 1'000 * kMs;
    server->Tick(now_ns);
    Say(Http2Frame(NGHTTP2_PING, 0, 0, "12345678"));  // it is alive all the time
  }
  EXPECT_TRUE(server->closed());
  EXPECT_STREQ(server->why_closed(), "it does not read");
}

bool HasGoaway(std::string_view output) {
  while (output.size() >= 9) {
    if (output[3] == NGHTTP2_GOAWAY) return true;
    const size_t size = size_t{static_cast<unsigned char>(output[1])} << 8 | static_cast<unsigned char>(output[2]);
    output.remove_prefix(std::min(9 + size, output.size()));
  }
  return false;
}

// What comes after the preface and closes the connection, without taking memory.
struct Attack {
  const char* name;
  std::string first;
  std::string repeated;
  size_t times = 2'000;  // at most, until it is closed
};

class PlainAttackTest : public PlainConnectionTest, public ::testing::WithParamInterface<Attack> {};

std::string ManyFields(int count) {
  std::string block;
  for (int i = 0; i < count; ++i) block += std::string("\x40\0\0", 3);  // empty name and value
  return block;
}

INSTANTIATE_TEST_SUITE_P(
    All, PlainAttackTest,
    ::testing::Values(
        Attack{"Settings", "", Http2Frame(NGHTTP2_SETTINGS, 0, 0, "")},
        Attack{"SettingsOfTables", "",
               Http2Frame(NGHTTP2_SETTINGS, 0, 0, std::string("\0\1\0\0\0\0\0\1\0\xff\0\0", 12))},
        Attack{"Ping", "", Http2Frame(NGHTTP2_PING, 0, 0, "12345678")},
        Attack{"PingAck", "", Http2Frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "12345678")},
        Attack{"WindowUpdate", "", Http2Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\0\0\1", 4))},
        Attack{"Priority", "", Http2Frame(NGHTTP2_PRIORITY, 0, 7, std::string("\0\0\0\1\1", 5))},
        Attack{"Unknown", "", Http2Frame(77, 0, 0, std::string(10'000, 'x'))},
        Attack{"EmptyData", Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kWatch)),
               Http2Frame(NGHTTP2_DATA, 0, 1, "")},
        Attack{"PaddedData", Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kWatch)),
               Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, std::string("\3\0\0\0", 4))},
        Attack{"Continuations", Http2Frame(NGHTTP2_HEADERS, 0, 1, GrpcHead(kWatch)),
               Http2Frame(NGHTTP2_CONTINUATION, 0, 1, "")},
        Attack{"LongString",
               Http2Frame(NGHTTP2_HEADERS, 0, 1, GrpcHead(kWatch) + std::string("\0\1x\x7f\xff\xff\xff\3", 8)),
               Http2Frame(NGHTTP2_CONTINUATION, 0, 1, std::string(4'000, 'x'))},
        Attack{"LongStringInOneFrame", "",
               Http2Frame(NGHTTP2_HEADERS, 0, 1, std::string("\0\1x\x7f\xff\xff\xff\3", 8) + std::string(17'000, 'x'))},
        Attack{"EmptyFields", "",
               Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kWatch) + ManyFields(3'500)), 1},
        // A field of 4,000 bytes, put into the table once and then named by one byte.
        Attack{"TableBomb", "",
               Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1,
                          GrpcHead(kWatch) + std::string("\x40\1x\x7f\xa1\x1e", 6) + std::string(4'000, 'y') +
                              std::string(10'000, '\xbe')),
               1},
        Attack{"NotHttp2", "", "POST / HTTP/1.1\r\n"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlainAttackTest, IsClosedBeforeItTakesMuch) {
  std::string output = Say(kMagic + kEmptySettings + kSettingsAck + GetParam().first);
  const size_t before = server->held_bytes();
  size_t times = 0;
  while (!server->closed() && times < GetParam().times) {
    // Not read by the client, which is worse.
    server->Receive(GetParam().repeated, now_ns);
    ASSERT_LT(server->held_bytes(), before + kPlainParserBytes);
    ++times;
  }
  EXPECT_TRUE(server->closed());
  output += server->Output();
  EXPECT_TRUE(HasGoaway(output));
}

TEST_F(PlainConnectionTest, CallsThatAreGivenUpAtOnceUseUpTheBudget) {
  Say(kMagic + kEmptySettings + kSettingsAck);
  uint32_t stream = 1;
  for (; !server->closed() && stream < 4'000; stream += 2) {
    Say(Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, stream, GrpcHead(kWatch)) +
        Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, stream, GrpcMessage("")) +
        Http2Frame(NGHTTP2_RST_STREAM, 0, stream, std::string("\0\0\0\x8", 4)));
  }
  EXPECT_TRUE(server->closed());
  EXPECT_THAT(running, IsEmpty());
}

TEST_F(PlainConnectionTest, TheBudgetForFramesGrowsWithTime) {
  Say(kMagic + kEmptySettings + kSettingsAck);
  for (int second = 0; second < 100; ++second) {
    for (int64_t i = 0; i < kPlainFramesPerSecond; ++i) Say(Http2Frame(NGHTTP2_PING, 0, 0, "12345678"));
    now_ns += 1'000 * kMs;
  }
  EXPECT_FALSE(server->closed());
}

TEST_F(PlainConnectionTest, ShutEndsCallsAndTakesNoMore) {
  const int32_t stream = client.Call(std::string(kWatch), GrpcMessage(""));
  Exchange();
  server->Shut(absl::UnavailableError("ending"), now_ns);
  Exchange();
  EXPECT_EQ(client.answers[stream].status(), "14");
  EXPECT_EQ(client.goaway, NGHTTP2_NO_ERROR);
  Say(Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 77, GrpcHead(kWatch)) +
      Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 77, GrpcMessage("")));
  EXPECT_THAT(running, IsEmpty());
}

TEST_F(PlainConnectionTest, WhatAConnectionHolds) {
  Say(kMagic + kEmptySettings + kSettingsAck);
  EXPECT_LT(server->held_bytes(), size_t{40} << 10) << "a thousand of them are 40 MiB";
}

TEST(PlainTextTest, GrpcTimeouts) {
  EXPECT_EQ(ParseGrpcTimeout("1n"), 1);
  EXPECT_EQ(ParseGrpcTimeout("20u"), 20'000);
  EXPECT_EQ(ParseGrpcTimeout("300m"), 300 * kMs);
  EXPECT_EQ(ParseGrpcTimeout("4S"), 4'000 * kMs);
  EXPECT_EQ(ParseGrpcTimeout("5M"), 300'000 * kMs);
  EXPECT_EQ(ParseGrpcTimeout("2H"), 7'200'000 * kMs);
  EXPECT_EQ(ParseGrpcTimeout("99999999H"), int64_t{10} * 365 * 24 * 3600 * 1000 * kMs);
  for (const char* bad : {"", "1", "m", "-1m", "1.5S", "123456789m", "1x", " 1m"}) {
    EXPECT_EQ(ParseGrpcTimeout(bad), -1) << bad;
  }
}

}  // namespace
}  // namespace taskd::proto
