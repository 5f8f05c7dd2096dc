// The readers behind ReadTopology, one a format. `text` is at most kMaxTopologyBytes and has no NUL.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/route/topology.h"
#include "nlohmann/json.hpp"

namespace taskd::route {

using Json = nlohmann::json;

absl::StatusOr<Topology> ReadTorList(const Json& root);
absl::StatusOr<Topology> ReadTorNodeCm(const Json& root);
absl::StatusOr<Topology> ReadHypernode(const Json& root);
absl::StatusOr<Topology> ReadRankTable2(const Json& root);
absl::StatusOr<Topology> ReadSlurm(std::string_view text);
absl::StatusOr<Topology> ReadIbnetdiscover(std::string_view text);
absl::StatusOr<Topology> ReadCsv(std::string_view text);

// tor_info of a tor-node-cm: the object itself, or what a ConfigMap holds as a string. Null: there is none.
absl::StatusOr<Json> TorInfo(const Json& root);

// `context` ("line 3", "server_list[2]") before the message.
absl::Status At(std::string_view context, const absl::Status& status);

// Takes the next line off `text`, without its end (\n or \r\n). False: there is none.
bool NextLine(std::string_view& text, std::string_view& line);
std::string_view Trim(std::string_view text);

}  // namespace taskd::route
