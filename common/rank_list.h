// Ranks as people read them.
#pragma once

#include <set>
#include <string>

namespace taskd {

// "0-6, 9"
std::string RankList(const std::set<int>& ranks, const char* separator = ", ");

}  // namespace taskd
