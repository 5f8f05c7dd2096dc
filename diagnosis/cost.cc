#include "diagnosis/cost.h"

#include <algorithm>

namespace taskd::diagnosis {
namespace {

constexpr double kStepsUntilKnown = 6;
constexpr double kMostMeanSteps = 64;  // beyond them the newer ones count more

}  // namespace

CostModel::CostModel(const Layout& layout, const std::vector<int>& microbatches)
    : layout_(layout), own_ns_(static_cast<size_t>(layout.size()), 0) {
  for (const Pipeline& pipeline : layout.pipelines()) {
    int most = 1;
    for (const std::vector<int>& cell : pipeline.cells) {
      for (int rank : cell) {
        if (static_cast<size_t>(rank) < microbatches.size())
          most = std::max(most, microbatches[static_cast<size_t>(rank)]);
      }
    }
    microbatches_.push_back(most);
  }
}

double CostModel::StepNs() const {
  double step = 0;
  for (size_t p = 0; p < layout_.pipelines().size(); ++p) {
    double sum = 0;
    double slowest = 0;
    for (const std::vector<int>& cell : layout_.pipelines()[p].cells) {
      double stage = 0;
      for (int rank : cell) stage = std::max(stage, own_ns(rank));
      stage /= microbatches_[p];
      sum += stage;
      slowest = std::max(slowest, stage);
    }
    step = std::max(step, sum + (microbatches_[p] - 1) * slowest);
  }
  return step;
}

double CostMeans::Add(const Who& who, int64_t step, double cost_ns, double until_known_ns) {
  Mean& mean = means_.try_emplace(who, Mean{until_known_ns, kStepsUntilKnown, step}).first->second;
  mean.steps = std::min(mean.steps + 1, kMostMeanSteps);
  mean.ns += (cost_ns - mean.ns) / mean.steps;
  mean.last = step;
  return mean.ns;
}

void CostMeans::Forget(int64_t step) {
  std::erase_if(means_, [step](const auto& entry) { return entry.second.last != step; });
}

}  // namespace taskd::diagnosis
