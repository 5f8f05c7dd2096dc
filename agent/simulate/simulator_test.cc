#include "agent/simulate/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "marks/comm_name.h"
#include "marks/mark_fold.h"

namespace taskd::simulate {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Neither noise nor clocks: what comes out can be computed by hand.
Job ExactJob(const Layout& layout) {
  Job job;
  job.layout = layout;
  job.steps = 3;
  job.step_ms = 1000;
  job.compute_share = 0.5;
  job.first_step_ms = 0;
  job.dataloader_ms = 0;
  job.noise.op_sigma = job.noise.tail_share = job.noise.rank_sigma = job.noise.slow_machine_share = 0;
  job.noise.end_spread_ms = job.noise.transfer_sigma = 0;
  job.clocks = {.offset_sigma_ms = 0, .drift_ppm = 0, .ntp_slew = false};
  return job;
}

std::unique_ptr<Simulator> Make(const Job& job) {
  absl::StatusOr<std::unique_ptr<Simulator>> simulator = Simulator::Create(job);
  EXPECT_TRUE(simulator.ok()) << simulator.status();
  return *std::move(simulator);
}

// A range by its device stamps, or by its host's where it has no others; ms since the job's start.
struct Range {
  std::string name;
  double host_start = 0, start = 0, end = 0;
};

std::vector<Range> Ranges(Simulator& simulator, int rank) {
  std::map<uint64_t, Range> by_id;
  for (const MarkRecord& mark : simulator.Marks(rank)) {
    Range& range = by_id[mark.id];
    const double ms = static_cast<double>(mark.time_ns - simulator.job().start_ns) / 1e6;
    if (!mark.name.empty()) range.name = mark.name;
    if (mark.phase == MarkRecord::Phase::kStart) {
      if (!mark.device) range.host_start = ms;
      range.start = ms;
    } else if (mark.device || range.end == 0) {
      range.end = ms;
    }
  }
  std::vector<Range> ranges;
  for (auto& [id, range] : by_id) ranges.push_back(range);
  return ranges;
}

std::vector<Range> Operations(Simulator& simulator, int rank, const std::string& op) {
  std::vector<Range> found;
  for (const Range& range : Ranges(simulator, rank)) {
    if (range.name.find("\"" + op + "\"") != std::string::npos) found.push_back(range);
  }
  return found;
}

void To(Simulator& simulator, int step) {
  while (simulator.step() < step) ASSERT_TRUE(simulator.Next());
}

Fault FaultOf(FaultKind kind, std::vector<int> targets, double severity, int first_step = 0) {
  Fault fault;
  fault.kind = kind;
  fault.targets = std::move(targets);
  fault.severity = severity;
  fault.first_step = first_step;
  return fault;
}

TEST(SimulatorTest, SlowFirstStageDelaysTheReceiveOfTheSecond) {
  // One microbatch, two stages: forward 0, transfer, forward 1, backward 1, transfer, backward 0.
  Job job = ExactJob({.dp = 1, .pp = 2, .ranks_per_node = 1, .microbatches = 1});
  auto healthy = Make(job);
  job.faults = {FaultOf(FaultKind::kCompute, {0}, 2)};
  auto slow = Make(job);
  To(*healthy, 1);
  To(*slow, 1);
  // The computation: half of the step, in two slots; 4 % are the optimizer's, a third of the rest is forward.
  const double work = 0.5 * 1000 / 2, forward = 0.96 * work / 3, backward = 2 * forward;
  Range before = Operations(*healthy, 1, "HcclRecv").at(0), after = Operations(*slow, 1, "HcclRecv").at(0);
  const double transfer = (before.end - before.start) - forward;
  EXPECT_GT(transfer, 1);
  // It was late from the start: its optimizer took as much longer at the end of the step before.
  const double late = 0.04 * work;
  EXPECT_THAT(after.end - after.start, DoubleNear(late + 2 * forward + transfer, 0.1));
  // The sender is ready last: its send lasts as long as the transfer.
  Range send = Operations(*slow, 0, "HcclSend").at(0);
  EXPECT_THAT(send.end - send.start, DoubleNear(transfer, 0.1));
  EXPECT_EQ(send.end, after.end);
  EXPECT_THAT(slow->OwnMs(0), DoubleNear(2 * work, 0.2));
  EXPECT_THAT(slow->OwnMs(1), DoubleNear(work, 0.2));
  // Stage 0 waits for the gradient through the forward and backward of stage 1 and two transfers.
  Range gradient = Operations(*slow, 0, "HcclRecv").at(0);
  EXPECT_THAT(gradient.end - gradient.start, DoubleNear(forward + backward + transfer, 0.1));
  EXPECT_THAT(slow->step_ms() - healthy->step_ms(), DoubleNear(work, 0.2));
}

TEST(SimulatorTest, LinkThatIsSlowLengthensBothEndsOnly) {
  Job job = ExactJob({.dp = 2, .pp = 2, .ranks_per_node = 1, .microbatches = 1});
  auto healthy = Make(job);
  job.faults = {FaultOf(FaultKind::kPpLink, {1, 3}, 3)};
  auto slow = Make(job);
  To(*healthy, 1);
  To(*slow, 1);
  auto length = [](Simulator& simulator, int rank) {
    Range range = Operations(simulator, rank, "HcclSend").at(0);
    return range.end - range.start;
  };
  EXPECT_THAT(length(*slow, 0), DoubleNear(length(*healthy, 0), 0.01));
  EXPECT_THAT(length(*slow, 1), DoubleNear(3 * length(*healthy, 1), 0.1));
}

TEST(SimulatorTest, PeersOfASlowRankWaitInTheirTensorParallelOperations) {
  Job job = ExactJob({.tp = 2, .dp = 1, .microbatches = 1, .layers = 2});
  job.faults = {FaultOf(FaultKind::kCompute, {1}, 1.5)};
  auto simulator = Make(job);
  To(*simulator, 1);
  std::vector<Range> waits = Operations(*simulator, 0, "HcclAllreduce");
  std::vector<Range> own = Operations(*simulator, 1, "HcclAllreduce");
  ASSERT_EQ(waits.size(), own.size());
  const double forward = 0.96 * 500 / 3;  // of both layers
  const double late = 0.5 * 0.04 * 500;   // of the optimizer before
  EXPECT_THAT((waits[0].end - waits[0].start) - (own[0].end - own[0].start), DoubleNear(late + 0.5 * forward / 2, 0.1));
  for (size_t i = 0; i < waits.size(); ++i) EXPECT_EQ(waits[i].end, own[i].end);
  EXPECT_THAT(simulator->OwnMs(1) / simulator->OwnMs(0), DoubleNear(1.5, 0.01));
}

TEST(SimulatorTest, AllRanksEndTheStepTogether) {
  Job job = ExactJob({.tp = 2, .dp = 2, .pp = 4, .ranks_per_node = 2, .microbatches = 6});
  job.noise = Noise();
  job.faults = {FaultOf(FaultKind::kCompute, {5}, 1.5)};
  auto simulator = Make(job);
  To(*simulator, 2);
  double first = 1e18, last = 0;
  for (int rank = 0; rank < simulator->ranks(); ++rank) {
    std::vector<Range> all = Ranges(*simulator, rank);
    ASSERT_EQ(all[0].name, "step 2");
    first = std::min(first, all[0].end);
    last = std::max(last, all[0].end);
  }
  // But for the noise of the optimizer, which comes after the last meeting of all.
  EXPECT_LT(last - first, 0.02 * job.step_ms);
}

TEST(SimulatorTest, PipelinesOfAnyDepthRunToTheirEnd) {
  for (int stages : {2, 3, 5, 8}) {
    for (int microbatches : {1, 2, 4, 7, 16}) {
      Job job = ExactJob({.dp = 2, .pp = stages, .microbatches = microbatches});
      auto simulator = Make(job);
      To(*simulator, 1);
      for (int rank = 0; rank < simulator->ranks(); ++rank) {
        const int stage = simulator->stage(rank);
        // One activation and one gradient a microbatch and neighbour; a batch carries one of each.
        const size_t alone =
            Operations(*simulator, rank, "HcclSend").size() + Operations(*simulator, rank, "HcclRecv").size();
        const size_t batches = Operations(*simulator, rank, "HcclBatchSendRecv").size();
        const size_t neighbours = (stage > 0) + (stage + 1 < stages);
        EXPECT_EQ(alone + 2 * batches, 2 * neighbours * static_cast<size_t>(microbatches)) << stages << " " << stage;
        int forwards = 0;
        for (const Range& range : Ranges(*simulator, rank)) {
          EXPECT_GE(range.end, range.start) << range.name;
          forwards += range.name == "forward";
        }
        EXPECT_EQ(forwards, microbatches);
      }
    }
  }
}

TEST(SimulatorTest, BucketsOverlapWithBackward) {
  Job job = ExactJob({.dp = 4, .microbatches = 1, .dp_buckets = 4});
  auto simulator = Make(job);
  To(*simulator, 1);
  std::vector<Range> buckets = Operations(*simulator, 0, "HcclAllreduce");
  ASSERT_EQ(buckets.size(), 4u);
  const double backward = 0.96 * 500 * 2 / 3;
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_THAT(buckets[i].start, DoubleNear(std::max(buckets[i - 1].end, buckets[0].start + i * backward / 4), 0.1));
  }
  job.layout.overlap_dp = false;
  auto blocking = Make(job);
  To(*blocking, 1);
  EXPECT_GT(blocking->step_ms(), simulator->step_ms() + 10);
}

