#include "agent/run/rendezvous_messages.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "common/json_limits.h"
#include "common/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace taskd::run {
namespace {

using nlohmann::json;

constexpr int kMaxPort = 65535;
constexpr int kMaxNodes = 1 << 20;
constexpr int kMaxRanks = 1 << 24;
constexpr int kMaxCount = std::numeric_limits<int>::max();
constexpr size_t kMaxFieldBytes = 4096;  // names, addresses
constexpr int kMaxSignal = 64;
constexpr int64_t kMaxNodeTimeoutMs = 86'400'000;
constexpr size_t kMaxTextBytes = 8 << 20;  // stacks, reasons
constexpr size_t kMaxLogFolderBytes = 8192;
// Of a message. A node's has no lists; the root's has one text for each node.
constexpr size_t kMaxDepth = 4;
constexpr size_t kMaxNodeValues = 64;
constexpr size_t kMaxRootValues = kMaxNodes + 1024;

std::string Dump(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

// Reads members of an object; remembers the first that is missing, of another type or out of range.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}

  int64_t Number(const char* name, int64_t least, int64_t most) {
    auto found = object_.find(name);
    if (found == object_.end() || !found->is_number_integer()) {
      Fail(fmt::format("'{}' is not a whole number", name));
      return least;
    }
    const bool too_big = found->is_number_unsigned() &&
                         found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    const int64_t value = too_big ? 0 : found->get<int64_t>();
    if (too_big || value < least || value > most) {
      Fail(fmt::format("'{}' is not {} to {}", name, least, most));
      return least;
    }
    return value;
  }
  int Int(const char* name, int least, int most) { return static_cast<int>(Number(name, least, most)); }

  bool Bool(const char* name) {
    auto found = object_.find(name);
    if (found != object_.end() && found->is_boolean()) return found->get<bool>();
    Fail(fmt::format("'{}' is not true or false", name));
    return false;
  }

  bool OptionalBool(const char* name) { return object_.contains(name) && Bool(name); }

  std::string Text(const char* name, size_t most_bytes) {
    auto found = object_.find(name);
    if (found == object_.end() || !found->is_string()) {
      Fail(fmt::format("'{}' is not a text", name));
      return "";
    }
    const std::string& text = found->get_ref<const std::string&>();
    if (text.size() <= most_bytes) return text;
    Fail(fmt::format("'{}' is longer than {} bytes", name, most_bytes));
    return "";
  }

  std::string OptionalText(const char* name, size_t most_bytes) {
    return object_.contains(name) ? Text(name, most_bytes) : "";
  }

  const json& Array(const char* name, size_t most) {
    static const json kEmpty = json::array();
    auto found = object_.find(name);
    if (found != object_.end() && found->is_array() && found->size() <= most) return *found;
    Fail(fmt::format("'{}' is not a list of at most {}", name, most));
    return kEmpty;
  }

  process::WorkerExit Exit() {
    absl::StatusOr<process::WorkerExit> exit = DecodeExit(Text("exit", kMaxEncodedExit));
    if (exit.ok()) return *std::move(exit);
    Fail(std::string(exit.status().message()));
    return {};
  }

  void Fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
  }
  const std::string& error() const { return error_; }

 private:
  const json& object_;
  std::string error_;
};

// One pair of functions a message. The member "type" is its kind.

json ToJson(const JoinMessage& message) {
  const NodeInfo& info = message.info;
  return {{"type", "join"},
          {"run_id", info.run_id},
          {"version", info.version},
          {"host", info.host},
          {"pid", info.pid},
          {"node_rank", info.node_rank},
          {"local_world_size", info.local_world_size},
          {"role", info.role},
          {"min_nodes", info.min_nodes},
          {"max_nodes", info.max_nodes},
          {"max_restarts", info.max_restarts},
          {"nonce", info.nonce},
          {"tier_port", info.tier_port}};
}

