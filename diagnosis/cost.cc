#include "diagnosis/cost.h"

#include <algorithm>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
CostModel::CostModel(const Layout& layout, const std::vector<int>& microbatches)
    : layout_(layout),
      own_ns_(static_cast<size_t>(layout.size()), 0),
      pipelines_(own_ns_.size(), -1),
      is_changed_(layout.pipelines().size()),
      slowest_(2 * layout.pipelines().size(), 0) {
  for (const Pipeline& pipeline : layout.pipelines()) {
    int most = 1;
    for (const std::vector<int>& cell : pipeline.cells) {
      for (int rank : cell) {
        pipelines_[static_cast<size_t>(rank)] = static_cast<int>(microbatches_.size());
        if (static_cast<size_t>(rank) < microbatches.size())
          most = std::max(most, microbatches[static_cast<size_t>(rank)]);
      }
    }
    microbatches_.push_back(most);
  }
}

void CostModel::Set(int rank, double own_ns) {
  own_ns_[static_cast<size_t>(rank)] = own_ns;
  const int pipeline = pipelines_[static_cast<size_t>(rank)];
  if (pipeline < 0 || is_changed_[static_cast<size_t>(pipeline)]) return;
  is_changed_[static_cast<size_t>(pipeline)] = true;
  changed_.push_back(pipeline);
}

double CostModel::StepNs() {
  for (int pipeline : changed_) {
    is_changed_[static_cast<size_t>(pipeline)] = false;
    size_t at = microbatches_.size() + static_cast<size_t>(pipeline);
    slowest_[at] = PipelineNs(static_cast<size_t>(pipeline));
    for (at /= 2; at > 0; at /= 2) slowest_[at] = std::max(slowest_[2 * at], slowest_[2 * at + 1]);
  }
  changed_.clear();
  return slowest_.size() < 2 ? 0 : slowest_[1];
}

double CostModel::StepNsIf(const std::vector<int>& ranks, const std::function<double(int rank)>& own_ns) {
  std::vector<double> before;
  for (int rank : ranks) {
    before.push_back(this->own_ns(rank));
    Set(rank, own_ns(rank));
  }
  const double step = StepNs();
  for (size_t i = 0; i < ranks.size(); ++i) Set(ranks[i], before[i]);
  return step;
}

double CostModel::PipelineNs(size_t pipeline) const {
  double sum = 0;
  double slowest = 0;
  for (const std::vector<int>& cell : layout_.pipelines()[pipeline].cells) {
    double stage = 0;
    for (int rank : cell) stage = std::max(stage, own_ns(rank));
    stage /= microbatches_[pipeline];
    sum += stage;
    slowest = std::max(slowest, stage);
  }
  return sum + (microbatches_[pipeline] - 1) * slowest;
}

Measured::Means CostMeans::Add(const Who& who, int64_t step, double cost_ns, double step_ns, bool may_be_over,
                               const Measured::Means& until_known) {
  const auto [entry, is_new] = means_.try_emplace(who);
  Mean& mean = entry->second;
  if (is_new) {
    Measured::Means few = until_known;
    few.steps = parameters.cost_steps;
    mean.measured.Begin(few);
  }
  if (is_new || mean.last != step) mean.measured.Add(step, cost_ns, step_ns - cost_ns, may_be_over);
  mean.last = step;
  return mean.measured.means();
}

void CostMeans::Forget(int64_t step) {
  std::erase_if(means_, [step](const auto& entry) { return entry.second.last != step; });
}

}  // namespace taskd::diagnosis
