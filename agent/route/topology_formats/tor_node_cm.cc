#include "agent/route/topology_formats/tor_node_cm.h"

// MindCluster's basic-tor-node-cm: the servers of every ToR.
#include <utility>

#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {

namespace {

// The object itself, or what a ConfigMap holds as a string, which is read into `inner`.
absl::StatusOr<const Json*> TorInfo(const Json& root, InputBudget& budget, Json& inner) {
  if (!root.is_object()) return &inner;
  const Json* holder = &root;
  if (const auto data = root.find("data"); data != root.end() && data->is_object()) holder = &*data;
  const auto info = holder->find("tor_info");
  if (info == holder->end()) return holder == &root ? &root : &inner;
  if (!info->is_string()) return &*info;
  absl::StatusOr<Json> parsed = ParseJson(info->get_ref<const std::string&>(), budget);
  if (!parsed.ok()) return At("tor_info", parsed.status());
  inner = *std::move(parsed);
  return &inner;
}

}  // namespace

absl::StatusOr<Topology> ReadTorNodeCm(const Json& root, InputBudget& budget) {
  Json inner;
  absl::StatusOr<const Json*> info = TorInfo(root, budget, inner);
  if (!info.ok()) return info.status();
  absl::StatusOr<const Json*> tors = ListMember(**info, "server_list", "tor_info");
  if (!tors.ok()) return tors.status();
  TopologyBuilder builder(budget);
  for (size_t i = 0; i < (*tors)->size(); ++i) {
    const Json& tor = (**tors)[i];
    const std::string context = fmt::format("server_list[{}]", i);
    absl::StatusOr<std::string_view> address = StringMember(tor, "tor_ip", context);
    if (!address.ok()) return address.status();
    const int32_t leaf = builder.Switch(*address);
    if (absl::Status status = builder.Define(leaf); !status.ok()) return At(context, status);
    absl::StatusOr<const Json*> servers = ListMember(tor, "server", context);
    if (!servers.ok()) return servers.status();
    for (size_t k = 0; k < (*servers)->size(); ++k) {
      const std::string place = fmt::format("{}.server[{}]", context, k);
      absl::StatusOr<std::string_view> name = StringMember((**servers)[k], "server_ip", place);
      if (!name.ok()) return name.status();
      if (absl::Status status = builder.AddNode(*name, "", {leaf}); !status.ok()) return At(place, status);
    }
  }
  return builder.Finish(true);
}

}  // namespace taskd::route