TEST(SimulatorTest, HostRunsAheadUnlessItIsSlow) {
  Job job = ExactJob({.tp = 4, .dp = 4, .ranks_per_node = 4, .microbatches = 4});
  job.faults = {FaultOf(FaultKind::kHost, {2}, 1.5)};
  auto simulator = Make(job);
  To(*simulator, 1);
  auto latency = [&](int rank) {
    std::vector<Range> operations = Operations(*simulator, rank, "HcclAllreduce");
    return operations[operations.size() / 2].start - operations[operations.size() / 2].host_start;
  };
  EXPECT_GT(latency(0), 10);
  EXPECT_LT(latency(8), 0.2);
  EXPECT_LT(latency(11), 0.2);
}

TEST(SimulatorTest, RecordsAreInOrderAndNamedFirst) {
  Job job = ExactJob({.tp = 2, .dp = 4, .pp = 2, .microbatches = 4});
  job.noise = Noise();
  job.clocks = Clocks();
  job.checkpoint_every = 2;
  auto simulator = Make(job);
  std::map<uint64_t, std::pair<int, uint64_t>> ranges;  // id: records, latest time
  uint64_t last = 0;
  int saves = 0;
  while (simulator->Next()) {
    for (const MarkRecord& mark : simulator->Marks(3)) {
      EXPECT_GE(mark.time_ns, last);
      last = mark.time_ns;
      auto [it, is_new] = ranges.try_emplace(mark.id, 0, 0);
      EXPECT_EQ(is_new, !mark.name.empty());
      EXPECT_EQ(is_new, !mark.domain.empty());
      if (is_new) {
        EXPECT_FALSE(mark.device);
      }
      ++it->second.first;
      saves += mark.name == "save_checkpoint";
    }
  }
  EXPECT_EQ(saves, 1);
  std::map<int, int> count;
  for (const auto& [id, range] : ranges) ++count[range.first];
  EXPECT_EQ(count[2], 3 + 1);  // dataloaders and the checkpoint
  EXPECT_EQ(static_cast<size_t>(count[2] + count[4]), ranges.size());
}

