#include "manager/supervision/supervision_messages.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "common/utf8.h"

namespace taskd::manager {
namespace {

using Cause = SupervisionEvent::Cause;
using Kind = SupervisionEvent::Kind;
using State = SupervisionSnapshot::State;

// Both enumerations count alike, so that a cast is a conversion.
static_assert(static_cast<int>(Kind::kStarted) == v1::SupervisionEvent::STARTED);
static_assert(static_cast<int>(Kind::kExited) == v1::SupervisionEvent::EXITED);
static_assert(static_cast<int>(Kind::kRestarting) == v1::SupervisionEvent::RESTARTING);
static_assert(static_cast<int>(Kind::kEnded) == v1::SupervisionEvent::ENDED);
static_assert(static_cast<int>(Kind::kHang) == v1::SupervisionEvent::HANG);
static_assert(static_cast<int>(Kind::kResumed) == v1::SupervisionEvent::RESUMED);
static_assert(static_cast<int>(Kind::kStacks) == v1::SupervisionEvent::STACKS);
static_assert(static_cast<int>(Kind::kEvidence) == v1::SupervisionEvent::EVIDENCE);
static_assert(static_cast<int>(Cause::kRankExit) == v1::SupervisionEvent::RANK_EXIT);
static_assert(static_cast<int>(Cause::kNodeLost) == v1::SupervisionEvent::NODE_LOST);
static_assert(static_cast<int>(Cause::kTerminated) == v1::SupervisionEvent::TERMINATED);
static_assert(static_cast<int>(Cause::kInterrupted) == v1::SupervisionEvent::INTERRUPTED);
static_assert(static_cast<int>(Cause::kNodeJoined) == v1::SupervisionEvent::NODE_JOINED);
static_assert(static_cast<int>(Cause::kOrdered) == v1::SupervisionEvent::ORDERED);
static_assert(static_cast<int>(Cause::kTimedOut) == v1::SupervisionEvent::TIMED_OUT);
static_assert(static_cast<int>(State::kRunning) == v1::SupervisionStatus::RUNNING);
static_assert(static_cast<int>(State::kRestarting) == v1::SupervisionStatus::RESTARTING);
static_assert(static_cast<int>(State::kHung) == v1::SupervisionStatus::HUNG);
static_assert(static_cast<int>(State::kEnded) == v1::SupervisionStatus::ENDED);

// A launcher is trusted; what it passes on comes from anybody's files. Beyond these it is cut.
constexpr int kMaxOrigins = 4096;
constexpr int kMaxFrames = 64;
constexpr int kMaxNotes = 32;
constexpr int kMaxSources = 256;
constexpr size_t kMaxEvidenceText = 4096;

std::string Cut(const std::string& text) { return CutUtf8(text, kMaxEvidenceText); }

std::shared_ptr<const HangEvidence> ReadEvidence(const v1::HangEvidence& message) {
  auto evidence = std::make_shared<HangEvidence>();
  evidence->hang = message.number();
  evidence->is_found = message.found();
  for (int i = 0; i < std::min(message.origins_size(), kMaxOrigins); ++i) {
    evidence->origins.push_back(message.origins(i));
  }
  evidence->kind = Cut(message.kind());
  evidence->group = Cut(message.group());
  evidence->operation = Cut(message.operation());
  evidence->since_ns = message.since_ns();
  evidence->waiting = Cut(message.waiting());
  for (int i = 0; i < std::min(message.frames_size(), kMaxFrames); ++i) {
    evidence->frames.push_back(Cut(message.frames(i)));
  }
  evidence->text = Cut(message.text());
  for (int i = 0; i < std::min(message.notes_size(), kMaxNotes); ++i) evidence->notes.push_back(Cut(message.notes(i)));
  for (int i = 0; i < std::min(message.sources_size(), kMaxSources); ++i) {
    const v1::EvidenceSource& source = message.sources(i);
    evidence->sources.push_back(
        {Cut(source.path()), Cut(source.format()), source.rank(), source.records(), Cut(source.note())});
  }
  evidence->more_sources = message.more_sources();
  return evidence;
}

}  // namespace

void FillEvidence(const HangEvidence& evidence, v1::HangEvidence* message) {
  message->set_number(evidence.hang);
  message->set_found(evidence.is_found);
  for (int rank : evidence.origins) message->add_origins(rank);
  message->set_kind(evidence.kind);
  message->set_group(evidence.group);
  message->set_operation(evidence.operation);
  message->set_since_ns(evidence.since_ns);
  message->set_waiting(evidence.waiting);
  for (const std::string& frame : evidence.frames) message->add_frames(frame);
  message->set_text(evidence.text);
  for (const std::string& note : evidence.notes) message->add_notes(note);
  for (const HangEvidence::Source& source : evidence.sources) {
    v1::EvidenceSource* out = message->add_sources();
    out->set_path(source.path);
    out->set_format(source.format);
    out->set_rank(source.rank);
    out->set_records(source.records);
    out->set_note(source.note);
  }
  message->set_more_sources(static_cast<uint32_t>(evidence.more_sources));
}

SupervisionEvent ReadEvent(const v1::SupervisionEvent& message) {
  SupervisionEvent event;
  if (v1::SupervisionEvent::Kind_IsValid(message.kind())) event.kind = static_cast<Kind>(message.kind());
  if (v1::SupervisionEvent::Cause_IsValid(message.cause())) event.cause = static_cast<Cause>(message.cause());
  event.round = message.round();
  event.restart_count = message.restart_count();
  event.rank = message.rank();
  event.node = message.node();
  event.pid = message.pid();
  event.code = message.code();
  event.signal = message.signal();
  event.world_size = message.world_size();
  event.message = message.message();
  event.time_ns = message.time_ns();
  if (message.has_evidence()) event.evidence = ReadEvidence(message.evidence());
  return event;
}

void FillSupervision(const SupervisionSnapshot& snapshot, v1::SupervisionStatus* message) {
  message->set_state(static_cast<v1::SupervisionStatus::State>(snapshot.state));
  message->set_restarts(static_cast<uint32_t>(snapshot.restarts));
  message->set_rank_exits(static_cast<uint32_t>(snapshot.rank_exits));
  message->set_hung_ranks(static_cast<uint32_t>(snapshot.hung_ranks));
  if (!snapshot.waits_for.empty()) {
    message->set_waits_for(snapshot.waits_for);
    message->set_waits_s(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - snapshot.waits_since).count());
  }
  for (const SupervisionEvent& event : snapshot.events) {
    v1::SupervisionEvent* out = message->add_events();
    out->set_kind(static_cast<v1::SupervisionEvent::Kind>(event.kind));
    out->set_round(event.round);
    out->set_restart_count(event.restart_count);
    out->set_rank(event.rank);
    out->set_node(event.node);
    out->set_pid(event.pid);
    out->set_code(event.code);
    out->set_signal(event.signal);
    out->set_message(event.message);
    out->set_cause(static_cast<v1::SupervisionEvent::Cause>(event.cause));
    out->set_time_ns(event.time_ns);
  }
}

void FillNotice(const HangVerdict& verdict, v1::HangNotice* message) {
  message->set_number(verdict.number);
  message->set_hung(verdict.hung);
  message->set_idle_s(verdict.idle_s);
  message->set_limit_s(verdict.limit_s);
  message->set_lowest_step(verdict.lowest_step);
  message->set_highest_step(verdict.highest_step);
  for (int rank : verdict.behind) message->add_behind(rank);
  message->set_ranks(static_cast<uint32_t>(verdict.ranks));
  for (int rank : verdict.origins) message->add_origins(rank);
  message->set_text(verdict.text);
}

}  // namespace taskd::manager
