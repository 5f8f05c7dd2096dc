// Numbers and counts of ranks or nodes as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace taskd {

// "7", "0-3, 7, 12, 13", "0, 2, 4-6 and 3 more": sorted, at most `limit` parts. Two neighbours are no range.
std::string FormatRanges(std::vector<int> numbers, size_t limit = 6);
// All of them.
std::string FormatAllRanges(const std::set<int>& numbers, std::string_view separator = ", ");

// "1 rank", "2 ranks".
std::string CountOf(int64_t count, std::string_view noun);

}  // namespace taskd
