// The engine on folds that are written down by hand: every number of a step is known.
#include "diagnosis/engine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string_view>

#include "diagnosis/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::diagnosis {
namespace {

constexpr uint64_t kStart = 1'700'000'000'000'000'000;
constexpr double kMs = 1e6;

// A data-parallel job: each rank computes, then all reduce together and wait for the last one.
class DataParallelJob {
 public:
  explicit DataParallelJob(int ranks, int ranks_per_node = 8) : ranks_(ranks) {
    std::vector<int> members;
    for (int r = 0; r < ranks; ++r) members.push_back(r);
    for (int r = 0; r < ranks; ++r) {
      engine.SetPlace(r, {r / ranks_per_node, "node" + std::to_string(r / ranks_per_node), r % ranks_per_node});
      engine.SetGroup(r, 0, {"world", "dp", CompressMembers(members)});
    }
  }

  // Extra own time of a rank in a step, ms; NaN: no marks.
  std::function<double(int rank, int step)> extra = [](int, int) { return 0.0; };
  std::function<double(int rank, int step)> loader = [](int, int) { return 4.0; };
  std::function<double(int rank, int step)> save = [](int, int) { return 0.0; };   // a checkpoint, ms; 0: none
  std::function<bool(int step)> ends_later = [](int) { return false; };            // its operation is not of this step
  std::function<double(int rank, int step)> waits = [](int, int) { return 0.0; };  // for a CPU, ms; 0: not known
  std::function<bool(int step)> communicates = [](int) { return true; };           // its operation is marked
  std::function<bool(int step)> marks_loads = [](int) { return true; };
  uint32_t broken = 0;  // records of each step
  double transfer_ms = 20;
  uint64_t issue_ns = 0;  // from a host's start of an operation to the device's; 0: there is no device
  uint32_t process_id = 1000;
  int renewed = -1;        // a rank whose process is another one
  uint64_t length_ns = 0;  // from when a step's folds come to when the next one's do; 0: as long as it took
  int stride = 1;          // of the order in which ranks report: each so many after the one before; no divisor of them

  void Step(int step) {
    std::vector<double> own(static_cast<size_t>(ranks_));
    double slowest = 0;
    for (int r = 0; r < ranks_; ++r) {
      own[static_cast<size_t>(r)] = 100 * (1 + 0.003 * Noise()) + extra(r, step) + loader(r, step) + save(r, step);
      if (!std::isnan(own[static_cast<size_t>(r)])) slowest = std::max(slowest, own[static_cast<size_t>(r)]);
    }
    const uint64_t begin = now_;
    now_ += static_cast<uint64_t>((slowest + transfer_ms + 2) * kMs);
    if (length_ns > 0) early_ns_ += now_ - begin - length_ns;
    const uint64_t comes = now_ - early_ns_;
    for (int i = 0; i < ranks_; ++i) {
      const int r = i * stride % ranks_;
      const double time = own[static_cast<size_t>(r)];
      if (std::isnan(time)) continue;
      StepFold fold;
      fold.step = step;
      fold.process_id = process_id + static_cast<uint32_t>(r) + (r == renewed ? 100 : 0);
      fold.start_ns = begin;
      fold.end_ns = now_;
      fold.previous_end_ns = begin;
      if (marks_loads(step)) {
        fold.dataloaders = 1;
        fold.dataloader_ns = fold.dataloader_own_ns = static_cast<uint64_t>(loader(r, step) * kMs);
      }
      fold.checkpoints = save(r, step) > 0 ? 1 : 0;
      fold.checkpoint_ns = fold.checkpoint_own_ns = static_cast<uint64_t>(save(r, step) * kMs);
      fold.head_ns = static_cast<uint64_t>(time * kMs);
      fold.tail_ns = static_cast<uint64_t>(2 * kMs);
      OpFold op;
      op.op = CommOp::kAllReduce;
      op.size_log2 = 24;
      op.count = 1;
      op.bytes = 1 << 24;
      op.duration_ns = op.min_duration_ns = static_cast<uint64_t>((slowest - time + transfer_ms) * kMs);
      op.first_start_ns = begin + fold.head_ns;
      op.last_end_ns = now_ - fold.tail_ns;
      fold.covered_ns = op.duration_ns;
      fold.issues = issue_ns > 0 ? 1 : 0;
      fold.issue_p10_ns = fold.issue_p50_ns = issue_ns;
      if (!ends_later(step)) fold.ops.push_back(op);
      if (!communicates(step)) {
        fold.ops.clear();
        fold.covered_ns = fold.tail_ns = 0;
        fold.head_ns = now_ - begin;
      }
      fold.broken = broken;
      fold.cpu_wait_ns = static_cast<uint64_t>(waits(r, step) * kMs);
      fold.step = named(r, step);
      newest[r] = fold;
      if (fold.step >= 0) engine.Add(r, fold, comes);
    }
    if (engine.Advance(comes)) ++changes;
  }
  void Run(int first, int last) {
    for (int step = first; step <= last; ++step) Step(step);
  }
  // The rank's newest fold once more, under another name.
  bool Say(int rank, int64_t step) {
    StepFold fold = newest[rank];
    fold.step = step;
    return engine.Add(rank, std::move(fold), now_);
  }
  uint64_t now() const { return now_; }
  void Pause(uint64_t ns) {
    now_ += ns;
    engine.Advance(now_);
  }

  // What a rank calls a step; below 0: it does not report it.
  std::function<int64_t(int rank, int step)> named = [](int, int step) { return step; };
  std::map<int, StepFold> newest;
  Engine engine;
  int changes = 0;

 private:
  double Noise() {  // about normal, from a fixed sequence
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<double>(state_ >> 40) / (1 << 24) - 0.5;
    }
    return sum * std::sqrt(3.0);
  }

  int ranks_;
  uint64_t now_ = kStart;
  uint64_t early_ns_ = 0;  // that folds come before the steps have ended
  uint64_t state_ = 7;
};

std::string NotesOf(const Report& report) {
  std::string text;
  for (const Note& note : report.notes) text += note.text + "\n";
  return text;
}

TEST(Engine, SaysNothingOfNothing) {
  Engine engine;
  EXPECT_FALSE(engine.Advance(1));
  EXPECT_FALSE(engine.Finish());
  EXPECT_EQ(engine.report().state, JobState::kUnknown);
  EXPECT_EQ(engine.report().ranks, 0);
}

TEST(Engine, NamesNobodyInAHealthyJob) {
  DataParallelJob job(16);
  job.Run(0, 400);
  Report report = job.engine.report();
  EXPECT_EQ(report.state, JobState::kOk);
  EXPECT_TRUE(report.verdicts.empty()) << report.verdicts.front().text;
  EXPECT_EQ(report.ranks, 16);
  EXPECT_EQ(report.last_step, 400);
}

TEST(Engine, NamesTheSlowRankWithOnsetCauseAndCost) {
  DataParallelJob job(16);
  job.extra = [](int rank, int step) { return rank == 7 && step >= 50 ? 20.0 : 0.0; };
  job.Run(0, 53);
  Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u) << "within four steps";
  EXPECT_EQ(report.state, JobState::kSlow);
  const Verdict& verdict = report.verdicts.front();
  EXPECT_EQ(verdict.scope, Scope::kRank);
  EXPECT_EQ(verdict.ids, std::vector<int>{7});
  EXPECT_EQ(verdict.cause, Cause::kCompute);
  EXPECT_TRUE(verdict.open);
  EXPECT_EQ(verdict.since_step, 50);
  job.Run(54, 80);
  const Verdict later = job.engine.report().verdicts.front();
  EXPECT_EQ(later.id, verdict.id);
  EXPECT_NEAR(later.cost_ms_per_step, 20, 1.5);
  EXPECT_NEAR(later.slowdown, 146.0 / 126, 0.02);
  EXPECT_NE(later.text.find("rank 7 (node 0)"), std::string::npos) << later.text;
}

TEST(Engine, FindsAFaultThatWasThereFromTheFirstStep) {
  DataParallelJob job(16);
  job.extra = [](int rank, int) { return rank == 3 ? 10.0 : 0.0; };
  job.Run(0, 60);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().verdicts.front().ids, std::vector<int>{3});
}

// What a stopwatch in the script would say is known here.
void ExpectCost(const Verdict& verdict, double cost_ms, double step_ms) {
  EXPECT_NEAR(verdict.cost_ms_per_step, cost_ms, 0.02 * cost_ms) << verdict.text;
  EXPECT_LE(verdict.cost_interval_ms[0], cost_ms);
  EXPECT_GE(verdict.cost_interval_ms[1], cost_ms);
  EXPECT_NEAR(verdict.slowdown, step_ms / (step_ms - cost_ms), 0.02 * verdict.slowdown);
  EXPECT_LE(verdict.slowdown_interval[0], step_ms / (step_ms - cost_ms));
  EXPECT_GE(verdict.slowdown_interval[1], step_ms / (step_ms - cost_ms));
}

TEST(Engine, TellsWhatALoaderCostsThatWasSlowBeforeTheMarks) {
  for (int ranks : {2, 4, 16}) {
    DataParallelJob job(ranks, 1);
    job.loader = [](int rank, int) { return rank == 1 ? 220.0 : 4.0; };
    job.Run(0, 120);
    const Report report = job.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u) << ranks;
    ExpectCost(report.verdicts[0], 216, 342);
    EXPECT_NEAR(report.verdicts[0].evidence[0].value, 220, 0.1);
    EXPECT_NE(report.verdicts[0].text.find("loader 220 ms a step instead of 4.0 ms"), std::string::npos)
        << report.verdicts[0].text;
    EXPECT_NE(report.verdicts[0].text.find(" ms instead of 342 ms"), std::string::npos) << report.verdicts[0].text;
  }
}

