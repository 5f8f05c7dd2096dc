// What the newest steps looked like on every rank, for pictures: one byte for each rank, step and drawn value.
//
// Design:
// 1. A byte is the ratio to the step's median over its ranks: 0 to 254 are 0 to kMaxRatio, larger ones are 254, and
//    kNoData is a gap. So one scale serves all steps, and a slow rank stands out whatever the step took.
// 2. How far the job is, most ranks decide (common/progress.h). A step far ahead of that is left out; of what a few ranks
//    have beyond it, the lowest kAheadSteps are kept, of which kRecentSteps are drawn.
// 3. Of the kRecentSteps steps up to there and of those beyond, the numbers themselves are kept, and their median follows
//    what comes in. Then the step is settled: its median stays, and ranks that report it still are compared with that.
// 4. A rank that marks a lower step has been restarted, and begins a new run (or joins the newest). Steps are ordered by
//    run and number, so that what the job did again stands right of what it did first.
// 5. At most kMaxSteps steps and kMaxBytes. What goes first is the oldest step of those that only a few ranks have: a
//    rank whose numbers jump does not wipe out what the others did.
//
// Safe from any thread. No call holds the lock for longer than one step takes, so readers do not hold up who adds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/progress.h"
#include "marks/step_fold.h"

namespace taskd::view {

class History {
 public:
  enum class Value : uint8_t { kOwnTime, kPeriod, kDataloader, kCommunication };
  static constexpr size_t kValues = 4;
  static constexpr size_t kMaxSteps = 2048;
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr size_t kRecentSteps = 16;
  static constexpr size_t kAheadSteps = 256;
  static constexpr int kMaxRanks = 131072;
  static constexpr int kMaxRows = 16384;
  static constexpr double kMaxRatio = 3;
  static constexpr uint8_t kNoData = 255;

  // Smaller ones are for tests.
  struct Limits {
    size_t steps = kMaxSteps;
    size_t bytes = kMaxBytes;
  };

  // Where a step stands: the number of the job's run, from 0, and the step's own.
  struct StepId {
    uint32_t run = 0;
    int64_t step = 0;
    friend auto operator<=>(const StepId&, const StepId&) = default;  // NOLINT(modernize-use-nullptr): it errs
  };

  struct StepSummary {
    StepId id;
    int ranks = 0;            // that have reported it
    float median_ms = 0;      // of the drawn value
    float dataloader_ms = 0;  // means over the ranks whose period is known; the four make up the period
    float compute_ms = 0;     // what is none of the others
    float communication_ms = 0;
    float checkpoint_ms = 0;
  };
  struct Heatmap {
    int ranks = 0;
    int ranks_per_row = 1;
    std::vector<StepSummary> steps;
    std::string cells;  // row after row; the largest of the row's ranks
  };
  // One rank and step, in ms; below 0: no data.
  struct RankStep {
    StepId id;
    float own_ms, period_ms, dataloader_ms, communication_ms, checkpoint_ms;
  };

  // Of all that came in since the manager began. Phases: kStepPhases.
  static constexpr std::array kDurationBoundsS = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0};
  struct Totals {
    std::array<uint64_t, kDurationBoundsS.size() + 1> durations{};  // ranks' periods, by the bound that they are up to
    double duration_s = 0;                                          // their sum
    std::array<double, kStepPhases.size()> phases_s{};              // of all ranks
    // The median periods of the steps that most ranks have done for the first time.
    double productive_s = 0;
  };

  History() : History(Limits{}) {}
  explicit History(const Limits& limits) : limits_(limits) {}
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // `now_ns`: any steady clock. A rank's first fold of a step counts.
  void Add(int rank, const StepFold& fold, uint64_t now_ns = 0);

  // Of the steps numbered `first` to `last`, at most the newest `most` of them. rows: 1 to kMaxRows.
  Heatmap Draw(Value value, int64_t first, int64_t last, size_t most, int rows) const;
  // The newest kRecentSteps of a rank, oldest first; empty for one that nobody knows.
  std::vector<RankStep> RecentSteps(int rank) const;
  // That most ranks have reached.
  std::optional<StepId> newest() const;
  // When the first rank reported it.
  uint64_t newest_at_ns() const;
  Totals totals() const;
  // The largest own time by the median, in the newest step that all ranks of the steps around it have reported.
  std::optional<double> slowest_ratio() const;
  size_t bytes() const;

 private:
  static constexpr size_t kMeasures = 5;  // the drawn values, then checkpoint
  using Sample = std::array<float, kMeasures>;
  struct Step {
    uint64_t first_ns = 0;       // when the first rank reported it
    std::vector<bool> reported;  // by rank
    int ranks = 0;
    int periods = 0;  // ranks whose period is known: those that the sums are of
    std::array<double, kStepPhases.size()> sums_ms{};
    std::array<float, kValues> medians_ms{};
    bool stale = false;                               // samples have come since medians and bytes were made
    std::vector<Sample> samples;                      // by rank; empty once the step is settled
    std::array<std::vector<uint8_t>, kValues> bytes;  // by rank; what is missing at the end is kNoData
    size_t size = 0;                                  // of all that, as counted in bytes_
  };
  using Steps = std::map<StepId, Step>;

  void AddToTotals(uint64_t period_ns, const StepPhasesNs& phases_ns);
  // With the steps that most ranks have reached since the last call.
  void CountProductive();
  // The first step beyond what most ranks have reached.
  Steps::iterator Beyond() const;
  // The oldest that is not settled.
  Steps::iterator Recent() const;
  // Null: it is not kept.
  Step* Find(const StepId& id);
  void DropOdd(const StepId& but);
  void Erase(Steps::iterator step);
  void Count(Step& step) const;
  static void Refresh(Step& step);
  void Settle(Step& step);
  void MakeRoom();

  const Limits limits_;
  mutable std::mutex mutex_;
  mutable Steps steps_;
  mutable size_t bytes_ = 0;
  // What Add found last, which it finds nearly always again: while the job is there and no step has gone.
  struct Found {
    Step* step = nullptr;
    StepId id;
    Progress::Position reached;
  };
  Found found_;
  Progress progress_;
  size_t ranks_ = 0;
  uint64_t now_ns_ = 0;
  Totals totals_;
  std::optional<StepId> productive_until_;  // the newest that was counted
  int64_t redone_until_ = -1;               // after a restart: steps up to it were done before
};

// "own_time", "period", ...
std::string_view Name(History::Value value);
std::optional<History::Value> HistoryValueFromName(std::string_view name);

}  // namespace taskd::view
