// The variables that make NCCL use the machines' RDMA network, and when they are good for anything.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/rdma/node_list.h"

namespace taskd::rdma {

enum class RdmaMode { kAuto, kOn, kOff };

// "auto", "on", "off". INVALID_ARGUMENT for all else.
absl::StatusOr<RdmaMode> ParseRdmaMode(std::string_view value);

// OK: the variables help. FAILED_PRECONDITION with the reason if not: fewer than 2 nodes, one without 8 cards, or no
// device below SYSFS/class/infiniband whose name begins with mlx5_bond. kOn and kOff have no conditions.
absl::Status CheckRdmaConditions(RdmaMode mode, const std::vector<NodeEntry>& nodes, const std::string& sysfs);

// A variable of the environment, null if it is not set: std::getenv.
using GetEnvironment = std::function<const char*(const char*)>;

// $TASKD_SYSFS, else /sys.
std::string SysfsFolder(const GetEnvironment& get);

// All 17, name and value. What is set already keeps its value.
std::vector<std::pair<std::string, std::string>> RdmaEnvironment(const GetEnvironment& get);

}  // namespace taskd::rdma
