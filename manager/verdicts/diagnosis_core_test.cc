#include "manager/verdicts/diagnosis_core.h"

#include <atomic>
#include <condition_variable>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/test_job.h"

namespace taskd::manager {
namespace {

using ::taskd::testing::WaitUntil;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;

bool Names(const diagnosis::Report& report, int rank, bool open = true) {
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    if (verdict.open == open && verdict.ids == std::vector<int>{rank}) return true;
  }
  return false;
}

class Watcher final : public ReportSink {
 public:
  void Changed(std::shared_ptr<const diagnosis::Report> report) override {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
  }
  void Close() override { closed_ = true; }

  bool WaitFor(int rank) {
    return WaitUntil([&] {
      std::lock_guard lock(mutex_);
      return Names(*reports_.back(), rank);
    });
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return reports_.size();
  }
  bool closed() const { return closed_; }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const diagnosis::Report>> reports_;
  std::atomic<bool> closed_{false};
};

class CoreTest : public ::testing::Test {
 protected:
  // From now on time passes in Advance() alone.
  void OwnTheTime() {
    options_.now = [this] {
      ++looks_;
      return SteadyTime(std::chrono::nanoseconds(now_ns_.load()));
    };
  }
  void Advance(std::chrono::nanoseconds time) {
    now_ns_ += time.count();
    core_->ClockHasChanged();
  }
  // Lets time pass until the condition is true: step by step, and the thread looks at the clock after each. For a core
  // that waits for a time.
  template <typename Condition>
  bool AdvanceUntil(Condition condition) {
    for (int steps = 0; steps < 2'000; ++steps) {
      if (condition()) return true;
      const int before = looks_;
      Advance(DiagnosisCore::kPace);
      if (!WaitUntil([&] { return looks_ > before; })) return false;
    }
    return false;
  }
  // Until the thread has done with all that was posted so far.
  bool TakesAll() {
    Advance(DiagnosisCore::kPace);  // whenever its last round was, the next one is due
    return WaitUntil([&] {
      const DiagnosisCore::Stats stats = core_->stats();
      return stats.feed.steps + stats.dropped == stats.received;
    });
  }

  void Start(const std::vector<diagnosis::Verdict>& kept = {}, DiagnosisCore::Save save = {}) {
    core_ = std::make_unique<DiagnosisCore>(options_, kept, std::move(save));
  }
  // Rank r of the job is on stream 1 + r / 4.
  void Connect() {
    for (int node = 0; node < job_.ranks / 4; ++node) {
      uint64_t stream = 1 + static_cast<uint64_t>(node);
      core_->Connect(stream, node, "host" + std::to_string(node));
      std::vector<RankPresence> ranks;
      FoldBatch groups;
      for (int rank = node * 4; rank < node * 4 + 4; ++rank) {
        ranks.push_back({rank, true});
        groups.groups.push_back({rank, {job_.Group()}});
      }
      core_->Ranks(stream, ranks);
      core_->Folds(stream, std::move(groups));
    }
  }
  void Run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      std::vector<StepFold> folds = job_.Step(step_++, end_ns_);
      for (int node = 0; node < job_.ranks / 4; ++node) {
        FoldBatch batch;
        for (int rank = node * 4; rank < node * 4 + 4; ++rank) batch.steps.push_back({rank, folds[rank]});
        core_->Folds(1 + static_cast<uint64_t>(node), std::move(batch));
      }
    }
  }
  void RunUntilSlow(int rank) {
    Run(80);
    job_.slow[rank] = 1.5;
    Run(80);
  }

  TestJob job_;
  uint64_t end_ns_ = job_.begin_ns;
  int64_t step_ = 0;
  DiagnosisCore::Options options_;
  std::atomic<int64_t> now_ns_{int64_t{1} << 50};
  std::atomic<int> looks_{0};  // at the clock
  std::unique_ptr<DiagnosisCore> core_;
};