TEST(Engine, TellsWhatASlowRankCostsThatWasSlowBeforeTheMarks) {
  for (int ranks : {2, 4, 16}) {
    DataParallelJob job(ranks, 1);
    job.extra = [](int rank, int) { return rank == 1 ? 110.0 : 0.0; };
    job.Run(0, 120);
    const Report report = job.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u) << ranks;
    ExpectCost(report.verdicts[0], 110, 236);
  }
}

// In a verdict's first steps most of the last ones were not slow yet.
TEST(Engine, TellsWhatASlowRankCostsFromTheFirstStepOn) {
  DataParallelJob job(4, 1);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 60 ? 1900.0 : 0.0; };
  job.Run(0, 60);
  int step = 60;
  while (job.engine.report().verdicts.empty() && step < 70) job.Step(++step);
  for (; step < 75; job.Step(++step)) {
    const Report report = job.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u) << step;
    ExpectCost(report.verdicts[0], 1900, 2026);
    EXPECT_NE(report.verdicts[0].text.find("126 ms instead of 2026 ms"), std::string::npos)
        << step << ": " << report.verdicts[0].text;
  }
}

// Pauses of any length in two of three steps: a mean of logarithms is none of what a step takes.
TEST(Engine, EvidenceIsThePlainMeanOfTheStepsThatItNames) {
  DataParallelJob job(4, 1);
  const auto extra = [](int step) { return step < 60 || step % 3 == 0 ? 0.0 : 30.0 * (1 + step * 7 % 31); };
  job.extra = [&](int rank, int step) { return rank == 1 ? extra(step) : 0.0; };
  job.Run(0, 59);
  for (int step = 60; step < 400; ++step) {
    job.Step(step);
    const Report report = job.engine.report();
    if (report.verdicts.empty()) continue;
    const Verdict& verdict = report.verdicts[0];
    ASSERT_FALSE(verdict.evidence.empty());
    const Evidence& own = verdict.evidence[0];
    ASSERT_GE(own.first_step, 0);
    ASSERT_LE(own.last_step, step);
    double sum = 0, period = 0;
    for (int64_t at = own.first_step; at <= own.last_step; ++at) {
      sum += extra(static_cast<int>(at));
      period += 126 + extra(static_cast<int>(at));
    }
    const auto steps = static_cast<double>(own.last_step - own.first_step + 1);
    EXPECT_NEAR(own.value, 102 + sum / steps, 1) << "steps " << own.first_step << " to " << own.last_step;
    EXPECT_NEAR(own.reference, 102, 0.02 * own.value);
    EXPECT_LT(own.value, period / steps) << "no rank takes longer than its step";
  }
  ASSERT_FALSE(job.engine.report().verdicts.empty());
}

TEST(Engine, NumbersOfStepsDoNotRunBackwardsAfterARestart) {
  DataParallelJob job(4, 1);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 154 ? 60.0 : 0.0; };
  job.Run(0, 170);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().first_step, 0);
  job.process_id = 5000;
  job.extra = [](int rank, int) { return rank == 1 ? 60.0 : 0.0; };
  job.Run(20, 40);  // from the last checkpoint again
  const Report report = job.engine.report();
  EXPECT_EQ(report.first_step, 20);
  EXPECT_EQ(report.last_step, 40);
  ASSERT_EQ(report.verdicts.size(), 1u);
  const Verdict& verdict = report.verdicts[0];
  EXPECT_TRUE(verdict.open);
  EXPECT_EQ(verdict.since_step, 154);
  for (const Evidence& evidence : verdict.evidence) EXPECT_LE(evidence.first_step, evidence.last_step);
  EXPECT_NE(verdict.text.find("since step 154, before the job was started again"), std::string::npos) << verdict.text;
}

TEST(Engine, SaysThatTransfersWhichWereLongFromTheStartAreNotComparable) {
  for (double transfer_ms : {60.0, 180.0}) {
    DataParallelJob job(8);
    job.transfer_ms = transfer_ms;
    job.Run(0, 60);
    const Report report = job.engine.report();
    EXPECT_TRUE(report.verdicts.empty());
    EXPECT_EQ(report.state, JobState::kOk);
    if (transfer_ms < 100) {
      EXPECT_TRUE(report.notes.empty());
      continue;
    }
    ASSERT_EQ(report.notes.size(), 1u);
    EXPECT_EQ(report.notes[0].kind, NoteKind::kNotComparable);
    EXPECT_NE(report.notes[0].text.find("63 %"), std::string::npos) << report.notes[0].text;
  }
}

TEST(Engine, TellsTwoPeersApart) {
  DataParallelJob job(2, 1);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 60 ? 10.0 : 0.0; };
  job.Run(0, 180);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().verdicts.front().ids, std::vector<int>{1});
}

TEST(Engine, TellsTwoPeersApartThoughTheirOperationsOftenEndAfterTheStep) {
  DataParallelJob job(2);
  job.ends_later = [](int step) { return step % 3 == 0; };
  job.extra = [](int rank, int step) { return rank == 1 && step >= 30 ? 50.0 : 0.0; };
  job.Run(0, 45);
  const Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts[0].ids, std::vector<int>{1});
}

TEST(Engine, IsNotSureOfStepsThatCannotBeCompared) {
  DataParallelJob job(4);
  job.issue_ns = 1'000'000;
  job.Run(0, 60);
  EXPECT_EQ(job.engine.report().state, JobState::kOk);
  job.broken = 1;
  job.Run(61, 83);
  EXPECT_EQ(job.engine.report().state, JobState::kOk);
  job.Run(84, 84);
  const Report report = job.engine.report();
  EXPECT_EQ(report.state, JobState::kUnknown);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_EQ(report.notes[0].text,
            "nothing could be compared in the last 24 steps: marks are lost, or too few ranks have the same ones");
}

TEST(Engine, TakesNoStretchOfABusyMachineForAFault) {
  for (int ranks : {2, 4}) {
    DataParallelJob job(ranks, 1);
    // 15 % for 90 steps of 141 ms, 12.7 s.
    job.extra = [](int rank, int step) { return rank == 1 && step >= 60 && step < 150 ? 15.0 : 0.0; };
    job.Run(0, 230);
    EXPECT_TRUE(job.engine.report().verdicts.empty()) << ranks << ": " << job.engine.report().verdicts.front().text;
  }
  const struct {
    int ranks;
    uint64_t issue_ns;
    std::string why;
  } cases[] = {{5, 0, "four peers that are not slower tell more than one"},
               {4, 1'000'000, "a device is its rank's alone"}};
  for (const auto& item : cases) {
    DataParallelJob job(item.ranks, 1);
    job.issue_ns = item.issue_ns;
    job.extra = [](int rank, int step) { return rank == 1 && step >= 60 && step < 120 ? 15.0 : 0.0; };
    job.Run(0, 65);
    EXPECT_EQ(job.engine.report().verdicts.size(), 1u) << item.why;
  }
}

// Steps of hosts that differ by 4 %: what lasts a second may be a gust, as long as nobody has seen others.
TEST(Engine, TakesNoFirstGustOfRestlessHostsForAFault) {
  for (int until : {48, 400}) {
    DataParallelJob job(8, 1);
    std::mt19937 random(7);
    std::normal_distribution<double> unrest(0, 4);
    job.extra = [&](int rank, int step) {
      return unrest(random) + (rank == 3 && step >= 40 && step < until ? 60.0 : 0.0);
    };
    job.Run(0, 52);
    EXPECT_TRUE(job.engine.report().verdicts.empty()) << job.engine.report().verdicts.front().text;
    job.Run(53, 70);  // 5 s
    ASSERT_EQ(job.engine.report().verdicts.size(), until > 70 ? 1u : 0u);
    if (until > 70) {
      EXPECT_EQ(job.engine.report().verdicts.front().ids, std::vector<int>{3});
    }
  }
}

// Steps end before it has lasted, as those of a profile do: whoever reads is told of whom.
TEST(Engine, SaysWhoseRiseHasNotLastedYet) {
  DataParallelJob job(3, 1);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 40 ? 30.0 : 0.0; };
  job.Run(0, 39);
  const auto said = [&job] {
    const Report report = job.engine.report();
    EXPECT_EQ(report.state, JobState::kUnknown);
    EXPECT_EQ(report.notes.size(), 1u);
    return report.notes.empty() ? std::string() : report.notes[0].text;
  };
  EXPECT_EQ(said().find("rank 1"), std::string::npos) << said();
  job.Run(40, 70);  // 4.8 s
  EXPECT_NE(said().find("; rank 1 (node 1) computes 29 % longer than its 2 peers since step 40"), std::string::npos)
      << said();
  EXPECT_NE(said().find("; of so few ranks that is a verdict once it has lasted 15 s"), std::string::npos) << said();
  job.extra = [](int, int) { return 0.0; };
  job.Run(71, 85);
  EXPECT_EQ(said().find("rank 1"), std::string::npos) << said();
}

