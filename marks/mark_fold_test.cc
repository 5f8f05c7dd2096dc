#include "marks/mark_fold.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd {
namespace {

using Phase = MarkRecord::Phase;

// Writes a rank's marks at times in ms; results are in ns.
class Rank {
 public:
  Rank() : fold_([this](StepFold&& fold) { folds.push_back(std::move(fold)); }) {}

  static constexpr uint64_t kMs = 1'000'000;
  static constexpr uint64_t kStart = 1'700'000'000'000 * kMs;  // stamps are Unix time
  static uint64_t At(double ms) { return kStart + static_cast<uint64_t>(std::llround(ms * 1e6)); }

  MarkFold& fold() { return fold_; }

  void Start(uint64_t id, double ms, std::string_view name, std::string_view domain = "default") {
    fold_.Add({Phase::kStart, false, At(ms), id, pid, 7, name, domain});
  }
  void End(uint64_t id, double ms) { fold_.Add({Phase::kEnd, false, At(ms), id, pid, 7, {}, {}}); }
  void Work(double ms, std::string_view name) {
    fold_.Add({Phase::kInstant, false, At(ms), 1'000'000, pid, 7, name, "default"});
  }
  void StartOp(uint64_t id, double ms, const std::string& group, const std::string& op, int peer = -1,
               int count = 1024) {
    Start(id, ms, Name(group, op, peer, count), "communication");
  }
  void Op(uint64_t id, double start_ms, double end_ms, const std::string& group, const std::string& op, int peer = -1,
          int count = 1024) {
    StartOp(id, start_ms, group, op, peer, count);
    End(id, end_ms);
  }
  void DeviceStart(uint64_t id, double ms, uint32_t device = 3) {
    fold_.Add({Phase::kStart, true, At(ms), id, device, 2, {}, {}});
  }
  void DeviceEnd(uint64_t id, double ms, uint32_t device = 3) {
    fold_.Add({Phase::kEnd, true, At(ms), id, device, 2, {}, {}});
  }

  static std::string Name(const std::string& group, const std::string& op, int peer, int count) {
    std::string name = R"({"count": ")" + std::to_string(count) +
                       R"(","streamId": "2","dataType": "bfp16","groupName": ")" + group + R"(","opName": "Hccl)" + op +
                       '"';
    if (peer >= 0)
      name += R"(,"srcRank": ")" + std::to_string(peer) + R"(","destRank": ")" + std::to_string(peer) + '"';
    return name + "}";
  }

  const OpFold* Find(const StepFold& fold, const std::string& group, CommOp op) {
    for (const OpFold& candidate : fold.ops) {
      if (candidate.op == op && fold_.groups()[candidate.group].name == group) return &candidate;
    }
    return nullptr;
  }

  uint32_t pid = 100;
  std::vector<StepFold> folds;

 private:
  MarkFold fold_;
};