TEST_F(CoreTest, KeepsAtTheEndOfTheJobWhatWasFound) {
  Start();
  Connect();
  RunUntilSlow(5);
  ASSERT_TRUE(WaitUntil([&] { return core_->report()->state == diagnosis::JobState::kSlow; }));
  for (const int node : {1, 0}) {  // the slow rank's node first
    std::vector<RankPresence> ranks;
    for (int rank = node * 4; rank < node * 4 + 4; ++rank) ranks.push_back({rank, false});
    core_->Ranks(1 + static_cast<uint64_t>(node), ranks);
    core_->Disconnect(1 + static_cast<uint64_t>(node));
  }
  core_->Finish();
  EXPECT_EQ(core_->report()->state, diagnosis::JobState::kSlow);
  EXPECT_EQ(core_->report()->idle_s, 0);
  core_->Close();
  core_->Finish();  // does not wait for ever
}

TEST_F(CoreTest, NamesTheSlowRankAndWakesOnlyForThat) {
  Watcher watcher;
  Start();
  ASSERT_TRUE(core_->Subscribe(&watcher));
  EXPECT_EQ(watcher.count(), 1u) << "the present report, at once";
  EXPECT_EQ(core_->report()->state, diagnosis::JobState::kUnknown);
  Connect();
  RunUntilSlow(5);
  ASSERT_TRUE(watcher.WaitFor(5));
  ASSERT_TRUE(WaitUntil([&] { return core_->report()->last_step == 159; }));
  EXPECT_EQ(core_->report()->ranks, 8);
  EXPECT_EQ(core_->report()->state, diagnosis::JobState::kSlow);
  EXPECT_LT(watcher.count(), 40u) << "not a report a step";
  DiagnosisCore::Stats stats = core_->stats();
  EXPECT_EQ(stats.received, 160u * 8);
  EXPECT_EQ(stats.feed.steps, 160u * 8);
  EXPECT_EQ(stats.dropped + stats.feed.refused, 0u);
  EXPECT_EQ(stats.open_verdicts, 1u);
  EXPECT_GT(stats.cost_ms_per_step, 0);
  core_->Unsubscribe(&watcher);
  core_->Close();
  EXPECT_FALSE(watcher.closed());
  EXPECT_FALSE(core_->Subscribe(&watcher));
}

TEST_F(CoreTest, KeepsVerdictsAndGoesOnWithThem) {
  std::mutex mutex;
  std::vector<diagnosis::Verdict> kept;
  int saves = 0;
  auto save = [&](const std::vector<diagnosis::Verdict>& verdicts) {
    std::lock_guard lock(mutex);
    kept = verdicts;
    ++saves;
    return absl::OkStatus();
  };
  Start({}, save);
  Connect();
  RunUntilSlow(2);
  ASSERT_TRUE(WaitUntil([&] {
    std::lock_guard lock(mutex);
    return !kept.empty();
  })) << "while it runs, not only at its end";
  core_.reset();
  EXPECT_THAT(kept, Contains(Field(&diagnosis::Verdict::ids, ElementsAre(2))));

  saves = 0;
  Start(kept, save);
  EXPECT_TRUE(Names(*core_->report(), 2)) << "at once";
  core_.reset();
  EXPECT_EQ(saves, 0) << "nothing has changed";
}

TEST_F(CoreTest, ADiskThatFailsIsTriedAgainAndStopsNothing) {
  std::atomic<int> tries{0};
  OwnTheTime();
  Start({}, [&](const std::vector<diagnosis::Verdict>&) {
    ++tries;
    return absl::UnavailableError("disk full");
  });
  Connect();
  RunUntilSlow(2);
  ASSERT_TRUE(TakesAll());
  ASSERT_TRUE(WaitUntil([&] { return Names(*core_->report(), 2); }));
  ASSERT_TRUE(WaitUntil([&] { return tries > 0; }));
  for (int round = 0; round < 2; ++round) {  // the second one begins when all of the first one is over
    Run(1);
    ASSERT_TRUE(TakesAll());
  }
  EXPECT_EQ(tries, 1) << "not again at once";
  Advance(DiagnosisCore::kSaveAgain);
  EXPECT_TRUE(WaitUntil([&] { return tries == 2; }));
  core_->Close();
  EXPECT_EQ(tries, 3) << "once more at the end";
}

