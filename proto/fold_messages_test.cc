#include "proto/fold_messages.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::proto {
namespace {

constexpr uint64_t kEnd = 1'700'000'000'000'000'000;

StepFold Example() {
  StepFold fold;
  fold.step = 42;
  fold.process_id = 4'000'000'000;
  fold.start_ns = kEnd - 900;
  fold.end_ns = kEnd;
  fold.previous_end_ns = kEnd - 1000;
  fold.forward_ns = 1;
  fold.forwards = 2;
  fold.dataloader_ns = 3;
  fold.dataloaders = 4;
  fold.checkpoint_ns = 5;
  fold.checkpoints = 6;
  fold.covered_ns = 7;
  fold.blocking_covered_ns = 8;
  fold.covered_before_last_ns = 7;
  fold.cpu_wait_ns = 8;
  fold.head_ns = 9;
  fold.lead_ns = 10;
  fold.tail_ns = 11;
  fold.dataloader_own_ns = 12;
  fold.checkpoint_own_ns = 13;
  fold.forward_own_ns = 18;
  fold.issues = 14;
  fold.issue_p10_ns = 15;
  fold.issue_p50_ns = 16;
  fold.broken = 17;
  fold.work = 4096.5;
  fold.works = 19;
  fold.odd_works = 20;
  fold.host_only = false;
  // One that began before the period, and one with everything.
  fold.ops.push_back(
      {.group = 0, .op = CommOp::kAllReduce, .count = 1, .first_start_ns = kEnd - 5000, .last_end_ns = kEnd});
  fold.ops.push_back({.group = 9,
                      .op = CommOp::kBarrier,
                      .size_log2 = 30,
                      .peer = 3,
                      .count = 4'000'000'000,
                      .bytes = uint64_t{1} << 50,
                      .duration_ns = 21,
                      .min_duration_ns = 22,
                      .first_start_ns = kEnd - 23,
                      .last_end_ns = kEnd - 24,
                      .gaps = 25,
                      .blocking_gaps = 28,
                      .gap_ns = 26,
                      .max_gap_ns = 27,
                      .blocking_gap_ns = 29});
  fold.samples.push_back({9, CommOp::kSend, 64, kEnd - 31, kEnd - 30});
  return fold;
}

absl::StatusOr<StepFold> Read(const v1::RankStep& message) {
  absl::StatusOr<RankFold> read = ReadFold(message.SerializeAsString());
  if (!read.ok()) return read.status();
  return std::move(read->fold);
}

v1::RankStep Message(const StepFold& fold) {
  v1::RankStep message;
  FillFold(7, fold, &message);
  return message;
}

TEST(FoldMessages, WorkIsWhatItMayBeWhateverAPeerSays) {
  v1::RankStep message = Message(Example());
  for (double work : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    message.set_work(work);
    const absl::StatusOr<StepFold> read = Read(message);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->work, 0);
    EXPECT_GT(read->odd_works, 0u);
  }
  // An older peer says nothing of it.
  message.clear_work();
  message.clear_works();
  message.clear_odd_works();
  const absl::StatusOr<StepFold> read = Read(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->works, 0u);
  EXPECT_EQ(read->odd_works, 0u);
}

TEST(FoldMessages, AFoldComesBackAsItWas) {
  const StepFold fold = Example();
  const v1::RankStep message = Message(fold);
  EXPECT_EQ(message.rank(), 7);
  v1::RankStep sent;
  ASSERT_TRUE(sent.ParseFromString(message.SerializeAsString()));
  absl::StatusOr<StepFold> read = Read(sent);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, fold);
}

TEST(FoldMessages, AnUnknownPeriodStaysUnknown) {
  StepFold fold = Example();
  fold.previous_end_ns = 0;
  EXPECT_EQ(*Read(Message(fold)), fold);
  EXPECT_EQ(Read(Message(StepFold())).value(), StepFold());
}

TEST(FoldMessages, RefusesWhatIsNoFold) {
  auto refused = [](const std::function<void(v1::RankStep&)>& change, const std::string& why) {
    v1::RankStep message = Message(Example());
    change(message);
    absl::StatusOr<StepFold> read = Read(message);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(read.status().message()),
                ::testing::AllOf(::testing::HasSubstr("rank 7"), ::testing::HasSubstr(why)));
  };
  for (int64_t step : {int64_t{-1}, INT64_MIN, StepFold::kMaxStep + 1, INT64_MAX}) {
    refused([step](auto& m) { m.set_step(step); }, "no step has that number");
  }
  refused([](auto& m) { m.mutable_ops()->RemoveLast(); }, "incomplete operation");
  refused([](auto& m) { m.add_samples(1); }, "incomplete sample");
  refused([](auto& m) { m.mutable_ops()->Resize(41 * 15, 0); }, "more than 40 operations");
  refused([](auto& m) { m.mutable_samples()->Resize(17 * 5, 0); }, "more than 16 samples");
  refused([](auto& m) { m.set_ops(1, 13); }, "out of range");    // kind
  refused([](auto& m) { m.set_ops(0, 4096); }, "out of range");  // group
  refused([](auto& m) { m.set_ops(2, -2); }, "out of range");    // peer
  refused([](auto& m) { m.set_ops(2, int64_t{1} << 31); }, "out of range");
  refused([](auto& m) { m.set_ops(3, 64); }, "out of range");                // size
  refused([](auto& m) { m.set_ops(4, int64_t{1} << 32); }, "out of range");  // count
  refused([](auto& m) { m.set_ops(6, -1); }, "out of range");                // duration
  refused([](auto& m) { m.set_samples(1, -1); }, "out of range");
  refused([](auto& m) { m.set_samples(2, -1); }, "out of range");
  refused([](auto& m) { m.set_length_ns(kEnd + 1); }, "before the clock");
  refused([](auto& m) { m.set_period_ns(kEnd + 1); }, "before the clock");
}

TEST(FoldMessages, AGroupComesBackAsItWas) {
  for (const GroupInfo& group :
       {GroupInfo{"g", "tp", {{0, 1, 8}, {16, -2, 3}}}, GroupInfo{}, GroupInfo{"größe", "", {}}}) {
    v1::Group message;
    FillGroup(group, &message);
    v1::Group sent;
    ASSERT_TRUE(sent.ParseFromString(message.SerializeAsString()));
    EXPECT_EQ(*ReadGroup(sent), group);
  }
}

TEST(FoldMessages, AGroupsNameIsUtf8) {
  v1::Group message;
  FillGroup({"a\xff\"b", "\xc0", {}}, &message);
  v1::Group sent;
  ASSERT_TRUE(sent.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(sent.name(), "a\uFFFD\"b");
  EXPECT_EQ(sent.label(), "\uFFFD");
}

TEST(FoldMessages, RefusesWhatIsNoGroup) {
  auto refused = [](const std::function<void(v1::Group&)>& change) {
    v1::Group message;
    FillGroup({"g", "tp", {{0, 1, 8}}}, &message);
    change(message);
    EXPECT_EQ(ReadGroup(message).status().code(), absl::StatusCode::kInvalidArgument) << message.ShortDebugString();
  };
  refused([](auto& m) { m.add_runs(1); });
  refused([](auto& m) { m.set_runs(2, -1); });
  refused([](auto& m) { m.set_name(std::string(513, 'n')); });
  refused([](auto& m) { m.set_label(std::string(513, 'n')); });
  refused([](auto& m) { m.mutable_runs()->Resize(1025 * 3, 0); });
}

}  // namespace
}  // namespace taskd::proto
