// NODE_LIST: the nodes of a job, as TI-ONE passes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace taskd::rdma {

struct NodeEntry {
  std::string host;  // a name or an address, IPv6 without its brackets
  int cards = 0;     // >= 0
};

// "host:cards,host:cards"; an IPv6 address stands in brackets. INVALID_ARGUMENT names NODE_LIST, the entry and the
// rule: nothing there, no ":cards", an empty host, cards that are no integer >= 0, a host twice, IPv6 without brackets.
absl::StatusOr<std::vector<NodeEntry>> ParseNodeList(std::string_view value);

}  // namespace taskd::rdma