JoinMessage ReadJoin(Reader& reader) {
  NodeInfo info;
  info.run_id = reader.Text("run_id", kMaxFieldBytes);
  info.version = reader.Text("version", kMaxFieldBytes);
  info.host = reader.Text("host", kMaxFieldBytes);
  info.pid = reader.Int("pid", 0, kMaxCount);
  info.node_rank = reader.Int("node_rank", -1, kMaxNodes);
  info.local_world_size = reader.Int("local_world_size", 1, 1 << 14);
  info.role = reader.Text("role", kMaxFieldBytes);
  info.min_nodes = reader.Int("min_nodes", 1, kMaxNodes);
  info.max_nodes = reader.Int("max_nodes", 1, kMaxNodes);
  info.max_restarts = reader.Int("max_restarts", 0, kMaxCount);
  info.nonce = reader.OptionalText("nonce", kMaxFieldBytes);  // a launcher of another release is told its version
  info.tier_port = reader.Int("tier_port", 0, kMaxPort);
  return {std::move(info)};
}

json ToJson(const FailedMessage& message) {
  return {{"type", "failed"},
          {"round", message.round},
          {"exit", EncodeExit(message.exit)},
          {"log_folder", message.log_folder}};
}

FailedMessage ReadFailed(Reader& reader) {
  return {reader.Int("round", 0, kMaxCount), reader.Exit(), reader.Text("log_folder", kMaxLogFolderBytes)};
}

json ToJson(const SucceededMessage& message) { return {{"type", "succeeded"}, {"round", message.round}}; }
json ToJson(const StoppedMessage& message) { return {{"type", "stopped"}, {"round", message.round}}; }
json ToJson(const LeaveMessage& message) { return {{"type", "leave"}, {"signal", message.signal}}; }

struct CauseName {
  StopCause cause;
  const char* name;
};
constexpr CauseName kCauseNames[] = {
    {StopCause::kNone, "none"},
    {StopCause::kRankExit, "rank_exit"},
    {StopCause::kNodeLost, "node_lost"},
    {StopCause::kTerminated, "terminated"},
    {StopCause::kInterrupted, "interrupted"},
    {StopCause::kNodeJoined, "node_joined"},
    {StopCause::kOrdered, "ordered"},
    {StopCause::kTimedOut, "timed_out"},
};

const char* NameOf(StopCause cause) {
  return std::find_if(std::begin(kCauseNames), std::end(kCauseNames),
                      [&](const CauseName& one) { return one.cause == cause; })
      ->name;
}

StopCause ReadCause(Reader& reader) {
  const std::string name = reader.Text("cause", kMaxFieldBytes);
  const auto* named = std::find_if(std::begin(kCauseNames), std::end(kCauseNames),
                                   [&](const CauseName& one) { return one.name == name; });
  if (named != std::end(kCauseNames)) return named->cause;
  reader.Fail("'cause' is not the name of one");
  return StopCause::kNone;
}

struct EventName {
  LauncherEvent::Kind kind;
  const char* name;
};
constexpr EventName kEventNames[] = {{LauncherEvent::Kind::kStarted, "started"},
                                     {LauncherEvent::Kind::kExited, "exited"},
                                     {LauncherEvent::Kind::kRestarting, "restarting"},
                                     {LauncherEvent::Kind::kEnded, "ended"}};

json ToJson(const EventMessage& message) {
  const LauncherEvent& event = message.event;
  const auto* named = std::find_if(std::begin(kEventNames), std::end(kEventNames),
                                   [&](const EventName& one) { return one.kind == event.kind; });
  return {{"type", "event"},        {"event", named->name},     {"round", event.round},        {"rank", event.rank},
          {"node", event.node},     {"pid", event.pid},         {"code", event.code},          {"signal", event.signal},
          {"reason", event.reason}, {"time_ns", event.time_ns}, {"cause", NameOf(event.cause)}};
}

EventMessage ReadEvent(Reader& reader) {
  LauncherEvent event;
  const std::string name = reader.Text("event", kMaxFieldBytes);
  const auto* named = std::find_if(std::begin(kEventNames), std::end(kEventNames),
                                   [&](const EventName& one) { return one.name == name; });
  if (named == std::end(kEventNames)) {
    reader.Fail("'event' is not started, exited, restarting or ended");
  } else {
    event.kind = named->kind;
  }
  event.round = reader.Int("round", 0, kMaxCount);
  event.rank = reader.Int("rank", -1, kMaxRanks);
  event.node = reader.Int("node", -1, kMaxNodes);
  event.pid = reader.Int("pid", 0, kMaxCount);
  event.code = reader.Int("code", 0, kMaxCount);
  event.signal = reader.Int("signal", 0, kMaxSignal);
  event.reason = reader.Text("reason", kMaxTextBytes);
  event.cause = ReadCause(reader);
  event.time_ns = reader.Number("time_ns", 0, std::numeric_limits<int64_t>::max());
  return {std::move(event)};
}