TEST(SimulatorTest, SameSeedSameMarks) {
  // With all of its noise.
  Job job;
  job.seed = 7;
  job.layout = {.tp = 2, .dp = 4, .pp = 2, .microbatches = 4};
  job.steps = 5;
  job.faults = {FaultOf(FaultKind::kContention, {3}, 1.5), FaultOf(FaultKind::kGc, {9}, 1.5)};
  auto a = Make(job), b = Make(job);
  job.seed += 1;
  auto c = Make(job);
  for (int i = 0; i < 5; ++i) {
    a->Next(), b->Next(), c->Next();
    const std::vector<MarkRecord> marks = a->Marks(3);
    b->Marks(9);  // asking for one rank changes no other
    const std::vector<MarkRecord>& same = b->Marks(3);
    ASSERT_EQ(marks.size(), same.size());
    for (size_t k = 0; k < marks.size(); ++k) EXPECT_EQ(marks[k].time_ns, same[k].time_ns);
    EXPECT_NE(marks[0].time_ns, c->Marks(3)[0].time_ns);
  }
}

TEST(SimulatorTest, HostOnlyMarksBlock) {
  Job job = ExactJob({.tp = 2, .dp = 1, .microbatches = 1});
  job.marks.device = false;
  job.faults = {FaultOf(FaultKind::kCompute, {1}, 1.5)};
  auto simulator = Make(job);
  To(*simulator, 1);
  std::vector<Range> waits = Operations(*simulator, 0, "HcclAllreduce");
  EXPECT_GT(waits[0].end - waits[0].start, 10);
  for (const MarkRecord& mark : simulator->Marks(0)) EXPECT_FALSE(mark.device);
}

