#include "diagnosis/cost.h"

#include <algorithm>

namespace taskd::diagnosis {

CostModel::CostModel(const Layout& layout, const OwnTime& own, const std::vector<int>& microbatches)
    : layout_(layout), own_ns_(static_cast<size_t>(layout.size()), 0) {
  for (int rank = 0; rank < own.size(); ++rank) own_ns_[static_cast<size_t>(rank)] = own.rank(rank).average_own_ns;
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

}  // namespace taskd::diagnosis