double Ms(uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// The step of a pipeline stage has three operations with its neighbour and an overlapped gradient bucket:
//
//   period  0..100, step 5..98 (the step before ended at 0)
//   dataloader 1..9
//   recv   10..20
//   send   30..32
//   dp RS  35..60     overlaps
//   recv   50..70
//   dp AG  80..90
TEST(MarkFold, CutsUpAPipelineStep) {
  Rank rank;
  GroupInfo pp{"pp_group", "pp", {{0, 4, 2}}};
  GroupInfo dp{"dp_group", "dp", {{0, 1, 4}}};
  rank.fold().SetGroups({pp, dp});
  rank.Start(1, -50, "step 6");
  rank.End(1, 0);
  rank.Start(2, 1, "dataloader");
  rank.Start(3, 5, "step 7");
  rank.End(2, 9);
  rank.Op(4, 10, 20, "pp_group", "Recv", 0);
  rank.Start(20, 21, "forward");
  rank.End(20, 29.5);
  rank.Op(5, 30, 32, "pp_group", "Send", 1);
  rank.StartOp(6, 35, "dp_group", "ReduceScatter", -1, 4096);
  rank.StartOp(7, 50, "pp_group", "Recv", 0);
  rank.End(6, 60);
  rank.End(7, 70);
  rank.Op(8, 80, 90, "dp_group", "AllGather", -1, 4096);
  rank.End(3, 98);

  ASSERT_EQ(rank.folds.size(), 2u);
  EXPECT_EQ(rank.folds[0].step, 6);
  EXPECT_EQ(rank.folds[0].previous_end_ns, 0u);
  EXPECT_EQ(rank.folds[0].period_ns(), 0u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].head_ns), 50);
  const StepFold& fold = rank.folds[1];
  EXPECT_EQ(fold.step, 7);
  EXPECT_EQ(fold.process_id, 100u);
  EXPECT_EQ(fold.start_ns, Rank::At(5));
  EXPECT_EQ(fold.end_ns, Rank::At(98));
  EXPECT_DOUBLE_EQ(Ms(fold.period_ns()), 98);
  EXPECT_TRUE(fold.host_only);
  EXPECT_EQ(fold.broken, 0u);
  EXPECT_EQ(fold.issues, 0u);
  EXPECT_EQ(fold.dataloaders, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.dataloader_ns), 8);
  EXPECT_DOUBLE_EQ(Ms(fold.dataloader_own_ns), 8);
  EXPECT_EQ(fold.forwards, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.forward_ns), 8.5);
  EXPECT_DOUBLE_EQ(Ms(fold.forward_own_ns), 8.5);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 10 + 2 + 35 + 10);
  EXPECT_DOUBLE_EQ(Ms(fold.blocking_covered_ns), 10 + 2 + 20);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_before_last_ns), 10 + 2 + 35);
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(fold.lead_ns), 0);
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 8);

  ASSERT_EQ(fold.ops.size(), 4u);
  const OpFold* recv = rank.Find(fold, "pp_group", CommOp::kRecv);
  ASSERT_NE(recv, nullptr);
  EXPECT_EQ(recv->peer, 0);
  EXPECT_EQ(recv->count, 2u);
  EXPECT_EQ(recv->bytes, 2u * 2048);
  EXPECT_EQ(recv->size_log2, 11);
  EXPECT_DOUBLE_EQ(Ms(recv->duration_ns), 30);
  EXPECT_DOUBLE_EQ(Ms(recv->min_duration_ns), 10);
  EXPECT_EQ(recv->first_start_ns, Rank::At(10));
  EXPECT_EQ(recv->last_end_ns, Rank::At(70));
  EXPECT_EQ(recv->gaps, 0u);  // the first gap is head, the second operation began during the bucket
  EXPECT_EQ(recv->blocking_gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(recv->blocking_gap_ns), 50 - 32);
  const OpFold* send = rank.Find(fold, "pp_group", CommOp::kSend);
  ASSERT_NE(send, nullptr);
  EXPECT_EQ(send->peer, 1);
  EXPECT_EQ(send->gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(send->gap_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(send->max_gap_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(send->blocking_gap_ns), 10);
  const OpFold* scatter = rank.Find(fold, "dp_group", CommOp::kReduceScatter);
  ASSERT_NE(scatter, nullptr);
  EXPECT_DOUBLE_EQ(Ms(scatter->gap_ns), 3);
  EXPECT_EQ(scatter->blocking_gaps, 0u);
  EXPECT_EQ(scatter->size_log2, 13);
  const OpFold* gather = rank.Find(fold, "dp_group", CommOp::kAllGather);
  ASSERT_NE(gather, nullptr);
  EXPECT_DOUBLE_EQ(Ms(gather->gap_ns), 10);
  // The parts add up to the period.
  EXPECT_EQ(fold.period_ns(), fold.covered_ns + fold.head_ns + fold.tail_ns + fold.lead_ns + recv->gap_ns +
                                  send->gap_ns + scatter->gap_ns + gather->gap_ns);

  EXPECT_THAT(rank.fold().groups(), ::testing::ElementsAre(pp, dp));
  EXPECT_EQ(rank.fold().device_id(), -1);
}

TEST(MarkFold, NeverCrashesWithoutSteps) {
  Rank rank;
  rank.Op(1, 0, 1, "g", "Allreduce");
  rank.End(77, 3);
  rank.fold().Finish();
  EXPECT_TRUE(rank.folds.empty());
}

// The host runs ahead of the device, so a step is summarised when the next one has ended.
TEST(MarkFold, DeviceRecordsCount) {
  Rank rank;
  auto step = [&](uint64_t id, double at, int n) {
    rank.Start(id, at, "step " + std::to_string(n));
    rank.DeviceStart(id, at + 5);
    rank.StartOp(id + 1, at + 1, "g", "Allreduce");
    rank.End(id + 1, at + 1.5);
    rank.StartOp(id + 2, at + 2, "g", "Allreduce");
    rank.End(id + 2, at + 2.5);
    rank.End(id, at + 10);
    rank.DeviceEnd(id + 1, at + 30);
    rank.DeviceStart(id + 1, at + 20);  // out of order
    rank.DeviceStart(id + 2, at + 50);
    rank.DeviceEnd(id + 2, at + 60);
    rank.DeviceEnd(id, at + 95);
  };
  step(10, 0, 1);  // left out, because the first device record comes here
  step(20, 100, 2);
  EXPECT_TRUE(rank.folds.empty());
  step(30, 200, 3);
  ASSERT_EQ(rank.folds.size(), 1u);
  rank.fold().Finish();
  ASSERT_EQ(rank.folds.size(), 2u);
  EXPECT_EQ(rank.folds[0].step, 2);
  const StepFold& fold = rank.folds[1];
  EXPECT_EQ(fold.step, 3);
  EXPECT_FALSE(fold.host_only);
  EXPECT_EQ(fold.broken, 0u);
  EXPECT_EQ(fold.start_ns, Rank::At(205));
  EXPECT_EQ(fold.end_ns, Rank::At(295));
  EXPECT_EQ(fold.previous_end_ns, Rank::At(195));
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 25);
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 35);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 20);
  ASSERT_EQ(fold.ops.size(), 1u);
  EXPECT_EQ(fold.ops[0].count, 2u);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].gap_ns), 20);
  EXPECT_EQ(fold.issues, 2u);
  EXPECT_DOUBLE_EQ(Ms(fold.issue_p10_ns), 19);
  EXPECT_DOUBLE_EQ(Ms(fold.issue_p50_ns), 19);
  EXPECT_THAT(fold.samples, ::testing::ElementsAre(OpSample{0, CommOp::kAllReduce, 0, Rank::At(220), Rank::At(230)},
                                                   OpSample{0, CommOp::kAllReduce, 1, Rank::At(250), Rank::At(260)}));
  EXPECT_EQ(rank.fold().device_id(), 3);
}

