#include "proto/diagnosis_messages.h"

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace taskd::proto {
namespace {

using diagnosis::Alternative;
using diagnosis::Cause;
using diagnosis::Evidence;
using diagnosis::JobState;
using diagnosis::Link;
using diagnosis::Note;
using diagnosis::NoteKind;
using diagnosis::RankCoverage;
using diagnosis::Report;
using diagnosis::Resolution;
using diagnosis::Scope;
using diagnosis::Verdict;

// The value up to `last` that is called `name`.
template <typename Enum>
bool ReadName(const std::string& name, Enum last, Enum* out) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (name != Name(static_cast<Enum>(i))) continue;
    *out = static_cast<Enum>(i);
    return true;
  }
  return false;
}

absl::Status Unknown(const char* what, const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(what, " '", CutUtf8(name, 64), "' is not known"));
}

// Of a link its pairs, of all else the ids.
template <typename Entity, typename Message>
void FillIds(const Entity& entity, Message* message) {
  for (int id : entity.ids) message->add_ids(id);
  for (const Link& link : entity.links) {
    message->add_ids(link.a);
    message->add_ids(link.b);
  }
}

template <typename Message, typename Entity>
absl::Status ReadEntity(const Message& message, Entity* entity) {
  if (!ReadName(message.scope(), Scope::kJob, &entity->scope)) return Unknown("scope", message.scope());
  if (entity->scope != Scope::kLink) {
    entity->ids.assign(message.ids().begin(), message.ids().end());
    return absl::OkStatus();
  }
  if (message.ids_size() % 2 != 0) return absl::InvalidArgumentError("a link has two ends");
  for (int i = 0; i < message.ids_size(); i += 2) entity->links.push_back({message.ids(i), message.ids(i + 1)});
  return absl::OkStatus();
}

void FillResolution(const Resolution& resolution, v1::Resolution* message) {
  message->set_ratio(resolution.ratio);
  message->set_steps(resolution.steps);
  message->set_worst_rank(resolution.worst_rank);
  message->set_worst_ratio(resolution.worst_ratio);
}

Resolution ReadResolution(const v1::Resolution& message) {
  return {message.ratio(), message.steps(), message.worst_rank(), message.worst_ratio()};
}

}  // namespace

void FillTrace(const diagnosis::RankTrace& trace, v1::RankTrace* message) {
  message->set_rank(trace.rank);
  message->set_text(trace.text);
  for (const diagnosis::DetectorTrace& detector : trace.detectors) {
    v1::DetectorTrace* row = message->add_detectors();
    row->set_feature(detector.feature);
    row->set_state(static_cast<v1::DetectorTrace::State>(detector.state));
    row->set_value_ms(detector.value_ms);
    row->set_reference_ms(detector.reference_ms);
    row->set_excess(detector.excess);
    row->set_statistic(detector.statistic);
    row->set_threshold(detector.threshold);
    if (detector.since_step >= 0) row->set_since_step(detector.since_step);
    row->set_veto(Name(detector.held.veto));
    row->set_needs(detector.needs);
  }
}

absl::StatusOr<diagnosis::RankTrace> ReadTrace(const v1::RankTrace& message) {
  diagnosis::RankTrace trace;
  trace.rank = message.rank();
  trace.text = message.text();
  for (const v1::DetectorTrace& row : message.detectors()) {
    diagnosis::DetectorTrace& detector = trace.detectors.emplace_back();
    detector.feature = row.feature();
    // A state of a later version: nothing that is known here.
    if (v1::DetectorTrace::State_IsValid(row.state())) detector.state = static_cast<diagnosis::TraceState>(row.state());
    detector.value_ms = row.value_ms();
    detector.reference_ms = row.reference_ms();
    detector.excess = row.excess();
    detector.statistic = row.statistic();
    detector.threshold = row.threshold();
    detector.since_step = row.has_since_step() ? row.since_step() : -1;
    if (!ReadName(row.veto(), diagnosis::Veto::kAttribution, &detector.held.veto)) return Unknown("veto", row.veto());
    detector.needs = row.needs();
  }
  return trace;
}

