// A health event that the manager hands to the proxy of the node that it is about (docs/acting.md): an AgentCall with this
// operator, which the proxy answers itself.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nvsentinel.pb.h"

namespace taskd::proto {

inline constexpr char kNodeEventOperator[] = "NVSENTINEL_EVENT";

struct NodeEvent {
  std::string socket;  // path of NVSentinel's
  datamodels::HealthEvents events;
};

// As AgentCall.args_json has it.
std::string RenderNodeEvent(const NodeEvent& event);
// INVALID_ARGUMENT: RenderNodeEvent wrote no such text.
absl::StatusOr<NodeEvent> ReadNodeEvent(std::string_view args_json);

}  // namespace taskd::proto
