// What `taskd route` hands to the agreement of a job's nodes before it writes anything (modes-routing §4, --agree).
#pragma once

#include <string>

namespace taskd::route {

struct PlannedRoute {
  // SHA-256, in hex, of the rank table's text. Nodes whose tables differ are no job: no node writes.
  std::string table_digest;
  // SHA-256, in hex, of the server_ids in new order (PlanDigest). Empty: this node has no plan, everyone keeps the
  // given order.
  std::string plan_digest;
  std::string reason;  // why there is no plan; one line
};

}  // namespace taskd::route
