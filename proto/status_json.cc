#include "proto/status_json.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "nlohmann/json.hpp"

namespace taskd::proto {
namespace {

using Json = nlohmann::ordered_json;

double Rounded(double value) { return std::round(value * 1000) / 1000; }

Json KindsToJson(const v1::KindStates& kinds) {
  auto name = [](bool on) { return on ? "on" : "off"; };
  Json json;
  json["step"] = name(kinds.step());
  json["fp"] = name(kinds.fp());
  json["dataloader"] = name(kinds.dataloader());
  json["save_checkpoint"] = name(kinds.save_checkpoint());
  json["communication"] = name(kinds.communication());
  return json;
}

Json RankToJson(const v1::RankStatus& rank) {
  Json marks;
  marks["step"] = rank.marks().step();
  marks["fp"] = rank.marks().fp();
  marks["dataloader"] = rank.marks().dataloader();
  marks["save_checkpoint"] = rank.marks().save_checkpoint();
  marks["communication"] = rank.marks().communication();
  marks["other"] = rank.marks().other();
  Json json;
  json["rank"] = rank.rank();
  json["pid"] = rank.pid();
  json["attached"] = rank.attached();
  json["applied"] = KindsToJson(rank.applied());
  json["step"] = rank.step();
  json["step_ms"] = Rounded(rank.step_ms());
  json["marks"] = std::move(marks);
  json["lost"] = rank.lost();
  json["overhead_ns_per_mark"] = Rounded(rank.overhead_ns_per_mark());
  if (!rank.reason().empty()) json["reason"] = rank.reason();
  return json;
}

Json SupervisionToJson(const v1::SupervisionStatus& supervision) {
  Json json;
  json["state"] = NameOf(supervision.state());
  json["restarts"] = supervision.restarts();
  json["rank_exits"] = supervision.rank_exits();
  json["hung_ranks"] = supervision.hung_ranks();
  json["waits_for"] = supervision.waits_for();
  json["waits_s"] = supervision.waits_s();
  json["events"] = Json::array();
  for (const v1::SupervisionEvent& event : supervision.events()) {
    Json row;
    row["kind"] = absl::AsciiStrToLower(v1::SupervisionEvent::Kind_Name(event.kind()));
    row["time"] = absl::FormatTime(absl::RFC3339_full, absl::FromUnixNanos(event.time_ns()), absl::UTCTimeZone());
    row["round"] = event.round();
    row["restart_count"] = event.restart_count();
    row["rank"] = event.rank();
    row["node"] = event.node();
    row["pid"] = event.pid();
    row["code"] = event.code();
    row["signal"] = event.signal();
    row["message"] = event.message();
    json["events"].push_back(std::move(row));
  }
  return json;
}

}  // namespace

const char* NameOf(v1::SupervisionStatus::State state) {
  switch (state) {
    case v1::SupervisionStatus::RUNNING:
      return "running";
    case v1::SupervisionStatus::RESTARTING:
      return "restarting";
    case v1::SupervisionStatus::HUNG:
      return "hung";
    case v1::SupervisionStatus::ENDED:
      return "ended";
    default:
      return "unknown";  // no launcher has reported
  }
}

std::string RenderStatusJson(const v1::JobStatus& status) {
  Json json;
  json["schema"] = 1;
  json["job"] = status.job();
  json["task_id"] = status.task_id();
  json["wanted"] = KindsToJson(status.wanted().kinds());
  json["manager"]["uptime_s"] = Rounded(status.uptime_s());
  json["nodes"] = Json::array();
  for (const v1::NodeStatus& node : status.nodes()) {
    Json row;
    row["node"] = node.node();
    row["host"] = node.host();
    row["pod"] = node.pod();
    row["node_name"] = node.node_name();
    if (!node.node_name_refusal().empty()) row["node_name_refusal"] = node.node_name_refusal();
    row["connected"] = node.connected();
    row["silent_s"] = node.silent_s();
    if (node.has_mark_files()) {
      row["mark_files"]["dir"] = node.mark_files().dir();
      row["mark_files"]["error"] = node.mark_files().error();
    }
    row["ranks"] = Json::array();
    for (const v1::RankStatus& rank : node.ranks()) row["ranks"].push_back(RankToJson(rank));
    json["nodes"].push_back(std::move(row));
  }
  json["supervision"] = SupervisionToJson(status.supervision());
  json["diagnosis"]["state"] = status.diagnosis().state();
  json["diagnosis"]["headline"] = status.diagnosis().headline();
  json["diagnosis"]["coverage"] = Rounded(status.diagnosis().coverage());
  json["not_supported"] = Json::array();
  for (const std::string& request : status.not_supported()) json["not_supported"].push_back(request);
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace taskd::proto