// What the engine holds of groups and what waits have one budget.
TEST_F(CoreTest, GroupsLeaveTheInboxLess) {
  options_.max_bytes = 200'000;
  Start({}, {});
  Connect();
  FoldBatch one;
  one.steps.push_back({0, StepFold{}});
  core_->Folds(1, one);
  ASSERT_TRUE(WaitUntil([&] { return core_->stats().feed.steps == 1; }));
  for (int rank = 0; rank < 4; ++rank) {
    FoldBatch groups;
    groups.groups.push_back({rank, {}});
    for (int i = 0; i < 256; ++i) {
      groups.groups.back().groups.push_back({std::to_string(rank * 1000 + i), "", {{i, 1, 1 + rank}}});
    }
    core_->Folds(1, std::move(groups));
  }
  ASSERT_TRUE(WaitUntil([&] { return core_->stats().feed.group_bytes > 200'000; }));
  EXPECT_EQ(core_->stats().dropped, 0u);
  core_->Folds(1, one);
  EXPECT_EQ(core_->stats().dropped, 1u);
}

// And what waits in the engine: here for the steps of a rank that says nothing more. The clock stands still between
// rounds, so no step is judged for its time.
TEST_F(CoreTest, WaitingStepsLeaveTheInboxLess) {
  options_.max_bytes = 200'000;
  OwnTheTime();
  Start({}, {});
  Connect();
  const auto batch = [](int rank, int64_t first, int64_t last) {
    FoldBatch steps;
    for (int64_t step = first; step <= last; ++step) {
      StepFold fold;
      fold.step = step;
      fold.ops.resize(20);
      steps.steps.push_back({rank, fold});
    }
    return steps;
  };
  for (int rank = 0; rank < 3; ++rank) core_->Folds(1, batch(rank, 0, 0));
  ASSERT_TRUE(TakesAll());
  const auto rounds = static_cast<int64_t>(options_.feed.engine.step_deadline_ns /
                                           std::chrono::nanoseconds(DiagnosisCore::kPace).count());
  for (int64_t step = 1; core_->stats().dropped == 0; ++step) {
    ASSERT_LT(step, rounds) << "what waits is not counted";
    core_->Folds(1, batch(0, step, step));
    ASSERT_TRUE(TakesAll());
  }
  EXPECT_GT(core_->stats().feed.waiting_bytes, 190'000u);
  EXPECT_LE(core_->stats().feed.waiting_bytes, 200'000u);
}

// The thread is held up; what comes meanwhile is bounded, and who floods loses its own.
TEST_F(CoreTest, AFullInboxDropsTheOldestOfTheFullest) {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> held{false};
  bool go_on = false;
  options_.max_bytes = 200'000;
  Start({}, [&](const std::vector<diagnosis::Verdict>&) {
    std::unique_lock lock(mutex);
    held = true;
    changed.notify_all();
    changed.wait(lock, [&] { return go_on; });
    return absl::OkStatus();
  });
  Connect();
  // In small portions: here nothing is to be dropped yet.
  for (int i = 0; i < 160; ++i) {
    if (i == 80) job_.slow[5] = 1.5;
    Run(1);
    ASSERT_TRUE(WaitUntil([&] {
      std::lock_guard lock(mutex);
      return held || core_->stats().feed.steps == core_->stats().received;
    }));
    if (held) break;
  }
  ASSERT_TRUE(held);
  uint64_t before = core_->stats().received;
  core_->Connect(77, 9, "host-flood");
  FoldBatch few;
  for (int64_t step = 0; step < 10; ++step) {
    few.steps.push_back({4, StepFold{}});
    few.steps.back().fold.step = 10'000 + step;
  }
  core_->Folds(2, few);
  for (int i = 0; i < 1000; ++i) {
    FoldBatch flood;
    for (int rank = 5000; rank < 5008; ++rank) {
      flood.steps.push_back({rank, StepFold{}});
      flood.steps.back().fold.step = i;
    }
    core_->Folds(77, std::move(flood));
  }
  DiagnosisCore::Stats stats = core_->stats();
  EXPECT_EQ(stats.received, before + 10 + 8000);
  EXPECT_GT(stats.dropped, 4000u);
  EXPECT_LT(stats.dropped, 8000u) << "the newest stay";
  EXPECT_EQ(stats.dropped % 8, 0u) << "the others' folds are not among them";
  {
    std::lock_guard lock(mutex);
    go_on = true;
  }
  changed.notify_all();
  ASSERT_TRUE(WaitUntil([&] { return core_->stats().feed.steps == before + 10 + 8000 - stats.dropped; }));
}

TEST_F(CoreTest, AStepWithoutItsLastRankIsJudgedByItsDeadline) {
  constexpr std::chrono::seconds kStepDeadline{3};  // longer than a report without news takes
  options_.feed.engine.step_deadline_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kStepDeadline).count());
  OwnTheTime();
  Start();
  Connect();
  Run(20);
  ASSERT_TRUE(AdvanceUntil([&] { return core_->report()->last_step == 19; }));
  // Rank 7 says nothing of this step, and nothing else comes that could wake the thread.
  std::vector<StepFold> folds = job_.Step(step_++, end_ns_);
  for (int rank = 0; rank < 7; ++rank) {
    FoldBatch batch;
    batch.steps.push_back({rank, folds[rank]});
    core_->Folds(rank < 4 ? 1 : 2, std::move(batch));
  }
  ASSERT_TRUE(TakesAll());
  const std::shared_ptr<const diagnosis::Report> before = core_->report();
  ASSERT_TRUE(AdvanceUntil([&] { return core_->report() != before; }));
  EXPECT_EQ(core_->report()->last_step, 19) << "rank 7 may still come";
  Advance(kStepDeadline);
  EXPECT_TRUE(AdvanceUntil([&] { return core_->report()->last_step == 20; }));
}

TEST_F(CoreTest, AStepIsJudgedWhoseDeadlineWasOverBeforeTheThreadLookedAgain) {
  options_.feed.engine.step_deadline_ns = 1;
  Start();
  Connect();
  for (int i = 0; i < 3; ++i) {
    std::vector<StepFold> folds = job_.Step(step_++, end_ns_);
    for (int rank = 0; rank < 7; ++rank) {
      FoldBatch batch;
      batch.steps.push_back({rank, folds[rank]});
      core_->Folds(rank < 4 ? 1 : 2, std::move(batch));
    }
    ASSERT_TRUE(WaitUntil([&] { return core_->report()->last_step == i; })) << i;
  }
}

TEST_F(CoreTest, ManyStreamsAtOnce) {
  Watcher watcher;
  Start({}, [](const std::vector<diagnosis::Verdict>&) { return absl::OkStatus(); });
  core_->Subscribe(&watcher);
  std::vector<std::thread> proxies;
  for (uint64_t stream = 1; stream <= 8; ++stream) {
    proxies.emplace_back([&, stream] {
      int rank = static_cast<int>(stream) - 1;
      core_->Connect(stream, rank, "host");
      core_->Ranks(stream, {{rank, true}});
      for (int64_t step = 0; step < 200; ++step) {
        FoldBatch batch;
        batch.steps.push_back({rank, StepFold{}});
        batch.steps.back().fold.step = step;
        core_->Folds(stream, std::move(batch));
        core_->report();
        if (step % 50 == 0) core_->stats();
      }
      core_->Disconnect(stream);
    });
  }
  for (std::thread& proxy : proxies) proxy.join();
  ASSERT_TRUE(WaitUntil([&] { return core_->stats().feed.steps == 1600; }));
  core_->Close();
  EXPECT_TRUE(watcher.closed());
  core_->Folds(1, {});
  core_->Close();
}

}  // namespace
}  // namespace taskd::manager
