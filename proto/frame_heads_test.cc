#include "proto/frame_heads.h"

#include <string>

#include "gtest/gtest.h"

namespace taskd::proto {
namespace {

std::string Frame(uint8_t type, size_t size) {
  std::string frame = {static_cast<char>(size >> 16),
                       static_cast<char>(size >> 8),
                       static_cast<char>(size),
                       static_cast<char>(type),
                       0,
                       0,
                       0,
                       0,
                       1};
  return frame.append(size, '\x09');
}

TEST(FrameHeadsTest, AreFoundHoweverTheBytesAreCut) {
  const std::string bytes = "preface" + Frame(4, 0) + Frame(1, 300) + Frame(9, 70'000) + Frame(0, 9);
  for (const size_t part : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    FrameHeads heads(7);
    std::string found;
    for (size_t at = 0; at < bytes.size(); at += part) {
      std::string_view rest = std::string_view(bytes).substr(at, part);
      while (const std::optional<FrameHead> head = heads.Next(rest)) {
        found += std::to_string(head->type) + ":" + std::to_string(head->size) + " ";
      }
      EXPECT_TRUE(rest.empty());
    }
    EXPECT_EQ(found, "4:0 1:300 9:70000 0:9 ") << part;
  }
}

TEST(HeaderBlocksTest, AreCountedInAllTheirFragments) {
  HeaderBlocks blocks;
  for (const uint8_t begins : {FrameHead::kHeaders, FrameHead::kPushPromise, FrameHead::kHeaders}) {
    EXPECT_TRUE(blocks.Take({begins, 8 << 10}));
    EXPECT_TRUE(blocks.Take({FrameHead::kContinuation, 8 << 10})) << "16 KiB";
    EXPECT_TRUE(blocks.Take({0, 1 << 20})) << "data is none of it";
  }
  EXPECT_FALSE(blocks.Take({FrameHead::kContinuation, 1}));
}

TEST(HeaderBlocksTest, NoMoreThanSoManyFragments) {
  HeaderBlocks blocks;
  EXPECT_TRUE(blocks.Take({FrameHead::kHeaders, 0}));
  for (size_t i = 0; i < HeaderBlocks::kMostContinuations; ++i) EXPECT_TRUE(blocks.Take({FrameHead::kContinuation, 0}));
  EXPECT_FALSE(blocks.Take({FrameHead::kContinuation, 0}));
}

}  // namespace
}  // namespace taskd::proto
