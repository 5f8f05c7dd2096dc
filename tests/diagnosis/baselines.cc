#include "tests/diagnosis/baselines.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>

#include "diagnosis/rank_place.h"

namespace taskd::evaluation {
namespace {

using diagnosis::Cause;
using diagnosis::Scope;
using diagnosis::Verdict;

double Median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Verdict RankVerdict(int rank, int64_t since_step, Cause cause) {
  Verdict verdict;
  verdict.ids = {rank};
  verdict.cause = cause;
  verdict.since_step = since_step;
  verdict.confidence = 1;
  return verdict;
}

// Own time by stage; the ranks in order.
struct Class {
  std::vector<int> ranks;
  std::vector<double> own;
};
std::map<int, Class> Classes(const std::vector<RankFold>& folds, const Topology& topology) {
  std::map<int, Class> classes;
  for (auto [rank, fold] : folds) {
    double own = OwnTimeNs(*fold);
    if (own <= 0) continue;
    Class& stage = classes[topology.Stage(rank)];
    stage.ranks.push_back(rank);
    stage.own.push_back(own);
  }
  return classes;
}

// Ranks that are suspected so many steps in a row, until they are not for as many.
class Streaks {
 public:
  explicit Streaks(int steps) : steps_(steps) {}
  void Add(int rank, int64_t step, bool suspect) {
    State& state = ranks_[rank];
    state.streak = suspect == state.suspect ? state.streak + 1 : 1;
    state.suspect = suspect;
    if (state.streak < steps_) return;
    if (suspect && !state.named) state.since = step - steps_ + 1;
    state.named = suspect;
  }
  std::vector<Verdict> verdicts() const {
    std::vector<Verdict> verdicts;
    for (const auto& [rank, state] : ranks_) {
      if (state.named) verdicts.push_back(RankVerdict(rank, state.since, Cause::kCompute));
    }
    return verdicts;
  }
  void Clear() { ranks_.clear(); }

 private:
  struct State {
    bool suspect = false, named = false;
    int streak = 0;
    int64_t since = 0;
  };
  int steps_;
  std::map<int, State> ranks_;
};

class UpstreamRule : public Baseline {
 public:
  const char* name() const override { return "upstream rule"; }

  void Step(int64_t step, const std::vector<RankFold>& folds, const Topology& topology) override {
    std::vector<double> periods;
    std::map<GroupKey, std::vector<std::pair<double, int>>> groups;
    for (auto [rank, fold] : folds) {
      if (fold->period_ns() > 0) periods.push_back(static_cast<double>(fold->period_ns()));
      std::map<uint32_t, double> durations;
      for (const OpFold& op : fold->ops) {
        if (topology.Group(rank, op.group).label == "tp" && op.count > 0) {
          durations[op.group] += static_cast<double>(op.duration_ns) / op.count;
        }
      }
      for (auto [index, duration] : durations) {
        const GroupInfo& group = topology.Group(rank, index);
        int first = group.members.empty() ? -1 : group.members.front().first;
        groups[{group.name, first}].emplace_back(duration, rank);
      }
    }
    if (periods.empty()) return;
    bool slow = Perceive(Median(periods));
    verdicts_.clear();
    for (auto& [name, members] : groups) {
      Suspects& suspects = suspects_[name];
      std::vector<int> ranks = ShortSide(members);
      suspects.steps = ranks == suspects.ranks ? suspects.steps + 1 : 1;
      suspects.ranks = std::move(ranks);
      if (!slow || suspects.steps < kSteps) continue;
      for (int rank : suspects.ranks) verdicts_.push_back(RankVerdict(rank, step - kSteps + 1, Cause::kCompute));
    }
    if (!slow) return;
    if (verdicts_.empty()) {
      Verdict job;
      job.scope = Scope::kJob;
      job.since_step = step - kSteps + 1;
      verdicts_.push_back(job);
    }
  }
  void Restart() override {
    history_.clear();
    slow_steps_ = 0;
    suspects_.clear();
    verdicts_.clear();
  }
  std::vector<Verdict> verdicts() const override { return verdicts_; }

