// The clocks of the nodes, from the collectives themselves: all members of a symmetric collective end it at about the
// same moment, so the difference of two ends is the difference of two clocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "diagnosis/layout.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class Clocks {
 public:
  // The folds of one step, by rank.
  void Add(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds);
  // Works the offsets out anew. Nodes that no collective connects with the reference node have none.
  void Solve();
  void Forget();  // the ranks have moved

  // How far the node's clock is ahead of the reference node's (the lowest one), ns; 0: unknown.
  int64_t OffsetNs(int node) const;

 private:
  static constexpr size_t kDifferences = 32;
  struct Pair {
    std::array<int64_t, kDifferences> ns{};
    uint32_t count = 0;
  };

  absl::flat_hash_map<std::pair<int, int>, Pair> pairs_;  // end at second minus end at first
  absl::flat_hash_map<int, int64_t> offsets_;
  size_t operations_ = 0;  // of the last step
};

}  // namespace taskd::diagnosis
