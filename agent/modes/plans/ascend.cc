// Mode ascend: one process of the command for each device that the rank table gives to this server.
#include <algorithm>
#include <utility>

#include "agent/modes/plans/model_arts.h"
#include "agent/ranktable/rank_table.h"
#include "fmt/format.h"

namespace taskd::modes {
namespace {

constexpr const char* kTableName = "RANK_TABLE_FILE";

absl::Status Refuse(const std::string& text) { return absl::InvalidArgumentError(text); }

// NOT_FOUND, FAILED_PRECONDITION: it is not there or not completed yet.
absl::StatusOr<ranktable::RankTable> ReadTable(const ModeInput& input) {
  const std::string path = input.Get(kTableName);
  if (path.empty()) return Refuse(fmt::format("{}: it is not set; it is the path of the rank table", kTableName));
  if (!path.ends_with(".json")) {
    return Refuse(fmt::format("{} {}: the file's name does not end in .json", kTableName, QuotedValue(path)));
  }
  absl::StatusOr<std::string> text = input.machine.read_file(path);
  if (!text.ok()) {
    if (absl::IsResourceExhausted(text.status())) {
      return Refuse(fmt::format("{}: {}", kTableName, std::string(text.status().message())));
    }
    return absl::Status(text.status().code(), fmt::format("{}: {}", kTableName, std::string(text.status().message())));
  }
  if (text->empty()) {
    return absl::FailedPreconditionError(fmt::format("{} {}: the file is empty", kTableName, QuotedValue(path)));
  }
  absl::StatusOr<ranktable::RankTableCheck> check = ranktable::CheckRankTable(
      *std::move(text), ranktable::ChipRules::kAny, static_cast<size_t>(input.options.max_input_mb) << 20);
  if (!check.ok()) {
    return Refuse(fmt::format("{} {}: {}", kTableName, QuotedValue(path), std::string(check.status().message())));
  }
  if (!check->ok()) {
    const ranktable::RankTableError& error = check->errors.front();
    const std::string line = fmt::format("{} {}: {}{}{}", kTableName, QuotedValue(path), error.path,
                                         error.path.empty() ? "" : ": ", error.text);
    return check->initializing ? absl::FailedPreconditionError(line) : Refuse(line);
  }
  if (check->table->version == ranktable::RankTableVersion::k1_1) {
    return Refuse(
        fmt::format("{} {}: version is 1.1, which is for heterogeneous jobs; 1.0, 1.2, 2.0 and a table without "
                    "this field are taken",
                    kTableName, QuotedValue(path)));
  }
  return *std::move(check->table);
}

// Version 2.0 has the addresses of devices only, which need not be those of the nodes. Its nodes are in the
// order of ranks, as ModelArts gives them to its nodes.
absl::StatusOr<size_t> ServerByIndex(const ModeInput& input, const ranktable::RankTable& table, ModePlan* plan) {
  const int hosts = static_cast<int>(table.servers.size());
  const absl::StatusOr<int> index = ModelArtsIndex(input, hosts);
  if (!index.ok()) return index.status();
  plan->warnings.push_back(fmt::format("{} does not tell the nodes' addresses; this is node{}, by {}", kTableName,
                                       *index, ModelArtsIndexName(input)));
  return static_cast<size_t>(*index);
}

absl::StatusOr<size_t> OwnServer(const ModeInput& input, const ranktable::RankTable& table, std::optional<int> hosts,
                                 ModePlan* plan) {
  const std::string self = input.options.self.empty() ? input.Get("MA_CURRENT_IP") : input.options.self;
  const bool by_index = table.version == ranktable::RankTableVersion::k2_0 && input.options.self.empty() &&
                        !ModelArtsIndexName(input).empty() && hosts == static_cast<int>(table.servers.size());
  if (self.empty()) {
    if (table.servers.size() == 1) return 0;
    if (by_index) return ServerByIndex(input, table, plan);
    return Refuse(fmt::format("--self: it is not given and MA_CURRENT_IP is not set; the rank table has {} servers",
                              table.servers.size()));
  }
  absl::StatusOr<size_t> server = ranktable::ServerOf(table, self);
  if (absl::IsNotFound(server.status()) && table.version == ranktable::RankTableVersion::k2_0) {
    server = ranktable::ServerWithAddress(table, self);
    if (absl::IsNotFound(server.status()) && by_index) return ServerByIndex(input, table, plan);
  }
  if (server.ok()) return server;
  return Refuse(fmt::format("{}: {}", input.options.self.empty() ? "MA_CURRENT_IP" : "--self",
                            std::string(server.status().message())));
}

// A container's own address reaches it on every network; its host's does only where it has the host's network.
std::string_view NameOf(const ranktable::RankTableServer& server) {
  for (const std::string_view name : {server.container_ip, server.host_ip, server.pod_name}) {
    if (!name.empty()) return name;
  }
  return server.server_id;
}

// The job's nodes, and which of them this is. The rank table need not list servers in ModelArts' order, so its places
// count only where there are no indexes.
absl::Status ReadNodes(const ModeInput& input, const ranktable::RankTable& table, size_t own, std::optional<int> hosts,
                       ModePlan* plan) {
  for (const ranktable::RankTableServer& server : table.servers) {
    plan->nodes.push_back({std::string(NameOf(server)), static_cast<int>(server.device_count)});
  }
  plan->index = static_cast<int>(own);
  if (!hosts.has_value()) return absl::OkStatus();
  if (static_cast<size_t>(*hosts) != table.servers.size()) {
    plan->warnings.push_back(
        fmt::format("MA_NUM_HOSTS {}: the rank table has {} servers, which counts", *hosts, table.servers.size()));
    return absl::OkStatus();
  }
  const bool has_names = input.Has("MA_VJ_NAME") && input.Has("MA_TASK_NAME");
  if (*hosts == 1 || !has_names || ModelArtsIndexName(input).empty()) return absl::OkStatus();
  const absl::StatusOr<int> index = ModelArtsIndex(input, *hosts);
  if (!index.ok()) return index.status();
  const absl::StatusOr<std::string> job = NamePart(input, "MA_VJ_NAME");
  if (!job.ok()) return job.status();
  const absl::StatusOr<std::string> task = NamePart(input, "MA_TASK_NAME");
  if (!task.ok()) return task.status();
  for (int i = 0; i < *hosts; ++i) plan->nodes[static_cast<size_t>(i)].name = ModelArtsNodeName(*job, *task, i);
  plan->index = *index;
  plan->nodes[static_cast<size_t>(*index)].cards = static_cast<int>(table.servers[own].device_count);
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanAscend(const ModeInput& input, ModePlan* plan) {
  const Environment variables = ModelArtsVariables(input);
  plan->platform = variables.empty() ? Platform::kNone : Platform::kModelArts;
  // Permanent errors are reported before any wait for the table.
  std::optional<int> hosts;
  if (input.Has("MA_NUM_HOSTS")) {
    const absl::StatusOr<int> read = ModelArtsHosts(input);
    if (!read.ok()) return read.status();
    hosts = *read;
    if (!ModelArtsIndexName(input).empty()) {
      if (const absl::StatusOr<int> index = ModelArtsIndex(input, *hosts); !index.ok()) return index.status();
    }
  }
  const absl::StatusOr<int> cards = ModelArtsCards(input);
  if (!cards.ok()) return cards.status();
  const absl::StatusOr<ranktable::RankTable> table = ReadTable(input);
  if (!table.ok()) return table.status();
  const absl::StatusOr<size_t> own = OwnServer(input, *table, hosts, plan);
  if (!own.ok()) return own.status();
  const ranktable::RankTableServer& server = table->servers[*own];
  if (input.Has("MA_NUM_GPUS") && static_cast<uint32_t>(*cards) != server.device_count) {
    return Refuse(fmt::format("MA_NUM_GPUS '{}': server {} has {} devices in the rank table", *cards,
                              std::string(server.server_id), server.device_count));
  }
  if (absl::Status nodes = ReadNodes(input, *table, *own, hosts, plan); !nodes.ok()) return nodes;
  plan->role = "worker";

  const std::span<const ranktable::RankTableDevice> listed = table->DevicesOf(server);
  std::vector<ranktable::RankTableDevice> devices(listed.begin(), listed.end());
  std::sort(devices.begin(), devices.end(), [](auto& a, auto& b) { return a.device_id < b.device_id; });
  for (size_t i = 0; i < devices.size(); ++i) {
    ModeProcess process{input.options.command, variables};
    Environment& environment = process.environment;
    environment[kTableName] = input.Get(kTableName);
    environment["ASCEND_DEVICE_ID"] = std::to_string(i);
    // Not promised, but older MindSpore scripts read it.
    environment["DEVICE_ID"] = std::to_string(i);
    environment["RANK_ID"] = std::to_string(devices[i].rank_id);
    environment["RANK_SIZE"] = std::to_string(table->devices.size());
    plan->processes.push_back(std::move(process));
  }
  return absl::OkStatus();
}

}  // namespace taskd::modes