TEST(SimulatorTest, StretchesSlowARankAndItsTransfersTogether) {
  Job job = ExactJob({.dp = 2, .microbatches = 1});
  job.steps = 60;
  job.marks.device = false;
  auto even = Make(job);
  // A quarter of the time.
  job.noise.stretch_every_s = 20;
  job.noise.stretch_min_s = job.noise.stretch_max_s = 5;
  job.noise.stretch_most = 1;
  job.noise.stretch_transfers = 3;
  auto restless = Make(job);
  auto transfer = [](Simulator& simulator) {
    const Range a = Operations(simulator, 0, "HcclAllreduce").at(0),
                b = Operations(simulator, 1, "HcclAllreduce").at(0);
    return std::min(a.end - a.start, b.end - b.start);
  };
  int slow[2] = {0, 0};
  while (even->Next() && restless->Next()) {
    bool any = false;
    for (int r : {0, 1}) {
      const bool longer = restless->OwnMs(r) > even->OwnMs(r) + 1;
      slow[r] += longer ? 1 : 0;
      any = any || longer;
    }
    EXPECT_EQ(transfer(*restless) > transfer(*even) + 0.1, any) << restless->step();
  }
  for (int steps : slow) EXPECT_THAT(steps, ::testing::AllOf(::testing::Ge(10), ::testing::Le(20)));
}

TEST(SimulatorTest, OwnTimesWander) {
  Job job = ExactJob({.dp = 8, .microbatches = 1, .dp_buckets = 1});
  job.steps = 1500;
  job.noise.wander_sigma = 0.2;
  for (double correlation : {0.0, 0.9}) {
    job.noise.wander_correlation = correlation;
    auto simulator = Make(job);
    double sum = 0, square = 0, product = 0, last[8] = {};
    while (simulator->Next()) {
      for (int r = 0; r < 8; ++r) {
        const double x = std::log(simulator->OwnMs(r) / 500);
        sum += x, square += x * x;
        product += simulator->step() > 0 ? x * last[r] : 0;
        last[r] = x;
      }
    }
    const double n = 8.0 * job.steps;
    EXPECT_THAT(sum / n, DoubleNear(0, 0.04)) << correlation;
    EXPECT_THAT(std::sqrt(square / n), DoubleNear(0.2, 0.02)) << correlation;
    EXPECT_THAT(product / square, DoubleNear(correlation, 0.05));
  }
}

