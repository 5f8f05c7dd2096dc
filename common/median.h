// Medians of values that may be reordered; 0 of none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace taskd {

// The n/2-th smallest.
template <typename T>
T UpperMedian(std::vector<T>& values) {
  if (values.empty()) return T{0};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The (n-1)/2-th smallest.
template <typename T>
T LowerMedian(std::vector<T>& values) {
  if (values.empty()) return T{0};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace taskd