json ToJson(const StacksMessage& message) { return {{"type", "stacks"}, {"id", message.id}, {"text", message.text}}; }
json ToJson(const EvidenceMessage& message) {
  return {{"type", "evidence"}, {"hang", message.hang}, {"text", message.text}};
}
json ToJson(const PongMessage& message) { return {{"type", "pong"}, {"id", message.id}}; }

json ToJson(const WaitingMessage& message) { return {{"type", "waiting"}, {"text", message.text}}; }

json ToJson(const StartMessage& message) {
  const Assignment& assignment = message.assignment;
  return {{"type", "start"},
          {"round", assignment.round},
          {"restart_count", assignment.restart_count},
          {"group_rank", assignment.group_rank},
          {"group_world_size", assignment.group_world_size},
          {"rank_base", assignment.rank_base},
          {"world_size", assignment.world_size},
          {"role_rank_base", assignment.role_rank_base},
          {"role_world_size", assignment.role_world_size},
          {"manager", assignment.manager},
          {"mark_folder", assignment.mark_folder},
          {"secret", assignment.secret},
          {"tier", assignment.tier},
          {"node_timeout_ms", assignment.node_timeout_ms},
          {"hosts", assignment.hosts}};
}

StartMessage ReadStart(Reader& reader) {
  Assignment assignment;
  assignment.round = reader.Int("round", 0, kMaxCount);
  assignment.restart_count = reader.Int("restart_count", 0, kMaxCount);
  assignment.group_world_size = reader.Int("group_world_size", 1, kMaxNodes);
  assignment.group_rank = reader.Int("group_rank", 0, assignment.group_world_size - 1);
  assignment.world_size = reader.Int("world_size", 1, kMaxRanks);
  assignment.rank_base = reader.Int("rank_base", 0, assignment.world_size - 1);
  assignment.role_world_size = reader.Int("role_world_size", 1, assignment.world_size);
  assignment.role_rank_base = reader.Int("role_rank_base", 0, assignment.role_world_size - 1);
  assignment.manager = reader.Text("manager", kMaxFieldBytes);
  assignment.mark_folder = reader.Text("mark_folder", kMaxFieldBytes);
  assignment.secret = reader.Text("secret", kMaxFieldBytes);
  assignment.tier = reader.Text("tier", kMaxFieldBytes);
  assignment.node_timeout_ms = reader.Number("node_timeout_ms", 1, kMaxNodeTimeoutMs);
  for (const json& host : reader.Array("hosts", kMaxNodes)) {
    if (!host.is_string()) {
      reader.Fail("'hosts' holds something that is not a text");
      break;
    }
    assignment.hosts.push_back(host.get<std::string>());
  }
  return {std::move(assignment)};
}

json ToJson(const StopMessage& message) {
  return {{"type", "stop"}, {"round", message.round}, {"reason", message.reason}, {"cause", NameOf(message.cause)}};
}

json ToJson(const EndMessage& message) {
  json failures = json::array();
  for (const RankFailure& failure : message.failures) {
    failures.push_back({{"exit", EncodeExit(failure.exit)},
                        {"host", failure.host},
                        {"group_rank", failure.group_rank},
                        {"log_folder", failure.log_folder}});
  }
  return {{"type", "end"},
          {"exit_code", message.exit_code},
          {"failures", std::move(failures)},
          {"reason", message.reason},
          {"cause", NameOf(message.cause)}};
}

EndMessage ReadEnd(Reader& reader) {
  EndMessage message;
  message.exit_code = reader.Int("exit_code", 0, 255);
  message.reason = reader.Text("reason", kMaxTextBytes);
  message.cause = ReadCause(reader);
  for (const json& each : reader.Array("failures", kMaxFailures)) {
    if (!each.is_object()) {
      reader.Fail("'failures' holds something that is not an object");
      break;
    }
    Reader inner(each);
    RankFailure failure;
    failure.exit = inner.Exit();
    failure.host = inner.Text("host", kMaxFieldBytes);
    failure.group_rank = inner.Int("group_rank", 0, kMaxNodes);
    failure.log_folder = inner.Text("log_folder", kMaxLogFolderBytes);
    if (!inner.error().empty()) reader.Fail(inner.error());
    message.failures.push_back(std::move(failure));
  }
  return message;
}