// No operation of a data-parallel job blocks, so the time before the first bucket is head.
TEST(MarkFold, CutsUpADataParallelStep) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.End(1, 10);
  rank.Start(2, 10, "step 1");
  rank.StartOp(3, 40, "world", "Allreduce");
  rank.StartOp(4, 45, "world", "Allreduce");
  rank.End(3, 50);
  rank.End(4, 60);
  rank.Op(5, 65, 80, "world", "Allreduce");
  rank.Op(6, 82, 90, "world", "Allreduce");
  rank.End(2, 100);
  ASSERT_EQ(rank.folds.size(), 2u);
  const StepFold& fold = rank.folds[1];
  EXPECT_DOUBLE_EQ(Ms(fold.period_ns()), 90);
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 30);
  EXPECT_DOUBLE_EQ(Ms(fold.lead_ns), 0);
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 43);
  EXPECT_DOUBLE_EQ(Ms(fold.blocking_covered_ns), 0);
  ASSERT_EQ(fold.ops.size(), 1u);
  EXPECT_EQ(fold.ops[0].count, 4u);
  EXPECT_EQ(fold.ops[0].gaps, 2u);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].gap_ns), 7);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].max_gap_ns), 5);
  EXPECT_EQ(fold.ops[0].blocking_gaps, 0u);
}

TEST(MarkFold, LeadIsTheTimeBetweenTheFirstOperationAndTheFirstBlockingOne) {
  Rank rank;
  rank.fold().SetGroups({{"tp_group", "tp", {{0, 1, 2}}}});
  rank.Start(1, 0, "step 0");
  rank.Op(2, 10, 20, "dp_group", "AllGather");
  rank.Op(3, 25, 30, "tp_group", "Allreduce");
  rank.Op(4, 32, 35, "tp_group", "Allreduce");
  rank.End(1, 40);
  ASSERT_EQ(rank.folds.size(), 1u);
  const StepFold& fold = rank.folds[0];
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(fold.lead_ns), 5);
  const OpFold* tp = rank.Find(fold, "tp_group", CommOp::kAllReduce);
  ASSERT_NE(tp, nullptr);
  EXPECT_EQ(tp->gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(tp->gap_ns), 2);
  EXPECT_EQ(tp->blocking_gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(tp->blocking_gap_ns), 2);
}

TEST(MarkFold, WhatHidesBehindCommunicationIsNoOwnTime) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.End(1, 1);
  rank.Start(2, 1, "step 1");
  rank.StartOp(3, 10, "g", "Allreduce");
  rank.Start(4, 5, "dataloader");
  rank.End(4, 15);
  rank.Start(6, 16, "forward");
  rank.Start(5, 18, "save_checkpoint");
  rank.End(3, 20);
  rank.End(6, 24);
  rank.End(5, 27);
  rank.End(2, 30);
  const StepFold& fold = rank.folds.back();
  EXPECT_DOUBLE_EQ(Ms(fold.dataloader_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(fold.dataloader_own_ns), 5);
  EXPECT_DOUBLE_EQ(Ms(fold.forward_ns), 8);
  EXPECT_DOUBLE_EQ(Ms(fold.forward_own_ns), 4);
  EXPECT_EQ(fold.checkpoints, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.checkpoint_ns), 9);
  EXPECT_DOUBLE_EQ(Ms(fold.checkpoint_own_ns), 7);
}

