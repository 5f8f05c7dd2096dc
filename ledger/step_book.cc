#include "ledger/step_book.h"

#include <algorithm>
#include <utility>

#include "common/median.h"

namespace taskd::ledger {
namespace {

// The other ranks must have waited for at least this share of what one rank did by itself.
constexpr double kMostly = 0.5;

// Limits one rank's part of a step to the average time of the step's ranks; a part below kLeast of it is 0.
double Part(double part_s, double mean_s, double left_s) {
  if (part_s < StepBook::kLeast * mean_s) return 0;
  return std::clamp(part_s, 0.0, left_s);
}

}  // namespace

void StepBook::Add(const RankStep& step, int64_t now_ns) {
  const auto [found, is_new] = open_.try_emplace(Key{step.step, step.first, step.redone});
  Record& record = found->second;
  if (is_new) record.incident = step.incident;
  const double own_s = std::max(0.0, step.alone_s - step.between_s);
  record.least_own_s = is_new ? own_s : std::min(record.least_own_s, own_s);
  record.most_own_s = std::max(record.most_own_s, own_s);
  const double waited_s = std::max(0.0, step.rank_s - own_s);
  record.waited_s += waited_s;
  record.most_waited_s = std::max(record.most_waited_s, waited_s);
  record.all_mark = record.all_mark && step.alone_s >= 0;
  record.barrier_s = std::max(record.barrier_s, step.barrier_s);
  record.least_alone_s = is_new ? step.alone_s : std::min(record.least_alone_s, step.alone_s);
  if (step.alone_s > record.most_alone_s) {
    record.most_alone_s = step.alone_s;
    record.alone_rank = step.rank;
  }
  record.named = step.named < 0 ? step.step : step.named;
  record.touched_ns = std::max(record.touched_ns, now_ns);
  ++record.ranks;
  record.rank_s += step.rank_s;
  record.data_s = std::max(record.data_s, step.data_s);
  record.checkpoint_s = std::max(record.checkpoint_s, step.checkpoint_s);
  record.between_s = std::max(record.between_s, step.between_s);
}

void StepBook::SetCosts(std::vector<StragglerCost> costs) {
  if (costs.size() > kMaxCosts) costs.resize(kMaxCosts);
  costs_ = std::move(costs);
}

StepBook::Parts StepBook::PartsOf(const Record& record) {
  double left_s = record.rank_s;
  if (record.all_mark && record.ranks > 1) left_s = (record.waited_s - record.most_waited_s) / (record.ranks - 1);
  auto take = [&left_s](double part_s) {
    const double taken_s = std::clamp(part_s, 0.0, left_s);
    left_s -= taken_s;
    return taken_s;
  };
  Parts parts;
  parts.data_s = take(record.data_s);
  parts.checkpoint_s = take(record.checkpoint_s);
  parts.between_s = take(record.between_s);
  return parts;
}

void StepBook::LearnUsual() {
  std::vector<double> work_s;
  for (const auto& [key, record] : open_) {
    if (std::get<1>(key)) continue;
    const double mean_s = record.rank_s / record.ranks;
    const Parts parts = PartsOf(record);
    work_s.push_back(std::max(0.0, mean_s - parts.data_s - parts.checkpoint_s - parts.between_s));
  }
  if (work_s.size() >= kUsualSteps) usual_s_ = LowerMedian(work_s);
}

void StepBook::Close(int64_t now_ns, Tally& closed) {
  LearnUsual();
  size_t over = open_.size() > kMaxOpen ? open_.size() - kMaxOpen : 0;
  for (auto it = open_.begin(); it != open_.end();) {
    const bool waits = std::get<1>(it->first) && usual_s_ <= 0;
    const bool old = now_ns - it->second.touched_ns >= (waits ? kFirstOpenNs : kOpenNs);
    if (!old && over == 0) {
      ++it;
      continue;
    }
    if (over > 0) --over;
    Split(it->first, it->second, closed);
    it = open_.erase(it);
  }
}

void StepBook::AddOpen(Tally& open) const {
  for (const auto& [key, record] : open_) Split(key, record, open);
}

int64_t StepBook::NumberOf(const StragglerCost& cost, int64_t step, int64_t named) {
  return cost.base < 0 ? named : step - cost.base;
}

bool StepBook::Holds(const StragglerCost& cost, int64_t step, int64_t named) {
  const int64_t number = NumberOf(cost, step, named);
  return number >= cost.since_step && (cost.open || cost.unjudged || number <= cost.last_step);
}

bool StepBook::IsUnsure(const StragglerCost& cost, int64_t step, int64_t named) {
  return cost.unjudged && NumberOf(cost, step, named) > cost.last_step;
}

const StragglerCost* StepBook::DearestOf(bool StragglerCost::*cause, int64_t step, int64_t named) const {
  const StragglerCost* dearest = nullptr;
  for (const StragglerCost& cost : costs_) {
    if (!(cost.*cause) || !Holds(cost, step, named) || IsUnsure(cost, step, named)) continue;
    if (dearest == nullptr || cost.cost_s > dearest->cost_s) dearest = &cost;
  }
  return dearest;
}

const StragglerCost* StepBook::Dearest(int64_t step, int64_t named, double data_s, double checkpoint_s,
                                       double* cost_s) const {
  const StragglerCost* dearest = nullptr;
  *cost_s = 0;
  for (const StragglerCost& cost : costs_) {
    if (!Holds(cost, step, named)) continue;
    double more_s = cost.cost_s;
    if (cost.of_data) more_s -= data_s;
    if (cost.of_checkpoint) more_s -= checkpoint_s;
    if (more_s <= *cost_s) continue;
    *cost_s = more_s;
    dearest = &cost;
  }
  return dearest;
}

void StepBook::Split(const Key& key, const Record& record, Tally& into) const {
  const bool first = std::get<1>(key), redone = std::get<2>(key);
  const double ranks = record.ranks;
  double other_s = 0;
  const double mean_s = record.rank_s / ranks;
  const Category work = redone ? Category::kRedone : Category::kProductive;
  double left_s = mean_s;
  auto take = [&](Category category, double part_s, uint64_t incident) {
    const double taken_s = std::clamp(part_s, 0.0, left_s);
    into.Add(category, taken_s * ranks, incident);
    left_s -= taken_s;
    if (category == Category::kOther) other_s += taken_s;
  };
  const Parts parts = PartsOf(record);
  if (record.checkpoint_s > 0) {
    ++into.checkpoints;
    into.checkpoint_s += parts.checkpoint_s;
  }
  if (redone && !first) return into.Add(work, record.rank_s, record.incident);
  const double data_s = Part(parts.data_s, mean_s, mean_s);
  const double checkpoint_s = Part(parts.checkpoint_s, mean_s, mean_s);
  const uint64_t of_redone = redone ? record.incident : 0;
  if (!redone) {
    // The part that a verdict explains belongs to the verdict's incident.
    const auto take_part = [&](Category category, double part_s, bool StragglerCost::*cause) {
      const StragglerCost* of = first ? nullptr : DearestOf(cause, std::get<0>(key), record.named);
      const double of_one_s = of == nullptr ? 0 : std::clamp(of->cost_s, 0.0, part_s);
      if (of != nullptr) take(category, of_one_s, of->incident);
      take(category, part_s - of_one_s, 0);
    };
    take_part(Category::kData, data_s, &StragglerCost::of_data);
    take_part(Category::kCheckpoint, checkpoint_s, &StragglerCost::of_checkpoint);
    take(Category::kOther, Part(parts.between_s, mean_s, mean_s), 0);
  }
  if (first) {
    const double beyond_s = std::max(0.0, left_s - usual_s_);
    take(Category::kWarmUp, beyond_s, record.incident);
  } else {
    double cost_s = 0;
    const StragglerCost* dearest = Dearest(std::get<0>(key), record.named, data_s, checkpoint_s, &cost_s);
    if (dearest != nullptr) {
      const bool unsure = IsUnsure(*dearest, std::get<0>(key), record.named);
      take(unsure ? Category::kUnknown : Category::kStraggler, cost_s, unsure ? 0 : dearest->incident);
    }
    const auto is_odd = [&] { return usual_s_ > 0 && left_s > kOdd * usual_s_; };
    if (is_odd()) take(Category::kOther, std::min(record.least_own_s, left_s) - usual_s_, 0);
    if (is_odd()) {
      const double waited_s = left_s - usual_s_;
      const bool hung = record.all_mark && waited_s >= kHangS && waited_s > kHangSteps * usual_s_;
      const double of_one_s = std::min(record.most_own_s, left_s) - usual_s_;
      if (record.barrier_s >= kMostly * of_one_s || !hung) take(Category::kOther, of_one_s, 0);
      if (is_odd()) take(hung ? Category::kHang : Category::kUnknown, left_s - usual_s_, 0);
    }
  }
  take(work, left_s, of_redone);
  const double waited_s = record.least_alone_s < 0 ? 0 : record.most_alone_s - record.least_alone_s;
  if (other_s > 0 && record.alone_rank >= 0 && waited_s >= kMostly * other_s) {
    into.AddWaitedFor(record.alone_rank, std::min(waited_s, other_s) * ranks);
  }
}

}  // namespace taskd::ledger