TEST(SimulatorTest, AFaultMeetsTheSameWeatherAsTheReplayWithoutIt) {
  Job job = ExactJob({.dp = 2, .microbatches = 1, .dp_buckets = 1});
  job.steps = 200;
  job.compute_share = 1;
  job.noise.wander_sigma = 0.3;
  job.noise.wander_correlation = 0.9;
  job.noise.gust_every_s = 7;
  job.noise.gust_s = 2;
  job.faults = {FaultOf(FaultKind::kCompute, {0, 1}, 1.25)};
  job.faults[0].first_step = 50;
  auto simulator = Make(job);
  while (simulator->Next()) {
  }
  for (const Label& label : simulator->labels()) EXPECT_THAT(label.effect, DoubleNear(0.25, 0.01));
}

TEST(SimulatorTest, GustsHitOneRankOfANodeMostAndThenAnother) {
  Job job = ExactJob({.dp = 4, .microbatches = 1, .dp_buckets = 1});
  job.steps = 400;
  job.step_ms = 100;
  job.noise.gust_every_s = 4;
  job.noise.gust_s = 1;
  job.noise.gust_most = 1;
  auto simulator = Make(job);
  int gusts = 0, most[4] = {};
  while (simulator->Next()) {
    int worst = 0, slow = 0;
    for (int r = 0; r < 4; ++r) {
      slow += simulator->OwnMs(r) > 50 * 1.2 ? 1 : 0;
      worst = simulator->OwnMs(r) > simulator->OwnMs(worst) ? r : worst;
    }
    EXPECT_THAT(slow, ::testing::AnyOf(0, 4)) << simulator->step();
    if (slow == 0) continue;
    ++gusts;
    ++most[worst];
  }
  EXPECT_THAT(gusts, ::testing::AllOf(::testing::Ge(90), ::testing::Le(110)));
  for (int steps : most) EXPECT_THAT(steps, ::testing::Le(80));
}

TEST(SimulatorTest, MarksAreSwitchedOnAndOff) {
  Job job = ExactJob({.dp = 2});
  job.steps = 20;
  job.marks.on_steps = 3;
  job.marks.off_steps = 2;
  auto simulator = Make(job);
  while (simulator->Next()) {
    EXPECT_EQ(simulator->Marks(1).empty(), simulator->step() % 5 >= 3) << simulator->step();
  }
}

TEST(SimulatorTest, NumbersOfStepsJumpAndRepeat) {
  Job job = ExactJob({.dp = 2});
  job.steps = 8;
  job.marks.jump_step = 5;
  job.marks.jump = 100;
  job.marks.repeat_every = 3;
  auto simulator = Make(job);
  std::vector<std::string> names;
  while (simulator->Next()) {
    for (const MarkRecord& mark : simulator->Marks(0)) {
      if (mark.name.rfind("step", 0) == 0) names.emplace_back(mark.name);
    }
  }
  EXPECT_THAT(names, ElementsAre("step 0", "step 1", "step 2", "step 2", "step 3", "step 104", "step 104", "step 105"));
}

TEST(SimulatorTest, ClocksDifferByNode) {
  Job job = ExactJob({.dp = 16});
  job.clocks = {.offset_sigma_ms = 30, .drift_ppm = 0, .ntp_slew = false};
  auto simulator = Make(job);
  To(*simulator, 1);
  auto end = [&](int rank) { return Operations(*simulator, rank, "HcclAllreduce").back().end; };
  EXPECT_THAT(end(0) - end(7), DoubleNear(0, 0.001));
  EXPECT_GT(std::abs(end(0) - end(8)), 0.1);
}