TEST(MarkFold, TellsWhatWasSavedSinceTheLastStepEnded) {
  Rank rank;
  rank.Start(1, 0, "save_checkpoint");
  rank.End(1, 1);
  EXPECT_EQ(rank.fold().saved(), SavedInStep()) << "nobody knows yet whose process this is";
  rank.Start(2, 10, "step 7");
  rank.Start(3, 12, "save_checkpoint");
  EXPECT_EQ(rank.fold().saved(), SavedInStep()) << "it is not there yet";
  rank.End(3, 15);
  EXPECT_EQ(rank.fold().saved(), (SavedInStep{7, 3 * Rank::kMs}));
  rank.Start(4, 17, "save_checkpoint");  // continues in the background
  rank.End(2, 20);
  EXPECT_EQ(rank.fold().saved(), SavedInStep()) << "its fold has it";
  rank.End(4, 22);
  EXPECT_EQ(rank.fold().saved(), (SavedInStep{8, 2 * Rank::kMs}));
  rank.Start(5, 23, "step 8");
  rank.Start(6, 24, "save_checkpoint");
  rank.End(6, 28);
  EXPECT_EQ(rank.fold().saved(), (SavedInStep{8, 6 * Rank::kMs}));
  rank.pid = 101;
  rank.Start(7, 50, "step 0");
  EXPECT_EQ(rank.fold().saved(), SavedInStep()) << "another process";
}

TEST(MarkFold, AnOperationOverTheEndOfAStepCoversPartsOfBoth) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.Op(2, 10, 20, "g", "Allreduce");
  rank.StartOp(3, 90, "g", "AllGather");
  rank.End(1, 100);
  rank.Start(4, 101, "step 1");
  rank.End(3, 115);
  rank.Op(5, 150, 160, "g", "Allreduce");
  rank.End(4, 200);
  ASSERT_EQ(rank.folds.size(), 2u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].covered_ns), 20);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].tail_ns), 0);
  ASSERT_EQ(rank.folds[0].ops.size(), 1u) << "it has not ended";
  const StepFold& fold = rank.folds[1];
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 15 + 10);
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 35) << "to the first one that begins here";
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 40);
  const OpFold* gather = rank.Find(fold, "g", CommOp::kAllGather);
  ASSERT_NE(gather, nullptr);
  EXPECT_DOUBLE_EQ(Ms(gather->duration_ns), 25);
  EXPECT_EQ(gather->gaps, 0u);
  EXPECT_THAT(fold.samples, ::testing::ElementsAre(OpSample{0, CommOp::kAllReduce, 0, Rank::At(150), Rank::At(160)}));
  EXPECT_EQ(fold.broken, 0u);
}

TEST(MarkFold, AnOperationWithoutItsEndCoversNothing) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.StartOp(2, 10, "g", "Allreduce");  // its end is lost
  rank.Op(3, 40, 50, "g", "Allreduce");
  rank.Op(4, 60, 70, "g", "Allreduce");
  rank.End(1, 100);
  ASSERT_EQ(rank.folds.size(), 1u);
  const StepFold& fold = rank.folds[0];
  EXPECT_EQ(fold.broken, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 20);
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 30);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].gap_ns), 10);
}

// An end may come late, so it is considered lost only when the next step has ended too.
TEST(MarkFold, AnOperationIsNotOpenForEver) {
  Rank rank;
  rank.StartOp(9, -1, "g", "Broadcast");
  for (uint64_t step = 0; step < 3; ++step) {
    const double at = static_cast<double>(step) * 100;
    rank.Start(10 + step, at, "step " + std::to_string(step));
    if (step == 0) rank.StartOp(1, 60, "g", "Broadcast");
    rank.End(10 + step, at + 90);
  }
  ASSERT_EQ(rank.folds.size(), 3u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].covered_ns), 30);
  EXPECT_EQ(rank.folds[0].broken, 0u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[1].covered_ns), 0);
  EXPECT_EQ(rank.folds[1].broken, 1u);
  EXPECT_EQ(rank.folds[2].broken, 0u);
}

TEST(MarkFold, AGapInWhichMarksWereLostCountsNowhere) {
  Rank rank;
  rank.fold().SetGroups({{"g", "tp", {{0, 1, 2}}}});
  rank.Start(1, 0, "step 0");
  rank.Op(2, 10, 20, "g", "Allreduce");
  rank.StartOp(3, 22, "g", "AllGather");
  rank.fold().Lost(5);  // the end of range 3 is among them
  rank.Op(4, 50, 60, "g", "Allreduce");
  rank.Op(5, 65, 70, "g", "Allreduce");
  rank.End(77, 80);  // the start of this range is lost
  rank.Op(6, 90, 95, "g", "Allreduce");
  rank.End(1, 100);
  ASSERT_EQ(rank.folds.size(), 1u);
  const StepFold& fold = rank.folds[0];
  EXPECT_EQ(fold.broken, 5u + 1 + 1);
  ASSERT_EQ(fold.ops.size(), 1u);
  EXPECT_EQ(fold.ops[0].count, 4u);
  EXPECT_EQ(fold.ops[0].gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].gap_ns), 5);
  EXPECT_EQ(fold.ops[0].blocking_gaps, 1u);
  EXPECT_DOUBLE_EQ(Ms(fold.ops[0].blocking_gap_ns), 5);
}

