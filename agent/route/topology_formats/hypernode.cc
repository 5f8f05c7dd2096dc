#include "agent/route/topology_formats/hypernode.h"

// Volcano HyperNodes: each names its members, nodes or other HyperNodes.
#include <vector>

#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

absl::Status AddHypernode(const Json& object, std::string_view context, TopologyBuilder& builder) {
  const auto part = [](const Json& whole, const char* key) -> const Json& {
    static const Json none;
    const auto member = whole.is_object() ? whole.find(key) : whole.end();
    return member == whole.end() ? none : *member;
  };
  absl::StatusOr<std::string_view> name = StringMember(part(object, "metadata"), "name", context);
  if (!name.ok()) return name.status();
  const int32_t id = builder.Switch(*name);
  if (absl::Status status = builder.Define(id); !status.ok()) return At(context, status);
  absl::StatusOr<const Json*> members = ListMember(part(object, "spec"), "members", context);
  if (!members.ok()) return members.status();
  for (size_t i = 0; i < (*members)->size(); ++i) {
    const Json& member = (**members)[i];
    const std::string place = fmt::format("{}.spec.members[{}]", context, i);
    absl::StatusOr<std::string_view> type = StringMember(member, "type", place);
    if (!type.ok()) return type.status();
    const Json& exact = part(part(member, "selector"), "exactMatch");
    if (!exact.is_object()) {
      return absl::InvalidArgumentError(fmt::format("{}: the selector is not exactMatch, the only one read", place));
    }
    absl::StatusOr<std::string_view> target = StringMember(exact, "name", place);
    if (!target.ok()) return target.status();
    absl::Status status;
    if (*type == "Node") {
      status = builder.AddNode(*target, "", {id});
    } else if (*type == "HyperNode") {
      status = builder.SetParent(builder.Switch(*target), id);
    } else {
      status = absl::InvalidArgumentError(fmt::format("type {} is neither Node nor HyperNode", Quoted(*type)));
    }
    if (!status.ok()) return At(place, status);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Topology> ReadHypernode(const Json& root, InputBudget& budget) {
  TopologyBuilder builder(budget);
  const Json* items = root.is_array() ? &root : nullptr;
  if (root.is_object() && root.contains("items")) {
    absl::StatusOr<const Json*> list = ListMember(root, "items", "hypernode");
    if (!list.ok()) return list.status();
    items = *list;
  }
  if (items == nullptr) {
    if (absl::Status status = AddHypernode(root, "HyperNode", builder); !status.ok()) return status;
  } else {
    for (size_t i = 0; i < items->size(); ++i) {
      if (absl::Status status = AddHypernode((*items)[i], fmt::format("items[{}]", i), builder); !status.ok()) {
        return status;
      }
    }
  }
  return builder.Finish(true);
}

}  // namespace taskd::route
