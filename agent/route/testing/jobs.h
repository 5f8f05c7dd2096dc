// Jobs for tests.
#pragma once

#include <string>
#include <vector>

#include "agent/route/job.h"

namespace taskd::route {

// One device a node; the place in the list is the old rank.
inline std::vector<RouteNode> Job(const std::vector<std::string>& server_ids) {
  std::vector<RouteNode> nodes;
  for (size_t i = 0; i < server_ids.size(); ++i) nodes.push_back({server_ids[i], "", "", "", {static_cast<int>(i)}});
  return nodes;
}

inline std::vector<RouteNode> NumberedJob(int nodes) {
  std::vector<std::string> names;
  for (int i = 0; i < nodes; ++i) names.push_back("n" + std::to_string(i));
  return Job(names);
}

}  // namespace taskd::route