TEST(MarkFold, AnotherProcessIsAnotherLife) {
  Rank rank;
  rank.Start(1, 0, "step 10");
  rank.End(1, 100);
  rank.Start(2, 110, "step 11");
  rank.StartOp(3, 120, "g", "Allreduce");  // the process is killed during this operation
  rank.pid = 200;
  rank.Op(1, 1000, 1010, "g", "Allreduce");  // before its first step
  rank.Start(2, 1020, "step 5");
  rank.Op(3, 1030, 1040, "g", "Allreduce");
  rank.pid = 100;
  rank.End(2, 1050);  // a late record of the previous incarnation
  rank.pid = 200;
  rank.End(2, 1060);
  ASSERT_EQ(rank.folds.size(), 2u);
  const StepFold& fold = rank.folds[1];
  EXPECT_EQ(fold.step, 5);
  EXPECT_EQ(fold.process_id, 200u);
  EXPECT_EQ(fold.previous_end_ns, 0u);
  EXPECT_EQ(fold.broken, 0u);
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 10);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 10);
}

TEST(MarkFold, WithoutCommunicationMarksThePeriodIsHead) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.End(1, 90);
  rank.Start(2, 100, "step 1");
  rank.Start(3, 101, "dataloader");
  rank.End(3, 105);
  rank.End(2, 190);
  const StepFold& fold = rank.folds.back();
  EXPECT_DOUBLE_EQ(Ms(fold.head_ns), 100);
  EXPECT_DOUBLE_EQ(Ms(fold.tail_ns), 0);
  EXPECT_DOUBLE_EQ(Ms(fold.covered_ns), 0);
  EXPECT_DOUBLE_EQ(Ms(fold.dataloader_own_ns), 4);
  EXPECT_THAT(fold.ops, ::testing::IsEmpty());
  EXPECT_THAT(fold.samples, ::testing::IsEmpty());
  EXPECT_TRUE(fold.host_only);
}

TEST(MarkFold, ThePeriodIsUnknownWhereStepsWereLeftOut) {
  Rank rank;
  std::vector<bool> known;
  double at = 0;
  // Marks are switched off after step 2, step 9 and every tenth step follow, then the job goes back to step 3.
  for (int step : {0, 1, 2, 9, 10, 20, 30, 40, 3, 3, 4}) {
    rank.Start(1, at, "step " + std::to_string(step));
    rank.End(1, at + 90);
    at += 100;
    known.push_back(rank.folds.back().previous_end_ns != 0);
  }
  EXPECT_THAT(known, ::testing::ElementsAre(false, true, true, false, true, false, true, true, true, true, true));
}

TEST(MarkFold, TheOuterOfTwoRangesOfAStepCounts) {
  Rank rank;
  for (uint64_t step = 0; step < 4; ++step) {
    const double at = static_cast<double>(step) * 100;
    rank.Start(10 + step, at, "step " + std::to_string(step));
    rank.Start(20 + step, at + 1, "step " + std::to_string(step + 1));  // a tool marks its own steps from 1
    rank.End(20 + step, at + 85);
    rank.End(10 + step, at + 90);
  }
  ASSERT_EQ(rank.folds.size(), 4u);
  for (uint64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(rank.folds[step].step, static_cast<int64_t>(step));
    EXPECT_EQ(rank.folds[step].broken, 0u);
    EXPECT_DOUBLE_EQ(Ms(rank.folds[step].end_ns - rank.folds[step].start_ns), 90);
  }
}

TEST(MarkFold, AStepWithoutItsEndIsGivenUp) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.End(1, 90);
  rank.Start(2, 100, "step 1");  // its end is lost
  for (uint64_t step = 2; step < 6; ++step) {
    const double at = static_cast<double>(step) * 100;
    rank.Start(10 + step, at, "step " + std::to_string(step));
    rank.End(10 + step, at + 90);
  }
  ASSERT_EQ(rank.folds.size(), 4u);
  EXPECT_EQ(rank.folds[1].step, 3);
  EXPECT_EQ(rank.folds[1].previous_end_ns, 0u);
  EXPECT_GT(rank.folds[1].broken, 0u);
  EXPECT_EQ(rank.folds[2].step, 4);
  EXPECT_EQ(rank.folds[2].broken, 0u);
}

// Makes steps of 100 ms on the device, which runs `kLagMs` behind its host.
class DeviceRank : public Rank {
 public:
  static constexpr double kLagMs = 20;