 private:
  static constexpr int kNormalSteps = 20, kSteps = 3;
  static constexpr double kFactor = 1.3;

  using GroupKey = std::pair<std::string, int>;  // name and first member
  struct Suspects {
    std::vector<int> ranks;
    int steps = 0;  // in which they were the same
  };

  bool Perceive(double period) {
    if (history_.size() < kNormalSteps) {
      history_.push_back(period);
      return false;
    }
    // Without the largest and smallest tenth.
    std::vector<double> sorted(history_.begin(), history_.end());
    std::sort(sorted.begin(), sorted.end());
    auto cut = static_cast<std::ptrdiff_t>(sorted.size() / 10);
    double mean = std::accumulate(sorted.begin() + cut, sorted.end() - cut, 0.0) /
                  static_cast<double>(sorted.size() - 2 * static_cast<size_t>(cut));
    if (period > mean * kFactor) return ++slow_steps_ >= kSteps;
    slow_steps_ = 0;
    history_.push_back(period);
    history_.pop_front();
    return false;
  }
  // The slow rank waits for nobody: its operations are the short ones.
  static std::vector<int> ShortSide(std::vector<std::pair<double, int>>& members) {
    if (members.size() < 2) return {};
    std::sort(members.begin(), members.end());
    size_t cut = 1;
    for (size_t i = 1; i < members.size(); ++i) {
      if (members[i].first - members[i - 1].first > members[cut].first - members[cut - 1].first) cut = i;
    }
    double gap = members[cut].first - members[cut - 1].first, span = members.back().first - members.front().first;
    auto mean = [&](size_t from, size_t to) {
      double sum = 0;
      for (size_t i = from; i < to; ++i) sum += members[i].first;
      return sum / static_cast<double>(to - from);
    };
    if (span <= 0 || gap < span / 2 || mean(cut, members.size()) <= kFactor * mean(0, cut)) return {};
    std::vector<int> ranks;
    for (size_t i = 0; i < cut; ++i) ranks.push_back(members[i].second);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  std::deque<double> history_;
  int slow_steps_ = 0;
  std::map<GroupKey, Suspects> suspects_;
  std::vector<Verdict> verdicts_;
};

class PeerMad : public Baseline {
 public:
  const char* name() const override { return "peer MAD"; }
  void Step(int64_t step, const std::vector<RankFold>& folds, const Topology& topology) override {
    for (const auto& [stage, peers] : Classes(folds, topology)) {
      double median = Median(peers.own);
      std::vector<double> deviations;
      for (double own : peers.own) deviations.push_back(std::abs(own - median));
      double sigma = 1.4826 * Median(deviations);
      for (size_t i = 0; i < peers.ranks.size(); ++i) {
        streaks_.Add(peers.ranks[i], step, sigma > 0 && peers.own[i] - median > 3 * sigma);
      }
    }
  }
  void Restart() override { streaks_.Clear(); }
  std::vector<Verdict> verdicts() const override { return streaks_.verdicts(); }

