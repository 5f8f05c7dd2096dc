#include "manager/page/web_api.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "diagnosis/rank_trace.h"
#include "diagnosis/render.h"
#include "manager/page/census.h"
#include "manager/page/hang_json.h"
#include "manager/page/job_report.h"
#include "manager/page/status_messages.h"
#include "manager/supervision/supervision_messages.h"
#include "nlohmann/json.hpp"
#include "proto/node_messages.h"
#include "proto/status_json.h"
#include "view/report_page.h"

namespace taskd::manager {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;

constexpr size_t kMaxKeptBytes = size_t{48} << 20;
constexpr int kDefaultRows = 512;
constexpr int64_t kAnyStep = int64_t{1} << 62;
constexpr size_t kShownEvents = 60;
constexpr size_t kMaxRuns = 64;                     // of ranks in one list
constexpr size_t kMaxShownMembers = 4096;           // of a group
constexpr size_t kTailCells = 16384;                // of the newest steps, with each look
constexpr std::chrono::milliseconds kMaxWait{500};  // for the diagnosis' thread; pages are made one after the other
constexpr size_t kMinTailSteps = 32;
constexpr size_t kMaxTailSteps = 256;

using Parameters = std::map<std::string, std::string, std::less<>>;
using Body = std::shared_ptr<const std::string>;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Dump(const Json& json) {
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

double Rounded(double value) { return std::isfinite(value) ? std::round(value * 1000) / 1000 : 0; }

std::string Rfc3339(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

HttpResponse Refuse(int status, const std::string& line) {
  HttpResponse response;
  response.status = status;
  response.body = std::make_shared<const std::string>(line + "\n");
  return response;
}

HttpResponse Give(Body body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  return response;
}

// INVALID_ARGUMENT: one that is not in `known`, or comes twice.
absl::StatusOr<Parameters> ReadQuery(std::string_view query, std::initializer_list<std::string_view> known) {
  Parameters parameters;
  for (absl::string_view part : absl::StrSplit(View(query), '&', absl::SkipEmpty())) {
    const std::string_view pair(part.data(), part.size());
    const std::string_view name = pair.substr(0, pair.find('='));
    const std::string_view value = name.size() == pair.size() ? std::string_view() : pair.substr(name.size() + 1);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no parameter '", Printable(name), "' here"));
    }
    if (!parameters.emplace(name, value).second) {
      return absl::InvalidArgumentError(absl::StrCat(Printable(name), ": given twice"));
    }
  }
  return parameters;
}

absl::StatusOr<int64_t> ReadNumber(const Parameters& parameters, std::string_view name, int64_t otherwise,
                                   int64_t least, int64_t most) {
  auto found = parameters.find(name);
  if (found == parameters.end()) return otherwise;
  int64_t number = 0;
  if (absl::SimpleAtoi(found->second, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), ": '", Printable(found->second), "' is not a number from ", least, " to ", most));
}

absl::StatusOr<view::History::Value> ReadValue(const Parameters& parameters) {
  auto found = parameters.find("value");
  if (found == parameters.end()) return view::History::Value::kOwnTime;
  if (std::optional<view::History::Value> value = view::HistoryValueFromName(found->second)) return *value;
  return absl::InvalidArgumentError(
      absl::StrCat("value: '", Printable(found->second), "' is not own_time, period, dataloader or communication"));
}

Json KindsToJson(KindMask kinds) {
  Json json;
  for (int i = 0; i < kNumSwitches; ++i) {
    json[std::string(SwitchKindName(static_cast<SwitchKind>(i)))] = (kinds >> i & 1) != 0 ? "on" : "off";
  }
  return json;
}

// As the headline, but what cannot be judged comes first.
std::string Sentence(const diagnosis::Report& report) {
  return report.state == diagnosis::JobState::kUnknown ? diagnosis::WriteWhyUnknown(report)
                                                       : diagnosis::WriteHeadline(report);
}

Json EventToJson(const LoggedEvent& event, bool with_detail) {
  Json json;
  json["number"] = event.number;
  json["time"] = Rfc3339(event.time_ns);
  json["kind"] = event.kind;
  json["text"] = event.text;
  if (event.rank >= 0) json["rank"] = event.rank;
  if (event.node >= 0) json["node"] = event.node;
  if (with_detail && !event.detail.empty()) json["detail"] = event.detail;
  return json;
}

// Milliseconds as JSON; null: no data.
Json MsOrNull(float ms) { return ms < 0 ? Json() : Json(Rounded(ms)); }

// What of a step is none of the other phases; below 0: no data.
float ComputeMs(const view::History::RankStep& step) {
  if (step.period_ms < 0) return -1;
  float rest = step.period_ms;
  for (float other : {step.dataloader_ms, step.communication_ms, step.checkpoint_ms}) rest -= std::max(other, 0.0F);
  return std::max(rest, 0.0F);
}

class Api {
 public:
  explicit Api(const JobSources& sources) : sources_(sources) {}

