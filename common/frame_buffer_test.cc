#include "common/frame_buffer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kMaxBytes = 1000;

// All whole frames that are there now.
std::vector<std::string> Take(FrameBuffer& buffer) {
  std::vector<std::string> bodies;
  std::string_view body;
  while (buffer.Next(body).value()) bodies.emplace_back(body);
  return bodies;
}

TEST(FrameBuffer, WritesLengthAndBody) {
  std::string out = "before";
  AppendWithLength("abc", out);
  AppendWithLength("", out);
  EXPECT_EQ(out, std::string("before\3\0\0\0abc\0\0\0\0", 17));
}

TEST(FrameBuffer, FindsTheFramesWhereverTheStreamIsCut) {
  std::string bytes;
  for (const char* body : {"first", "", "the third"}) AppendWithLength(body, bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    FrameBuffer buffer(kMaxBytes);
    buffer.Append(std::string_view(bytes).substr(0, cut));
    std::vector<std::string> bodies = Take(buffer);
    buffer.Append(std::string_view(bytes).substr(cut));
    for (std::string& body : Take(buffer)) bodies.push_back(std::move(body));
    EXPECT_THAT(bodies, ElementsAre("first", "", "the third")) << cut;
    EXPECT_EQ(buffer.size(), 0u);
  }
}

TEST(FrameBuffer, FindsTheFramesByteByByte) {
  std::string bytes;
  for (const char* body : {"first", "", "the third"}) AppendWithLength(body, bytes);
  FrameBuffer buffer(kMaxBytes);
  std::vector<std::string> bodies;
  for (char byte : bytes) {
    buffer.Append({&byte, 1});
    for (std::string& body : Take(buffer)) bodies.push_back(std::move(body));
  }
  EXPECT_THAT(bodies, ElementsAre("first", "", "the third"));
}

TEST(FrameBuffer, NothingIsNoFrame) {
  FrameBuffer buffer(kMaxBytes);
  EXPECT_THAT(Take(buffer), IsEmpty());
  buffer.Append("");
  EXPECT_THAT(Take(buffer), IsEmpty());
  EXPECT_EQ(buffer.next_length(), 0u);
  EXPECT_EQ(buffer.rest(), "");
}

TEST(FrameBuffer, EmptyBodyIsAFrame) {
  FrameBuffer buffer(0);
  buffer.Append(std::string(4, '\0'));
  EXPECT_THAT(Take(buffer), ElementsAre(""));
}

TEST(FrameBuffer, LengthBeyondTheLimitIsRefusedBeforeItsBytesCome) {
  std::string bytes;
  AppendWithLength(std::string(kMaxBytes, 'x'), bytes);
  FrameBuffer buffer(kMaxBytes);
  buffer.Append(bytes);
  EXPECT_THAT(Take(buffer), ElementsAre(std::string(kMaxBytes, 'x')));

  buffer.Append(std::string("\xe9\3\0", 3));
  EXPECT_THAT(Take(buffer), IsEmpty());
  buffer.Append(std::string(1, '\0'));
  std::string_view body;
  EXPECT_THAT(buffer.Next(body).status().message(), HasSubstr("a frame of 1001 bytes; at most 1000 are allowed"));
  EXPECT_FALSE(buffer.Next(body).ok()) << "it stays";
  EXPECT_EQ(buffer.rest(), std::string("\xe9\3\0\0", 4));
  EXPECT_EQ(buffer.next_length(), kMaxBytes + 1);
  buffer.set_max_bytes(kMaxBytes + 1);
  EXPECT_FALSE(buffer.Next(body).value()) << "its bytes are missing";
}

TEST(FrameBuffer, SizeIsWhatWasNotHandedOut) {
  std::string bytes;
  AppendWithLength("abc", bytes);
  bytes += "\5";
  FrameBuffer buffer(kMaxBytes);
  buffer.Append(bytes);
  EXPECT_EQ(buffer.size(), 8u);
  EXPECT_THAT(Take(buffer), ElementsAre("abc"));
  EXPECT_EQ(buffer.size(), 1u);
  EXPECT_EQ(buffer.rest(), "\5");
  buffer.Clear();
  EXPECT_EQ(buffer.size(), 0u);
}

// Beyond what is kept of frames that were handed out.
TEST(FrameBuffer, ManyFramesAtOnce) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) AppendWithLength(std::string(500, static_cast<char>('a' + i % 26)), bytes);
  FrameBuffer buffer(kMaxBytes);
  buffer.Append(bytes);
  const std::vector<std::string> bodies = Take(buffer);
  ASSERT_EQ(bodies.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(bodies[i], std::string(500, static_cast<char>('a' + i % 26)));
  EXPECT_EQ(buffer.size(), 0u);
}

}  // namespace
}  // namespace taskd
