#include "common/ranges_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace taskd {

std::string FormatRanges(std::vector<int> numbers, size_t limit) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  size_t parts = 0;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (parts++ == limit) {
      absl::StrAppend(&text, " and ", numbers.size() - i, " more");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (end - i > 1) absl::StrAppend(&text, end - i == 2 ? ", " : "-", numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace taskd