void FillVerdict(const Verdict& verdict, v1::Verdict* message) {
  message->set_id(verdict.id);
  message->set_scope(Name(verdict.scope));
  FillIds(verdict, message);
  for (const Alternative& alternative : verdict.alternatives) {
    v1::Alternative* out = message->add_alternatives();
    out->set_scope(Name(alternative.scope));
    FillIds(alternative, out);
    out->set_probability(alternative.probability);
    if (alternative.cause != Cause::kUnknown) out->set_cause(Name(alternative.cause));
  }
  message->set_cause(Name(verdict.cause));
  message->set_open(verdict.open);
  message->set_left(verdict.left);
  message->set_unjudged(verdict.unjudged);
  message->set_since_step(verdict.since_step);
  message->set_since_ns(verdict.since_ns);
  message->set_last_step(verdict.last_step);
  message->set_slowdown(verdict.slowdown);
  message->set_cost_ms_per_step(verdict.cost_ms_per_step);
  message->set_confidence(verdict.confidence);
  message->set_slowdown_low(verdict.slowdown_interval[0]);
  message->set_slowdown_high(verdict.slowdown_interval[1]);
  message->set_cost_low_ms(verdict.cost_interval_ms[0]);
  message->set_cost_high_ms(verdict.cost_interval_ms[1]);
  for (const Evidence& evidence : verdict.evidence) {
    v1::Evidence* out = message->add_evidence();
    out->set_feature(evidence.feature);
    out->set_value(evidence.value);
    out->set_reference(evidence.reference);
    out->set_peers(evidence.peers);
    out->set_z(evidence.z);
    out->set_first_step(evidence.first_step);
    out->set_last_step(evidence.last_step);
  }
  message->set_text(verdict.text);
  for (const diagnosis::AccusedNode& node : verdict.nodes) {
    v1::AccusedNode* out = message->add_nodes();
    out->set_rank(node.rank);
    out->set_host(node.host);
    out->set_pod(node.pod);
    out->set_node_name(node.node_name);
  }
}

absl::StatusOr<Verdict> ReadVerdict(const v1::Verdict& message) {
  Verdict verdict;
  verdict.id = message.id();
  absl::Status status = ReadEntity(message, &verdict);
  if (!status.ok()) return status;
  for (const v1::Alternative& in : message.alternatives()) {
    Alternative& alternative = verdict.alternatives.emplace_back();
    status = ReadEntity(in, &alternative);
    if (!status.ok()) return status;
    alternative.probability = in.probability();
    if (!in.cause().empty() && !ReadName(in.cause(), Cause::kUnknown, &alternative.cause)) {
      return Unknown("cause", in.cause());
    }
  }
  if (!ReadName(message.cause(), Cause::kUnknown, &verdict.cause)) return Unknown("cause", message.cause());
  verdict.open = message.open();
  verdict.left = message.left() && !message.open();
  verdict.unjudged = message.unjudged() && !message.open();
  verdict.since_step = message.since_step();
  verdict.since_ns = message.since_ns();
  verdict.last_step = message.last_step();
  verdict.slowdown = message.slowdown();
  verdict.cost_ms_per_step = message.cost_ms_per_step();
  verdict.confidence = message.confidence();
  verdict.slowdown_interval = {message.slowdown_low(), message.slowdown_high()};
  verdict.cost_interval_ms = {message.cost_low_ms(), message.cost_high_ms()};
  for (const v1::Evidence& in : message.evidence()) {
    verdict.evidence.push_back(
        {in.feature(), in.value(), in.reference(), in.peers(), in.z(), in.first_step(), in.last_step()});
  }
  verdict.text = message.text();
  for (const v1::AccusedNode& in : message.nodes()) {
    verdict.nodes.push_back({in.rank(), in.host(), in.pod(), in.node_name()});
  }
  return verdict;
}