TEST(Engine, NamesALargeRiseOfOneOfTwoAtOnce) {
  DataParallelJob job(2, 1);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 60 ? 60.0 : 0.0; };
  job.Run(0, 65);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().verdicts.front().ids, std::vector<int>{1});
}

TEST(Engine, TakesNoStretchOfABusyMachineForASlowNetwork) {
  for (uint64_t issue_ns : {uint64_t{0}, uint64_t{1000000}}) {
    DataParallelJob job(8);
    job.issue_ns = issue_ns;
    job.Run(0, 59);
    job.transfer_ms = 35;
    job.Run(60, 119);
    // 11 % for 60 steps of 137 ms, 8 s.
    EXPECT_EQ(job.engine.report().verdicts.size(), issue_ns > 0 ? 1u : 0u) << "its host moves the data";
    job.Run(120, 200);
    EXPECT_EQ(job.engine.report().verdicts.size(), 1u) << issue_ns << " for 19 s";
  }
}

TEST(Engine, AsksMoreOfALoaderWithOnePeer) {
  const auto loads = [](double ms) { return [ms](int rank, int step) { return rank == 1 && step >= 60 ? ms : 4.0; }; };
  DataParallelJob little(2, 1);
  little.loader = loads(8);  // 3 % of the step
  little.Run(0, 250);
  EXPECT_TRUE(little.engine.report().verdicts.empty()) << little.engine.report().verdicts.front().text;
  DataParallelJob lasting(2, 1);
  lasting.loader = loads(20);
  lasting.Run(0, 100);
  EXPECT_TRUE(lasting.engine.report().verdicts.empty()) << "for 5.8 s";
  lasting.Run(101, 180);
  ASSERT_EQ(lasting.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(lasting.engine.report().verdicts.front().cause, Cause::kDataloader);
  DataParallelJob large(2, 1);
  large.loader = loads(60);
  large.Run(0, 68);
  ASSERT_EQ(large.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(large.engine.report().verdicts.front().ids, std::vector<int>{1});
}

// DistributedDataParallel's own all-reduce where nothing marks it: who is slow cannot be seen, and nobody is healthy.
TEST(Engine, SaysNotThatAllIsWellWhereWaitsAreNotMarked) {
  Engine engine;
  uint64_t now = kStart;
  for (int step = 0; step < 80; ++step) {
    const uint64_t period =
        static_cast<uint64_t>((step < 30 ? 60 : 90) * kMs) + static_cast<uint64_t>(step % 3) * 100'000;
    for (int rank = 0; rank < 2; ++rank) {
      engine.SetGroup(rank, 0, {"default_pg", "", {{0, 1, 2}}});
      engine.SetMarksOn(rank, kAllKindsMask);
      StepFold fold;
      fold.step = step;
      fold.process_id = 7;
      fold.previous_end_ns = now;
      fold.end_ns = now + period;
      fold.head_ns = period;
      fold.forwards = 1;
      fold.forward_ns = fold.forward_own_ns = static_cast<uint64_t>(20 * kMs);
      engine.Add(rank, fold, now + period);
    }
    now += period;
    engine.Advance(now);
  }
  const Report report = engine.report();
  EXPECT_EQ(report.state, JobState::kUnknown);
  ASSERT_FALSE(report.notes.empty());
  EXPECT_EQ(report.notes.front().kind, NoteKind::kCoverage);
  EXPECT_NE(report.notes.front().text.find("communication is switched on, but nothing"), std::string::npos)
      << report.notes.front().text;
  ASSERT_EQ(report.coverage.size(), 2u);
  EXPECT_FALSE(report.coverage[0].sufficient);
  engine.SetMarksOn(1, MaskOf(SwitchKind::kStep));
  EXPECT_NE(engine.report().notes.front().text.find("the communication is switched off"), std::string::npos)
      << "without a further step: " << engine.report().notes.front().text;
}

TEST(Engine, ClearsWhatIsOver) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 2 && step >= 40 && step < 60 ? 30.0 : 0.0; };
  job.Run(0, 100);
  Report report = job.engine.report();
  EXPECT_EQ(report.state, JobState::kOk);
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_FALSE(report.verdicts.front().open);
  EXPECT_NEAR(static_cast<double>(report.verdicts.front().last_step), 61, 3);
  EXPECT_EQ(job.changes, 3) << "enough steps, opened, cleared";
}

// Marks are switched off while a rank is slow: nobody knows any more whether it is.
TEST(Engine, SaysThatAVerdictIsNotJudgedWithoutItsMarks) {
  for (const int ranks : {2, 8}) {
    DataParallelJob job(ranks);
    job.extra = [](int rank, int step) { return rank == 1 && step >= 60 ? 60.0 : 0.0; };
    job.communicates = [](int step) { return step < 200 || step >= 300; };
    job.Run(0, 199);
    const Report before = job.engine.report();
    ASSERT_EQ(before.verdicts.size(), 1u);
    EXPECT_EQ(before.verdicts.front().since_step, 60);
    job.Run(200, 203);  // it is not known yet that they are off
    EXPECT_TRUE(job.engine.report().verdicts.front().open) << ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      job.engine.SetMarksOn(rank, kAllKindsMask & ~MaskOf(SwitchKind::kCommunication));
    }
    job.Run(204, 299);
    const Report off = job.engine.report();
    ASSERT_EQ(off.verdicts.size(), 1u) << ranks;
    EXPECT_FALSE(off.verdicts.front().open);
    EXPECT_TRUE(off.verdicts.front().unjudged);
    EXPECT_EQ(off.verdicts.front().last_step, 199);
    EXPECT_EQ(off.verdicts.front().evidence, before.verdicts.front().evidence);
    EXPECT_EQ(off.state, JobState::kUnknown);
    EXPECT_THAT(RenderText(off, ""),
                ::testing::HasSubstr("\nnot judged any more: rank 1: compute, from step 60 until step "
                                     "199, when its marks ended or were switched off"));
    EXPECT_THAT(RenderJson(off, ""),
                ::testing::HasSubstr("\"state\":\"unjudged\",\"since_step\":60,\"until_step\":199,"));

    for (int rank = 0; rank < ranks; ++rank) job.engine.SetMarksOn(rank, kAllKindsMask);
    job.Run(300, 400);
    const Report on = job.engine.report();
    ASSERT_EQ(on.verdicts.size(), 1u) << ranks;
    EXPECT_TRUE(on.verdicts.front().open) << ranks;
    EXPECT_FALSE(on.verdicts.front().unjudged);
    EXPECT_EQ(on.verdicts.front().id, before.verdicts.front().id);
    EXPECT_EQ(on.verdicts.front().since_step, 60) << "it is the same one";
    job.extra = [](int, int) { return 0.0; };
    job.Run(401, 500);
    EXPECT_FALSE(job.engine.report().verdicts.front().open);
    EXPECT_FALSE(job.engine.report().verdicts.front().unjudged) << "it was seen to be over";
  }
}

// Without being told, as of files.
TEST(Engine, SaysThatAVerdictIsNotJudgedAfterStepsWithoutItsMarks) {
  DataParallelJob job(4);
  job.loader = [](int rank, int step) { return rank == 2 && step >= 60 ? 60.0 : 4.0; };
  job.marks_loads = [](int step) { return step < 200; };
  job.Run(0, 240);
  const Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 2u) << "what took so long before is its own time now";
  EXPECT_TRUE(report.verdicts[0].open);
  EXPECT_EQ(report.verdicts[0].since_step, 200);
  EXPECT_EQ(report.verdicts[0].cause, Cause::kUnknown) << "nobody can tell";
  EXPECT_THAT(report.verdicts[0].text, ::testing::HasSubstr("rank 2 (node 0) takes 5"));
  EXPECT_THAT(NotesOf(report),
              ::testing::HasSubstr("data loading is not marked since step 200: that rank 2 takes longer "
                                   "may be its data loader, which was slow before"));
  EXPECT_EQ(report.verdicts[1].cause, Cause::kDataloader);
  EXPECT_TRUE(report.verdicts[1].unjudged);
  EXPECT_EQ(report.verdicts[1].last_step, 199);
}

TEST(Engine, WhatBeginsWhileMarksAreOffIsNotSaidToBeThereFromTheStart) {
  for (const int off : {10, 40}) {
    DataParallelJob job(2);
    job.extra = [](int rank, int step) { return rank == 1 && step >= 105 ? 60.0 : 0.0; };
    job.communicates = [&](int step) { return step < 100 || step >= 100 + off; };
    job.Run(0, 99);
    for (int rank = 0; rank < 2; ++rank) job.engine.SetMarksOn(rank, 0);
    job.Run(100, 99 + off);
    for (int rank = 0; rank < 2; ++rank) job.engine.SetMarksOn(rank, kAllKindsMask);
    job.Run(100 + off, 240);
    const Report report = job.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u) << off;
    EXPECT_GE(report.verdicts.front().since_step, 100 + off) << "where it was seen first";
    EXPECT_LE(report.verdicts.front().since_step, 120 + off);
  }
}

TEST(Engine, NamesTheDataLoader) {
  DataParallelJob job(8);
  job.loader = [](int rank, int step) { return rank == 5 && step >= 30 ? 30.0 : 4.0; };
  job.Run(0, 60);
  Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts.front().ids, std::vector<int>{5});
  EXPECT_EQ(report.verdicts.front().cause, Cause::kDataloader);
  EXPECT_NEAR(report.verdicts.front().cost_ms_per_step, 26, 1);
}

