#include "diagnosis/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "diagnosis/work_notes.h"

namespace taskd::diagnosis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Steps of one class. `own` and `work` say what each rank has in a step.
class Job {
 public:
  explicit Job(int ranks) : folds_(static_cast<size_t>(ranks)) { work.Regroup(ranks, 1); }

  // The times after it, by rank; 0: the view was removed.
  std::vector<double> Step(const std::function<double(int)>& work_of, const std::function<double(int)>& own_of) {
    std::vector<OwnView> views;
    for (size_t i = 0; i < folds_.size(); ++i) {
      const int rank = static_cast<int>(i);
      folds_[i] = StepFold();
      folds_[i].work = work_of(rank);
      folds_[i].works = std::isnan(folds_[i].work) ? 0 : 1;
      OwnView& view = views.emplace_back();
      view.rank = rank;
      view.rest = view.full = own_of(rank);
      view.fold = &folds_[i];
    }
    changes += work.Compensate(0, step++, views) ? 1 : 0;
    std::vector<double> times(folds_.size(), 0);
    for (const OwnView& view : views) times[static_cast<size_t>(view.rank)] = view.rest;
    return times;
  }

  Work work;
  int64_t step = 0;
  int changes = 0;

 private:
  std::vector<StepFold> folds_;
};

std::vector<Note> Notes(const Job& job) {
  return NotesOn(job.work, [](int64_t place) { return place; });
}

struct Noise {
  std::mt19937 random{7};
  double operator()(double sigma) { return std::exp(std::normal_distribution<>(0, sigma)(random)); }
};

TEST(Work, TakesAwayWhatItExplains) {
  for (const int ranks : {2, 3, 16}) {
    Job job(ranks);
    Noise noise;
    double before = 0, after = 0;
    for (int step = 0; step < 200; ++step) {
      std::vector<double> tokens, own;
      for (int rank = 0; rank < ranks; ++rank) {
        tokens.push_back(4096 * noise(0.3));
        own.push_back((0.2 + 0.8 * tokens.back() / 4096) * noise(0.02) * (rank == 1 ? 1.3 : 1));
      }
      const std::vector<double> times = job.Step([&](int rank) { return tokens[static_cast<size_t>(rank)]; },
                                                 [&](int rank) { return own[static_cast<size_t>(rank)] * 1e8; });
      if (step < 100) continue;
      before += std::abs(std::log(own[1] / own[0] / 1.3));
      after += std::abs(std::log(times[1] / times[0] / 1.3));
    }
    EXPECT_GT(before / 100, 0.2) << ranks;
    EXPECT_LT(after / 100, 0.035) << ranks << ": a slow rank is as slow as before, its batches are as the others'";
    EXPECT_LE(job.changes, 4) << ranks;
    EXPECT_THAT(Notes(job), IsEmpty()) << ranks;
  }
}

TEST(Work, IsNotUsedWhereTimeDoesNotFollow) {
  Job job(8);
  Noise noise;
  for (int step = 0; step < 200; ++step) {
    std::vector<double> own;
    for (int rank = 0; rank < 8; ++rank) own.push_back(1e8 * noise(0.03));
    const std::vector<double> times = job.Step([&](int) { return 4096 * noise(0.3); },  // padded to one length
                                               [&](int rank) { return own[static_cast<size_t>(rank)]; });
    if (step < 100) continue;
    for (size_t i = 0; i < own.size(); ++i) EXPECT_DOUBLE_EQ(times[i], own[i]);
  }
}

TEST(Work, WithoutAnyWorkNothingChanges) {
  Job job(4);
  for (int step = 0; step < 50; ++step) {
    const std::vector<double> times =
        job.Step([](int) { return std::nan(""); }, [](int rank) { return 1e8 + 1e6 * rank; });
    for (size_t i = 0; i < times.size(); ++i) EXPECT_DOUBLE_EQ(times[i], 1e8 + 1e6 * static_cast<double>(i));
  }
  EXPECT_EQ(job.changes, 0);
  EXPECT_THAT(Notes(job), IsEmpty());
}

// All batches have one size, and one rank's is larger from step 40 on: nobody else shows how time follows work.
TEST(Work, ALoadOfOneRankIsNoSlowness) {
  Job job(4);
  Noise noise;
  for (int step = 0; step < 120; ++step) {
    const double load = step < 40 ? 1 : 1.8;
    const std::vector<double> times = job.Step([&](int rank) { return rank == 3 ? 4096 * load : 4096; },
                                               [&](int rank) { return 1e8 * noise(0.01) * (rank == 3 ? load : 1); });
    EXPECT_LT(times[3], 1.06 * times[0]) << step;
  }
  const std::vector<Note> notes = Notes(job);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].kind, NoteKind::kLoad);
  EXPECT_EQ(notes[0].since_step, 40);
  EXPECT_THAT(notes[0].text, HasSubstr("rank 3 gets 1.8 × the work of its peers since step 40"));
}