void FillReport(const Report& report, const std::string& job, v1::DiagnosisReport* message) {
  FillReportHead(report, job, message);
  for (const Verdict& verdict : report.verdicts) FillVerdict(verdict, message->add_verdicts());
}

void FillReportHead(const Report& report, const std::string& job, v1::DiagnosisReport* message) {
  message->set_job(job);
  message->set_ranks(static_cast<uint32_t>(report.ranks));
  message->set_first_step(report.first_step);
  message->set_last_step(report.last_step);
  message->set_state(report.state == JobState::kOk     ? v1::DiagnosisReport::OK
                     : report.state == JobState::kSlow ? v1::DiagnosisReport::SLOW
                                                       : v1::DiagnosisReport::UNKNOWN);
  for (const Note& note : report.notes) {
    v1::Note* out = message->add_notes();
    out->set_kind(Name(note.kind));
    out->set_text(note.text);
    if (note.since_step >= 0) out->set_since_step(note.since_step);
    if (note.until_step >= 0) out->set_until_step(note.until_step);
  }
  for (const RankCoverage& rank : report.coverage) {
    message->add_coverage_ranks(rank.rank);
    message->add_coverage_ratios(static_cast<float>(rank.ratio));
    message->add_coverage_sufficient(rank.sufficient);
    message->add_coverage_resolutions(static_cast<float>(rank.resolution));
  }
  if (report.own_time) FillResolution(*report.own_time, message->mutable_own_time());
  if (report.dataloader) FillResolution(*report.dataloader, message->mutable_dataloader());
  if (report.transfer) FillResolution(*report.transfer, message->mutable_transfer());
  message->set_step_ms(report.step_ms);
  message->set_idle_s(report.idle_s);
}

absl::StatusOr<Report> ReadReport(const v1::DiagnosisReport& message) {
  Report report;
  report.ranks = static_cast<int>(message.ranks());
  report.first_step = message.first_step();
  report.last_step = message.last_step();
  if (message.state() == v1::DiagnosisReport::OK) report.state = JobState::kOk;
  if (message.state() == v1::DiagnosisReport::SLOW) report.state = JobState::kSlow;
  for (const v1::Verdict& in : message.verdicts()) {
    absl::StatusOr<Verdict> verdict = ReadVerdict(in);
    if (!verdict.ok()) return verdict.status();
    report.verdicts.push_back(*std::move(verdict));
  }
  for (const v1::Note& in : message.notes()) {
    Note& note = report.notes.emplace_back();
    if (!ReadName(in.kind(), NoteKind::kOff, &note.kind)) return Unknown("kind of note", in.kind());
    note.text = in.text();
    if (in.has_since_step()) note.since_step = in.since_step();
    if (in.has_until_step()) note.until_step = in.until_step();
  }
  if (message.coverage_ratios_size() != message.coverage_ranks_size() ||
      message.coverage_sufficient_size() != message.coverage_ranks_size()) {
    return absl::InvalidArgumentError("a coverage without its rank");
  }
  for (int i = 0; i < message.coverage_ranks_size(); ++i) {
    const double resolution = i < message.coverage_resolutions_size() ? message.coverage_resolutions(i) : 0;
    report.coverage.push_back(
        {message.coverage_ranks(i), message.coverage_ratios(i), message.coverage_sufficient(i), resolution});
  }
  if (message.has_own_time()) report.own_time = ReadResolution(message.own_time());
  if (message.has_dataloader()) report.dataloader = ReadResolution(message.dataloader());
  if (message.has_transfer()) report.transfer = ReadResolution(message.transfer());
  report.step_ms = message.step_ms();
  report.idle_s = message.idle_s();
  return report;
}

}  // namespace taskd::proto
