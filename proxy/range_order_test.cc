#include "proxy/range_order.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proxy/testing/fake_segment.h"

namespace taskd::proxy {
namespace {

using ::testing::ElementsAre;
using testing::FakeSegment;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

constexpr uint64_t kNow = 1'000'000;
constexpr uint64_t kMaxEarly = 1000;

class RangeOrderTest : public ::testing::Test {
 protected:
  RangeOrderTest() {
    starter_ = fake_.AddRing();
    ender_ = fake_.AddRing();
    segment_ = *RingSegment::Open(fake_.Fd());
  }

  void Start(uint64_t ticks, uint64_t id) { fake_.Append(starter_, {ring::kRecordRangeStart, ticks, id, "range"}); }
  void End(uint64_t ticks, uint64_t id, uint32_t flags = 0) {
    fake_.Append(ender_, {ring::kRecordRangeEnd, ticks, id, "", ring::kKindOther, flags});
  }
  // Ids of the next batch in their order, ends negative.
  std::vector<int64_t> Read(uint64_t cut, uint64_t open = 0, size_t max_bytes = 1 << 20) {
    ReadWholeRanges(
        *segment_, cut, max_bytes, kMaxEarly, [open](uint64_t id) { return id == open; }, batch_);
    segment_->StageCursors(batch_);
    segment_->CommitCursors(batch_);
    std::vector<int64_t> ids;
    for (const RingRecord& record : batch_.records) {
      ids.push_back(static_cast<int64_t>(record.id) * (record.type == ring::kRecordRangeEnd ? -1 : 1));
    }
    return ids;
  }

  FakeSegment fake_{1};
  int starter_, ender_;
  std::unique_ptr<RingSegment> segment_;
  RingBatch batch_;
};

TEST_F(RangeOrderTest, AnEndWaitsForAStartOfTheNextRound) {
  Start(kNow - 50, 7);
  End(kNow - 40, 7);
  End(kNow - 3, 8);
  Start(kNow - 2, 9);
  EXPECT_THAT(Read(kNow), ElementsAre(7, -7));
  EXPECT_EQ(batch_.cut_ticks, kNow - 4);
  Start(kNow - 1, 8);  // was under way
  EXPECT_THAT(Read(kNow + 100), ElementsAre(-8, 9, 8));
}

TEST_F(RangeOrderTest, AnEndWaitsForAStartStampedAfterTheCut) {
  End(kNow, 8);
  Start(kNow + 1, 8);
  EXPECT_THAT(Read(kNow), IsEmpty());
  EXPECT_THAT(Read(kNow + 100), ElementsAre(-8, 8));
}

// A reader that is ahead of what is committed, and one that begins at that.
TEST_F(RangeOrderTest, AnEndThatWaitsIsNeitherReadNorCommitted) {
  const auto none_open = [](uint64_t) { return false; };
  RingBatch first;
  Start(kNow - 50, 7);
  End(kNow - 3, 8);
  ReadWholeRanges(*segment_, kNow - 2, 1 << 20, kMaxEarly, none_open, first);
  ASSERT_EQ(first.records.size(), 1u);
  Start(kNow, 8);
  RingBatch second;
  ReadWholeRanges(*segment_, kNow + 100, 1 << 20, kMaxEarly, none_open, second);
  ASSERT_EQ(second.records.size(), 2u);
  EXPECT_EQ(segment_->Pending(), 0u);
  segment_->StageCursors(first);
  segment_->CommitCursors(first);
  segment_ = *RingSegment::Open(fake_.Fd());
  EXPECT_THAT(Read(kNow + 100), ElementsAre(-8, 8));
  EXPECT_EQ(segment_->lost(), 0u);
}

TEST_F(RangeOrderTest, AnEndWithoutAStartDoesNotWaitLong) {
  End(kNow - 3, 8);
  End(kNow - 2, 8);
  EXPECT_THAT(Read(kNow), IsEmpty());
  EXPECT_THAT(Read(kNow - 3 + kMaxEarly - 1), IsEmpty());
  EXPECT_THAT(Read(kNow - 2 + kMaxEarly), ElementsAre(-8, -8));
}

TEST_F(RangeOrderTest, EndsOfOpenRangesAndOfASourceDoNotWait) {
  End(kNow - 3, 8);
  End(kNow - 2, 9, ring::kFlagSource | ring::kFlagStream);
  EXPECT_THAT(Read(kNow, /*open=*/8), ElementsAre(-8, -9));
}

TEST_F(RangeOrderTest, NothingWaitsAtTheEndOfAProcess) {
  End(kNow - 3, 8);
  EXPECT_THAT(Read(UINT64_MAX), ElementsAre(-8));
}

TEST_F(RangeOrderTest, AnEndWaitsAlsoWhereARingHoldsMoreThanTheByteLimitBehindTheCut) {
  constexpr uint64_t kMarks = 4 * ring::kBlockBytes / ring::kRecordHeaderBytes;
  for (uint64_t i = 0; i < kMarks; ++i) fake_.Append(starter_, {ring::kRecordMark, kNow + 10, 100 + i});
  End(kNow - 3, 8);
  EXPECT_THAT(Read(kNow, 0, 1), IsEmpty());
  EXPECT_FALSE(batch_.more);
  EXPECT_THAT(Read(kNow - 3 + kMaxEarly, 0, 8 << 20), SizeIs(kMarks + 1));
}

// A batch that its byte limit ended may be shorter than the time that an end waits.
TEST_F(RangeOrderTest, AShortBatchIsTakenAsItIs) {
  constexpr int kEnds = 4 * ring::kBlockBytes / ring::kRecordHeaderBytes;
  for (int i = 0; i < kEnds; ++i) End(kNow, 100 + i);
  size_t read = 0;
  for (int round = 0; round < 10 && read < kEnds; ++round) read += Read(kNow + 2 * kMaxEarly, 0, 1).size();
  EXPECT_EQ(read, size_t{kEnds});
}

TEST_F(RangeOrderTest, FindsTheFirstEarlyEnd) {
  Start(kNow - 500, 1);
  End(kNow - 400, 2);
  End(kNow - 300, 1);
  End(kNow - 20, 3);
  End(kNow - 10, 4);
  segment_->Read(kNow, 1 << 20, batch_);
  const auto none_open = [](uint64_t) { return false; };
  EXPECT_THAT(FirstEarlyEnd(batch_, kNow - 1000, none_open), Optional(kNow - 400));
  EXPECT_THAT(FirstEarlyEnd(batch_, kNow - 400, none_open), Optional(kNow - 20));
  EXPECT_THAT(FirstEarlyEnd(batch_, kNow - 400, [](uint64_t id) { return id == 3; }), Optional(kNow - 10));
  EXPECT_EQ(FirstEarlyEnd(batch_, kNow - 10, none_open), std::nullopt);
}

TEST(EarlyEndsTest, GivesAnEndToItsStartOnce) {
  EarlyEnds ends;
  RingRecord end = {};
  end.id = 5;
  end.ticks = 17;
  EXPECT_FALSE(ends.Take(5).has_value());
  ends.Add(end);
  EXPECT_FALSE(ends.Take(6).has_value());
  ASSERT_TRUE(ends.Take(5).has_value());
  EXPECT_FALSE(ends.Take(5).has_value());
  ends.Add(end);
  ends.Clear();
  EXPECT_FALSE(ends.Take(5).has_value());
}

}  // namespace
}  // namespace taskd::proxy