json ToJson(const RefusedMessage& message) {
  return {{"type", "refused"}, {"text", message.text}, {"another_job", message.another_job}};
}
json ToJson(const CollectMessage& message) { return {{"type", "collect"}, {"id", message.id}}; }
json ToJson(const LookMessage& message) {
  return {{"type", "look"}, {"hang", message.hang}, {"idle_ms", message.idle_ms}, {"asks_ras", message.asks_ras}};
}
json ToJson(const PingMessage& message) { return {{"type", "ping"}, {"id", message.id}}; }

LookMessage ReadLook(Reader& reader) {
  LookMessage message;
  message.hang = reader.Int("hang", 0, kMaxCount);
  message.idle_ms = reader.Number("idle_ms", 0, std::numeric_limits<int64_t>::max() / 1'000'000);
  message.asks_ras = reader.Int("asks_ras", -1, kMaxNodes);
  return message;
}

// The bytes are bounded by the frame.
bool IsWithin(std::string_view text, size_t max_values) {
  return CheckJsonLimits(text, {.bytes = text.size(), .depth = kMaxDepth, .values = max_values}).ok();
}

NodeMessage ReadNodeMessage(const std::string& type, Reader& reader) {
  if (type == "join") return ReadJoin(reader);
  if (type == "failed") return ReadFailed(reader);
  if (type == "succeeded") return SucceededMessage{reader.Int("round", 0, kMaxCount)};
  if (type == "stopped") return StoppedMessage{reader.Int("round", 0, kMaxCount)};
  if (type == "leave") return LeaveMessage{reader.Int("signal", 1, kMaxSignal)};
  if (type == "event") return ReadEvent(reader);
  if (type == "stacks") return StacksMessage{reader.Int("id", 0, kMaxCount), reader.Text("text", kMaxTextBytes)};
  if (type == "evidence") return EvidenceMessage{reader.Int("hang", 0, kMaxCount), reader.Text("text", kMaxTextBytes)};
  if (type == "pong") return PongMessage{reader.Number("id", 0, std::numeric_limits<int64_t>::max())};
  reader.Fail(fmt::format("'{}' is no message of a node", CutUtf8(type, 32)));
  return PongMessage{};
}

RootMessage ReadRootMessage(const std::string& type, Reader& reader) {
  if (type == "waiting") return WaitingMessage{reader.Text("text", kMaxTextBytes)};
  if (type == "start") return ReadStart(reader);
  if (type == "stop")
    return StopMessage{reader.Int("round", 0, kMaxCount), reader.Text("reason", kMaxTextBytes), ReadCause(reader)};
  if (type == "end") return ReadEnd(reader);
  // A launcher of a version without the latter has to be able to say that it is one.
  if (type == "refused") return RefusedMessage{reader.Text("text", kMaxTextBytes), reader.OptionalBool("another_job")};
  if (type == "collect") return CollectMessage{reader.Int("id", 0, kMaxCount)};
  if (type == "look") return ReadLook(reader);
  if (type == "ping") return PingMessage{reader.Number("id", 0, std::numeric_limits<int64_t>::max())};
  reader.Fail(fmt::format("'{}' is no message of the root", CutUtf8(type, 32)));
  return PingMessage{};
}

template <typename Message>
absl::StatusOr<Message> Decode(std::string_view body, size_t max_values, Message (*read)(const std::string&, Reader&)) {
  if (!IsWithin(body, max_values)) {
    return absl::InvalidArgumentError("not a JSON object of a launcher: too deep or too many values");
  }
  const json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  Reader reader(object);
  const std::string type = reader.Text("type", 64);
  Message message = read(type, reader);
  if (!reader.error().empty()) return absl::InvalidArgumentError(reader.error());
  return message;
}

}  // namespace

std::string Encode(const NodeMessage& message) {
  return std::visit([](const auto& one) { return Dump(ToJson(one)); }, message);
}

std::string Encode(const RootMessage& message) {
  return std::visit([](const auto& one) { return Dump(ToJson(one)); }, message);
}

absl::StatusOr<NodeMessage> DecodeNodeMessage(std::string_view body) {
  return Decode<NodeMessage>(body, kMaxNodeValues, ReadNodeMessage);
}

absl::StatusOr<RootMessage> DecodeRootMessage(std::string_view body) {
  return Decode<RootMessage>(body, kMaxRootValues, ReadRootMessage);
}

}  // namespace taskd::run
