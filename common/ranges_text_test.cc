#include "common/ranges_text.h"

#include "gtest/gtest.h"

namespace taskd {
namespace {

TEST(FormatRanges, MergesRunsOfThreeAndMore) {
  EXPECT_EQ(FormatRanges({}), "");
  EXPECT_EQ(FormatRanges({7}), "7");
  EXPECT_EQ(FormatRanges({4, 3}), "3, 4") << "sorted; two neighbours are no run";
  EXPECT_EQ(FormatRanges({0, 1, 2, 3, 7, 12, 13, 14}), "0-3, 7, 12-14");
}

TEST(FormatRanges, CountsWhatIsBeyondItsLimit) {
  // Three parts are allowed: 0, 2 and 4-6; 8, 9 and 20 are left.
  EXPECT_EQ(FormatRanges({0, 2, 4, 5, 6, 8, 9, 20}, 3), "0, 2, 4-6 and 3 more");
  EXPECT_EQ(FormatRanges({0, 2, 4}, 3), "0, 2, 4") << "nothing is left";
}

TEST(FormatRanges, WritesAllOfThemWithoutALimit) {
  EXPECT_EQ(FormatAllRanges({}), "");
  EXPECT_EQ(FormatAllRanges({0, 1, 2, 4, 6, 8, 10, 12, 14, 15}), "0-2, 4, 6, 8, 10, 12, 14, 15");
  EXPECT_EQ(FormatAllRanges({0, 1, 2, 9}, ","), "0-2,9");
}

TEST(CountOfTest, OneHasNoPlural) {
  EXPECT_EQ(CountOf(0, "rank"), "0 ranks");
  EXPECT_EQ(CountOf(1, "rank"), "1 rank");
  EXPECT_EQ(CountOf(12, "rank"), "12 ranks");
}

}  // namespace
}  // namespace taskd