// Each always has as much, and each something else: the one with the least shows nothing of the others.
TEST(Work, WhoHasLessIsNoMeasureForOthers) {
  constexpr std::array kWork = {4600.0, 5100.0, 3400.0};
  for (const double slow : {1.0, 1.3}) {
    Job job(kWork.size());
    for (int step = 0; step < 40; ++step) {
      const std::vector<double> times =
          job.Step([&](int rank) { return kWork[static_cast<size_t>(rank)]; },
                   [&](int rank) { return 2e4 * kWork[static_cast<size_t>(rank)] * (rank == 0 ? slow : 1); });
      const double peers = (times[1] + times[2]) / 2;
      if (slow == 1) {
        EXPECT_DOUBLE_EQ(times[1], (times[0] + times[2]) / 2) << "it has more, and is not slow";
      } else {
        EXPECT_GT(times[0], 1.15 * peers) << "slower than with most of the work";
      }
    }
  }
}

TEST(Work, ALoadIsNamedAndItsEffectTakenAwayWhereLengthsDiffer) {
  Job job(8);
  Noise noise;
  for (int step = 0; step < 300; ++step) {
    std::vector<double> tokens, own;
    for (int rank = 0; rank < 8; ++rank) {
      tokens.push_back(4096 * noise(0.2) * (rank == 3 && step >= 100 ? 1.8 : 1));
      own.push_back(1e8 * (0.2 + 0.8 * tokens.back() / 4096) * noise(0.01));
    }
    const std::vector<double> times = job.Step([&](int rank) { return tokens[static_cast<size_t>(rank)]; },
                                               [&](int rank) { return own[static_cast<size_t>(rank)]; });
    if (step > 50) {
      EXPECT_NEAR(std::log(times[3] / times[0]), 0, 0.1) << step;
    }
  }
  const std::vector<Note> notes = Notes(job);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NEAR(static_cast<double>(notes[0].since_step), 100, 4);
  EXPECT_THAT(notes[0].text, HasSubstr("it is not slow, its load is"));
}

TEST(Work, LessWorkIsNoExcuse) {
  Job job(4);
  Noise noise;
  double ratio = 0;
  for (int step = 0; step < 200; ++step) {
    std::vector<double> tokens, own;
    for (int rank = 0; rank < 4; ++rank) {
      // Rank 2 gets half of the tokens from step 100 on, and takes as long.
      tokens.push_back(4096 * noise(0.2) * (rank == 2 && step >= 100 ? 0.5 : 1));
      own.push_back(1e8 * tokens.back() / 4096 * noise(0.01) * (rank == 2 && step >= 100 ? 2 : 1));
    }
    const std::vector<double> times = job.Step([&](int rank) { return tokens[static_cast<size_t>(rank)]; },
                                               [&](int rank) { return own[static_cast<size_t>(rank)]; });
    if (step >= 150) ratio += times[2] / times[0] / 50;
  }
  EXPECT_NEAR(ratio, 2, 0.4);
}

TEST(Work, ThatCannotBeUsedIsNotedAndNotUsed) {
  struct Case {
    std::function<double(int)> work;
    std::string note;
  };
  const Case cases[] = {
      {[](int rank) { return rank == 2 ? 0.0 : 4096.0; }, "rank 2 says none that can be used"},
      {[](int rank) { return rank == 2 ? std::nan("") : 4096.0; }, "rank 2 says none while its peers do"},
      {[](int rank) { return rank == 2 ? 8.0 : 4096.0; }, "rank 2 counts something else than its peers"},
      {[](int rank) { return rank == 2 ? 4096.0 * 4096 : 4096.0; }, "rank 2 counts something else than its peers"},
  };
  for (const Case& item : cases) {
    Job job(4);
    Noise noise;
    for (int step = 0; step < 60; ++step) {
      std::vector<double> own;
      for (int rank = 0; rank < 4; ++rank) own.push_back(1e8 * noise(0.01));
      const std::vector<double> times = job.Step(item.work, [&](int rank) { return own[static_cast<size_t>(rank)]; });
      if (step < 30) continue;
      for (size_t i = 0; i < own.size(); ++i) EXPECT_DOUBLE_EQ(times[i], own[i]) << item.note;
    }
    const std::vector<Note> notes = Notes(job);
    ASSERT_EQ(notes.size(), 1u) << item.note;
    EXPECT_EQ(notes[0].kind, NoteKind::kNoData);
    EXPECT_THAT(notes[0].text, HasSubstr(item.note));
  }
}

TEST(Work, AStepWithoutItsWorkIsNoData) {
  Job job(4);
  Noise noise;
  for (int step = 0; step < 60; ++step) {
    const std::vector<double> times =
        job.Step([&](int rank) { return rank == 1 && step == 50 ? 0.0 : 4096 * noise(0.2); }, [&](int) { return 1e8; });
    EXPECT_EQ(times[1] == 0, step == 50) << step;
  }
  EXPECT_THAT(Notes(job), IsEmpty());
}

TEST(Work, ARankThatIsAnothersNowBeginsAnew) {
  Job job(4);
  for (int step = 0; step < 60; ++step) {
    job.Step([](int rank) { return rank == 2 ? 8.0 : 4096.0; }, [](int) { return 1e8; });
  }
  ASSERT_THAT(job.work.unusable().units, ElementsAre(2));
  job.work.ResetRank(2);
  job.Step([](int) { return 4096.0; }, [](int) { return 1e8; });
  EXPECT_THAT(Notes(job), IsEmpty());
}

}  // namespace
}  // namespace taskd::diagnosis