TEST(SimulatorTest, GroupsAreThoseOfTheNames) {
  Job job = ExactJob({.tp = 2, .cp = 2, .dp = 4, .pp = 2, .ep = 2, .microbatches = 2});
  auto simulator = Make(job);
  To(*simulator, 0);
  const std::vector<GroupInfo>& groups = simulator->groups(5);
  std::vector<std::string> labels;
  for (const GroupInfo& group : groups) labels.push_back(group.label);
  EXPECT_THAT(labels, ElementsAre("cp", "exp", "tp", "pp", "dp_cp", "default_group"));
  // Rank 5: stage 0, replica 1, context 0, tensor 1.
  EXPECT_THAT(ExpandMembers(groups[0].members, 100), ElementsAre(5, 7));
  EXPECT_THAT(ExpandMembers(groups[2].members, 100), ElementsAre(4, 5));
  EXPECT_THAT(ExpandMembers(groups[3].members, 100), ElementsAre(5, 21));
  EXPECT_THAT(ExpandMembers(groups[4].members, 100), ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
  std::vector<std::string> order;
  for (const MarkRecord& mark : simulator->Marks(5)) {
    std::string storage;
    CommName name;
    if (mark.domain != "communication" || mark.name.empty()) continue;
    ASSERT_TRUE(ParseCommName(mark.name, storage, name)) << mark.name;
    EXPECT_GT(name.bytes, 0u);
    std::string group(name.group);
    if (std::find(order.begin(), order.end(), group) == order.end()) order.push_back(group);
  }
  ASSERT_EQ(order.size(), groups.size());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], groups[i].name);
}

TEST(SimulatorTest, FoldFindsTheOwnTime) {
  Job job = ExactJob({.tp = 2, .dp = 2, .pp = 2, .ranks_per_node = 4, .microbatches = 4});
  job.noise = Noise();
  job.steps = 6;
  auto simulator = Make(job);
  std::vector<double> own;
  std::vector<StepFold> folds;
  MarkFold fold([&](StepFold&& step) { folds.push_back(std::move(step)); });
  while (simulator->Next()) {
    own.push_back(simulator->OwnMs(5));
    for (const MarkRecord& mark : simulator->Marks(5)) fold.Add(mark);
  }
  fold.Finish();
  ASSERT_THAT(folds.size(), ::testing::AnyOf(5, 6));  // the first may be left out: it has no known begin
  for (const StepFold& step : folds) {
    if (step.previous_end_ns == 0) continue;
    const double truth = own[static_cast<size_t>(step.step)];
    EXPECT_EQ(step.broken, 0u);
    // The gradients' stream covers a part of the computation, and its own waits.
    EXPECT_GT(static_cast<double>(step.period_ns() - step.blocking_covered_ns) / 1e6, 0.99 * truth);
    EXPECT_LT(static_cast<double>(step.period_ns() - step.covered_ns) / 1e6, 1.01 * truth);
  }
}

TEST(SimulatorTest, RestartIsANewLife) {
  Job job = ExactJob({.dp = 16});
  job.steps = 8;
  job.restart_step = 4;
  job.restart_dp = 8;
  auto simulator = Make(job);
  std::vector<int> steps;
  uint32_t process = 0;
  while (simulator->Next()) {
    steps.push_back(simulator->step());
    EXPECT_EQ(simulator->restarted(), steps.size() == 6);
    EXPECT_EQ(simulator->ranks(), steps.size() >= 6 ? 8 : 16);
    const uint32_t now = simulator->Marks(2)[0].process_id;
    if (simulator->restarted()) {
      EXPECT_NE(now, process);
    }
    process = now;
  }
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 4, 5, 6, 7));
}

TEST(SimulatorTest, RenumberedFaultFollowsItsMachine) {
  Job job = ExactJob({.dp = 16, .ranks_per_node = 4});
  job.steps = 10;
  job.restart_step = 5;
  job.restart_renumber = true;
  job.faults = {FaultOf(FaultKind::kCompute, {2}, 1.5)};
  auto simulator = Make(job);
  while (simulator->Next()) {
  }
  std::vector<Label> labels = simulator->labels();
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0].last_step, 5);
  EXPECT_EQ(labels[1].first_step, 5);
  const int now = labels[1].ids[0];
  EXPECT_NE(now, 2);
  EXPECT_EQ(now % 4, 2);
  EXPECT_GT(simulator->OwnMs(now), 1.4 * simulator->OwnMs(2));
}