  // Marks two operations of the group "g"; only those in `devices` have device records.
  void Step(int number, const std::vector<int>& devices = {0, 1}, bool step_on_device = true) {
    const double at = number * 100.0;
    const auto id = static_cast<uint64_t>(number) * 10 + 1;
    Start(id, at, "step " + std::to_string(number));
    if (step_on_device) DeviceStart(id, at + kLagMs);
    for (int op = 0; op < 2; ++op) {
      const uint64_t op_id = id + 1 + static_cast<uint64_t>(op);
      StartOp(op_id, at + 5 + op, "g", "Allreduce");
      End(op_id, at + 5.5 + op);
    }
    End(id, at + 10);
    for (int op : devices) {
      const uint64_t op_id = id + 1 + static_cast<uint64_t>(op);
      DeviceStart(op_id, at + kLagMs + 30 + 20 * op);
      DeviceEnd(op_id, at + kLagMs + 40 + 20 * op);
    }
    if (step_on_device) DeviceEnd(id, at + kLagMs + 95);
  }
};

TEST(MarkFold, AnOperationWithoutItsDeviceRecordsIsBroken) {
  DeviceRank rank;
  for (int step = 0; step < 3; ++step) rank.Step(step);
  rank.Step(3, {1});
  rank.Step(4, {0});
  rank.Step(5);
  rank.fold().Finish();
  ASSERT_EQ(rank.folds.size(), 5u);
  EXPECT_EQ(rank.folds[0].step, 1);
  EXPECT_EQ(rank.folds[1].ops[0].count, 2u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[1].ops[0].gap_ns), 10);
  for (size_t i : {2, 3}) {
    EXPECT_EQ(rank.folds[i].broken, 1u) << i;
    EXPECT_EQ(rank.folds[i].ops[0].count, 1u) << i;
    EXPECT_EQ(rank.folds[i].ops[0].gaps, 0u) << i;
    EXPECT_FALSE(rank.folds[i].host_only);
  }
  EXPECT_EQ(rank.folds[4].broken, 0u);
  EXPECT_EQ(rank.folds[4].ops[0].count, 2u);
}

TEST(MarkFold, AStepWithoutItsDeviceRecordsIsLeftOut) {
  DeviceRank rank;
  for (int step = 0; step < 6; ++step) rank.Step(step, {0, 1}, step != 3);
  rank.fold().Finish();
  std::vector<int64_t> steps;
  for (const StepFold& fold : rank.folds) steps.push_back(fold.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 4, 5));
  EXPECT_NE(rank.folds[1].previous_end_ns, 0u);
  EXPECT_EQ(rank.folds[2].previous_end_ns, 0u);
  EXPECT_NE(rank.folds[3].previous_end_ns, 0u);
}

TEST(MarkFold, AGroupThatIsNeverOnTheDeviceCountsByTheHost) {
  DeviceRank rank;
  for (int step = 0; step < 4; ++step) {
    rank.Op(1000 + static_cast<uint64_t>(step), step * 100 + 2, step * 100 + 4, "gloo", "Barrier");
    rank.Step(step);
  }
  rank.fold().Finish();
  ASSERT_EQ(rank.folds.size(), 3u);
  // The device runs behind, so the barrier's host time lies in the previous period.
  const OpFold* barrier = rank.Find(rank.folds[1], "gloo", CommOp::kBarrier);
  ASSERT_NE(barrier, nullptr);
  EXPECT_EQ(barrier->count, 1u);
  EXPECT_DOUBLE_EQ(Ms(barrier->duration_ns), 2);
  EXPECT_EQ(barrier->first_start_ns, Rank::At(302));
  EXPECT_EQ(rank.folds[1].broken, 0u);
  EXPECT_EQ(rank.folds[1].issues, 2u);
}

TEST(MarkFold, WhenDeviceRecordsStopTheHostsCount) {
  DeviceRank rank;
  for (int step = 0; step < 3; ++step) rank.Step(step);
  for (int step = 3; step < 12; ++step) rank.Step(step, {}, false);
  rank.fold().Finish();
  ASSERT_FALSE(rank.folds.empty());
  EXPECT_EQ(rank.folds.back().step, 11);
  EXPECT_TRUE(rank.folds.back().host_only);
  EXPECT_EQ(rank.folds.back().broken, 0u);
  EXPECT_EQ(rank.folds.back().ops[0].count, 2u);
  EXPECT_NE(rank.folds.back().previous_end_ns, 0u);
}

