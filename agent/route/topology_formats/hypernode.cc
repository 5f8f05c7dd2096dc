#include "agent/route/topology_formats/hypernode.h"

// Volcano HyperNodes: each selects its members, nodes or other HyperNodes, by their names, by a pattern of names, or by labels
// of nodes.
#include <re2/re2.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agent/route/topology_formats/json_text.h"
#include "agent/route/topology_formats/reading.h"
#include "fmt/format.h"

namespace taskd::route {
namespace {

constexpr int64_t kPatternBytes = 1 << 20;  // of a compiled pattern

const Json& Member(const Json& whole, const char* key) {
  static const Json none;
  const auto member = whole.is_object() ? whole.find(key) : whole.end();
  return member == whole.end() ? none : *member;
}

// A value of Kubernetes' matchExpressions.
bool Fits(const Json& labels, const Json& expression) {
  const Json &key = Member(expression, "key"), &wanted = Member(expression, "operator"),
             &values = Member(expression, "values");
  const auto found = key.is_string() && labels.is_object() ? labels.find(key.get<std::string>()) : labels.end();
  const bool is_there = labels.is_object() && found != labels.end();
  const bool is_in = is_there && std::find(values.begin(), values.end(), *found) != values.end();
  return wanted == "In"       ? is_in
         : wanted == "NotIn"  ? !is_in
         : wanted == "Exists" ? is_there
                              : wanted == "DoesNotExist" && !is_there;
}

class HypernodeReader {
 public:
  HypernodeReader(absl::Span<const std::string> job_names, InputBudget& budget) : builder_(budget) {
    for (const std::string& name : job_names) nodes_.push_back({name, nullptr});
  }

  absl::StatusOr<Topology> Read(const Json& objects) {
    for (const Json& object : objects) {
      const Json &name = Member(Member(object, "metadata"), "name"), &kind = Member(object, "kind");
      if (!name.is_string()) continue;
      if (kind == "Node") {
        nodes_.push_back({name.get<std::string>(), &Member(Member(object, "metadata"), "labels")});
        has_labels_ = true;
      } else {
        hypernodes_.push_back({name.get<std::string>(), nullptr});
      }
    }
    for (auto* names : {&nodes_, &hypernodes_}) {
      std::stable_sort(names->begin(), names->end(), [](const Named& a, const Named& b) { return a.name < b.name; });
    }
    for (size_t i = 0; i < objects.size(); ++i) {
      if (Member(objects[i], "kind") == "Node") continue;
      const std::string context = fmt::format("items[{}]", i);
      if (absl::Status status = AddHypernode(objects[i], context); !status.ok()) return status;
    }
    return builder_.Finish(true);
  }

 private:
  struct Named {
    std::string name;
    const Json* labels;  // null: unknown
  };

  absl::Status AddHypernode(const Json& object, std::string_view context) {
    absl::StatusOr<std::string_view> name = StringMember(Member(object, "metadata"), "name", context);
    if (!name.ok()) return name.status();
    const int32_t id = builder_.Switch(*name);
    if (absl::Status status = builder_.Define(id); !status.ok()) return At(context, status);
    absl::StatusOr<const Json*> members = ListMember(Member(object, "spec"), "members", context);
    if (!members.ok()) return members.status();
    for (size_t i = 0; i < (*members)->size(); ++i) {
      const std::string place = fmt::format("{}.spec.members[{}]", context, i);
      if (absl::Status status = AddMember((**members)[i], place, id); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AddMember(const Json& member, const std::string& place, int32_t id) {
    absl::StatusOr<std::string_view> type = StringMember(member, "type", place);
    if (!type.ok()) return type.status();
    const bool is_node = *type == "Node";
    if (!is_node && *type != "HyperNode") {
      return At(place, absl::InvalidArgumentError(fmt::format("type {} is neither Node nor HyperNode", Quoted(*type))));
    }
    absl::StatusOr<std::vector<std::string>> names = Select(Member(member, "selector"), place, is_node);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      const absl::Status status =
          is_node ? builder_.AddNode(name, "", {id}) : builder_.SetParent(builder_.Switch(name), id);
      if (!status.ok()) return At(place, status);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Select(const Json& selector, const std::string& place, bool is_node) const {
    if (const Json& exact = Member(selector, "exactMatch"); exact.is_object()) {
      absl::StatusOr<std::string_view> name = StringMember(exact, "name", place);
      if (!name.ok()) return name.status();
      return std::vector{std::string(*name)};
    }
    const std::vector<Named>& all = is_node ? nodes_ : hypernodes_;
    std::vector<std::string> names;
    if (const Json& regex = Member(selector, "regexMatch"); regex.is_object()) {
      absl::StatusOr<std::string_view> pattern = StringMember(regex, "pattern", place);
      if (!pattern.ok()) return pattern.status();
      RE2::Options options(RE2::Quiet);
      options.set_max_mem(kPatternBytes);
      const RE2 matcher(re2::StringPiece(pattern->data(), pattern->size()), options);
      if (!matcher.ok()) {
        return At(place,
                  absl::InvalidArgumentError(fmt::format("pattern {} is no regular expression", Quoted(*pattern))));
      }
      for (const Named& one : all) {
        if (RE2::PartialMatch(one.name, matcher)) names.push_back(one.name);
      }
    } else if (const Json& label = Member(selector, "labelMatch"); label.is_object() && is_node) {
      if (!has_labels_) {
        return At(place, absl::InvalidArgumentError(
                             "labelMatch needs the nodes' labels: kubectl get hypernodes,nodes -o json > FILE"));
      }
      for (const Named& one : all) {
        if (one.labels != nullptr && HasLabels(*one.labels, label)) names.push_back(one.name);
      }
    } else {
      return At(place,
                absl::InvalidArgumentError("the selector is not exactMatch, regexMatch or, of nodes, labelMatch"));
    }
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

  static bool HasLabels(const Json& labels, const Json& wanted) {
    for (const auto& [key, value] : Member(wanted, "matchLabels").items()) {
      if (Member(labels, key.c_str()) != value) return false;
    }
    const Json& expressions = Member(wanted, "matchExpressions");
    return std::all_of(expressions.begin(), expressions.end(),
                       [&](const Json& expression) { return Fits(labels, expression); });
  }

  TopologyBuilder builder_;
  std::vector<Named> nodes_, hypernodes_;  // by name
  bool has_labels_ = false;
};

void AddObjects(const Json& root, Json& objects) {
  for (const Json& one : root) objects.push_back(one);
}

}  // namespace

absl::StatusOr<Topology> ReadHypernode(const Json& root, absl::Span<const std::string> job_names, InputBudget& budget) {
  HypernodeReader reader(job_names, budget);
  if (root.is_array()) {
    // YAML's documents may be lists of their own.
    const bool has_lists = std::any_of(root.begin(), root.end(), [](const Json& one) { return one.contains("items"); });
    if (!has_lists) return reader.Read(root);
    Json objects = Json::array();
    for (const Json& one : root) {
      one.contains("items") ? AddObjects(one["items"], objects) : objects.push_back(one);
    }
    return reader.Read(objects);
  }
  if (!root.is_object() || !root.contains("items")) return reader.Read(Json::array({root}));
  absl::StatusOr<const Json*> list = ListMember(root, "items", "hypernode");
  if (!list.ok()) return list.status();
  return reader.Read(**list);
}

}  // namespace taskd::route