TEST(Engine, NamesTheNodeWhenAllItsRanksAreSlow) {
  DataParallelJob job(32);
  job.extra = [](int rank, int step) { return rank / 8 == 2 && step >= 50 ? 15.0 : 0.0; };
  job.Run(0, 90);
  Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts.front().scope, Scope::kNode);
  EXPECT_EQ(report.verdicts.front().ids, std::vector<int>{2});
}

TEST(Engine, NamesTwoCulprits) {
  DataParallelJob job(16);
  job.extra = [](int rank, int step) { return step < 50 ? 0.0 : rank == 3 ? 30.0 : rank == 12 ? 20.0 : 0.0; };
  job.Run(0, 100);
  Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 2u);
  // What each would cost alone.
  EXPECT_NEAR(report.verdicts[0].cost_ms_per_step, 30, 2);
  EXPECT_NEAR(report.verdicts[1].cost_ms_per_step, 20, 2);
}

TEST(Engine, CallsMissingMarksNoData) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 4 && step >= 40 ? NAN : 0.0; };
  job.Run(0, 80);
  // The others wait for its steps until the deadline.
  EXPECT_LT(job.engine.report().last_step, 80);
  job.engine.Advance(kStart + uint64_t{1'000'000'000'000});
  Report report = job.engine.report();
  EXPECT_TRUE(report.verdicts.empty());
  bool told = false;
  for (const Note& note : report.notes)
    told = told || (note.kind == NoteKind::kNoData && note.text.find('4') != std::string::npos);
  EXPECT_TRUE(told);
  EXPECT_EQ(report.last_step, 80);
  EXPECT_EQ(report.state, JobState::kUnknown) << "it may be the slow one";
  job.engine.RemoveRank(4);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << "its process has ended";
}

TEST(Engine, DoesNotDependOnWhoReportsFirst) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 6 && step >= 33 ? 12.0 : 0.0; };
  job.Run(0, 70);
  for (const int stride : {3, 5, 7}) {
    DataParallelJob other(8);
    other.stride = stride;
    other.extra = job.extra;
    other.Run(0, 70);
    EXPECT_EQ(job.engine.report().verdicts, other.engine.report().verdicts);
  }
}

TEST(Engine, GoesOnAfterARestart) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 90 ? 15.0 : 0.0; };
  job.Run(0, 60);
  job.process_id = 5000;
  job.Run(50, 88);  // from the last checkpoint again
  EXPECT_TRUE(job.engine.report().verdicts.empty());
  EXPECT_EQ(job.engine.report().last_step, 88);
  job.Run(89, 110);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().verdicts.front().ids, std::vector<int>{1});
}

TEST(Engine, KeepsTheVerdictsOfAnEarlierLife) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 20 ? 15.0 : 0.0; };
  job.Run(0, 60);
  std::vector<Verdict> verdicts = job.engine.report().verdicts;
  ASSERT_EQ(verdicts.size(), 1u);

  DataParallelJob next(8);
  next.extra = job.extra;
  next.engine.Restore(verdicts);
  EXPECT_EQ(next.engine.report().verdicts.size(), 1u);
  next.Run(61, 160);
  Report report = next.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_TRUE(report.verdicts.front().open);
  EXPECT_EQ(report.verdicts.front().id, verdicts.front().id);
  EXPECT_EQ(report.verdicts.front().since_step, 20);

  DataParallelJob mended(8);
  mended.engine.Restore(verdicts);
  mended.Run(61, 160);
  ASSERT_EQ(mended.engine.report().verdicts.size(), 1u);
  EXPECT_FALSE(mended.engine.report().verdicts.front().open);
}

// The manager was started anew, and the node of the slow rank comes back a little later than the others, which bring all
// that they have kept.
TEST(Engine, KeepsAnEarlierLifesVerdictOnANodeThatComesBackLast) {
  DataParallelJob job(8, 4);
  job.extra = [](int rank, int step) { return rank == 6 && step >= 20 ? 15.0 : 0.0; };
  job.Run(0, 60);
  const std::vector<Verdict> verdicts = job.engine.report().verdicts;
  ASSERT_EQ(verdicts.size(), 1u);

  for (const int alone : {6, 70}) {
    DataParallelJob next(8, 4);
    next.engine.Restore(verdicts);
    next.length_ns = 1'000'000;  // what was kept comes at once
    next.named = [](int rank, int step) { return rank < 4 ? step : -1; };
    next.Run(61, 60 + alone);
    EXPECT_TRUE(next.engine.report().verdicts.front().open) << alone;
    next.extra = job.extra;
    next.named = [](int, int step) { return step; };
    next.length_ns = 0;
    next.Run(61 + alone, 180);
    const Report report = next.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u) << alone;
    EXPECT_TRUE(report.verdicts.front().open);
    EXPECT_EQ(report.verdicts.front().since_step, 20);
  }

  DataParallelJob without(8, 4);
  without.engine.Restore(verdicts);
  without.named = [](int rank, int step) { return rank < 4 ? step : -1; };
  without.Run(61, 160);  // more than 10 s
  ASSERT_EQ(without.engine.report().verdicts.size(), 1u);
  EXPECT_FALSE(without.engine.report().verdicts.front().open) << "who does not come back has left";
  EXPECT_TRUE(without.engine.report().verdicts.front().left);
}

TEST(Engine, KeepsASlowFabricThroughAStepOfMoreWork) {
  DataParallelJob job(8);
  job.extra = [](int, int step) { return step == 90 ? 20.0 : 0.0; };
  job.Run(0, 59);
  job.transfer_ms = 60;
  job.Run(60, 89);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  const uint64_t id = job.engine.report().verdicts[0].id;
  const int changes = job.changes;
  job.Run(90, 120);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_EQ(job.engine.report().verdicts[0].id, id);
  EXPECT_TRUE(job.engine.report().verdicts[0].open);
  EXPECT_EQ(job.changes, changes) << "neither cleared nor opened again";
}

TEST(Engine, TakesSlowTransfersOfAStarvedHostForNoSecondFault) {
  const struct {
    uint64_t issue_ns;
    int transfers_later;
    size_t verdicts;
    std::string why;
  } cases[] = {
      {0, 0, 1, "its host moves the data"},
      {0, 40, 2, "but not from the same step on"},
      {1'000'000, 0, 2, "a device moves the data"},
  };
  for (const auto& item : cases) {
    DataParallelJob job(8);
    job.issue_ns = item.issue_ns;
    job.extra = [](int rank, int step) { return rank == 3 && step >= 60 ? 30.0 : 0.0; };
    job.Run(0, 59 + item.transfers_later);
    job.transfer_ms = 70;
    job.Run(60 + item.transfers_later, 120);
    const std::vector<Verdict> verdicts = job.engine.report().verdicts;
    ASSERT_EQ(verdicts.size(), item.verdicts) << item.why;
    EXPECT_TRUE(std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
      return verdict.scope == Scope::kRank && verdict.ids == std::vector<int>{3} && verdict.open;
    })) << item.why;
  }
}

TEST(Engine, NamesWhoPausesForSeveralSteps) {
  // 140 ms of 126 would be a long step; 700 ms are a pause, but not of everybody: the others wait in the operation.
  for (int ranks : {2, 8}) {
    DataParallelJob job(ranks);
    job.extra = [](int rank, int step) { return rank == 1 && step >= 60 && step % 6 == 0 ? 700.0 : 0.0; };
    job.Run(0, 220);
    const std::vector<Verdict> verdicts = job.engine.report().verdicts;
    ASSERT_EQ(verdicts.size(), 1u) << ranks;
    EXPECT_EQ(verdicts[0].ids, std::vector<int>{1}) << ranks;
    EXPECT_EQ(verdicts[0].since_step, 60) << ranks;
  }
}

// Of a peer, of the rank itself: what was slow before and after stays as slow as it is.
TEST(Engine, AStopIsNotInTheMeansOfTheStepsAroundIt) {
  for (const int stops : {0, 1}) {
    DataParallelJob job(3, 1);
    job.extra = [=](int rank, int step) {
      return (rank == 1 && step >= 60 ? 40.0 : 0.0) + (rank == stops && step == 180 ? 20'000.0 : 0.0);
    };
    job.Run(0, 179);
    const Report before = job.engine.report();
    ASSERT_EQ(before.verdicts.size(), 1u);
    job.Run(180, 190);
    const Report after = job.engine.report();
    ASSERT_EQ(after.verdicts.size(), 1u);
    EXPECT_EQ(after.verdicts[0].id, before.verdicts[0].id);
    EXPECT_NEAR(after.verdicts[0].cost_ms_per_step, 40, 1) << after.verdicts[0].text;
    EXPECT_NEAR(after.verdicts[0].evidence[0].reference, 102, 1) << after.verdicts[0].text;
    EXPECT_NEAR(after.verdicts[0].confidence, before.verdicts[0].confidence, 0.01);
    EXPECT_THAT(after.verdicts[0].text, ::testing::HasSubstr("126 ms instead of 166 ms"));
  }
}

TEST(Engine, IgnoresPausesOfEverybody) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return step % 20 == 0 ? 700.0 + 50 * (rank == 1) : 0.0; };
  job.Run(0, 220);
  EXPECT_TRUE(job.engine.report().verdicts.empty());
  EXPECT_EQ(job.engine.report().state, JobState::kOk);
}

