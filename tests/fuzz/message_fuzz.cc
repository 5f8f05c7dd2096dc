// Messages of other machines, and those that the manager finds in its state: an error with a message, or values that
// are written as they were read and that the core can be given. The first byte picks the message.
#include <cstdio>
#include <cstdlib>

#include "agent/run/rendezvous_messages.h"
#include "agent/run/supervision_client.h"
#include "common/log.h"
#include "google/protobuf/stubs/logging.h"
#include "manager/supervision/supervision_core.h"
#include "manager/supervision/supervision_messages.h"
#include "manager/switch/trace_messages.h"
#include "manager/verdicts/diagnosis_feed.h"
#include "proto/diagnosis_messages.h"
#include "proto/fold_messages.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

namespace manager = taskd::manager;
namespace proto = taskd::proto;
namespace v1 = taskd::v1;

template <typename T>
bool Refused(const absl::StatusOr<T>& read) {
  if (read.ok()) return false;
  FUZZ_CHECK(absl::IsInvalidArgument(read.status()) && !read.status().message().empty());
  return true;
}

void Verdict(const std::string& bytes) {
  v1::Verdict message, first, second;
  if (!message.ParseFromString(bytes)) return;
  const auto verdict = proto::ReadVerdict(message);
  if (Refused(verdict)) return;
  proto::FillVerdict(*verdict, &first);
  const auto again = proto::ReadVerdict(first);
  FUZZ_CHECK(again.ok());
  proto::FillVerdict(*again, &second);
  FUZZ_CHECK(first.SerializeAsString() == second.SerializeAsString());
  taskd::diagnosis::Engine engine;
  engine.Restore({*verdict});
  engine.Finish();
  v1::DiagnosisReport report;
  proto::FillReport(engine.report(), "a/b", &report);
  FUZZ_CHECK(proto::ReadReport(report).ok());
}

void Report(const std::string& bytes) {
  v1::DiagnosisReport message, first;
  if (!message.ParseFromString(bytes)) return;
  const auto report = proto::ReadReport(message);
  if (Refused(report)) return;
  proto::FillReport(*report, message.job(), &first);
  FUZZ_CHECK(proto::ReadReport(first).ok());
}

