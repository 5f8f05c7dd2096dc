// The rules that need more than one value of a rank table. Internal to agent/ranktable.
#pragma once

#include <cstddef>
#include <string_view>

#include "agent/ranktable/errors.h"
#include "agent/ranktable/rank_table.h"
#include "agent/ranktable/reader.h"

namespace taskd::ranktable {

// After ReadRankTable. Where the version leaves ranks or servers to be derived, and nothing is broken that this needs,
// they are derived here.
void ApplyRankTableRules(ChipRules chip, RankTable& table, const RankTableFacts& facts, RankTableErrors& errors);

// An address family and its bytes; false: `text` is no IPv4 or IPv6 address.
struct IpAddress {
  int family = 0;
  unsigned char bytes[16] = {};
};
bool ParseIpAddress(std::string_view text, IpAddress& address);

// f(part) for each part of a comma list.
template <typename F>
void ForEachInList(std::string_view list, F&& f) {
  while (true) {
    const size_t comma = list.find(',');
    f(list.substr(0, comma));
    if (comma == list.npos) return;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace taskd::ranktable
