#include "proto/call_frames.h"

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
using ::testing::IsEmpty;

constexpr int32_t kStream = 1;

std::string Number(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}
std::string Window(uint32_t stream, uint32_t more) {
  return Http2Frame(NGHTTP2_WINDOW_UPDATE, 0, stream, Number(more));
}
std::string Setting(uint16_t id, uint32_t value) {
  return Http2Frame(NGHTTP2_SETTINGS, 0, 0, std::string({0, static_cast<char>(id)}) + Number(value));
}
std::string DataFrame(std::string_view bytes, uint8_t flags = 0, uint32_t stream = kStream) {
  return Http2Frame(NGHTTP2_DATA, flags, stream, bytes);
}
std::string Goaway(uint32_t error) { return Http2Frame(NGHTTP2_GOAWAY, 0, 0, Number(kStream) + Number(error)); }

const std::string kSettingsAck = Http2Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "");

class CallFramesTest : public ::testing::Test, protected CallFrames::Sink {
 protected:
  void Data(std::string_view bytes) override { data += bytes; }
  void Ended() override { happened.emplace_back("ended"); }
  void GivenUp() override { happened.emplace_back("given up"); }
  // What it answers to a client's bytes that break the rules.
  std::string Broken(std::string_view bytes) {
    CallFrames broken(terms, this);
    broken.Receive(bytes);
    EXPECT_TRUE(broken.broken());
    std::string said = broken.TakeWaiting();
    broken.Receive(bytes);
    EXPECT_FALSE(broken.is_waiting()) << "that was the last";
    return said;
  }

  const CallFrames::Terms terms = {kStream, 1000, 500, 500, 2000};
  std::string data;
  std::vector<std::string> happened;
  CallFrames frames{terms, this};
};

TEST_F(CallFramesTest, DataComesWithoutItsPaddingHoweverItIsCut) {
  const std::string bytes = absl::StrCat(
      DataFrame("one"), DataFrame(std::string("\3two\0\0\0", 7), NGHTTP2_FLAG_PADDED),
      DataFrame(std::string("\2\0\0", 3), NGHTTP2_FLAG_PADDED), DataFrame(""), DataFrame("of another", 0, 3),
      Http2Frame(NGHTTP2_PRIORITY, 0, 5, "12345"), Http2Frame(0x77, 0xff, 9, "unknown"),
      DataFrame("end", NGHTTP2_FLAG_END_STREAM), DataFrame("too late"));
  for (const size_t part : {size_t{1}, size_t{2}, size_t{5}, bytes.size()}) {
    data.clear();
    happened.clear();
    CallFrames frames(terms, this);
    for (size_t at = 0; at < bytes.size(); at += part) frames.Receive(std::string_view(bytes).substr(at, part));
    EXPECT_EQ(data, "onetwoend") << part;
    EXPECT_THAT(happened, ElementsAre("ended"));
    EXPECT_FALSE(frames.broken());
    EXPECT_FALSE(frames.is_waiting());
  }
}

TEST_F(CallFramesTest, TrailersEndTheClientsSide) {
  frames.Receive(Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, kStream, "any"));
  EXPECT_THAT(happened, ElementsAre("ended"));
}

TEST_F(CallFramesTest, WhoGivesUpHearsAndSaysNothing) {
  frames.Receive(Http2Frame(NGHTTP2_RST_STREAM, 0, 3, Number(NGHTTP2_CANCEL)));
  EXPECT_THAT(happened, IsEmpty());
  const std::string given_up = Http2Frame(NGHTTP2_RST_STREAM, 0, kStream, Number(NGHTTP2_CANCEL));
  frames.Receive(given_up + given_up + DataFrame("x", NGHTTP2_FLAG_END_STREAM));
  EXPECT_THAT(happened, ElementsAre("given up"));
  EXPECT_EQ(data, "");
}

TEST_F(CallFramesTest, OtherCallsAreRefused) {
  frames.Receive(Http2Frame(NGHTTP2_HEADERS, 0, 3, "a block") +
                 Http2Frame(NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, 3, "that goes on"));
  EXPECT_EQ(frames.TakeWaiting(), Http2Frame(NGHTTP2_RST_STREAM, 0, 3, Number(NGHTTP2_REFUSED_STREAM)));
}

TEST_F(CallFramesTest, WhatIsSentTakesFromBothWindows) {
  EXPECT_EQ(frames.room(), 500u);
  frames.Send(std::string(400, 'x'));
  EXPECT_EQ(frames.TakeWaiting(), DataFrame(std::string(400, 'x')));
  EXPECT_EQ(frames.room(), 100u);
  frames.Receive(Window(kStream, 1000) + Window(3, 7));
  EXPECT_EQ(frames.room(), 600u) << "of the connection";
  frames.Receive(Window(0, 100'000));
  EXPECT_EQ(frames.room(), 1100u);
  // It may grant less than it has had already.
  frames.Receive(Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0) + Setting(99, 1));
  EXPECT_EQ(frames.TakeWaiting(), kSettingsAck + kSettingsAck);
  EXPECT_EQ(frames.room(), 600u);
  frames.Send(std::string(600, 'x'));
  EXPECT_EQ(frames.room(), 0u);
  frames.Receive(Window(kStream, 700) + Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0));
  EXPECT_EQ(frames.room(), 700u);
  frames.Send(std::string(700, 'x'));
  frames.Receive(Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 50'000));
  EXPECT_EQ(frames.room(), 16384u) << "of one frame";
}

TEST_F(CallFramesTest, WindowsBelowNothingAreNoRoom) {
  frames.Send(std::string(500, 'x'));
  frames.Receive(Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0));
  EXPECT_EQ(frames.room(), 0u);
  frames.Receive(Window(kStream, 499));
  EXPECT_EQ(frames.room(), 0u);
  frames.Receive(Window(kStream, 2));
  EXPECT_EQ(frames.room(), 1u);
}

