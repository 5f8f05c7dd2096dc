#include "proto/stream_connection.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/test_http2_client.h"

namespace taskd::proto {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Serves = StreamConnection::Serves;

constexpr char kPath[] = "/test.Service/Connect";
const TestHttp2Client::Fields kOnly = {{kOnlyCall, "1"}};
const std::string kSettingsAck = Http2Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");

// What a call has seen, and what it has to say. Outlives it.
struct Log {
  std::vector<std::string> taken;
  std::vector<std::string> to_say;
  absl::Status answer;  // to the next message
  absl::Status end;     // instead of a next message
  bool is_over = false;
};

class LoggedCall final : public StreamCall {
 public:
  explicit LoggedCall(Log* log) : log_(*log) {}
  ~LoggedCall() override { log_.is_over = true; }
  absl::Status Take(std::string_view message) override {
    log_.taken.emplace_back(message);
    return log_.answer;
  }
  absl::Status Ended() override { return log_.end; }
  absl::StatusOr<bool> Next(std::string* message) override {
    if (!log_.end.ok()) return log_.end;
    if (log_.to_say.empty()) return false;
    *message = log_.to_say.front();
    log_.to_say.erase(log_.to_say.begin());
    return true;
  }

 private:
  Log& log_;
};

class StreamConnectionTest : public ::testing::Test {
 protected:
  // Passes bytes on until neither side has any. `part`: how many at a time.
  absl::Status Exchange(size_t part = SIZE_MAX) {
    for (bool moved = true; moved;) {
      std::string output;
      server.Output(1 << 16, output);
      for (size_t at = 0; at < output.size(); at += std::min(part, output.size() - at)) {
        client.Receive(std::string_view(output).substr(at, part));
      }
      const std::string bytes = client.Output();
      moved = !bytes.empty() || !output.empty();
      for (size_t at = 0; at < bytes.size(); at += std::min(part, bytes.size() - at)) {
        absl::Status received = server.Receive(std::string_view(bytes).substr(at, part));
        if (!received.ok()) return received;
      }
    }
    return absl::OkStatus();
  }
  int32_t Begin(const std::string& body = "") {
    const int32_t stream = client.Call(kPath, body, kOnly, "application/grpc", "POST", false);
    EXPECT_TRUE(Exchange().ok());
    EXPECT_EQ(server.serves(), Serves::kCall);
    return stream;
  }

