#include "common/ranges_text.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd {
namespace {

// The parts as text; `limit` parts at most, and how many numbers are left.
std::vector<std::string> Parts(const std::vector<int>& sorted, size_t limit, size_t* left) {
  std::vector<std::string> parts;
  size_t ranges = 0;
  *left = 0;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    if (ranges++ == limit) {
      *left = sorted.size() - i;
      break;
    }
    const bool is_range = end - i > 2;
    parts.push_back(is_range ? absl::StrCat(sorted[i], "-", sorted[end - 1]) : absl::StrCat(sorted[i]));
    if (end - i == 2) parts.push_back(absl::StrCat(sorted[i + 1]));
    i = end;
  }
  return parts;
}

}  // namespace

std::string FormatRanges(std::vector<int> numbers, size_t limit) {
  std::sort(numbers.begin(), numbers.end());
  size_t left = 0;
  const std::string text = absl::StrJoin(Parts(numbers, limit, &left), ", ");
  return left == 0 ? text : absl::StrCat(text, " and ", left, " more");
}

std::string FormatAllRanges(const std::set<int>& numbers, std::string_view separator) {
  size_t left = 0;
  return absl::StrJoin(Parts({numbers.begin(), numbers.end()}, numbers.size(), &left),
                       absl::string_view(separator.data(), separator.size()));
}

std::string CountOf(int64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", std::string(noun), count == 1 ? "" : "s");
}

}  // namespace taskd
