#include "agent/rdma/rdma_environment.h"

#include <filesystem>
#include <system_error>

#include "fmt/format.h"

namespace taskd::rdma {
namespace {

constexpr int kCardsOfAWholeMachine = 8;
constexpr std::string_view kDevicePrefix = "mlx5_bond";

constexpr std::pair<const char*, const char*> kVariables[] = {
    {"NCCL_IB_GID_INDEX", "3"},          {"NCCL_IB_SL", "3"},          {"NCCL_CHECK_DISABLE", "1"},
    {"NCCL_P2P_DISABLE", "0"},           {"NCCL_IB_DISABLE", "0"},     {"NCCL_LL_THRESHOLD", "16384"},
    {"NCCL_IB_CUDA_SUPPORT", "1"},       {"NCCL_IB_HCA", "mlx5_bond"}, {"NCCL_NET_GDR_LEVEL", "2"},
    {"NCCL_IB_QPS_PER_CONNECTION", "4"}, {"NCCL_IB_TC", "160"},        {"NCCL_PXN_DISABLE", "1"},
    {"NCCL_IB_TIMEOUT", "24"},           {"NCCL_DEBUG", "INFO"},       {"NCCL_SOCKET_IFNAME", "eth0"},
    {"GLOO_SOCKET_IFNAME", "eth0"},      {"TCCL_TOPO_AFFINITY", "4"},
};

bool HasDevice(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kDevicePrefix)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<RdmaMode> ParseRdmaMode(std::string_view value) {
  if (value == "auto") return RdmaMode::kAuto;
  if (value == "on") return RdmaMode::kOn;
  if (value == "off") return RdmaMode::kOff;
  return absl::InvalidArgumentError(fmt::format("--rdma: '{}' is not auto, on or off", value));
}

absl::Status CheckRdmaConditions(RdmaMode mode, const std::vector<NodeEntry>& nodes, const std::string& sysfs) {
  if (mode == RdmaMode::kOn) return absl::OkStatus();
  if (mode == RdmaMode::kOff) return absl::FailedPreconditionError("--rdma is off");
  if (nodes.size() < 2) {
    return absl::FailedPreconditionError(
        fmt::format("NODE_LIST has {}; RDMA is between 2 or more", nodes.empty() ? "no node" : "1 node"));
  }
  for (const NodeEntry& node : nodes) {
    if (node.cards == kCardsOfAWholeMachine) continue;
    return absl::FailedPreconditionError(fmt::format("NODE_LIST: node '{}' has {} cards; RDMA is for nodes with {}",
                                                     node.host, node.cards, kCardsOfAWholeMachine));
  }
  const std::string folder = std::filesystem::path(sysfs) / "class/infiniband";
  if (!HasDevice(folder)) {
    return absl::FailedPreconditionError(fmt::format("{} has no device {}*", folder, kDevicePrefix));
  }
  return absl::OkStatus();
}

std::string SysfsFolder(const GetEnvironment& get) {
  const char* folder = get("TASKD_SYSFS");
  return folder == nullptr || *folder == '\0' ? "/sys" : folder;
}

std::vector<std::pair<std::string, std::string>> RdmaEnvironment(const GetEnvironment& get) {
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [name, value] : kVariables) {
    const char* set = get(name);
    result.emplace_back(name, set == nullptr ? value : set);
  }
  return result;
}

}  // namespace taskd::rdma
