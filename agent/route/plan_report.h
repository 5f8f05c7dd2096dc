// What `taskd route` prints and writes, as text. modes-routing §4. No I/O here.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/route/algorithms.h"
#include "agent/route/plan.h"

namespace taskd::route {

// SHA-256, in hex, of the server_ids in new order, each followed by a newline. Nodes with the same digest follow the
// same plan.
std::string PlanDigest(absl::Span<const RouteNode> nodes, const RoutePlan& plan);

// SHA-256, in hex.
std::string Sha256(std::string_view text);

// What a report has beside the plan, if it is there.
struct ReportParts {
  const AlgorithmReport* algorithms = nullptr;
  bool rank_mapping = false;  // JSON only
};

// One line of JSON, without its newline. Bytes that are not UTF-8 become U+FFFD. The parts are the fields "algorithms"
// and "rank_mapping".
std::string PlanJson(absl::Span<const RouteNode> nodes, const RoutePlan& plan, const ReportParts& parts = {});
// The same for people, a few lines. Names are escaped.
std::string PlanText(absl::Span<const RouteNode> nodes, const RoutePlan& plan, const ReportParts& parts = {});
// The same for a run that failed: status "failed" and the reason.
std::string FailedJson(std::string_view reason);

// RANK_AFTER_ACC of the node `self` (index into the job's nodes), and MASTER_INDEX: a decimal number and a newline.
std::string RankAfterAcc(const RoutePlan& plan, int32_t self);
std::string MasterIndex(const RoutePlan& plan);

// ModelArts' form, "<new rank>-<pod index>" by new rank, with commas.
std::string RankMapping(const RoutePlan& plan);

// An MPI hostfile in the new order, a line `<host> slots=<devices>` a node. A host is the pod_name, else the server_id.
std::string Hostfile(absl::Span<const RouteNode> nodes, const RoutePlan& plan);
// Open MPI's rankfile for the same. Needed where the launch node is not the one with new rank 0: Open MPI 4 gives the
// launch node rank 0 regardless of the hostfile.
std::string Rankfile(absl::Span<const RouteNode> nodes, const RoutePlan& plan);

}  // namespace taskd::route
