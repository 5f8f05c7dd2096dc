#include "manager/page/metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics_text.h"
#include "common/realtime.h"
#include "manager/page/census.h"

namespace taskd::manager {
namespace {

constexpr size_t kMaxAccused = 64;  // ranks with a series of their own

double Seconds(SteadyTime::duration time) { return std::chrono::duration<double>(time).count(); }

// What one reply is made of.
struct View {
  explicit View(const JobSources& sources)
      : shape(sources.core->shape()),
        snapshot(sources.core->Snapshot()),
        census(TakeCensus(snapshot)),
        report(sources.diagnosis->report()),
        stats(sources.diagnosis->stats()),
        supervision(sources.supervision->Snapshot()),
        newest(sources.history->newest()),
        totals(sources.history->totals()) {}

  const JobShape& shape;
  const JobSnapshot snapshot;
  const Census census;
  const std::shared_ptr<const diagnosis::Report> report;
  const DiagnosisCore::Stats stats;
  const SupervisionSnapshot supervision;
  const std::optional<view::History::StepId> newest;
  const view::History::Totals totals;
};

void AddJob(const View& view, const JobSources& sources, MetricsText& metrics) {
  metrics.Begin("taskd_build_info", "gauge", "The manager's version; always 1.");
  metrics.Add(uint64_t{1}, {{"version", TASKD_VERSION}});
  metrics.Begin("taskd_job_info", "gauge", "The job; always 1.");
  metrics.Add(uint64_t{1}, {{"job", view.shape.name()}, {"task_id", view.shape.task_id}});
  metrics.Begin("taskd_job_state", "gauge", "1 for the state that the job is in.");
  const std::string_view state =
      JobStateName(view.supervision.state, view.report->state, view.census.attached != 0, view.newest.has_value());
  for (std::string_view name : kJobStates) metrics.Add(uint64_t{name == state}, {{"state", name}});
  const auto nodes = static_cast<uint64_t>(view.shape.nodes);
  const uint64_t expected = nodes * static_cast<uint64_t>(view.shape.procs_per_node);
  metrics.Gauge("taskd_job_nodes", "Nodes of the job, as configured, else as known.",
                nodes != 0 ? nodes : view.snapshot.nodes.size());
  metrics.Gauge("taskd_job_ranks", "Ranks of the job, as configured, else as known.",
                expected != 0 ? expected : static_cast<uint64_t>(view.census.ranks));
  metrics.Begin("taskd_job_step", "gauge", "The newest step that most ranks have ended.");
  if (view.newest.has_value()) metrics.Add(static_cast<uint64_t>(view.newest->step));
  metrics.Begin("taskd_job_last_progress_timestamp_seconds", "gauge", "When the first rank ended that step.");
  if (view.newest.has_value()) {
    const auto at = SteadyTime(std::chrono::nanoseconds(sources.history->newest_at_ns()));
    metrics.Add(static_cast<double>(RealtimeNs()) / 1e9 - Seconds(std::chrono::steady_clock::now() - at));
  }
  metrics.Counter("taskd_restarts_total", "Restarts of the ranks that the launcher has reported.",
                  view.supervision.restarts);
  metrics.Counter("taskd_rank_exits_total", "Ends of ranks that the launcher has reported.",
                  view.supervision.rank_exits);
  metrics.Gauge("taskd_hung_ranks", "Live ranks of a job that hangs, else 0.",
                static_cast<uint64_t>(view.supervision.hung_ranks));
  metrics.Counter("taskd_wall_seconds_total", "Since the manager began.",
                  Seconds(std::chrono::steady_clock::now() - sources.started));
}

void AddSteps(const View& view, const JobSources& sources, MetricsText& metrics) {
  metrics.Counter("taskd_productive_seconds_total",
                  "In steps that most ranks have done for the first time; of the wall time it is the goodput.",
                  view.totals.productive_s);
  metrics.Histogram("taskd_step_duration_seconds", "Steps of single ranks, from end to end.",
                    view::History::kDurationBoundsS, view.totals.durations, view.totals.duration_s);
  metrics.Begin("taskd_step_slowest_ratio", "gauge",
                "The largest own time of a rank in the newest step by the median.");
  if (const std::optional<double> ratio = sources.history->slowest_ratio()) metrics.Add(*ratio);
  metrics.Begin("taskd_phase_seconds_total", "counter", "What steps were spent on, sum over ranks.");
  for (size_t i = 0; i < kStepPhases.size(); ++i) metrics.Add(view.totals.phases_s[i], {{"phase", kStepPhases[i]}});
}

void AddLedger(const JobSources& sources, MetricsText& metrics) {
  const std::shared_ptr<const ledger::Report> shared = sources.ledger->report();
  const ledger::Report& report = *shared;
  metrics.Begin(
      "taskd_rank_seconds_total", "counter",
      "Where the ranks' time went, as far as that is settled; of all categories together it is their wall time.");
  for (size_t i = 0; i < ledger::kCategories; ++i) {
    metrics.Add(report.closed[i], {{"category", Name(static_cast<ledger::Category>(i))}});
  }
  metrics.Begin("taskd_goodput_ratio", "gauge",
                "Productive rank-seconds of all that can be told apart, since the job began.");
  if (report.rank_s > 0) metrics.Add(ledger::GoodputOf(report.seconds()).ratio);
  metrics.Begin("taskd_incidents_total", "counter", "Interruptions of the job, and stragglers.");
  const std::array<uint64_t, ledger::kIncidentKinds> counts = report.incident_counts();
  for (size_t i = 0; i < ledger::kIncidentKinds; ++i) {
    metrics.Add(counts[i], {{"kind", Name(static_cast<ledger::IncidentKind>(i))}});
  }
}

void AddActions(const JobSources& sources, MetricsText& metrics) {
  const ActionCore::Counts counts = sources.actions->counts();
  metrics.Begin("taskd_actions_total", "counter", "Decisions on slow nodes, since the manager began.");
  for (size_t i = 0; i < policy::kDecisions; ++i) {
    metrics.Add(counts.decisions[i], {{"decision", Name(static_cast<policy::Decision>(i))}});
  }
  metrics.Begin("taskd_actions_refused_total", "counter", "Decisions to do nothing, by their reason.");
  for (size_t i = 0; i < policy::kRefusals; ++i) {
    metrics.Add(counts.refusals[i], {{"refused_by", Name(static_cast<policy::Refusal>(i))}});
  }
  metrics.Begin("taskd_orders_total", "counter",
                "Orders about slow nodes that were answered, since the manager began.");
  metrics.Add(counts.orders_taken, {{"outcome", "taken"}});
  metrics.Add(counts.orders_failed, {{"outcome", "failed"}});
  metrics.Gauge("taskd_orders_waiting", "Orders that no receiver has taken or refused yet.", counts.orders_waiting);
}

void AddSwitchesAndMarks(const View& view, MetricsText& metrics) {
  metrics.Gauge("taskd_nodes_connected", "Nodes whose proxy is connected.",
                view.snapshot.nodes.size() - view.census.lost_nodes.size());
  metrics.Gauge("taskd_ranks_known", "Ranks that proxies have reported.", view.census.known);
  metrics.Gauge("taskd_ranks_attached", "Ranks that can be switched now.", view.census.attached);
  metrics.Gauge("taskd_ranks_expected", "Ranks of the job as configured, 0 if not.",
                static_cast<uint64_t>(view.shape.nodes) * static_cast<uint64_t>(view.shape.procs_per_node));
  metrics.Gauge("taskd_switch_revision", "Revision of the wanted switch state.", view.snapshot.wanted.revision);
  for (const char* name : {"taskd_switch_wanted", "taskd_switch_on"}) {
    metrics.Begin(name, "gauge", "1 where marks of the kind are wanted.");
    for (int i = 0; i < kNumSwitches; ++i) {
      metrics.Add(uint64_t{view.snapshot.wanted.effective >> i & 1U}, {{"kind", MarkCountName(i)}});
    }
  }
  metrics.Gauge("taskd_switch_unanswered_ranks", "Attached ranks that have not answered the wanted switch state.",
                view.census.unanswered.size());
  metrics.Gauge("taskd_switch_failed_ranks", "Attached ranks that cannot apply the wanted switch state.",
                view.census.failed.size());
  metrics.Begin("taskd_marks_total", "counter", "Marks and ranges written to the files.");
  for (int i = 0; i < kNumMarkCounts; ++i) {
    metrics.Add(view.snapshot.marks_total[static_cast<size_t>(i)], {{"kind", MarkCountName(i)}});
  }
  metrics.Counter("taskd_marks_lost_total", "Marks overwritten before they were read, or without a ring.",
                  view.snapshot.lost_total);
}

struct Accused {
  double slowdown = 1;
  std::string_view cause;
};

// What the first, and weightiest, evidence of `verdict` says: that much slower than its peers, or than it was.
double SlowdownOf(const diagnosis::Verdict& verdict) {
  if (verdict.evidence.empty() || verdict.evidence.front().reference <= 0) return verdict.slowdown;
  return std::max(verdict.evidence.front().value / verdict.evidence.front().reference, verdict.slowdown);
}

void AddAccused(const View& view, MetricsText& metrics) {
  metrics.Begin("taskd_rank_slowdown_ratio", "gauge",
                "Ranks of open verdicts: how much slower than their peers what the verdict is about was.");
  if (std::ranges::none_of(view.report->verdicts, &diagnosis::Verdict::open)) return;
  std::map<int, int> nodes;  // by rank
  for (const JobSnapshot::Node& node : view.snapshot.nodes) {
    for (const RankReport& rank : node.ranks) {
      if (node.connected || !nodes.contains(rank.rank)) nodes[rank.rank] = node.node;
    }
  }
  std::map<int, Accused> accused;
  auto accuse = [&](int rank, const diagnosis::Verdict& verdict) {
    if (accused.size() >= kMaxAccused && !accused.contains(rank)) return;
    Accused& entry = accused[rank];
    if (!entry.cause.empty() && SlowdownOf(verdict) <= entry.slowdown) return;
    entry = {SlowdownOf(verdict), Name(verdict.cause)};
  };
  for (const diagnosis::Verdict& verdict : view.report->verdicts) {  // by cost
    if (!verdict.open) continue;
    const bool of_nodes = verdict.scope == diagnosis::Scope::kNode;
    for (int id : verdict.ids) {
      if (!of_nodes) accuse(id, verdict);
    }
    for (const auto& [rank, node] : nodes) {
      if (of_nodes && std::find(verdict.ids.begin(), verdict.ids.end(), node) != verdict.ids.end()) {
        accuse(rank, verdict);
      }
    }
    for (const diagnosis::Link& link : verdict.links) {
      accuse(link.a, verdict);
      accuse(link.b, verdict);
    }
  }
  for (const auto& [rank, entry] : accused) {
    const auto node = nodes.find(rank);
    const std::string node_text = node == nodes.end() ? "" : absl::StrCat(node->second);
    metrics.Add(entry.slowdown, {{"rank", absl::StrCat(rank)}, {"node", node_text}, {"cause", entry.cause}});
  }
}

void AddDiagnosis(const View& view, MetricsText& metrics) {
  metrics.Gauge("taskd_verdicts_open", "Open verdicts of the diagnosis.", view.stats.open_verdicts);
  metrics.Begin("taskd_verdicts_total", "counter", "Verdicts that were opened since the manager began.");
  for (int cause = 0; cause < diagnosis::kCauses; ++cause) {
    metrics.Add(view.stats.opened[static_cast<size_t>(cause)], {{"cause", Name(static_cast<diagnosis::Cause>(cause))}});
  }
  metrics.Gauge("taskd_verdicts_cost_seconds_per_step", "What the dearest open verdict costs a step.",
                view.stats.cost_ms_per_step / 1e3);
  AddAccused(view, metrics);
  metrics.Gauge("taskd_diagnosis_coverage_ratio",
                "Ranks whose own time the marks show, of all in the last steps; below 1 nobody can be called healthy.",
                view.stats.coverage);
  metrics.Begin("taskd_diagnosis_resolution_ratio", "gauge",
                "The smallest lasting slowdown of one rank that would have been named by now with 99 %.");
  const std::pair<const char*, const std::optional<diagnosis::Resolution>&> features[] = {
      {"own_time", view.stats.own_time}, {"dataloader", view.stats.dataloader}, {"transfer", view.stats.transfer}};
  for (const auto& [feature, resolution] : features) {
    if (resolution) metrics.Add(resolution->ratio, {{"feature", feature}});
  }
  metrics.Gauge("taskd_diagnosis_live_ranks", "Ranks that steps wait for.", view.stats.feed.live_ranks);
  metrics.Counter("taskd_folds_received_total", "Steps of single ranks that proxies have sent.", view.stats.received);
  metrics.Counter("taskd_folds_again_total",
                  "Of them, those that had come before on a stream that broke: not counted twice.",
                  view.stats.feed.again);
  metrics.Begin("taskd_folds_dropped_total", "counter", "Steps of single ranks that were not judged.");
  metrics.Add(view.stats.dropped, {{"kind", "overload"}});
  metrics.Add(view.stats.feed.refused, {{"kind", "refused"}});
  metrics.Add(view.stats.feed.unused, {{"kind", "unused"}});
  metrics.Counter("taskd_groups_unused_total",
                  "Process groups of single ranks that came with members that are not used: no ranks, or too many.",
                  view.stats.feed.groups_unused);
  metrics.Gauge("taskd_groups_bytes", "Memory of the process groups of all ranks.", view.stats.feed.group_bytes);
  metrics.Gauge("taskd_folds_waiting_bytes", "Memory of the steps that wait for other ranks.",
                view.stats.feed.waiting_bytes);
  metrics.Gauge("taskd_folds_unsent", "Steps that the connected proxies could not send, since they started.",
                view.stats.feed.proxy_dropped);
  metrics.Gauge("taskd_diagnosis_lag_seconds", "From the arrival of the last folds to their judgement.",
                view.stats.lag_s);
  metrics.Counter("taskd_diagnosis_busy_seconds_total", "Time spent on judging.", view.stats.busy_s);
}

}  // namespace

HttpHandler MakeMetrics(const JobSources& sources) {
  return [sources](const HttpRequest&) {
    const View view(sources);
    MetricsText metrics;
    AddJob(view, sources, metrics);
    AddSteps(view, sources, metrics);
    AddLedger(sources, metrics);
    AddActions(sources, metrics);
    AddSwitchesAndMarks(view, metrics);
    AddDiagnosis(view, metrics);
    HttpResponse response;
    response.content_type = MetricsText::kContentType;
    response.body = std::make_shared<const std::string>(metrics.text());
    return response;
  };
}

}  // namespace taskd::manager