TEST_F(CallFramesTest, WhatCameIsGrantedAgain) {
  frames.Receive(DataFrame(std::string(600, 'x')));
  EXPECT_FALSE(frames.is_waiting());
  frames.Receive(DataFrame(std::string(300, 'x'), 0, 3));
  EXPECT_FALSE(frames.is_waiting());
  frames.Receive(DataFrame(std::string(100, '\0'), NGHTTP2_FLAG_PADDED));
  EXPECT_EQ(frames.TakeWaiting(), Window(0, 1000)) << "on the connection, padding and all";
  frames.Receive(DataFrame(std::string(300, 'x')));
  EXPECT_EQ(frames.TakeWaiting(), Window(kStream, 1000));
}

TEST_F(CallFramesTest, PingsAndSettingsAreAcknowledgedButNotTheirAcknowledgements) {
  frames.Receive(Http2Frame(NGHTTP2_PING, 0, 0, "12345678") +
                 Http2Frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "87654321") + kSettingsAck +
                 Http2Frame(NGHTTP2_SETTINGS, 0, 0, "") + Goaway(0));
  EXPECT_EQ(frames.TakeWaiting(), Http2Frame(NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "12345678") + kSettingsAck);
  EXPECT_FALSE(frames.broken());
}

TEST_F(CallFramesTest, TheEndIsSaid) {
  const std::string text(300, 't');
  frames.Receive(DataFrame("", NGHTTP2_FLAG_END_STREAM));
  frames.End({{"grpc-status", "3"}, {"grpc-message", text}});
  // 300 is 127 and 173: RFC 7541 §5.1.
  const std::string block =
      absl::StrCat(HpackLiteral("grpc-status", "3"), std::string("\0\x0cgrpc-message\x7f\xad\x01", 17), text);
  EXPECT_EQ(
      frames.TakeWaiting(),
      Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, kStream, block) + Goaway(0));
}

TEST_F(CallFramesTest, TheEndBeforeTheClientsCutsItOff) {
  frames.End({{"grpc-status", "0"}});
  EXPECT_EQ(frames.TakeWaiting(), Http2Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM,
                                             kStream, HpackLiteral("grpc-status", "0")) +
                                      Http2Frame(NGHTTP2_RST_STREAM, 0, kStream, Number(NGHTTP2_NO_ERROR)) + Goaway(0));
}

TEST_F(CallFramesTest, WhoBreaksTheRulesHearsWhich) {
  EXPECT_EQ(Broken(DataFrame("of no stream", 0, 0)), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_HEADERS, 0, 0, "")), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_RST_STREAM, 0, 0, Number(0))), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_RST_STREAM, 0, 1, "no")), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_PUSH_PROMISE, 0, 1, "any")), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_SETTINGS, 0, 1, "")), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_SETTINGS, 0, 0, "12345")), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, "123456")), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_EQ(Broken(Setting(NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1U << 31)), Goaway(NGHTTP2_FLOW_CONTROL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_PING, 0, 0, "short")), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_PING, 0, 1, "12345678")), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Http2Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, "no")), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_EQ(Broken(Window(0, 0)), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(Window(0, INT32_MAX)), Goaway(NGHTTP2_FLOW_CONTROL_ERROR));
  EXPECT_EQ(Broken(DataFrame("", NGHTTP2_FLAG_PADDED)), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(DataFrame("\3xx", NGHTTP2_FLAG_PADDED)), Goaway(NGHTTP2_PROTOCOL_ERROR));
  EXPECT_EQ(Broken(DataFrame(std::string(16385, 'x'))), Goaway(NGHTTP2_FRAME_SIZE_ERROR));
  EXPECT_THAT(happened, IsEmpty());
  EXPECT_EQ(data, "");
}

TEST_F(CallFramesTest, WhoAsksForMoreThanHeReadsIsCutOff) {
  std::string pings;
  while (pings.size() <= 2 * CallFrames::kMostWaiting) pings += Http2Frame(NGHTTP2_PING, 0, 0, "12345678");
  const std::string said = Broken(pings);
  EXPECT_LT(said.size(), CallFrames::kMostWaiting + 100);
  EXPECT_EQ(said.substr(said.size() - 17), Goaway(NGHTTP2_ENHANCE_YOUR_CALM));
}

}  // namespace
}  // namespace taskd::proto