TEST(SimulatorTest, EffectIsMeasuredAgainstTheSameJobWithoutTheFault) {
  Job job = ExactJob({.dp = 8, .microbatches = 1});
  job.steps = 20;
  job.faults = {FaultOf(FaultKind::kCompute, {3}, 1.5, 10)};
  auto simulator = Make(job);
  double before = 0, after = 0;
  while (simulator->Next()) (simulator->step() < 10 ? before : after) += simulator->step_ms() / 10;
  ASSERT_EQ(simulator->labels().size(), 1u);
  EXPECT_THAT(simulator->labels()[0].effect, DoubleNear(after / before - 1, 1e-4));
  EXPECT_GT(simulator->labels()[0].effect, 0.15);
}

TEST(SimulatorTest, EffectIsOfTheStepsInWhichWhomItHitsIsThere) {
  double effects[2];
  for (const bool leaves : {false, true}) {
    Job job = ExactJob({.dp = 8, .microbatches = 1});
    job.steps = 40;
    job.faults = {FaultOf(FaultKind::kCompute, {6}, 1.5, 10)};
    if (leaves) job.restart_step = 20, job.restart_dp = 4;
    auto simulator = Make(job);
    while (simulator->Next()) {
    }
    ASSERT_EQ(simulator->labels().size(), 1u);
    effects[leaves ? 1 : 0] = simulator->labels()[0].effect;
  }
  EXPECT_GT(effects[0], 0.15);
  EXPECT_THAT(effects[1], DoubleNear(effects[0], 0.02));
}

struct LabelCase {
  FaultKind kind;
  std::vector<int> targets;
  std::string scope;
  std::vector<int> ids;
  std::string cause;
};

class LabelTest : public ::testing::TestWithParam<LabelCase> {};

TEST_P(LabelTest, IsFeltAndNamed) {
  Job job = ExactJob({.tp = 8, .dp = 2, .pp = 4, .microbatches = 8});
  job.steps = 40;
  job.dataloader_ms = 100;
  job.checkpoint_every = 5;
  job.faults = {FaultOf(GetParam().kind, GetParam().targets, 3, GetParam().kind == FaultKind::kConfig ? 0 : 10)};
  auto simulator = Make(job);
  while (simulator->Next()) {
  }
  std::vector<Label> labels = simulator->labels();
  ASSERT_EQ(labels.size(), 1u);
  EXPECT_EQ(labels[0].scope, GetParam().scope);
  EXPECT_EQ(labels[0].ids, GetParam().ids);
  EXPECT_EQ(labels[0].causes[0], GetParam().cause);
  EXPECT_EQ(labels[0].last_step, 39);
  EXPECT_GT(labels[0].effect, 0.005);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LabelTest,
    ::testing::Values(LabelCase{FaultKind::kCompute, {5}, "rank", {5}, "compute"},
                      LabelCase{FaultKind::kCompute, {8, 9, 10, 11, 12, 13, 14, 15}, "node", {1}, "compute"},
                      LabelCase{FaultKind::kMemory, {5}, "rank", {5}, "memory"},
                      LabelCase{FaultKind::kContention, {5}, "rank", {5}, "compute"},
                      LabelCase{FaultKind::kRecompile, {5}, "rank", {5}, "compute"},
                      LabelCase{FaultKind::kDataloader, {5}, "rank", {5}, "dataloader"},
                      LabelCase{FaultKind::kHost, {1}, "node", {1}, "host"},
                      LabelCase{FaultKind::kGc, {5}, "rank", {5}, "gc"},
                      LabelCase{FaultKind::kCheckpoint, {5}, "rank", {5}, "checkpoint"},
                      LabelCase{FaultKind::kNic, {20}, "rank", {20}, "network"},
                      LabelCase{FaultKind::kNodeNic, {2}, "node", {2}, "network"},
                      LabelCase{FaultKind::kIntraNodeLink, {2}, "node", {2}, "intra_node_link"},
                      LabelCase{FaultKind::kPpLink, {20, 36}, "link", {20, 36}, "pp_link"},
                      LabelCase{FaultKind::kFabric, {}, "job", {}, "fabric"},
                      LabelCase{FaultKind::kConfig, {}, "job", {}, "config"}));

