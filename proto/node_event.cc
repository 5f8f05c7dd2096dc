#include "proto/node_event.h"

#include "absl/strings/escaping.h"
#include "common/json_limits.h"
#include "nlohmann/json.hpp"

namespace taskd::proto {

std::string RenderNodeEvent(const NodeEvent& event) {
  const nlohmann::json json = {{"socket", event.socket},
                               {"events", absl::BytesToHexString(event.events.SerializeAsString())}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<NodeEvent> ReadNodeEvent(std::string_view args_json) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(args_json, JsonLimits());
  if (!json.ok()) return json.status();
  NodeEvent event;
  const auto socket = json->find("socket");
  const auto events = json->find("events");
  if (!json->is_object() || socket == json->end() || events == json->end() || !socket->is_string() ||
      !events->is_string()) {
    return absl::InvalidArgumentError("not a node's event");
  }
  event.socket = socket->get<std::string>();
  const std::string hex = events->get<std::string>();
  if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdef") != std::string::npos ||
      !event.events.ParseFromString(absl::HexStringToBytes(hex))) {
    return absl::InvalidArgumentError("not a node's event");
  }
  return event;
}

}  // namespace taskd::proto