  HttpResponse Status(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    return Give(Shared("status", [&] {
      const JobSnapshot snapshot = sources_.core->Snapshot();
      const JobShape& shape = sources_.core->shape();
      v1::JobStatus status;
      status.set_job(shape.name());
      status.set_task_id(shape.task_id);
      proto::FillWanted(snapshot.wanted, status.mutable_wanted());
      status.set_uptime_s(UptimeS());
      status.set_expected_ranks(static_cast<uint32_t>(shape.nodes * shape.procs_per_node));
      FillSupervision(sources_.supervision->Snapshot(), status.mutable_supervision());
      FillDiagnosis(*sources_.diagnosis->report(), status.mutable_diagnosis());
      for (const std::string& request : sources_.not_supported) status.add_not_supported(request);
      for (const JobSnapshot::Node& node : snapshot.nodes) FillNode(node, status.add_nodes());
      return proto::RenderStatusJson(status) + "\n";
    }));
  }

  HttpResponse Diagnosis(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    return Give(Shared("diagnosis", [&] {
      const std::string text = diagnosis::RenderJson(*sources_.diagnosis->report(), sources_.core->shape().name());
      const SupervisionSnapshot supervision = sources_.supervision->Snapshot();
      if (!supervision.hang.has_value()) return text + "\n";
      Json json = Json::parse(text);
      AddHang(supervision, HangSinceNs(supervision), json);
      return Dump(json);
    }));
  }

  HttpResponse Events(const HttpRequest& request) {
    absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {"since"});
    if (!parameters.ok()) return Refuse(400, std::string(parameters.status().message()));
    absl::StatusOr<int64_t> since = ReadNumber(*parameters, "since", 0, 0, kAnyStep);
    if (!since.ok()) return Refuse(400, std::string(since.status().message()));
    return Give(Shared(absl::StrCat("events ", *since), [&] {
      Json json;
      json["schema"] = 1;
      json["last"] = sources_.events->last();
      json["events"] = Json::array();
      for (const LoggedEvent& event : sources_.events->Since(static_cast<uint64_t>(*since), EventLog::kMaxEvents)) {
        json["events"].push_back(EventToJson(event, true));
      }
      return Dump(json);
    }));
  }

