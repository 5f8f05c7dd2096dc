#include "manager/nodes/fold_receipts.h"

#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

constexpr FoldReceipts::Time kStart{std::chrono::hours(1)};

TEST(FoldReceiptsTest, OneForSeveralSets) {
  FoldReceipts receipts;
  for (uint64_t round = 1; round <= 3; ++round) {
    for (uint64_t i = 0; i < FoldReceipts::kMostUnsaid; ++i) {
      EXPECT_FALSE(receipts.due(kStart));
      receipts.Take(kStart, 1);
    }
    ASSERT_TRUE(receipts.due(kStart));
    EXPECT_EQ(receipts.Say(), round * FoldReceipts::kMostUnsaid);
  }
}

TEST(FoldReceiptsTest, TheFirstUnsaidOneDoesNotWaitForEver) {
  FoldReceipts receipts;
  EXPECT_FALSE(receipts.due(kStart + std::chrono::hours(1))) << "nothing has come";
  receipts.Take(kStart, 1);
  receipts.Take(kStart + FoldReceipts::kLongest / 2, 1);
  EXPECT_FALSE(receipts.due(kStart + FoldReceipts::kLongest - std::chrono::nanoseconds(1)));
  ASSERT_TRUE(receipts.due(kStart + FoldReceipts::kLongest));
  EXPECT_EQ(receipts.Say(), 2u);
  EXPECT_FALSE(receipts.due(kStart + std::chrono::hours(1))) << "all is said";
  receipts.Take(kStart + std::chrono::hours(1), 1);
  EXPECT_FALSE(receipts.due(kStart + std::chrono::hours(1)));
}

// Steps of milliseconds: what a proxy has to keep is not to push out what comes.
TEST(FoldReceiptsTest, ManyStepsOfARankAreConfirmedSooner) {
  FoldReceipts receipts;
  receipts.Take(kStart, FoldReceipts::kMostUnsaidSteps - 1);
  EXPECT_FALSE(receipts.due(kStart));
  receipts.Take(kStart, 1);
  ASSERT_TRUE(receipts.due(kStart));
  EXPECT_EQ(receipts.Say(), 2u);
  receipts.Take(kStart, 1);
  EXPECT_FALSE(receipts.due(kStart));
}

}  // namespace
}  // namespace taskd::manager