TEST(MarkFold, SamplesAreChosenByNumber) {
  Rank rank;
  rank.fold().SetGroups({{"one", "dp", {{4, 1, 1}}}, {"two", "dp", {{4, 1, 2}}}});
  rank.Start(1, 0, "step 0");
  rank.End(1, 1);
  uint64_t id = 10;
  rank.Op(id++, 2, 3, "two", "Allreduce");  // belongs to the next step, whose period has begun
  rank.Start(2, 5, "step 1");
  for (int i = 0; i < 20; ++i) {
    rank.Op(id++, 10 + i, 10.5 + i, "two", "Allreduce");
    rank.Op(id++, 10.5 + i, 10.7 + i, "one", "Allreduce");
    if (i < 2) rank.Op(id++, 10.8 + i, 10.9 + i, "two", "AllGather");
  }
  rank.End(2, 100);
  std::vector<std::pair<CommOp, uint32_t>> chosen;
  for (const OpSample& sample : rank.folds.back().samples) {
    EXPECT_EQ(rank.fold().groups()[sample.group].name, "two");
    chosen.emplace_back(sample.op, sample.number);
  }
  using Pair = std::pair<CommOp, uint32_t>;
  EXPECT_THAT(chosen, ::testing::ElementsAre(Pair(CommOp::kAllReduce, 0), Pair(CommOp::kAllGather, 0),
                                             Pair(CommOp::kAllReduce, 1), Pair(CommOp::kAllGather, 1),
                                             Pair(CommOp::kAllReduce, 4), Pair(CommOp::kAllReduce, 16)));
}

TEST(MarkFold, OnlyTheLargestKeysStay) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  uint64_t id = 10;
  double at = 1;
  // The operation with peer p of 50 takes 1 + p ms. A small operation of another kind comes last.
  for (int peer = 0; peer < 50; ++peer) {
    rank.Op(id++, at, at + 1 + peer, "g", "Send", peer);
    at += 2 + peer;
  }
  rank.Op(id++, at, at + 0.5, "g", "Barrier");
  rank.End(1, at + 10);
  ASSERT_EQ(rank.folds.size(), 1u);
  const std::vector<OpFold>& ops = rank.folds[0].ops;
  ASSERT_EQ(ops.size(), StepFold::kMaxOps);
  uint64_t count = 0;
  uint64_t duration_ns = 0;
  for (const OpFold& op : ops) {
    EXPECT_EQ(op.op, CommOp::kSend);
    EXPECT_GE(op.peer, 10);
    count += op.count;
    duration_ns += op.duration_ns;
  }
  EXPECT_EQ(count, 50u);
  EXPECT_DOUBLE_EQ(Ms(duration_ns), 50.0 * 51 / 2);
  EXPECT_THAT(rank.folds[0].samples, ::testing::ElementsAre(::testing::Field(&OpSample::op, CommOp::kBarrier)))
      << "a send ends at other times on its two ranks";
}

TEST(MarkFold, TellsWhatIsCoveredUntilTheLastOperationStarts) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.End(1, 1);
  rank.Start(2, 2, "step 1");
  rank.Op(3, 10, 20, "world", "Allreduce");
  rank.StartOp(4, 30, "world", "Allreduce");
  rank.StartOp(5, 34, "world", "Allreduce");  // the last one: the rank cannot compute during its 26 ms
  rank.End(4, 50);
  rank.End(5, 60);
  rank.End(2, 70);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[1].covered_ns), 10 + 30);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[1].covered_before_last_ns), 10 + 4);
  rank.Start(6, 71, "step 2");
  rank.End(6, 80);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[2].covered_before_last_ns), 0);
}

TEST(MarkFold, LearnsGroupsLate) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.Op(2, 10, 20, "b", "Allreduce");
  rank.Op(3, 30, 40, "a", "Allreduce");
  rank.End(1, 50);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].blocking_covered_ns), 0);
  const uint64_t version = rank.fold().groups_version();
  rank.fold().SetGroups({{"a", "tp", {{0, 1, 2}}}, {"b", "dp", {{0, 2, 4}}}, {"c", "cp", {}}});
  EXPECT_NE(rank.fold().groups_version(), version);
  EXPECT_THAT(rank.fold().groups(),
              ::testing::ElementsAre(GroupInfo{"b", "dp", {{0, 2, 4}}}, GroupInfo{"a", "tp", {{0, 1, 2}}}));
  const uint64_t again = rank.fold().groups_version();
  rank.fold().SetGroups({{"a", "tp", {{0, 1, 2}}}});
  EXPECT_EQ(rank.fold().groups_version(), again);
  rank.Start(4, 60, "step 1");
  rank.Op(5, 70, 80, "a", "Allreduce");
  rank.Op(6, 85, 90, "c", "Allreduce");
  rank.End(4, 100);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[1].blocking_covered_ns), 15);
  EXPECT_EQ(rank.fold().groups().back(), (GroupInfo{"c", "cp", {}}));
}