TEST(Engine, ComparesSavingsThatAllWaitFor) {
  // Steps of 126 ms; every twentieth one saves for 2 ms, and on one rank for a second: the step is a pause of everybody.
  DataParallelJob job(8);
  job.save = [](int rank, int step) { return step % 20 != 19 ? 0.0 : rank == 5 && step >= 100 ? 1000.0 : 2.0; };
  job.Run(0, 138);
  EXPECT_TRUE(job.engine.report().verdicts.empty()) << "one slow saving is none";
  job.Run(139, 141);
  Report report = job.engine.report();
  ASSERT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts[0].ids, std::vector<int>{5});
  EXPECT_EQ(report.verdicts[0].cause, Cause::kCheckpoint);
  EXPECT_EQ(report.verdicts[0].since_step, 119);
  EXPECT_NEAR(report.verdicts[0].cost_ms_per_step, 998.0 / 20, 0.1);
  EXPECT_NEAR(report.verdicts[0].evidence[0].value, 1000, 1);
  EXPECT_NEAR(report.verdicts[0].evidence[0].reference, 2, 0.01);
}

constexpr int64_t kOddStep = int64_t{1} << 62;

bool Names(const Report& report, int rank) {
  return std::any_of(report.verdicts.begin(), report.verdicts.end(), [rank](const Verdict& verdict) {
    return verdict.open && verdict.scope == Scope::kRank && verdict.ids == std::vector<int>{rank};
  });
}

