// Sets of 0 to n - 1 that are joined, each named by its smallest member: results do not depend on the order of joins.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace taskd::diagnosis {

class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }

  // The smallest of the set that `i` is in.
  int Find(int i) {
    while (parent_[static_cast<size_t>(i)] != i) {
      int& parent = parent_[static_cast<size_t>(i)];
      parent = parent_[static_cast<size_t>(parent)];
      i = parent;
    }
    return i;
  }

  void Join(int a, int b) {
    a = Find(a);
    b = Find(b);
    parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

}  // namespace taskd::diagnosis
