#include "agent/route/group_pattern.h"

#include <algorithm>
#include <utility>

namespace taskd::route {

GroupPattern::GroupPattern(const GroupSizes& sizes, int32_t nodes, int32_t devices) {
  const int64_t tp = sizes.tp;
  const int64_t stage = tp * sizes.dp;
  for (int64_t first = 0; first < stage * sizes.pp; first += tp) {
    AddRing(first, 1, sizes.tp, GroupWeights::kTp, devices);
  }
  // Ranks of a stage that differ in nothing but their expert or data parallel place.
  for (int64_t first = 0; first < stage * sizes.pp; first += tp * sizes.ep) {
    for (int64_t t = 0; t < tp; ++t) AddRing(first + t, tp, sizes.ep, GroupWeights::kEp, devices);
  }
  for (int64_t first = 0; first < stage * sizes.pp; first += stage) {
    for (int64_t t = 0; t < tp; ++t) AddRing(first + t, tp, sizes.dp, GroupWeights::kDp, devices);
  }
  for (int64_t first = 0; first < stage; ++first) {
    AddRing(first, stage, sizes.pp, GroupWeights::kPp, devices);
  }
  MergeSteps();
  begin_.assign(static_cast<size_t>(nodes) + 1, 0);
  for (const Step& step : steps_) {
    ++begin_[static_cast<size_t>(step.from) + 1];
    ++begin_[static_cast<size_t>(step.to) + 1];
  }
  for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  edges_.resize(begin_.back());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (const Step& step : steps_) {
    edges_[next[step.from]++] = {step.to, step.weight};
    edges_[next[step.to]++] = {step.from, step.weight};
  }
  steps_ = {};
  if (nodes % sizes.pp == 0 && stage % devices == 0) stages_ = sizes.pp;
}

void GroupPattern::AddRing(int64_t first, int64_t stride, int32_t count, int64_t weight, int32_t devices) {
  const auto node = [&](int32_t i) { return static_cast<int32_t>((first + stride * i) / devices); };
  int32_t on_nodes = 1;
  for (int32_t i = 1; i < count; ++i) {
    if (node(i) == node(i - 1)) continue;
    AddStep(node(i - 1), node(i), weight);
    ++on_nodes;
  }
  if (on_nodes == 1) return;
  AddStep(node(0), node(count - 1), weight);
  weight_by_size_[on_nodes] += weight;
}

void GroupPattern::AddStep(int32_t from, int32_t to, int64_t weight) {
  // Rings of neighbouring ranks take the same steps, so this list is much shorter than the ranks are many.
  if (steps_.size() >= 2 * merged_ + (1u << 20)) MergeSteps();
  steps_.push_back({std::min(from, to), std::max(from, to), weight});
}

void GroupPattern::MergeSteps() {
  std::sort(steps_.begin(), steps_.end(),
            [](const Step& a, const Step& b) { return std::pair(a.from, a.to) < std::pair(b.from, b.to); });
  size_t kept = 0;
  for (const Step& step : steps_) {
    if (kept > 0 && steps_[kept - 1].from == step.from && steps_[kept - 1].to == step.to) {
      steps_[kept - 1].weight += step.weight;
    } else {
      steps_[kept++] = step;
    }
  }
  steps_.resize(kept);
  merged_ = kept;
}

}  // namespace taskd::route