// One rank names ranks that the job does not have.
TEST(Engine, SetsMembersBeyondTheJobAside) {
  constexpr int kRanks = 16;
  const auto run = [](const auto& know_size) {
    DataParallelJob job(kRanks);
    job.engine.SetGroup(3, 1, {"odd", "tp", {{3, 1, 70'000}}});
    know_size(job.engine);
    job.Run(0, 400);
    return job.engine.report();
  };
  const Report unsized = run([](Engine&) {});
  EXPECT_EQ(unsized.state, JobState::kUnknown) << "nothing tells how many ranks there are";
  EXPECT_THAT(NotesOf(unsized), ::testing::HasSubstr("no marks of rank 16-70002: not judged"));
  const auto told = [](Engine& engine) { engine.SetWorldSize(kRanks); };
  const auto declared = [](Engine& engine) {
    for (int r = 0; r < kRanks; ++r) engine.SetGroup(r, 2, {"default_group", "default_group", {{0, 1, kRanks}}});
  };
  for (const Report& report : {run(told), run(declared)}) {
    EXPECT_EQ(report.state, JobState::kOk) << NotesOf(report);
    EXPECT_THAT(NotesOf(report), ::testing::HasSubstr("groups of rank 3 name rank 16-70002, but the job has 16 ranks: "
                                                      "these members are set aside"));
    EXPECT_THAT(NotesOf(report), ::testing::Not(::testing::HasSubstr("not judged")));
  }
  const Report larger = run([](Engine& engine) { engine.SetWorldSize(kRanks + 1); });
  EXPECT_EQ(larger.state, JobState::kUnknown) << "a rank of the job is silent";
  EXPECT_THAT(NotesOf(larger), ::testing::HasSubstr("no marks of rank 16: not judged"));
}

TEST(EngineProgress, OneOddStepOfOneRankCostsNobodyElse) {
  for (int64_t odd : {kOddStep, INT64_MAX, StepFold::kMaxStep, int64_t{-1}, INT64_MIN, int64_t{3}}) {
    DataParallelJob job(17);
    job.extra = [](int rank, int step) { return rank == 7 && step >= 300 ? 61.0 : 0.0; };
    job.Run(0, 199);
    job.Say(3, odd);
    job.Run(200, 299);
    EXPECT_EQ(job.engine.report().state, JobState::kOk) << odd << ": " << NotesOf(job.engine.report());
    EXPECT_EQ(job.engine.report().last_step, 299) << odd;
    job.Run(300, 330);
    EXPECT_TRUE(Names(job.engine.report(), 7)) << odd;
    EXPECT_EQ(job.engine.report().verdicts.size(), 1u) << odd;
  }
}

TEST(EngineProgress, ARankThatGoesOnWithOddStepsIsSetAside) {
  DataParallelJob job(17);
  job.extra = [](int rank, int step) { return rank == 7 && step >= 400 ? 61.0 : 0.0; };
  job.named = [](int rank, int step) { return rank == 3 && step >= 100 && step < 300 ? kOddStep + step : step; };
  job.Run(0, 299);
  const Report aside = job.engine.report();
  EXPECT_EQ(aside.last_step, 299);
  EXPECT_EQ(aside.state, JobState::kUnknown) << "it may be the slow one";
  EXPECT_NE(
      NotesOf(aside).find("rank 3 says step 4611686018427388203, the others are at step 299: its names are not used"),
      std::string::npos)
      << NotesOf(aside);
  job.Run(300, 399);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << "it is used again: " << NotesOf(job.engine.report());
  EXPECT_EQ(job.engine.report().coverage.size(), 17u);
  job.Run(400, 430);
  EXPECT_TRUE(Names(job.engine.report(), 7));
}

TEST(EngineProgress, ANoteTellsOfAnOddStepForAWhile) {
  DataParallelJob job(17);
  job.Run(0, 99);
  job.Say(3, kOddStep);
  job.Run(100, 120);
  EXPECT_NE(NotesOf(job.engine.report()).find("rank 3 said step 4611686018427387904"), std::string::npos);
  job.Run(121, 250);
  EXPECT_EQ(NotesOf(job.engine.report()), "");
}

TEST(EngineProgress, AnOddFirstStepIsNoLastingHarm) {
  DataParallelJob job(17);
  job.named = [](int rank, int step) { return rank == 3 && step == 0 ? kOddStep : step; };
  job.Run(0, 60);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
  EXPECT_EQ(job.engine.report().coverage.size(), 17u);
}

// The others compile for longer than a step waits, or evaluate.
TEST(EngineProgress, WhoIsAloneForLongIsOverruled) {
  for (int first : {0, 100}) {
    DataParallelJob job(17);
    job.extra = [](int rank, int step) { return rank == 7 && step >= 200 ? 61.0 : 0.0; };
    job.Run(0, first - 1);
    StepFold fold;
    fold.process_id = 1003;
    uint64_t now = job.now();
    for (int64_t odd = 0; odd < 5; ++odd) {
      fold.step = kOddStep + odd;
      fold.previous_end_ns = now;
      fold.end_ns = now += 60'000'000'000;
      job.engine.Add(3, fold, now);
      job.engine.Advance(now);
    }
    job.Pause(now - job.now());
    job.Run(first, 230);
    EXPECT_TRUE(Names(job.engine.report(), 7)) << first;
    EXPECT_EQ(job.engine.report().last_step, 230);
    EXPECT_NEAR(job.engine.report().step_ms, 187, 5);
  }
}

TEST(EngineProgress, OddButEqualNamesAreGoodOnes) {
  for (int64_t stride : {int64_t{1}, int64_t{10}, int64_t{1} << 40}) {
    DataParallelJob job(17);
    job.extra = [](int rank, int step) { return rank == 7 && step >= 60 ? 61.0 : 0.0; };
    job.named = [stride](int, int step) { return kOddStep + stride * step; };
    job.Run(0, 59);
    EXPECT_EQ(job.engine.report().state, JobState::kOk) << stride << NotesOf(job.engine.report());
    job.Run(60, 70);
    EXPECT_TRUE(Names(job.engine.report(), 7)) << stride;
    job.named = [stride](int, int step) { return kOddStep / 2 * 3 + stride * step; };
    job.Run(71, 90);
    EXPECT_EQ(job.engine.report().last_step, kOddStep / 2 * 3 + stride * 90) << "all have jumped";
    EXPECT_TRUE(Names(job.engine.report(), 7)) << stride;
  }
}

// A job that marks every tenth step, and one rank that makes up those in between.
TEST(EngineProgress, StepsThatFewHaveSayNothingOfTheJob) {
  DataParallelJob job(17);
  job.named = [](int, int step) { return int64_t{step} * 10; };
  for (int step = 0; step < 60; ++step) {
    job.Step(step);
    for (int i = 1; i < 10; ++i) {
      job.newest[3].previous_end_ns -= 50'000'000'000;
      job.Say(3, step * 10 + i);
    }
  }
  EXPECT_NEAR(job.engine.report().step_ms, 126, 3);
  EXPECT_EQ(job.engine.report().last_step, 590);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
}

TEST(EngineProgress, OfTwoRanksThatDisagreeNeitherDecides) {
  DataParallelJob job(2, 1);
  job.Run(0, 150);  // two of them need 15 s
  EXPECT_EQ(job.engine.report().state, JobState::kOk);
  job.named = [](int rank, int step) { return rank == 1 ? kOddStep + step : step; };
  job.Run(151, 250);
  const Report report = job.engine.report();
  EXPECT_EQ(report.state, JobState::kUnknown);
  EXPECT_NE(NotesOf(report).find("rank 1 says step 4611686018427388154, the others are at step 250"), std::string::npos)
      << NotesOf(report);
  job.named = [](int, int step) { return step; };
  job.extra = [](int rank, int step) { return rank == 1 && step >= 400 ? 60.0 : 0.0; };
  job.Run(251, 399);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
  job.Run(400, 410);
  EXPECT_TRUE(Names(job.engine.report(), 1));
}

TEST(EngineProgress, OneRankMayCallItsStepsAsItLikes) {
  DataParallelJob job(1, 1);
  job.Run(0, 30);
  EXPECT_EQ(job.engine.report().last_step, 30);
  job.named = [](int, int step) { return kOddStep + step; };
  job.Run(31, 60);
  EXPECT_EQ(job.engine.report().last_step, kOddStep + 60);
  job.named = [](int, int step) { return step; };
  job.Run(61, 90);
  EXPECT_EQ(job.engine.report().last_step, 90);
}

TEST(EngineProgress, CountingAnewInEachEpochIsJudged) {
  DataParallelJob job(8);
  job.named = [](int, int step) { return step % 50; };
  job.extra = [](int rank, int step) { return rank == 2 && step >= 120 ? 30.0 : 0.0; };
  job.Run(0, 119);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
  EXPECT_EQ(job.engine.report().last_step, 19);
  job.Run(120, 180);
  EXPECT_TRUE(Names(job.engine.report(), 2));
}

TEST(EngineProgress, ARankWhoseProcessAloneIsStartedAgainIsUsedAgain) {
  for (int64_t back : {0, 5}) {
    DataParallelJob job(8);
    job.Run(0, 60);
    job.renewed = 4;
    job.named = [back](int rank, int step) { return rank == 4 && step < 75 ? step - back : step; };
    job.extra = [](int rank, int step) { return rank == 4 && step >= 250 ? 30.0 : 0.0; };
    job.Run(61, 249);
    EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
    EXPECT_EQ(job.engine.report().last_step, 249);
    job.Run(250, 260);
    EXPECT_TRUE(Names(job.engine.report(), 4));
  }
}

TEST(EngineProgress, ARankThatStartsAgainAndAgainCostsNobodyElse) {
  DataParallelJob job(17);
  job.extra = [](int rank, int step) { return rank == 7 && step >= 300 ? 61.0 : 0.0; };
  job.Run(0, 99);
  for (int step = 100; step <= 330; ++step) {
    job.Step(step);
    StepFold fold = job.newest[3];
    fold.process_id = 5000 + static_cast<uint32_t>(step);
    fold.step = step % 7;
    job.engine.Add(3, fold, job.now());
  }
  EXPECT_EQ(job.engine.report().last_step, 330);
  EXPECT_TRUE(Names(job.engine.report(), 7));
}

TEST(EngineProgress, LocalSgdAndLateJoiners) {
  // Ranks are up to 40 steps apart, and four come 100 steps late.
  DataParallelJob job(12);
  std::map<int, std::vector<StepFold>> held;
  for (int step = 0; step < 400; ++step) {
    job.named = [](int, int) { return int64_t{-1}; };
    job.Step(step);
    for (auto& [rank, fold] : job.newest) {
      fold.step = step;
      if (rank >= 8 && step < 100) continue;
      held[rank].push_back(fold);
    }
    for (auto& [rank, folds] : held) {
      if ((step + rank) % (rank % 4 == 0 ? 40 : 1) != 0) continue;
      for (StepFold& fold : folds) EXPECT_TRUE(job.engine.Add(rank, fold, job.now())) << rank << " " << step;
      folds.clear();
    }
    job.engine.Advance(job.now());
  }
  EXPECT_GE(job.engine.report().last_step, 350);
  EXPECT_EQ(job.engine.report().coverage.size(), 12u);
  EXPECT_TRUE(job.engine.report().verdicts.empty());
}

TEST(EngineProgress, AnElasticChangeOfTheWorld) {
  DataParallelJob job(8);
  job.Run(0, 60);
  job.process_id = 5000;
  job.extra = [](int rank, int step) { return rank >= 5 && step < 100 ? NAN : rank == 1 && step >= 150 ? 30.0 : 0.0; };
  for (int rank = 5; rank < 8; ++rank) job.engine.RemoveRank(rank);
  for (int step = 50; step < 100; ++step) job.Step(step);
  EXPECT_EQ(job.engine.report().last_step, 99);
  EXPECT_EQ(job.engine.report().coverage.size(), 5u);
  job.process_id = 9000;
  for (int step = 100; step < 160; ++step) job.Step(step);
  EXPECT_EQ(job.engine.report().coverage.size(), 8u);
  EXPECT_TRUE(Names(job.engine.report(), 1));
}

TEST(EngineNotes, AChangeForAllIsMeasuredAndNamesNoCause) {
  DataParallelJob job(8);
  job.extra = [](int, int step) { return step >= 100 ? 25.0 : 0.0; };
  job.Run(0, 140);
  const Report report = job.engine.report();
  ASSERT_EQ(report.notes.size(), 1u) << NotesOf(report);
  EXPECT_EQ(report.notes[0].kind, NoteKind::kDesign);
  EXPECT_NEAR(static_cast<double>(report.notes[0].since_step), 100, 2);
  EXPECT_EQ(report.notes[0].until_step, -1);
  EXPECT_NE(report.notes[0].text.find(" % more by themselves"), std::string::npos) << report.notes[0].text;
}

TEST(EngineNotes, AChangeForAllThatIsOverIsNotSaidAnyMore) {
  DataParallelJob job(8);
  job.extra = [](int, int step) { return step >= 100 && step < 160 ? 25.0 : 0.0; };
  job.Run(0, 150);
  EXPECT_THAT(NotesOf(job.engine.report()), ::testing::HasSubstr("all ranks take 25 % more"));
  job.Run(151, 200);
  EXPECT_EQ(NotesOf(job.engine.report()), "");
}

TEST(EngineNotes, LoadingThatIsNotMarkedAnyMoreIsNoChangeForAll) {
  for (const bool told : {true, false}) {
    DataParallelJob job(4);
    job.loader = [](int, int) { return 20.0; };
    job.marks_loads = [](int step) { return step < 100; };
    job.Run(0, 99);
    for (int rank = 0; told && rank < 4; ++rank)
      job.engine.SetMarksOn(rank, kAllKindsMask & ~MaskOf(SwitchKind::kDataLoader));
    job.Run(100, 200);
    EXPECT_EQ(NotesOf(job.engine.report()), "") << told;
  }
}

TEST(Engine, SaysForHowLongNoStepHasEnded) {
  DataParallelJob job(4);
  job.Run(0, 60);
  EXPECT_EQ(WriteHeadline(job.engine.report()).find("no step has ended"), std::string::npos);
  job.Pause(12'000'000'000);
  EXPECT_THAT(WriteHeadline(job.engine.report()), ::testing::EndsWith("; no step has ended for 12 s"));
  EXPECT_THAT(RenderText(job.engine.report(), ""), ::testing::HasSubstr("a step took "));
  job.engine.Finish();
  EXPECT_EQ(WriteHeadline(job.engine.report()).find("no step has ended"), std::string::npos) << "the job has";
}

TEST(EngineNotes, WhatIsNotMarkedIsNoChangeForAll) {
  DataParallelJob job(8);
  job.transfer_ms = 60;
  job.communicates = [](int step) { return step < 100; };
  job.Run(0, 140);
  EXPECT_EQ(NotesOf(job.engine.report()).find("all ranks take"), std::string::npos) << NotesOf(job.engine.report());
}

// The others' waits for a CPU are the change, not the one's that waits anyway.
TEST(EngineNotes, OneRankThatWaitsForACpuIsNoWaitOfAll) {
  DataParallelJob job(3, 1);
  job.extra = [](int rank, int step) { return step < 100 ? 0.0 : rank == 1 ? 80.0 : 25.0; };
  job.waits = [](int rank, int step) { return step < 100 || rank != 1 ? 1.0 : 75.0; };
  job.Run(0, 140);
  EXPECT_EQ(NotesOf(job.engine.report()).find("waiting for a CPU"), std::string::npos) << NotesOf(job.engine.report());
}

TEST(EngineNotes, AChangeForAllThatIsWaitingForACpuIsSaidToBe) {
  for (const bool busier : {true, false}) {
    DataParallelJob job(8);
    const auto is_busy = [busier](int step) { return (step >= 100) == busier; };
    job.extra = [&](int, int step) { return is_busy(step) ? 30.0 : 0.0; };
    job.waits = [&](int, int step) { return is_busy(step) ? 25.0 : 1.0; };
    job.Run(0, 140);
    const Report report = job.engine.report();
    ASSERT_EQ(report.notes.size(), 1u) << NotesOf(report);
    EXPECT_EQ(report.notes[0].kind, NoteKind::kRestless);
    const std::string_view said = busier ? "% more by themselves: most of that is waiting for a CPU"
                                         : "% less by themselves: most of that is less waiting for a CPU";
    EXPECT_NE(report.notes[0].text.find(said), std::string::npos) << report.notes[0].text;
  }
  // They wait, but no more than before; also where that is not known of each step.
  for (const int known_every : {1, 2}) {
    DataParallelJob job(8);
    job.extra = [](int, int step) { return step >= 100 ? 25.0 : 0.0; };
    job.waits = [=](int, int step) { return step % known_every == 0 ? 80.0 : 0.0; };
    job.Run(0, 140);
    ASSERT_EQ(job.engine.report().notes.size(), 1u) << NotesOf(job.engine.report());
    EXPECT_EQ(job.engine.report().notes[0].kind, NoteKind::kDesign) << known_every;
  }
}

TEST(EngineNotes, WhatIsAVerdictIsNotSaidToBecomeOne) {
  DataParallelJob job(3, 1);
  job.extra = [](int rank, int step) { return rank != 1 || step < 20 ? 0.0 : step < 32 ? 60.0 : 25.0; };
  bool was_coarse = false;
  for (int step = 0; step < 60; ++step) {
    job.Step(step);
    const Report report = job.engine.report();
    if (!Names(report, 1)) continue;
    for (const Note& note : report.notes) {
      was_coarse = was_coarse || note.text.find("cannot be told from noise") != std::string::npos;
      EXPECT_EQ(note.text.find("is a verdict once"), std::string::npos) << step << ": " << note.text;
    }
  }
  EXPECT_TRUE(was_coarse) << "else nothing was looked at";
}

TEST(Engine, SaysWhichRanksAreNearestToAVerdict) {
  DataParallelJob job(8);
  job.extra = [](int rank, int step) { return rank == 6 && step >= 40 ? 30.0 : rank == 5 && step >= 61 ? 3.0 : 0.0; };
  job.Run(0, 64);
  const Report report = job.engine.report();
  EXPECT_TRUE(Names(report, 6));
  ASSERT_FALSE(report.nearest.empty());
  EXPECT_LE(report.nearest.size(), 3u);
  EXPECT_THAT(report.nearest[0], ::testing::StartsWith("rank 5: self time "));
  EXPECT_THAT(report.nearest[0], ::testing::HasSubstr("; no verdict: "));
  for (const std::string& text : report.nearest) EXPECT_FALSE(text.starts_with("rank 6:")) << "it has one";
}

// A profile of some seconds, or a first try: nobody can wait for more steps of it.
TEST(Engine, AtTheEndSaysOfAFewRanksWhatItKnows) {
  DataParallelJob healthy(2, 1);
  healthy.Run(0, 50);
  EXPECT_EQ(healthy.engine.report().state, JobState::kUnknown)
      << "it goes on, and what begins now would be found later";
  healthy.engine.Finish();
  EXPECT_EQ(healthy.engine.report().state, JobState::kOk) << NotesOf(healthy.engine.report());
  EXPECT_LE(healthy.engine.report().own_time->ratio, 0.25);

  for (const int begin : {20, 40}) {
    DataParallelJob slow(2, 1);
    slow.extra = [=](int rank, int step) { return rank == 1 && step >= begin ? 35.0 : 0.0; };
    slow.Run(0, 50);
    EXPECT_TRUE(slow.engine.report().verdicts.empty());
    EXPECT_THAT(NotesOf(slow.engine.report()), ::testing::HasSubstr("once it has lasted 15 s"));
    slow.engine.Finish();
    const Report report = slow.engine.report();
    EXPECT_EQ(Names(report, 1), begin == 20) << NotesOf(report);
    EXPECT_NE(report.state, JobState::kOk) << "something has begun";
    if (begin == 20) {
      EXPECT_NEAR(report.verdicts[0].cost_ms_per_step, 35, 1);
    } else {
      EXPECT_THAT(NotesOf(report), ::testing::HasSubstr("once it has lasted 2 s"));
    }
  }
}

TEST(EngineNotes, NoiseThatHidesAlmostAnythingIsSaidWithoutANumber) {
  DataParallelJob job(2, 1);
  std::mt19937 random(3);
  std::normal_distribution<double> noise(0, 1.5);
  job.extra = [&](int, int) { return 100 * std::exp(noise(random)); };
  job.Run(0, 40);
  const Report report = job.engine.report();
  EXPECT_EQ(report.state, JobState::kUnknown);
  const std::string notes = NotesOf(report);
  EXPECT_NE(notes.find("that a rank which takes twice as long cannot be told from noise yet"), std::string::npos)
      << notes;
  EXPECT_EQ(notes.find("less than"), std::string::npos) << notes;
}

TEST(EngineNotes, UnrestOfTheMachinesIsNoChange) {
  // All go up and down together, by a fifth, for twelve steps each: less than a restless machine does.
  DataParallelJob job(8);
  job.extra = [](int, int step) { return (step / 12) * 7 % 5 * 5.0; };
  job.Run(0, 400);
  for (const Note& note : job.engine.report().notes) EXPECT_NE(note.kind, NoteKind::kDesign) << note.text;
}

// Three nodes of a rank each. Node 2 is slow, and goes; the others go on from an older step.
class ShrinkingJob : public DataParallelJob {
 public:
  ShrinkingJob() : DataParallelJob(3, 1) {
    extra = [this](int rank, int step) {
      if (rank == 2 && shrunk) return static_cast<double>(NAN);
      return rank == 2 && step >= 100 ? 83.0 : 0.0;
    };
    Run(0, 219);
  }
  void Shrink() {
    shrunk = true;
    process_id = 5000;
  }
  bool shrunk = false;
};

TEST(EnginePresence, NobodyWhoHasLeftIsAccused) {
  for (const bool reported : {true, false}) {
    ShrinkingJob job;
    ASSERT_TRUE(Names(job.engine.report(), 2));
    if (reported) job.engine.RemoveRank(2);
    job.Shrink();
    job.Run(60, 61);
    // Where nobody says so it may still come, and what was said of it stays.
    EXPECT_EQ(Names(job.engine.report(), 2), !reported);
    job.Run(62, 200);
    const Report report = job.engine.report();
    ASSERT_EQ(report.verdicts.size(), 1u);
    EXPECT_FALSE(report.verdicts[0].open);
    EXPECT_TRUE(report.verdicts[0].left);
    EXPECT_NEAR(static_cast<double>(report.verdicts[0].since_step), 100, 2);
    EXPECT_EQ(report.ranks, 2);
    EXPECT_EQ(report.last_step, 200);
  }
}

// Some ranks end before others: their steps, and those of the others, are judged after that.
TEST(EnginePresence, WhatWasFoundStaysAtTheEndOfTheJob) {
  DataParallelJob job(3, 1);
  bool ended = false;
  job.extra = [&](int rank, int step) { return ended && rank == 1 ? NAN : rank == 1 && step >= 60 ? 83.0 : 0.0; };
  job.Run(0, 199);
  ASSERT_TRUE(Names(job.engine.report(), 1));
  job.engine.RemoveRank(1);
  ended = true;
  job.Run(200, 201);
  for (const int rank : {0, 2}) job.engine.RemoveRank(rank);
  job.engine.Advance(job.now() + 60'000'000'000);
  EXPECT_TRUE(Names(job.engine.report(), 1)) << RenderText(job.engine.report(), "");
  job.engine.Finish();
  EXPECT_TRUE(Names(job.engine.report(), 1)) << RenderText(job.engine.report(), "");
}

TEST(EnginePresence, WhatWasThereFromTheStartBeganInItsLife) {
  DataParallelJob job(3, 1);
  job.extra = [](int rank, int) { return rank == 2 ? 83.0 : 0.0; };
  job.Run(457, 600);
  job.process_id = 5000;
  job.Run(60, 120);
  const Report report = job.engine.report();
  ASSERT_TRUE(Names(report, 2));
  EXPECT_EQ(report.verdicts[0].since_step, 457);
  EXPECT_EQ(WriteHeadline(report).find("457-120"), std::string::npos) << WriteHeadline(report);
}

TEST(EnginePresence, WhoComesBackIsJudgedAgain) {
  ShrinkingJob job;
  job.engine.RemoveRank(2);
  job.Shrink();
  job.Run(60, 90);
  EXPECT_FALSE(Names(job.engine.report(), 2));
  job.shrunk = false;
  job.process_id = 9000;
  job.Run(91, 140);
  EXPECT_TRUE(Names(job.engine.report(), 2));
}

TEST(EnginePresence, WhatWasAccusedBeforeARestartGoesOn) {
  ShrinkingJob job;
  const Verdict before = job.engine.report().verdicts.at(0);
  job.process_id = 5000;
  job.extra = [](int rank, int) { return rank == 2 ? 83.0 : 0.0; };
  for (int step = 60; step < 120; ++step) {
    job.Step(step);
    ASSERT_TRUE(Names(job.engine.report(), 2)) << step;
  }
  const Report report = job.engine.report();
  EXPECT_EQ(report.verdicts.size(), 1u);
  EXPECT_EQ(report.verdicts[0].id, before.id);
  EXPECT_EQ(report.verdicts[0].since_step, before.since_step) << "of the life in which it began";
  EXPECT_EQ(report.verdicts[0].last_step, 119);
}

TEST(EnginePresence, ARankNumberOfAnotherMachineIsSomebodyElse) {
  ShrinkingJob job;
  job.engine.SetPlace(2, {7, "spare", 0});
  job.process_id = 5000;
  job.extra = [](int, int) { return 0.0; };
  job.Run(60, 61);
  ASSERT_EQ(job.engine.report().verdicts.size(), 1u);
  EXPECT_FALSE(job.engine.report().verdicts[0].open);
  EXPECT_TRUE(job.engine.report().verdicts[0].left);
}

TEST(EnginePresence, WhoIsNotThereHasNoMoreMarks) {
  ShrinkingJob job;
  job.Shrink();
  job.Run(60, 200);
  EXPECT_NE(NotesOf(job.engine.report()).find("no more marks of rank 2"), std::string::npos);
}

TEST(EngineProgress, MarksThatAreOffOnMostRanksAreNotWaitedForForEver) {
  DataParallelJob job(8);
  job.extra = [](int rank, int) { return rank >= 3 ? NAN : 0.0; };
  for (int step = 0; step < 40; ++step) {
    job.Step(step);
    job.Pause(4'000'000'000);
  }
  EXPECT_GE(job.engine.report().last_step, 35);
}

TEST(EngineProgress, OkExpiresWhereStepsAreNotJudged) {
  DataParallelJob job(8);
  job.Run(0, 60);
  EXPECT_EQ(job.engine.report().state, JobState::kOk);
  // Marks of each step come, but not since when.
  for (int step = 61; step < 90; ++step) {
    job.named = [](int, int) { return int64_t{-1}; };
    job.Step(step);
    for (auto& [rank, fold] : job.newest) {
      fold.step = step;
      fold.previous_end_ns = 0;
      job.engine.Add(rank, fold, job.now());
    }
    job.engine.Advance(job.now());
  }
  EXPECT_EQ(job.engine.report().state, JobState::kUnknown);
  EXPECT_NE(NotesOf(job.engine.report()).find("those after step 60 could not be judged"), std::string::npos);
  job.named = [](int, int step) { return step; };
  job.Run(90, 120);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
}

TEST(EngineProgress, OneFoldOfEachRankAndStep) {
  DataParallelJob job(8);
  job.Run(0, 60);
  EXPECT_FALSE(job.Say(3, 60)) << "it was judged";
  EXPECT_TRUE(job.Say(3, 61));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(job.Say(3, 61));
}

TEST(EngineProgress, WhatWaitsIsBoundedWhateverARankSends) {
  DataParallelJob job(8);
  job.Run(0, 60);
  int waiting = 0;
  for (int64_t i = 0; i < 10000; ++i) waiting += job.Say(3, 1000 + i) ? 1 : 0;
  EXPECT_EQ(waiting, 1024);
  // Back and forth: no more than once for each step of the job.
  int again = 0;
  for (int64_t i = 0; i < 10000; ++i) again += job.Say(3, i % 2 == 0 ? 61 : kOddStep + i) ? 1 : 0;
  EXPECT_LE(again, 2);
  job.Run(61, 160);
  EXPECT_EQ(job.engine.report().last_step, 160);
  EXPECT_EQ(job.engine.report().coverage.size(), 8u);
}

TEST(EngineProgress, WhatAllRanksMakeWaitIsBounded) {
  DataParallelJob job(8);
  job.Run(0, 60);
  for (int rank = 0; rank < 8; ++rank) {
    for (int64_t i = 0; i < 100; ++i) {
      StepFold large = job.newest.at(rank);
      large.step = 1000 + i;
      large.ops.reserve((size_t{4} << 20) / sizeof(OpFold));  // asked for, and never touched
      job.engine.Add(rank, std::move(large), job.now());
    }
    EXPECT_TRUE(job.Say(rank, 2000)) << "its share is its own";
  }
  EXPECT_GT(job.engine.waiting_bytes(), Engine::kMaxWaitingBytes / 3 * 2);
  EXPECT_LE(job.engine.waiting_bytes(), Engine::kMaxWaitingBytes);
}

// What a node sent while the manager did not get to it comes at once, and the other nodes' after it.
TEST(EngineProgress, StepsThatComeAtOnceAreAllJudged) {
  DataParallelJob job(8);
  job.Run(0, 60);
  std::map<int, std::vector<StepFold>> held;
  job.named = [](int, int) { return int64_t{-1}; };
  for (int step = 61; step <= 400; ++step) {
    job.Step(step);
    for (auto& [rank, fold] : job.newest) {
      fold.step = step;
      held[rank].push_back(fold);
    }
  }
  for (auto& [rank, folds] : held) {
    for (StepFold& fold : folds) EXPECT_TRUE(job.engine.Add(rank, fold, job.now()));
  }
  job.engine.Advance(job.now());
  EXPECT_EQ(job.engine.report().last_step, 400);
  EXPECT_EQ(job.engine.report().state, JobState::kOk) << NotesOf(job.engine.report());
}

TEST(EngineProgress, ARankThatIsBehindHoldsNobodyUp) {
  DataParallelJob job(8);
  job.Run(0, 60);
  for (int step = 61; step < 161; ++step) {
    job.extra = [](int rank, int) { return rank == 3 ? NAN : 0.0; };
    job.Step(step);
    job.Say(3, 5);
    if (step >= 80 && step < 100) job.Pause(4'000'000'000);
  }
  EXPECT_GE(job.engine.report().last_step, 158) << "its old steps do not make it a rank to wait for";
}

TEST(Engine, IgnoresRanksThatCannotBe) {
  Engine engine;
  engine.SetPlace(-1, {});
  engine.SetPlace(kMaxRanks, {});
  engine.Add(-5, {}, 1);
  engine.Add(1 << 30, {}, 1);
  engine.SetGroup(-1, 0, {});
  engine.RemoveRank(99);
  EXPECT_EQ(engine.report().ranks, 0);
}

// ---- Why

const DetectorTrace& DetectorOf(const RankTrace& trace, std::string_view feature) {
  const auto found = std::find_if(trace.detectors.begin(), trace.detectors.end(),
                                  [&](const DetectorTrace& detector) { return detector.feature == feature; });
  static const DetectorTrace none;
  EXPECT_NE(found, trace.detectors.end()) << feature;
  return found == trace.detectors.end() ? none : *found;
}

TEST(EngineWhy, SaysWhyARankHasAVerdictAndItsPeersNone) {
  DataParallelJob job(16);
  job.extra = [](int rank, int step) { return rank == 5 && step >= 100 ? 15.0 : 0.0; };
  job.Run(0, 160);
  const RankTrace slow = *job.engine.Why(5);
  EXPECT_THAT(slow.text, ::testing::StartsWith("rank 5: self time 1"));
  EXPECT_THAT(slow.text,
              ::testing::HasSubstr("% above its 15 peers since step 100; verdict: rank 5 (node 0) computes "));
  const DetectorTrace& own = DetectorOf(slow, "own_time");
  EXPECT_EQ(own.state, TraceState::kVerdict);
  EXPECT_EQ(own.since_step, 100);
  EXPECT_NEAR(own.value_ms - own.reference_ms, 15, 2);
  EXPECT_NEAR(own.excess, 15.0 / own.reference_ms, 0.03);
  EXPECT_GE(own.statistic, own.threshold);
  EXPECT_EQ(own.needs, "");
  const RankTrace peer = *job.engine.Why(6);
  EXPECT_THAT(peer.text, ::testing::HasSubstr("; no verdict: "));
  EXPECT_EQ(DetectorOf(peer, "own_time").state, TraceState::kBelowThreshold);
  EXPECT_LT(DetectorOf(peer, "own_time").statistic, DetectorOf(peer, "own_time").threshold);
  EXPECT_EQ(DetectorOf(peer, "dataloader").state, TraceState::kBelowThreshold);
  EXPECT_EQ(DetectorOf(peer, "transfer").state, TraceState::kBelowThreshold);
  EXPECT_EQ(DetectorOf(peer, "save_checkpoint").state, TraceState::kNoData);
  EXPECT_EQ(DetectorOf(peer, "save_checkpoint").needs, "marks of two checkpoint saves");
}

TEST(EngineWhy, SaysWhichRuleHoldsAYoungRiseOfOneOfTwo) {
  DataParallelJob job(2);
  job.extra = [](int rank, int step) { return rank == 1 && step >= 100 ? 20.0 : 0.0; };
  job.Run(0, 120);
  EXPECT_TRUE(job.engine.report().verdicts.empty());
  const RankTrace trace = *job.engine.Why(1);
  const DetectorTrace& own = DetectorOf(trace, "own_time");
  EXPECT_EQ(own.state, TraceState::kVetoed) << trace.text;
  EXPECT_EQ(own.held.veto, Veto::kDuration);
  EXPECT_THAT(own.needs, ::testing::EndsWith(" s more"));
  EXPECT_THAT(trace.text, ::testing::ContainsRegex("the rise has lasted [0-9.]+ s of the [0-9.]+ s that a small"));
}

TEST(EngineWhy, SaysWhatIsMissing) {
  Engine nothing;
  EXPECT_EQ(nothing.Why(0).status().message(), "rank 0: no rank has reported anything yet");
  nothing.SetWorldSize(4);
  EXPECT_THAT(nothing.Why(3)->text, ::testing::HasSubstr("no step of it could be judged yet"));
  EXPECT_TRUE(absl::IsNotFound(nothing.Why(4).status()));
  EXPECT_TRUE(absl::IsNotFound(nothing.Why(-1).status()));
  EXPECT_TRUE(absl::IsNotFound(nothing.Why(kMaxRanks).status()));

  DataParallelJob job(8);
  job.Run(0, 1);
  EXPECT_THAT(job.engine.Why(2)->text, ::testing::HasSubstr("nothing could be compared; no verdict: needs more steps"));
  job.Run(2, 60);
  job.engine.RemoveRank(3);
  job.extra = [](int rank, int) { return rank == 3 ? NAN : 0.0; };
  job.Run(61, 80);
  EXPECT_EQ(job.engine.Why(3)->text, "rank 3: no marks since step 60; no verdict");
  EXPECT_EQ(job.engine.Why(8).status().message(), "rank 8: this job has rank 0-7");
}

}  // namespace
}  // namespace taskd::diagnosis
