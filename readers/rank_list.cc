#include "readers/rank_list.h"

#include <charconv>
#include <system_error>

#include "diagnosis/rank_place.h"

namespace taskd::readers {

std::vector<int> ReadRankList(std::string_view text) {
  std::vector<int> ranks;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] >= '0' && text[i] <= '9') {
      int rank = 0;
      const auto [rest, error] = std::from_chars(text.data() + i, text.data() + text.size(), rank);
      if (error != std::errc() || rank >= diagnosis::kMaxRanks) return {};
      ranks.push_back(rank);
      i = static_cast<size_t>(rest - text.data());
    } else if (text[i] == '.' || text[i] == '-') {
      return {};
    } else {
      ++i;
    }
  }
  return ranks;
}

}  // namespace taskd::readers