  HttpResponse Heatmap(const HttpRequest& request) {
    absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {"value", "first", "last", "rows"});
    if (!parameters.ok()) return Refuse(400, std::string(parameters.status().message()));
    absl::StatusOr<view::History::Value> value = ReadValue(*parameters);
    absl::StatusOr<int64_t> first = ReadNumber(*parameters, "first", 0, 0, kAnyStep);
    absl::StatusOr<int64_t> last = ReadNumber(*parameters, "last", kAnyStep, 0, kAnyStep);
    absl::StatusOr<int64_t> rows = ReadNumber(*parameters, "rows", kDefaultRows, 1, view::History::kMaxRows);
    for (const absl::Status& status : {value.status(), first.status(), last.status(), rows.status()}) {
      if (!status.ok()) return Refuse(400, std::string(status.message()));
    }
    return Give(Shared(absl::StrCat("heatmap ", static_cast<int>(*value), " ", *first, " ", *last, " ", *rows), [&] {
      Json json = HeatmapJson(*value, *first, *last, view::History::kMaxSteps, static_cast<int>(*rows));
      json["nodes"] = Json::array();
      for (const JobSnapshot::Node& node : sources_.core->Snapshot().nodes) {
        if (node.ranks.empty()) continue;
        Json row;
        row["node"] = node.node;
        row["host"] = node.host;
        row["pod"] = node.pod;
        row["node_name"] = node.node_name;
        row["ranks"] = FormatRanges(RanksOf(node), kMaxRuns);
        json["nodes"].push_back(std::move(row));
      }
      return Dump(json);
    }));
  }

  HttpResponse Report(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    response.content_security_policy = view::kReportPagePolicy;
    response.body = Shared("report", [&] { return RenderReport(sources_).html; });
    return response;
  }

  HttpResponse Rank(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    const std::string_view text = std::string_view(request.path).substr(request.path.rfind('/') + 1);
    int rank = -1;
    if (!absl::SimpleAtoi(View(text), &rank) || rank < 0) {
      return Refuse(400, absl::StrCat("'", Printable(text), "' is not a rank"));
    }
    const JobSnapshot snapshot = sources_.core->Snapshot();
    Json json = RankJson(snapshot, rank);
    if (json.is_null()) return Refuse(404, absl::StrCat("rank ", rank, " is not known"));
    json["why"] = WhyJson(rank);
    return Give(std::make_shared<const std::string>(Dump(json)));
  }

  HttpResponse Hang(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    return Give(Shared("hang", [&] {
      Json json;
      json["schema"] = 1;
      json["hang"] = HangJson(sources_.supervision->Snapshot());
      return Dump(json);
    }));
  }

  HttpResponse Goodput(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    return Give(Shared("goodput", [&] { return sources_.ledger->Json() + "\n"; }));
  }

  HttpResponse Actions(const HttpRequest& request) {
    if (absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {}); !parameters.ok()) {
      return Refuse(400, std::string(parameters.status().message()));
    }
    return Give(Shared("actions", [&] { return sources_.actions->Json() + "\n"; }));
  }

  // Everything that the page needs each second.
  HttpResponse Live(const HttpRequest& request) {
    absl::StatusOr<Parameters> parameters = ReadQuery(request.query, {"value"});
    if (!parameters.ok()) return Refuse(400, std::string(parameters.status().message()));
    absl::StatusOr<view::History::Value> value = ReadValue(*parameters);
    if (!value.ok()) return Refuse(400, std::string(value.status().message()));
    return Give(Shared(absl::StrCat("live ", static_cast<int>(*value)), [&] {
      // The head is the same whatever is drawn.
      const Body head = Shared("head", [&] { return HeadText(); });
      const size_t rows = static_cast<size_t>(std::clamp(ranks_, 1, kDefaultRows));
      const size_t tail = std::clamp(kTailCells / rows, kMinTailSteps, kMaxTailSteps);
      return absl::StrCat(*head, ",\"heatmap\":", Dump(HeatmapJson(*value, 0, kAnyStep, tail, kDefaultRows)), "}\n");
    }));
  }

 private:
  struct Rendering {
    std::string key;
    SteadyTime made;
    Body body;
  };

  template <typename Render>
  Body Shared(const std::string& key, Render render) {
    const SteadyTime now = steady_clock::now();
    std::erase_if(kept_, [&](const Rendering& one) { return now - one.made >= kSharedRendering; });
    for (const Rendering& one : kept_) {
      if (one.key == key) return one.body;
    }
    Body body = std::make_shared<const std::string>(render());
    kept_.push_back({key, now, body});
    size_t bytes = 0;
    for (auto one = kept_.rbegin(); one != kept_.rend(); ++one) {
      bytes += one->body->size();
      if (bytes <= kMaxKeptBytes) continue;
      kept_.erase(kept_.begin(), one.base());
      break;
    }
    return body;
  }

  double UptimeS() const { return std::chrono::duration<double>(steady_clock::now() - sources_.started).count(); }

  Json HangJson(const SupervisionSnapshot& supervision) const {
    const int64_t since_ns = HangSinceNs(supervision);
    return HangToJson(supervision, since_ns, sources_.events->NewestStacks(since_ns).detail);
  }

  Json HeatmapJson(view::History::Value value, int64_t first, int64_t last, size_t most, int rows) const {
    const view::History::Heatmap map = sources_.history->Draw(value, first, last, most, rows);
    Json json;
    json["schema"] = 1;
    json["value"] = std::string(Name(value));
    json["unit"] = "ratio to the step's median";
    json["first"] = map.steps.empty() ? -1 : map.steps.front().id.step;
    json["last"] = map.steps.empty() ? -1 : map.steps.back().id.step;
    json["ranks"] = map.ranks;
    json["ranks_per_row"] = map.ranks_per_row;
    if (most == view::History::kMaxSteps) json["rows"] = RowsJson(map);
    json["scale"]["max"] = view::History::kMaxRatio;
    // Several steps of one number: the job was restarted and did them again.
    std::vector<std::pair<const char*, std::function<Json(const view::History::StepSummary&)>>> columns = {
        {"steps", [](const auto& step) { return step.id.step; }},
        {"runs", [](const auto& step) { return step.id.run; }},
        {"reported", [](const auto& step) { return step.ranks; }},
        {"median_ms", [](const auto& step) { return Rounded(step.median_ms); }},
        {"dataloader_ms", [](const auto& step) { return Rounded(step.dataloader_ms); }},
        {"compute_ms", [](const auto& step) { return Rounded(step.compute_ms); }},
        {"communication_ms", [](const auto& step) { return Rounded(step.communication_ms); }},
        {"checkpoint_ms", [](const auto& step) { return Rounded(step.checkpoint_ms); }}};
    for (const auto& [name, of] : columns) {
      Json& list = json[name] = Json::array();
      for (const view::History::StepSummary& step : map.steps) list.push_back(of(step));
    }
    json["cells"] = absl::Base64Escape(map.cells);
    return json;
  }

  static Json RowsJson(const view::History::Heatmap& map) {
    Json rows = Json::array();
    for (int rank = 0; rank < map.ranks; rank += map.ranks_per_row) {
      const int end = std::min(rank + map.ranks_per_row, map.ranks) - 1;
      Json row;
      row["ranks"] = end == rank ? absl::StrCat(rank) : absl::StrCat(rank, "-", end);
      rows.push_back(std::move(row));
    }
    return rows;
  }

  static std::vector<int> RanksOf(const JobSnapshot::Node& node) {
    std::vector<int> ranks;
    for (const RankReport& rank : node.ranks) ranks.push_back(rank.rank);
    return ranks;
  }

  Json RankJson(const JobSnapshot& snapshot, int number) const {
    const JobSnapshot::Node* node = nullptr;
    const RankReport* rank = nullptr;
    for (const JobSnapshot::Node& one : snapshot.nodes) {
      for (const RankReport& report : one.ranks) {
        // The word of a node that is there counts.
        if (report.rank != number || (rank != nullptr && !one.connected)) continue;
        node = &one;
        rank = &report;
      }
    }
    const std::vector<view::History::RankStep> steps = sources_.history->RecentSteps(number);
    if (rank == nullptr && steps.empty()) return {};
    Json json;
    json["schema"] = 1;
    json["rank"] = number;
    if (rank != nullptr) {
      json["node"] = node->node;
      json["host"] = node->host;
      json["pod"] = node->pod;
      json["node_name"] = node->node_name;
      json["connected"] = node->connected;
      json["pid"] = rank->pid;
      json["device"] = rank->local_rank < 0 ? Json() : Json(rank->local_rank);
      json["attached"] = rank->attached;
      json["step"] = rank->step;
      json["step_ms"] = Rounded(rank->step_ms);
      json["applied"] = KindsToJson(rank->applied);
      json["marks"] = Json::object();
      for (int i = 0; i < kNumMarkCounts; ++i) {
        json["marks"][std::string(MarkCountName(i))] = rank->marks[static_cast<size_t>(i)];
      }
      json["lost"] = rank->lost;
      json["overhead_ns_per_mark"] = Rounded(rank->overhead_ns_per_mark);
      if (!rank->reason.empty()) json["reason"] = rank->reason;
    }
    json["groups"] = GroupsJson(number);
    json["steps"] = Json::array();
    for (const view::History::RankStep& step : steps) {
      Json row;
      row["step"] = step.id.step;
      row["own_ms"] = MsOrNull(step.own_ms);
      row["period_ms"] = MsOrNull(step.period_ms);
      row["dataloader_ms"] = MsOrNull(step.dataloader_ms);
      row["compute_ms"] = MsOrNull(ComputeMs(step));
      row["communication_ms"] = MsOrNull(step.communication_ms);
      row["checkpoint_ms"] = MsOrNull(step.checkpoint_ms);
      json["steps"].push_back(std::move(row));
    }
    json["verdicts"] = VerdictsOn(number, rank == nullptr ? std::nullopt : std::optional(node->node));
    return json;
  }

  Json GroupsJson(int rank) const {
    Json rows = Json::array();
    for (const GroupInfo& group : sources_.groups->Of(rank)) {
      Json row;
      row["name"] = group.name;
      row["label"] = group.label;
      int64_t size = 0;
      for (const MemberRun& run : group.members) size += run.count;
      row["size"] = size;
      std::vector<int> members = ExpandMembers(group.members, kMaxShownMembers);
      std::sort(members.begin(), members.end());
      row["ranks"] = FormatRanges(members, kMaxRuns);
      rows.push_back(std::move(row));
    }
    return rows;
  }

  // What each detector decided of the rank. Null: nothing is known of it, or the diagnosis has no time to say so.
  Json WhyJson(int rank) const {
    auto told = std::make_shared<std::promise<absl::StatusOr<diagnosis::RankTrace>>>();
    std::future<absl::StatusOr<diagnosis::RankTrace>> trace = told->get_future();
    sources_.diagnosis->Why(rank,
                            [told](absl::StatusOr<diagnosis::RankTrace> said) { told->set_value(std::move(said)); });
    if (trace.wait_for(kMaxWait) != std::future_status::ready) return {};
    const absl::StatusOr<diagnosis::RankTrace> said = trace.get();
    return said.ok() ? Json::parse(diagnosis::RenderTraceJson(*said)) : Json();
  }

  // Those that name the rank, its node, or a link of it.
  Json VerdictsOn(int rank, std::optional<int> node) const {
    Json rows = Json::array();
    const std::shared_ptr<const diagnosis::Report> report = sources_.diagnosis->report();
    for (const diagnosis::Verdict& verdict : report->verdicts) {
      const bool names_rank = verdict.scope == diagnosis::Scope::kRank || verdict.scope == diagnosis::Scope::kGroup;
      const bool names_node = verdict.scope == diagnosis::Scope::kNode && node.has_value();
      const int wanted = names_node ? *node : rank;
      const bool in_link = std::any_of(verdict.links.begin(), verdict.links.end(), [rank](const diagnosis::Link& link) {
        return link.a == rank || link.b == rank;
      });
      const bool listed = std::find(verdict.ids.begin(), verdict.ids.end(), wanted) != verdict.ids.end();
      if (!in_link && !((names_rank || names_node) && listed)) continue;
      Json row;
      row["state"] = StateName(verdict);
      row["cause"] = Name(verdict.cause);
      row["since_step"] = verdict.since_step;
      row["text"] = verdict.text;
      rows.push_back(std::move(row));
    }
    return rows;
  }

  Json SwitchJson(const SwitchState& wanted, const Census& census) const {
    Json json;
    json["revision"] = wanted.revision;
    json["kinds"] = KindsToJson(wanted.effective);
    json["unanswered"] = census.unanswered.size();
    json["unanswered_ranks"] = FormatRanges(census.unanswered, kMaxRuns);
    json["failed"] = census.failed.size();
    json["failed_ranks"] = FormatRanges(census.failed, kMaxRuns);
    json["failure"] = census.failure;
    return json;
  }

  // The newest step, null where there is none yet.
  void AddStep(const diagnosis::Report& report, const std::optional<view::History::StepId>& newest, Json& json) const {
    json["step"] = newest.has_value() ? Json(newest->step) : Json();
    json["run"] = newest.has_value() ? newest->run : 0;
    json["step_ms"] = Rounded(report.step_ms);
    const auto at = SteadyTime(std::chrono::nanoseconds(sources_.history->newest_at_ns()));
    json["step_age_s"] =
        newest.has_value() ? Json(Rounded(std::chrono::duration<double>(steady_clock::now() - at).count())) : Json();
  }

  // An object that is not closed yet.
  std::string HeadText() {
    const JobSnapshot snapshot = sources_.core->Snapshot();
    const JobShape& shape = sources_.core->shape();
    const SupervisionSnapshot supervision = sources_.supervision->Snapshot();
    const std::shared_ptr<const diagnosis::Report> report = sources_.diagnosis->report();
    const std::optional<view::History::StepId> newest = sources_.history->newest();
    const Census census = TakeCensus(snapshot);
    ranks_ = census.ranks;

    Json json;
    json["schema"] = 1;
    json["version"] = TASKD_VERSION;
    const int64_t now_ns = absl::ToUnixNanos(absl::Now());
    json["now"] = Rfc3339(now_ns);
    json["since"] = Rfc3339(now_ns - static_cast<int64_t>(UptimeS() * 1e9));
    json["job"] = shape.name();
    json["task_id"] = shape.task_id;
    json["state"] = JobStateName(supervision.state, report->state, census.attached != 0, newest.has_value());
    json["verdict"] = Sentence(*report);
    AddStep(*report, newest, json);
    json["mark_files"] = census.mark_files;
    json["ranks"]["known"] = census.ranks;
    json["ranks"]["attached"] = census.attached;
    json["ranks"]["expected"] = shape.nodes * shape.procs_per_node;
    json["nodes"]["known"] = snapshot.nodes.size();
    json["nodes"]["connected"] = snapshot.nodes.size() - census.lost_nodes.size();
    json["nodes"]["lost"] = FormatRanges(census.lost_nodes, kMaxRuns);
    json["switch"] = SwitchJson(snapshot.wanted, census);
    json["restarts"] = supervision.restarts;
    json["rank_exits"] = supervision.rank_exits;
    json["waits_for"] = supervision.waits_for;
    json["hang"] = HangJson(supervision);
    json["decides"] = sources_.actions->decides();
    json["events"] = Json::array();
    for (const LoggedEvent& event : sources_.events->Since(0, kShownEvents)) {
      json["events"].push_back(EventToJson(event, false));
    }
    std::string text = Dump(json);
    text.resize(text.rfind('}'));
    // Each rank's coverage is nothing that the page shows, and most of the answer in a large job.
    diagnosis::Report shown = *sources_.diagnosis->report();
    shown.coverage.clear();
    return absl::StrCat(text, ",\"diagnosis\":", diagnosis::RenderJson(shown, sources_.core->shape().name()));
  }

  const JobSources sources_;
  int ranks_ = 0;  // as of the last head
  std::list<Rendering> kept_;
};

}  // namespace

HttpHandlers MakeWebApi(const JobSources& sources) {
  auto api = std::make_shared<Api>(sources);
  using Answer = HttpResponse (Api::*)(const HttpRequest&);
  HttpHandlers handlers;
  for (const auto& [path, answer] :
       {std::pair<const char*, Answer>("status", &Api::Status),
        std::pair<const char*, Answer>("diagnosis", &Api::Diagnosis),
        std::pair<const char*, Answer>("events", &Api::Events),
        std::pair<const char*, Answer>("heatmap", &Api::Heatmap), std::pair<const char*, Answer>("hang", &Api::Hang),
        std::pair<const char*, Answer>("goodput", &Api::Goodput),
        std::pair<const char*, Answer>("actions", &Api::Actions), std::pair<const char*, Answer>("live", &Api::Live),
        std::pair<const char*, Answer>("rank/", &Api::Rank)}) {
    handlers[absl::StrCat("/api/v1/", path)] = [api, answer = answer](const HttpRequest& request) {
      return (api.get()->*answer)(request);
    };
  }
  handlers["/report.html"] = [api](const HttpRequest& request) { return api->Report(request); };
  return handlers;
}

}  // namespace taskd::manager
