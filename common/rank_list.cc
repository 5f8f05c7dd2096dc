#include "common/rank_list.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace taskd {

std::string RankList(const std::set<int>& ranks, const char* separator) {
  std::vector<std::string> runs;
  for (auto it = ranks.begin(); it != ranks.end();) {
    const int first = *it;
    int last = first;
    while (++it != ranks.end() && *it == last + 1) last = *it;
    runs.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  return absl::StrJoin(runs, separator);
}

}  // namespace taskd