TEST(MarkFold, RangesThatNobodyEndsAreForgotten) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  uint64_t id = 10;
  for (int i = 0; i < 300'000; ++i) rank.StartOp(id++, 1 + i * 1e-4, "g", "Allreduce");
  rank.End(1, 50);
  ASSERT_EQ(rank.folds.size(), 1u) << "the step itself is not forgotten";
  EXPECT_GT(rank.folds[0].broken, 200'000u);
}

TEST(MarkFold, WorkIsOfTheStepThatItWasSaidFor) {
  Rank rank;
  rank.Work(0, "{\"work\": 1}");  // before the rank's first step
  rank.Start(1, 0, "step 0");
  rank.Work(10, "{\"work\": 100}");
  rank.Work(20, "{\"work\": 50}");
  rank.Work(25, "a moment");
  rank.End(1, 90);
  rank.Work(95, "{\"work\": 7}");  // between two steps: counts for the next one
  rank.Start(2, 100, "step 1");
  rank.End(2, 190);
  rank.Start(3, 200, "step 2");
  rank.End(3, 290);
  ASSERT_EQ(rank.folds.size(), 3u);
  EXPECT_EQ(rank.folds[0].work, 150);
  EXPECT_EQ(rank.folds[0].works, 2u);
  EXPECT_EQ(rank.folds[0].odd_works, 0u);
  EXPECT_EQ(rank.folds[1].work, 7);
  EXPECT_EQ(rank.folds[2].work, 0);
  EXPECT_EQ(rank.folds[2].works, 0u);
}

TEST(MarkFold, WorkMayStandInTheMessageOfAStepOrForward) {
  Rank rank;
  rank.Start(1, 0, "step 0 {\"work\": 10}");
  rank.Start(2, 10, "forward {\"work\": 32}");
  rank.End(2, 30);
  rank.End(1, 90);
  ASSERT_EQ(rank.folds.size(), 1u);
  EXPECT_EQ(rank.folds[0].step, 0);
  EXPECT_EQ(rank.folds[0].forwards, 1u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[0].forward_ns), 20);
  EXPECT_EQ(rank.folds[0].work, 42);
  EXPECT_EQ(rank.folds[0].works, 2u);
}

TEST(MarkFold, WorkThatCannotBeUsedIsCounted) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  for (const char* name :
       {"{\"work\": -5}", "{\"work\": nan}", "{\"work\": 5}", "{\"work\": 1.7e308}", "{\"work\": 1.7e308}"}) {
    rank.Work(10, name);
  }
  rank.End(1, 90);
  ASSERT_EQ(rank.folds.size(), 1u);
  EXPECT_EQ(rank.folds[0].work, 1.7e308);
  EXPECT_EQ(rank.folds[0].works, 5u);
  EXPECT_EQ(rank.folds[0].odd_works, 3u);
}

TEST(MarkFold, AStepThatBeginsAgainHasItsOwnWorkOnly) {
  Rank rank;
  rank.Start(1, 0, "step 0");
  rank.Work(10, "{\"work\": 100}");
  rank.fold().Lost(1);  // its end
  rank.Start(2, 100, "step 1");
  rank.Work(110, "{\"work\": 5}");
  rank.End(2, 190);
  ASSERT_EQ(rank.folds.size(), 1u);
  EXPECT_EQ(rank.folds[0].work, 5);
}

TEST(MarkFold, TimeThatGoesBackLeavesAStepOut) {
  Rank rank;
  rank.Start(1, 1000, "step 0");
  rank.End(1, 1090);
  rank.Start(2, 500, "step 1");
  rank.End(2, 590);
  rank.Start(3, 600, "step 2");
  rank.End(3, 690);
  rank.Start(4, 700, "step 3");
  rank.End(4, 790);
  std::vector<int64_t> steps;
  for (const StepFold& fold : rank.folds) steps.push_back(fold.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(rank.folds[1].previous_end_ns, 0u);
  EXPECT_DOUBLE_EQ(Ms(rank.folds[2].period_ns()), 100);
}

TEST(MarkFoldTest, TheInnermostOpenRange) {
  using Kind = OpenPhase::Kind;
  Rank rank;
  EXPECT_EQ(rank.fold().open().kind, Kind::kNone);
  rank.Start(1, 0, "step 0");
  EXPECT_EQ(rank.fold().open().kind, Kind::kNone);
  rank.Start(2, 10, "forward");
  EXPECT_EQ(rank.fold().open(), (OpenPhase{Kind::kForward, Rank::At(10), ""}));
  rank.StartOp(3, 20, "g", "Allreduce");
  EXPECT_EQ(rank.fold().open(), (OpenPhase{Kind::kCommunication, Rank::At(20), "all_reduce"}));
  rank.End(3, 30);
  EXPECT_EQ(rank.fold().open().kind, Kind::kForward);
  rank.End(2, 40);
  rank.Start(4, 50, "dataloader");
  EXPECT_EQ(rank.fold().open().kind, Kind::kDataLoader);
  rank.End(4, 60);
  rank.Start(5, 70, "save_checkpoint");
  EXPECT_EQ(rank.fold().open().kind, Kind::kCheckpoint);
  rank.End(5, 80);
  EXPECT_EQ(rank.fold().open().kind, Kind::kNone);
}

}  // namespace
}  // namespace taskd
