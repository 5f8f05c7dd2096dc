// Where a rank of the job runs.
#pragma once

#include <string>

namespace taskd::diagnosis {

inline constexpr int kMaxRanks = 131072;  // of one job

struct RankPlace {
  int node = -1;  // node rank; -1: unknown, then no node is named
  std::string host;
  int local_rank = -1;

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

}  // namespace taskd::diagnosis
