#include "agent/modes/plans/tf_config.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "agent/modes/plans/platform_modes.h"
#include "agent/ranktable/json_text.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd::modes {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = 128 << 10;  // of an environment variable, to Linux
constexpr int kPort = 2222;
constexpr int kMaxEvaluators = 1024;

absl::Status Bad(std::string_view why) { return absl::InvalidArgumentError(fmt::format("TF_CONFIG: {}", why)); }

std::string Dump(const Json& value) { return QuotedValue(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

absl::StatusOr<HostPort> ReadEndpoint(const std::string& place, const Json& value) {
  const auto bad = [&](std::string_view why) { return Bad(fmt::format("{}, {}: {}", place, Dump(value), why)); };
  if (!value.is_string()) return bad("it is not a string host:port");
  const std::string& text = value.get_ref<const std::string&>();
  const bool blank =
      std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f; });
  if (blank) return bad("it has a blank in it");
  absl::StatusOr<HostPort> endpoint = ParseHostPort("TF_CONFIG", text);
  // 022 and +22 are not how anybody writes a port.
  if (!endpoint.ok() || !ReadInteger(text.substr(text.rfind(':') + 1), 1, 65535)) {
    return bad("it is not host:port with a port from 1 to 65535");
  }
  return endpoint;
}

absl::Status ReadCluster(const Json& config, TfConfig* result) {
  const auto cluster = config.find("cluster");
  if (cluster == config.end() && config.contains("sparseCluster")) {
    return Bad("cluster is missing; sparseCluster names only some nodes: turn enableDynamicWorker off");
  }
  if (cluster == config.end()) return Bad("cluster is missing");
  if (!cluster->is_object()) return Bad(fmt::format("cluster {}: it is not an object", Dump(*cluster)));
  if (!cluster->contains("worker") && !cluster->contains("chief") && !cluster->contains("master")) {
    return Bad("cluster.worker is missing; it needs worker, chief or master");
  }
  std::set<std::string> seen;
  for (const auto& [type, list] : cluster->items()) {
    const std::string place = "cluster." + type;
    if (!list.is_array() || list.empty()) {
      return Bad(fmt::format("{} {}: it is not a list with one host:port or more", QuotedValue(place), Dump(list)));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string item = fmt::format("{}[{}]", QuotedValue(place), i);
      absl::StatusOr<HostPort> endpoint = ReadEndpoint(item, list[i]);
      if (!endpoint.ok()) return endpoint.status();
      if (!seen.insert(FormatHostPort(*endpoint)).second) {
        return Bad(fmt::format("{}, {}: it is there twice", item, Dump(list[i])));
      }
      result->cluster[type].push_back(*std::move(endpoint));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTask(const Json& config, TfConfig* result) {
  const auto task = config.find("task");
  if (task == config.end()) return Bad("task is missing");
  if (!task->is_object()) return Bad(fmt::format("task {}: it is not an object", Dump(*task)));
  const auto type = task->find("type");
  if (type == task->end()) return Bad("task.type is missing");
  const auto index = task->find("index");
  if (index == task->end()) return Bad("task.index is missing");
  if (!type->is_string()) return Bad(fmt::format("task.type {}: it is not a string", Dump(*type)));
  result->type = type->get<std::string>();
  const auto list = result->cluster.find(result->type);
  // These two may stand outside the cluster; then the number of evaluators is not known.
  const bool outside = list == result->cluster.end();
  if (outside && result->type != "evaluator" && result->type != "chief") {
    return Bad(fmt::format("task.type {}: it is not in cluster", QuotedValue(result->type)));
  }
  int64_t most = 0;  // there is one chief
  if (!outside) most = static_cast<int64_t>(list->second.size()) - 1;
  if (outside && result->type == "evaluator") most = kMaxEvaluators - 1;
  // TensorFlow takes an integer as a text, too. What is beyond int64_t comes out negative, or is no integer to the parser.
  std::optional<int64_t> number;
  if (index->is_string()) number = ReadInteger(index->get_ref<const std::string&>(), 0, static_cast<int>(most));
  if (index->is_number_integer()) number = index->get<int64_t>();
  if (!number || *number < 0 || *number > most) {
    return Bad(fmt::format("task.index {}: it is not an integer from 0 to {}", Dump(*index), most));
  }
  result->index = static_cast<int>(*number);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TfConfig> ParseTfConfig(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return Bad(fmt::format("it has {} bytes; {} are allowed", text.size(), kMaxBytes));
  }
  if (absl::Status status = ranktable::CheckJsonText(text); !status.ok()) {
    return Bad(fmt::format("{} is not JSON: {}", QuotedValue(text), std::string(status.message())));
  }
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) return Bad(fmt::format("{} is not a JSON object", QuotedValue(text)));
  TfConfig result;
  absl::Status status = ReadCluster(config, &result);
  if (status.ok()) status = ReadTask(config, &result);
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<std::string> MakeTfConfig(const std::vector<std::string>& hosts, int ps_count, int index) {
  nlohmann::ordered_json ps = nlohmann::ordered_json::array(), worker = ps;
  for (size_t i = 0; i < hosts.size(); ++i) {
    (static_cast<int>(i) < ps_count ? ps : worker).push_back(FormatHostPort({hosts[i], kPort}));
  }
  const bool is_ps = index < ps_count;
  const nlohmann::ordered_json config = {
      {"cluster", {{"ps", ps}, {"worker", worker}}},
      {"task", {{"type", is_ps ? "ps" : "worker"}, {"index", is_ps ? index : index - ps_count}}},
      {"environment", "cloud"}};
  std::string text = config.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (nlohmann::ordered_json::parse(text, nullptr, false) != config) {
    return absl::InvalidArgumentError("NODE_LIST: the name of a node is not UTF-8, so TF_CONFIG cannot have it");
  }
  return text;
}

}  // namespace taskd::modes