  Log log;
  StreamConnection::HalfSaid half_said;
  StreamConnection server{
      [this](std::string_view path) { return path == kPath ? std::make_unique<LoggedCall>(&log) : nullptr; },
      &half_said};
  TestHttp2Client client;
};

TEST_F(StreamConnectionTest, MessagesGoBothWays) {
  const int32_t stream = Begin(GrpcMessage("first"));
  log.to_say = {"one", "two"};
  server.Ready();
  ASSERT_TRUE(Exchange().ok());
  client.Say(stream, GrpcMessage("second") + GrpcMessage(""));
  ASSERT_TRUE(Exchange().ok());
  EXPECT_THAT(log.taken, ElementsAre("first", "second", ""));
  EXPECT_THAT(client.answers[stream].messages(), ElementsAre("one", "two"));
  EXPECT_EQ(client.answers[stream].fields["content-type"], "application/grpc");
  EXPECT_TRUE(server.has_message());
  EXPECT_FALSE(server.over());

  client.Say(stream, "", true);
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(client.answers[stream].status(), "0");
  EXPECT_TRUE(log.is_over);
  EXPECT_TRUE(server.over());
}

TEST_F(StreamConnectionTest, CutAnywhere) {
  const std::string large(100'000, 'x');
  for (const size_t part : {1, 7, 1000}) {
    Log log;
    StreamConnection server([&](auto) { return std::make_unique<LoggedCall>(&log); }, &half_said);
    TestHttp2Client client;
    const int32_t stream =
        client.Call(kPath, GrpcMessage("small") + GrpcMessage(large), kOnly, "application/grpc", "POST", false);
    log.to_say = {large, "end"};
    for (int round = 0; round < 100; ++round) {
      std::string output;
      server.Output(1 << 16, output);
      for (size_t at = 0; at < output.size(); at += part) client.Receive(std::string_view(output).substr(at, part));
      const std::string bytes = client.Output();
      for (size_t at = 0; at < bytes.size(); at += part) {
        ASSERT_TRUE(server.Receive(std::string_view(bytes).substr(at, part)).ok());
      }
    }
    EXPECT_THAT(log.taken, ElementsAre("small", large)) << part;
    EXPECT_THAT(client.answers[stream].messages(), ElementsAre(large, "end")) << part;
  }
}

TEST_F(StreamConnectionTest, MoreThanAWindowGoesOn) {
  const int32_t stream = Begin();
  const std::string message = GrpcMessage(std::string(300'000, 'x'));
  for (int i = 0; i < 20; ++i) {
    client.Say(stream, message);
    ASSERT_TRUE(Exchange().ok());
  }
  EXPECT_EQ(log.taken.size(), 20u);
}

TEST_F(StreamConnectionTest, TheServerEndsTheCall) {
  const int32_t stream = Begin(GrpcMessage("first"));
  log.end = absl::AbortedError("100 % of it \xc3\xa9");
  server.Ready();
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(client.answers[stream].status(), "10");
  EXPECT_EQ(client.answers[stream].text(), "100 %25 of it %C3%A9");
  EXPECT_TRUE(client.answers[stream].closed);
  EXPECT_EQ(client.goaway, 0);
  EXPECT_TRUE(log.is_over);
  EXPECT_TRUE(server.over());
}

TEST_F(StreamConnectionTest, ARefusedMessageEndsTheCall) {
  log.answer = absl::InvalidArgumentError("no hello");
  const int32_t stream = Begin(GrpcMessage("first") + GrpcMessage("second"));
  EXPECT_THAT(log.taken, ElementsAre("first"));
  EXPECT_EQ(client.answers[stream].status(), "3");
  EXPECT_EQ(client.answers[stream].text(), "no hello");
  EXPECT_TRUE(server.over());
}

TEST_F(StreamConnectionTest, BadMessages) {
  struct Case {
    std::string body;
    std::string status, text;
  };
  for (const Case& bad : {Case{GrpcMessage("x", 1), "12", "compressed"},
                          Case{std::string("\0\0\x40\0\1", 5), "8", "a message of 4194305 bytes; at most 4194304"},
                          Case{std::string("\0\xff\xff\xff\xff", 5), "8", "a message of 4294967295 bytes"}}) {
    Log log;
    StreamConnection server([&](auto) { return std::make_unique<LoggedCall>(&log); }, &half_said);
    TestHttp2Client client;
    const int32_t stream = client.Call(kPath, bad.body, kOnly, "application/grpc", "POST", false);
    for (int round = 0; round < 3; ++round) {
      std::string output;
      server.Output(1 << 16, output);
      client.Receive(output);
      ASSERT_TRUE(server.Receive(client.Output()).ok());
    }
    EXPECT_EQ(client.answers[stream].status(), bad.status);
    EXPECT_THAT(client.answers[stream].text(), HasSubstr(bad.text));
    EXPECT_THAT(log.taken, IsEmpty());
    EXPECT_TRUE(log.is_over);
  }
}

TEST_F(StreamConnectionTest, TheEndInTheMiddleOfAMessage) {
  const int32_t stream = Begin(GrpcMessage("whole") + GrpcMessage("not whole").substr(0, 8));
  client.Say(stream, "", true);
  ASSERT_TRUE(Exchange().ok());
  EXPECT_THAT(log.taken, ElementsAre("whole"));
  EXPECT_EQ(client.answers[stream].status(), "3");
  EXPECT_THAT(client.answers[stream].text(), HasSubstr("in the middle of a message"));
}

TEST_F(StreamConnectionTest, WhatAllHaveHalfSaidIsBounded) {
  const int32_t stream = Begin(GrpcMessage("not whole").substr(0, 8));
  EXPECT_EQ(half_said.bytes, 8u);
  client.Say(stream, GrpcMessage("not whole").substr(8));
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(half_said.bytes, 0u);
  half_said.bytes = StreamConnection::HalfSaid::kMostBytes;
  client.Say(stream, GrpcMessage("whole") + GrpcMessage("not whole").substr(0, 8));
  ASSERT_TRUE(Exchange().ok());
  EXPECT_THAT(log.taken, ElementsAre("not whole", "whole"));
  EXPECT_EQ(client.answers[stream].status(), "8");
  EXPECT_EQ(half_said.bytes, StreamConnection::HalfSaid::kMostBytes) << "it is given back";
}

TEST_F(StreamConnectionTest, TheClientGivesUp) {
  const int32_t stream = Begin(GrpcMessage("first"));
  client.Cancel(stream);
  ASSERT_TRUE(Exchange().ok());
  EXPECT_TRUE(log.is_over);
  EXPECT_TRUE(server.over());
  server.Ready();
  server.Finish(absl::AbortedError("too late"));
}

TEST_F(StreamConnectionTest, AnotherCallOfTheConnectionIsRefused) {
  const int32_t stream = Begin(GrpcMessage("first"));
  const int32_t other = client.Call(kPath, GrpcMessage("other"), kOnly);
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(client.answers[other].error, static_cast<uint32_t>(NGHTTP2_REFUSED_STREAM));
  EXPECT_THAT(log.taken, ElementsAre("first"));
  EXPECT_FALSE(client.answers[stream].closed);
}

TEST_F(StreamConnectionTest, PingsAreAnswered) {
  Begin(GrpcMessage("first"));
  client.Ping();
  ASSERT_TRUE(Exchange().ok());
  EXPECT_EQ(client.pongs, 1);
}

TEST_F(StreamConnectionTest, BrokenHttp2EndsTheConnection) {
  Begin(GrpcMessage("first"));
  ASSERT_TRUE(server.Receive(Http2Frame(NGHTTP2_DATA, 0, 0, "of no stream")).ok());
  std::string output;
  server.Output(1 << 16, output);
  client.Receive(output);
  EXPECT_EQ(client.goaway, NGHTTP2_PROTOCOL_ERROR);
  EXPECT_TRUE(server.over());
}

TEST_F(StreamConnectionTest, WhatIsNoHttp2IsSaid) {
  EXPECT_THAT(std::string(server.Receive("GET / HTTP/1.1\r\n\r\nand more than a preface").message()),
              HasSubstr("broken HTTP/2"));
}

// What goes to another server: as it came, but for the acknowledgement of what this side has said.
class OtherServerTest : public StreamConnectionTest {
 protected:
  // What that server sees of `bytes`, which are received in parts.
  std::string Passed(const std::string& bytes, size_t part) {
    StreamConnection server(
        [this](std::string_view path) { return path == kPath ? std::make_unique<LoggedCall>(&log) : nullptr; },
        &half_said);
    SettingsAck ack;
    std::string passed;
    bool is_passed = false;
    for (size_t at = 0; at < bytes.size(); at += part) {
      const std::string_view some = std::string_view(bytes).substr(at, part);
      if (is_passed) {
        ack.Pass(some, passed);
        continue;
      }
      EXPECT_TRUE(server.Receive(some).ok());
      is_passed = server.serves() == Serves::kNothing;
      if (is_passed) ack.Pass(server.TakeReceived(), passed);
    }
    EXPECT_TRUE(is_passed);
    std::string output;
    server.Output(1 << 16, output);
    EXPECT_EQ(output, Http2Frame(NGHTTP2_SETTINGS, 0, 0, "")) << "and nothing besides";
    return passed;
  }
  const std::string begin = std::string(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN) +
                            Http2Frame(NGHTTP2_SETTINGS, 0, 0, std::string("\0\4\0\1\0\0", 6)) +
                            Http2Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\1\0\0", 4));
};

TEST_F(OtherServerTest, GetsAllButTheFirstAcknowledgement) {
  const std::string head = Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead("/other/Call"));
  const std::string unsaid = Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, GrpcHead(kPath));
  const std::string data = Http2Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, GrpcMessage("x"));
  const std::string ping = Http2Frame(NGHTTP2_PING, 0, 0, "12345678");
  for (const size_t part : {size_t{1}, size_t{5}, size_t{1000}}) {
    using absl::StrCat;
    // It may come before the call or behind it.
    EXPECT_EQ(Passed(StrCat(begin, kSettingsAck, head, data, kSettingsAck), part),
              StrCat(begin, head, data, kSettingsAck));
    EXPECT_EQ(Passed(StrCat(begin, head, kSettingsAck, data), part), StrCat(begin, head, data));
    EXPECT_EQ(Passed(StrCat(begin, kSettingsAck, unsaid, data), part), StrCat(begin, unsaid, data))
        << "the only call of its connection has to say so";
    EXPECT_EQ(Passed(StrCat(begin, kSettingsAck, ping), part), StrCat(begin, ping)) << "somebody has to answer it";
  }
  EXPECT_THAT(log.taken, IsEmpty());
}

TEST_F(OtherServerTest, GetsWhatBeginsWithTooMuch) {
  std::string much = begin;
  while (much.size() <= StreamConnection::kMostBytesBeforeCall) {
    much += Http2Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, std::string("\0\0\0\1", 4));
  }
  EXPECT_EQ(Passed(much, 1000), much);
}

}  // namespace
}  // namespace taskd::proto