TEST(SimulatorTest, WhatNobodyCanTellApartIsOneLabel) {
  // Rail-aligned: the only traffic of a rank that leaves its node is its data parallel group's.
  Job job = ExactJob({.tp = 8, .dp = 4, .microbatches = 1});
  job.faults = {FaultOf(FaultKind::kNic, {11}, 3), FaultOf(FaultKind::kNodeNic, {1}, 3)};
  auto simulator = Make(job);
  std::vector<Label> labels = simulator->labels();
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0].scope, "group");
  EXPECT_THAT(labels[0].ids, ElementsAre(3, 11, 19, 27));
  EXPECT_EQ(labels[1].scope, "job");
}

TEST(SimulatorTest, SilentRanksAndLoss) {
  Job job = ExactJob({.dp = 16, .microbatches = 1});
  job.steps = 10;
  job.marks.silent_ranks = {4};
  job.marks.silent_from_step = 5;
  job.marks.loss = 0.05;
  auto simulator = Make(job);
  size_t records = 0;
  while (simulator->Next()) {
    EXPECT_EQ(simulator->Marks(4).empty(), simulator->step() >= 5);
    records += simulator->Marks(0).size();
  }
  EXPECT_LT(records, 10u * 26);
  EXPECT_GT(records, 10u * 26 * 8 / 10);
}

struct Wrong {
  std::string words;
  std::function<void(Job&)> change;
};

class WrongJobTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongJobTest, IsRefused) {
  Job job = ExactJob({.tp = 2, .dp = 4, .pp = 2});
  GetParam().change(job);
  absl::StatusOr<std::unique_ptr<Simulator>> simulator = Simulator::Create(job);
  ASSERT_EQ(simulator.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(simulator.status().message()), HasSubstr(GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, WrongJobTest,
    ::testing::Values(
        Wrong{"tp 0", [](Job& job) { job.layout.tp = 0; }},
        Wrong{"ep 3 does not divide dp 4", [](Job& job) { job.layout.ep = 3; }},
        Wrong{"ranks are more than", [](Job& job) { job.layout.dp = 100'000; }},
        Wrong{"steps 0", [](Job& job) { job.steps = 0; }},
        Wrong{"compute share", [](Job& job) { job.compute_share = NAN; }},
        Wrong{"rank 16 is not 0 to 15", [](Job& job) { job.faults = {FaultOf(FaultKind::kCompute, {16}, 2)}; }},
        Wrong{"node 2 is not 0 to 1", [](Job& job) { job.faults = {FaultOf(FaultKind::kHost, {2}, 2)}; }},
        Wrong{"are not neighbours",
              [](Job& job) {
                job.faults = {FaultOf(FaultKind::kPpLink, {0, 9}, 2)};
              }},
        Wrong{"takes no target", [](Job& job) { job.faults = {FaultOf(FaultKind::kFabric, {1}, 2)}; }},
        Wrong{"severity 0", [](Job& job) { job.faults = {FaultOf(FaultKind::kCompute, {1}, 0)}; }},
        Wrong{"saves no checkpoints", [](Job& job) { job.faults = {FaultOf(FaultKind::kCheckpoint, {1}, 2)}; }},
        Wrong{"no traffic between nodes", [](Job& job) {
                job.layout.ranks_per_node = 16;
                job.faults = {FaultOf(FaultKind::kNic, {1}, 2)};
              }}));

}  // namespace
}  // namespace taskd::simulate
