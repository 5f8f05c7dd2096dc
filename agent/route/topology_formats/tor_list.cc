#include "agent/route/topology_formats/tor_list.h"

// CCE's ranktable_tor.json: the ToR of every device. One rail a device position, in the order of device_id.
#include <algorithm>
#include <vector>

#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {

absl::StatusOr<Topology> ReadTorList(const Json& root, InputBudget& budget) {
  if (absl::Status status = CheckCompleted(root); !status.ok()) return status;
  absl::StatusOr<const Json*> servers = ListMember(root, "server_list", "tor-list");
  if (!servers.ok()) return servers.status();
  TopologyBuilder builder(budget);
  struct Device {
    int64_t id;
    int32_t leaf;
  };
  std::vector<Device> devices;
  std::vector<int32_t> leaves;
  for (size_t i = 0; i < (*servers)->size(); ++i) {
    const Json& server = (**servers)[i];
    const std::string context = fmt::format("server_list[{}]", i);
    absl::StatusOr<std::string_view> id = StringMember(server, "server_id", context);
    if (!id.ok()) return id.status();
    absl::StatusOr<const Json*> list = ListMember(server, "device", context);
    if (!list.ok()) return list.status();
    if ((*list)->empty()) return absl::InvalidArgumentError(fmt::format("{}: device is empty", context));
    devices.clear();
    for (size_t k = 0; k < (*list)->size(); ++k) {
      const Json& device = (**list)[k];
      const std::string place = fmt::format("{}.device[{}]", context, k);
      absl::StatusOr<std::string_view> tor = StringMember(device, "tor_ip", place);
      if (!tor.ok()) return tor.status();
      int64_t position = static_cast<int64_t>(k);
      if (device.contains("device_id")) {
        absl::StatusOr<int64_t> number = IntegerMember(device, "device_id", place);
        if (!number.ok()) return number.status();
        position = *number;
      }
      devices.push_back({position, builder.Switch(*tor)});
    }
    std::stable_sort(devices.begin(), devices.end(), [](const Device& a, const Device& b) { return a.id < b.id; });
    leaves.clear();
    for (const Device& device : devices) leaves.push_back(device.leaf);
    const auto pod = server.find("pod_name");
    const std::string_view pod_name =
        pod != server.end() && pod->is_string() ? std::string_view(pod->get_ref<const std::string&>()) : "";
    if (absl::Status status = builder.AddNode(*id, pod_name, leaves); !status.ok()) return At(context, status);
  }
  return builder.Finish(false);
}

}  // namespace taskd::route
