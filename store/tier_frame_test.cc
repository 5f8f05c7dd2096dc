#include "store/tier_frame.h"

#include <string>

#include "common/frame_buffer.h"
#include "gtest/gtest.h"

namespace taskd::store {
namespace {

TierFrame Example() {
  TierFrame frame;
  frame.type = TierFrame::Type::kReply;
  frame.op = StoreOp::kMultiGet;
  frame.of_this_try = true;
  frame.id = 7;
  frame.processed = 1ull << 40;
  frame.number = -3;
  frame.keys = {"", std::string("a\0b", 3)};
  frame.values = {std::string(100000, 'x')};
  frame.states = {kPresent | kCopy, 0};
  return frame;
}

TEST(TierFrame, ComesBackAsItWasHoweverItIsCut) {
  std::string bytes;
  AppendFrame(Example(), bytes);
  AppendFrame(Example(), bytes);
  for (size_t piece : {size_t{1}, size_t{5}, size_t{65536}, bytes.size()}) {
    FrameBuffer buffer(kMaxFrameBytes);
    int frames = 0;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      buffer.Append(std::string_view(bytes).substr(at, piece));
      std::string_view body;
      while (buffer.Next(body).value()) {
        TierFrame frame = ParseFrame(body).value();
        const TierFrame expected = Example();
        EXPECT_EQ(frame.type, expected.type);
        EXPECT_EQ(frame.op, expected.op);
        EXPECT_EQ(frame.of_this_try, expected.of_this_try);
        EXPECT_EQ(frame.id, expected.id);
        EXPECT_EQ(frame.processed, expected.processed);
        EXPECT_EQ(frame.number, expected.number);
        EXPECT_EQ(frame.keys, expected.keys);
        EXPECT_EQ(frame.values, expected.values);
        EXPECT_EQ(frame.states, expected.states);
        ++frames;
      }
    }
    EXPECT_EQ(frames, 2);
    EXPECT_EQ(buffer.size(), 0u);
  }
}

TEST(TierFrame, EveryCutAndEveryUnknownTypeIsRefused) {
  TierFrame frame = Example();
  frame.values = {"v"};
  std::string bytes;
  AppendFrame(frame, bytes);
  const std::string body = bytes.substr(sizeof(uint32_t));
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_FALSE(ParseFrame(std::string_view(body).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseFrame(body + "x").ok());
  for (int type : {0, 11, 255}) {
    std::string wrong = body;
    wrong[0] = static_cast<char>(type);
    EXPECT_FALSE(ParseFrame(wrong).ok()) << type;
  }
  std::string wrong = body;
  wrong[1] = 99;
  EXPECT_FALSE(ParseFrame(wrong).ok());
}

}  // namespace
}  // namespace taskd::store