 private:
  Streaks streaks_{3};
};

class PeerCusum : public Baseline {
 public:
  const char* name() const override { return "peer CUSUM"; }
  void Step(int64_t step, const std::vector<RankFold>& folds, const Topology& topology) override {
    for (const auto& [stage, peers] : Classes(folds, topology)) {
      size_t n = peers.own.size();
      if (n < 2) continue;
      std::vector<double> logs;
      for (double own : peers.own) logs.push_back(std::log(own));
      std::vector<double> sorted = logs;
      std::sort(sorted.begin(), sorted.end());
      double reference = n > 4 ? sorted[(n - 1) / 2] : sorted[(n - 1) / 3];
      double center = n > 2 ? Median(logs) : (logs[0] + logs[1]) / 2;
      double scale = n > 2 ? 1 : std::sqrt(2.0);
      // First differences do not see a shift of level.
      Noise& noise = noise_[stage];
      std::vector<double> changes;
      for (size_t i = 0; i < n; ++i) {
        double centered = (logs[i] - center) * scale;
        auto [last, fresh] = last_.try_emplace(peers.ranks[i], centered);
        if (!fresh) changes.push_back(std::abs(centered - last->second));
        last->second = centered;
      }
      if (!changes.empty()) noise.push_back(Median(changes));
      if (noise.size() > kWindow) noise.pop_front();
      if (noise.size() < kWarmUp) continue;
      double sigma = std::max(1.4826 * Median({noise.begin(), noise.end()}) / std::sqrt(2.0), kFloor);
      for (size_t i = 0; i < n; ++i) {
        State& state = states_[peers.ranks[i]];
        double z = std::clamp((logs[i] - reference - kDeadZone) / sigma, -kCap, kCap);
        if (state.sum == 0) state.since = step;
        state.sum = std::max(0.0, state.sum + z - kSlack);
        state.calm = z < kSlack ? state.calm + 1 : 0;
        if (state.sum > kThreshold && !state.named) {
          state.named = true;
          state.named_since = state.since;
        }
        if (state.named && state.calm >= kCalmSteps) state = State{};
        state.sum = std::min(state.sum, 2 * kThreshold);
      }
    }
  }
  void Restart() override {
    noise_.clear();
    last_.clear();
    states_.clear();
  }
  std::vector<Verdict> verdicts() const override {
    std::vector<Verdict> verdicts;
    for (const auto& [rank, state] : states_) {
      if (state.named) verdicts.push_back(RankVerdict(rank, state.named_since, Cause::kCompute));
    }
    return verdicts;
  }

 private:
  static constexpr double kFloor = 0.01, kSlack = 1, kThreshold = 10.9, kCap = 4, kDeadZone = 0.01;
  static constexpr size_t kWarmUp = 10, kWindow = 64;
  static constexpr int kCalmSteps = 10;

  using Noise = std::deque<double>;
  struct State {
    double sum = 0;
    int calm = 0;
    bool named = false;
    int64_t since = 0, named_since = 0;
  };
  std::map<int, Noise> noise_;   // by stage
  std::map<int, double> last_;   // by rank
  std::map<int, State> states_;  // by rank
};

class RelativeScore : public Baseline {
 public:
  const char* name() const override { return "relative score"; }
  void Step(int64_t step, const std::vector<RankFold>& folds, const Topology&) override {
    double best = 0;
    std::vector<std::pair<int, double>> medians;
    for (auto [rank, fold] : folds) {
      double own = OwnTimeNs(*fold);
      if (own <= 0) continue;
      std::deque<double>& past = past_[rank];
      past.push_back(own);
      if (past.size() < kWindow) continue;
      if (past.size() > kWindow) past.pop_front();
      medians.emplace_back(rank, Median({past.begin(), past.end()}));
      best = best == 0 ? medians.back().second : std::min(best, medians.back().second);
    }
    for (auto [rank, median] : medians) streaks_.Add(rank, step, best / median < 0.75);
  }
  void Restart() override {
    past_.clear();
    streaks_.Clear();
  }
  std::vector<Verdict> verdicts() const override { return streaks_.verdicts(); }