// As the service takes them; then given to the engine, as of a node that owns ranks 0 to 7.
void Folds(const std::string& bytes) {
  v1::FoldSet message;
  if (!message.ParseFromString(bytes)) return;
  manager::FoldBatch batch;
  for (const v1::RankGroups& rank : message.groups()) {
    manager::FoldBatch::Groups& groups = batch.groups.emplace_back();
    groups.rank = rank.rank();
    for (const v1::Group& in : rank.groups()) {
      if (groups.groups.size() >= manager::DiagnosisFeed::kMaxGroups) break;
      const auto group = proto::ReadGroup(in);
      if (Refused(group)) continue;
      FUZZ_CHECK(taskd::ExpandMembers(group->members, 100).size() <= 100);
      v1::Group written;
      proto::FillGroup(*group, &written);
      FUZZ_CHECK(proto::ReadGroup(written).ok() && *proto::ReadGroup(written) == *group);
      groups.groups.push_back(*group);
    }
  }
  for (const v1::RankStep& in : message.steps()) {
    const auto read = proto::ReadFold(in.SerializeAsString());
    if (Refused(read)) continue;
    const taskd::StepFold& fold = read->fold;
    FUZZ_CHECK(read->rank == in.rank() && read->number == in.number());
    FUZZ_CHECK(fold.ops.size() <= taskd::StepFold::kMaxOps && fold.samples.size() <= taskd::StepFold::kMaxSamples);
    v1::RankStep written;
    proto::FillFold(in.rank(), fold, &written);
    const auto again = proto::ReadFold(written.SerializeAsString());
    FUZZ_CHECK(again.ok() && again->fold == fold);
    batch.steps.push_back({in.rank(), fold});
  }
  manager::DiagnosisFeed feed({});
  uint64_t now_ns = 1'000'000'000;
  feed.Connect(1, 0, "host");
  std::vector<manager::RankPresence> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back({rank, true});
  feed.Ranks(1, ranks);
  // Twice the same, and one after the other: what comes again and late.
  for (int round = 0; round < 2; ++round) {
    feed.Folds(1, batch, now_ns);
    feed.Advance(now_ns += 11'000'000'000);
  }
  feed.Disconnect(1, now_ns);
  feed.Advance(now_ns + 60'000'000'000);
  v1::DiagnosisReport report;
  proto::FillReport(feed.report(), "a/b", &report);
  FUZZ_CHECK(proto::ReadReport(report).ok());
}

void Switch(const std::string& bytes) {
  ProfilingSwitch message, written;
  if (!message.ParseFromString(bytes)) return;
  const auto change = manager::ReadSwitch(message);
  if (Refused(change)) return;
  const taskd::SwitchState state = taskd::ApplyClusterdChange({}, *change);
  FUZZ_CHECK(state.revision == 1 && state.effective <= taskd::kAllKindsMask);
  manager::FillSwitch(state, &written);
  const auto again = manager::ReadSwitch(written);
  FUZZ_CHECK(again.ok() && taskd::ApplyClusterdChange({}, *again) == state);
}

void TakeEvents(const std::vector<manager::SupervisionEvent>& events) {
  manager::SupervisionCore core({});
  const absl::Status status = core.Report(events, {});
  FUZZ_CHECK(status.ok() || !status.message().empty());
  const manager::SupervisionSnapshot snapshot = core.Snapshot();
  FUZZ_CHECK(snapshot.events.size() <= std::min(events.size(), manager::SupervisionCore::kMaxEvents));
  size_t text = 0;
  for (const manager::SupervisionEvent& event : snapshot.events) text += event.message.size();
  FUZZ_CHECK(text <= manager::SupervisionCore::kMaxEventsBytes);
  v1::SupervisionStatus message;
  manager::FillSupervision(snapshot, &message);
  FUZZ_CHECK(!message.SerializeAsString().empty() || snapshot.events.empty());
}

void Events(const std::string& bytes) {
  v1::ReportEventsRequest message;
  if (!message.ParseFromString(bytes)) return;
  std::vector<manager::SupervisionEvent> events;
  for (const v1::SupervisionEvent& event : message.events()) events.push_back(manager::ReadEvent(event));
  TakeEvents(events);
}

// What launchers tell the first one, which the manager has to take whole or it would take nothing.
void LauncherEvent(const std::string& text) {
  const auto message = taskd::run::DecodeNodeMessage(text);
  if (Refused(message) || !std::holds_alternative<taskd::run::EventMessage>(*message)) return;
  const v1::SupervisionEvent event = taskd::run::ToSupervisionEvent(std::get<taskd::run::EventMessage>(*message).event);
  std::string bytes;
  FUZZ_CHECK(event.SerializeToString(&bytes));  // texts are UTF-8
  manager::SupervisionCore core({});
  FUZZ_CHECK(core.Report({manager::ReadEvent(event)}, {}).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    spdlog::set_level(spdlog::level::off);
    google::protobuf::SetLogHandler(nullptr);  // it complains of each text that is no UTF-8
    return true;
  }();
  if (!quiet || size < 1 || size > 65536) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      Verdict(bytes);
      break;
    case 1:
      Report(bytes);
      break;
    case 2:
      Folds(bytes);
      break;
    case 3:
      Switch(bytes);
      break;
    case 4:
      Events(bytes);
      break;
    default:
      LauncherEvent(bytes);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  taskd::diagnosis::Verdict verdict;
  verdict.id = 7;
  verdict.scope = taskd::diagnosis::Scope::kLink;
  verdict.links = {{3, 11}};
  verdict.alternatives.emplace_back().ids = {3};
  verdict.evidence.push_back({"send", 1.5, 1.0, 8, 12.5, 10, 20});
  verdict.text = "slow";
  v1::Verdict kept;
  proto::FillVerdict(verdict, &kept);
  taskd::diagnosis::Report report;
  report.ranks = 16;
  report.verdicts = {verdict};
  v1::DiagnosisReport told;
  proto::FillReport(report, "a/b", &told);

  v1::FoldSet folds;
  v1::RankGroups* groups = folds.add_groups();
  proto::FillGroup({"g", "tp", {{0, 1, 8}}}, groups->add_groups());
  for (int step = 1; step < 4; ++step) {
    for (int rank = 0; rank < 8; ++rank) {
      taskd::StepFold fold;
      fold.step = step;
      fold.process_id = 1;
      fold.start_ns = 1'700'000'000'000'000'000 + static_cast<uint64_t>(step) * 1'000'000'000;
      fold.end_ns = fold.start_ns + 900'000'000;
      fold.previous_end_ns = fold.start_ns - 100'000'000;
      taskd::OpFold& op = fold.ops.emplace_back();
      op.count = 2;
      op.duration_ns = 1000;
      op.first_start_ns = fold.start_ns + 10;
      op.last_end_ns = fold.start_ns + 5000;
      fold.samples.push_back({0, taskd::CommOp::kAllReduce, 0, fold.start_ns + 10, fold.start_ns + 500});
      proto::FillFold(rank, fold, folds.add_steps());
    }
  }
  ProfilingSwitch switches;
  manager::FillSwitch({1, taskd::kAllKindsMask, taskd::kAllKindsMask}, &switches);
  v1::ReportEventsRequest events;
  for (auto kind : {v1::SupervisionEvent::STARTED, v1::SupervisionEvent::EXITED, v1::SupervisionEvent::ENDED}) {
    v1::SupervisionEvent* event = events.add_events();
    event->set_kind(kind);
    event->set_rank(3);
    event->set_message("why");
  }
  return {
      "0" + kept.SerializeAsString(),
      "1" + told.SerializeAsString(),
      "2" + folds.SerializeAsString(),
      "3" + switches.SerializeAsString(),
      "4" + events.SerializeAsString(),
      R"(5{"type":"event","event":"exited","round":1,"rank":3,"node":4,"pid":5,"code":6,"signal":0,"time_ns":7,"reason":"x\u00e4"})",
      R"(5{"type":"event","event":"ended","code":-1,"rank":99999999999999999999,"reason":"\ud83d\ude00"})"};
}
