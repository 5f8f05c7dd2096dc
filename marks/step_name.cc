#include "marks/step_name.h"

#include <charconv>

namespace taskd {

std::optional<int64_t> StepNumber(std::string_view name) {
  constexpr std::string_view kPrefix = "step ";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  if (begin == end || *begin == '-') return std::nullopt;
  int64_t step = 0;
  const auto [rest, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || rest != end) return std::nullopt;
  return step;
}

}  // namespace taskd