 private:
  static constexpr size_t kWindow = 20;
  std::map<int, std::deque<double>> past_;
  Streaks streaks_{1};
};

class LastArrival : public Baseline {
 public:
  const char* name() const override { return "last arrival"; }
  void Step(int64_t step, const std::vector<RankFold>& folds, const Topology& topology) override {
    struct Spread {
      double min = 0, max = 0;
      int last = -1;
    };
    std::map<std::tuple<std::string, int, CommOp>, Spread> spreads;
    std::vector<double> periods;
    for (auto [rank, fold] : folds) {
      periods.push_back(static_cast<double>(fold->period_ns()));
      std::map<std::pair<uint32_t, CommOp>, double> durations;
      for (const OpFold& op : fold->ops) {
        if (EndsTogether(op.op)) durations[{op.group, op.op}] += static_cast<double>(op.duration_ns);
      }
      for (auto [key, duration] : durations) {
        const GroupInfo& group = topology.Group(rank, key.first);
        int first = group.members.empty() ? -1 : group.members.front().first;
        auto [place, fresh] = spreads.try_emplace({group.name, first, key.second}, Spread{duration, duration, rank});
        if (fresh) continue;
        Spread& spread = place->second;
        if (duration < spread.min) spread.last = rank;
        spread.min = std::min(spread.min, duration);
        spread.max = std::max(spread.max, duration);
      }
    }
    if (periods.empty()) return;
    Spread widest;
    for (const auto& [key, spread] : spreads) {
      if (spread.max - spread.min > widest.max - widest.min) widest = spread;
    }
    int last = widest.max - widest.min > 0.05 * Median(periods) ? widest.last : -1;
    for (auto [rank, fold] : folds) streaks_.Add(rank, step, rank == last);
  }
  void Restart() override { streaks_.Clear(); }
  std::vector<Verdict> verdicts() const override { return streaks_.verdicts(); }

 private:
  Streaks streaks_{3};
};

}  // namespace

double OwnTimeNs(const StepFold& fold) {
  uint64_t gaps = 0, gap_ns = 0;
  for (const OpFold& op : fold.ops) {
    gaps += op.blocking_gaps;
    gap_ns += op.blocking_gap_ns;
  }
  if (gaps > 0) return static_cast<double>(gap_ns) / static_cast<double>(gaps);
  uint64_t period = fold.period_ns();
  return period > fold.covered_ns ? static_cast<double>(period - fold.covered_ns) : 0;
}

void Topology::SetGroup(int rank, uint32_t index, const GroupInfo& group) {
  if (ranks_.size() <= static_cast<size_t>(rank)) ranks_.resize(static_cast<size_t>(rank) + 1);
  Rank& place = ranks_[static_cast<size_t>(rank)];
  if (place.groups.size() <= index) place.groups.resize(index + 1);
  place.groups[index] = group;
  if (group.label != "pp") return;
  std::vector<int> members = ExpandMembers(group.members, diagnosis::kMaxRanks);
  auto position = std::find(members.begin(), members.end(), rank);
  if (position != members.end()) place.stage = static_cast<int>(position - members.begin());
}

int Topology::Stage(int rank) const {
  return static_cast<size_t>(rank) < ranks_.size() ? ranks_[static_cast<size_t>(rank)].stage : 0;
}

const GroupInfo& Topology::Group(int rank, uint32_t index) const {
  static const GroupInfo kUnknown;
  if (static_cast<size_t>(rank) >= ranks_.size()) return kUnknown;
  const std::vector<GroupInfo>& groups = ranks_[static_cast<size_t>(rank)].groups;
  return index < groups.size() ? groups[index] : kUnknown;
}

std::unique_ptr<Baseline> MakeUpstreamRule() { return std::make_unique<UpstreamRule>(); }
std::unique_ptr<Baseline> MakePeerMad() { return std::make_unique<PeerMad>(); }
std::unique_ptr<Baseline> MakePeerCusum() { return std::make_unique<PeerCusum>(); }
std::unique_ptr<Baseline> MakeRelativeScore() { return std::make_unique<RelativeScore>(); }
std::unique_ptr<Baseline> MakeLastArrival() { return std::make_unique<LastArrival>(); }

std::vector<std::unique_ptr<Baseline>> MakeBaselines() {
  std::vector<std::unique_ptr<Baseline>> baselines;
  baselines.push_back(MakeUpstreamRule());
  baselines.push_back(MakePeerMad());
  baselines.push_back(MakePeerCusum());
  baselines.push_back(MakeRelativeScore());
  baselines.push_back(MakeLastArrival());
  return baselines;
}

}  // namespace taskd::evaluation
