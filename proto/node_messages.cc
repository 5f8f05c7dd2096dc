#include "proto/node_messages.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/utf8.h"
#include "marks/step_fold.h"
#include "proto/wire_reader.h"

namespace taskd::proto {
namespace {

constexpr int Index(SwitchKind kind) { return static_cast<int>(kind); }

// One kind of mark in the three messages that have a field for each.
struct Kind {
  SwitchKind kind;
  uint32_t field;  // in both messages that ranks send
  bool (v1::KindStates::*state)() const;
  void (v1::KindStates::*set_state)(bool);
  uint64_t (v1::MarkCounts::*count)() const;
  void (v1::MarkCounts::*set_count)(uint64_t);
};

constexpr Kind kKinds[] = {
    {SwitchKind::kStep, v1::KindStates::kStepFieldNumber, &v1::KindStates::step, &v1::KindStates::set_step,
     &v1::MarkCounts::step, &v1::MarkCounts::set_step},
    {SwitchKind::kSaveCheckpoint, v1::KindStates::kSaveCheckpointFieldNumber, &v1::KindStates::save_checkpoint,
     &v1::KindStates::set_save_checkpoint, &v1::MarkCounts::save_checkpoint, &v1::MarkCounts::set_save_checkpoint},
    {SwitchKind::kForward, v1::KindStates::kFpFieldNumber, &v1::KindStates::fp, &v1::KindStates::set_fp,
     &v1::MarkCounts::fp, &v1::MarkCounts::set_fp},
    {SwitchKind::kDataLoader, v1::KindStates::kDataloaderFieldNumber, &v1::KindStates::dataloader,
     &v1::KindStates::set_dataloader, &v1::MarkCounts::dataloader, &v1::MarkCounts::set_dataloader},
    {SwitchKind::kCommunication, v1::KindStates::kCommunicationFieldNumber, &v1::KindStates::communication,
     &v1::KindStates::set_communication, &v1::MarkCounts::communication, &v1::MarkCounts::set_communication},
};
static_assert(std::size(kKinds) == kNumSwitches);

v1::RankAnswer::State StateOf(RankAnswer::State state) {
  switch (state) {
    case RankAnswer::State::kUnreachable:
      return v1::RankAnswer::UNREACHABLE;
    case RankAnswer::State::kApplied:
      return v1::RankAnswer::APPLIED;
    case RankAnswer::State::kFailed:
      return v1::RankAnswer::FAILED;
  }
  return v1::RankAnswer::UNREACHABLE;
}

RankAnswer::State StateOf(v1::RankAnswer::State state) {
  if (state == v1::RankAnswer::APPLIED) return RankAnswer::State::kApplied;
  if (state == v1::RankAnswer::FAILED) return RankAnswer::State::kFailed;
  return RankAnswer::State::kUnreachable;
}

// The numbers of a serialized message. False: the wire is broken.
template <typename Take>
bool ForEachNumber(std::string_view wire, const Take& take) {
  WireReader in(wire);
  while (in.Next()) {
    if (in.type() == WireReader::Type::kVarint) take(in.field(), in.number());
  }
  return !in.broken();
}

// A serialized v1::KindStates into those of one that came before; likewise marks.
bool MergeKinds(std::string_view wire, KindMask& kinds) {
  return ForEachNumber(wire, [&kinds](uint32_t field, uint64_t number) {
    for (const Kind& one : kKinds) {
      if (one.field != field) continue;
      kinds &= static_cast<KindMask>(~MaskOf(one.kind));
      if (number != 0) kinds |= MaskOf(one.kind);
    }
  });
}
bool MergeMarks(std::string_view wire, std::array<uint64_t, kNumMarkCounts>& marks) {
  return ForEachNumber(wire, [&marks](uint32_t field, uint64_t number) {
    for (const Kind& one : kKinds) {
      if (one.field == field) marks[Index(one.kind)] = number;
    }
    if (field == v1::MarkCounts::kOtherFieldNumber) marks[kNumSwitches] = number;
  });
}

// As Protobuf takes it: of too long a number the low bits.
void TakeNumber(uint32_t field, uint64_t number, RankReport& report, SavedInStep& saved) {
  const auto as_int = [number] { return static_cast<int>(static_cast<uint32_t>(number)); };
  switch (field) {
    case v1::RankStatus::kRankFieldNumber:
      report.rank = as_int();
      break;
    case v1::RankStatus::kPidFieldNumber:
      report.pid = as_int();
      break;
    case v1::RankStatus::kLocalRankFieldNumber:
      report.local_rank = std::max(-1, as_int());
      break;
    case v1::RankStatus::kAttachedFieldNumber:
      report.attached = number != 0;
      break;
    case v1::RankStatus::kAppliedRevisionFieldNumber:
      report.applied_revision = number;
      break;
    case v1::RankStatus::kFailedRevisionFieldNumber:
      report.failed_revision = number;
      break;
    case v1::RankStatus::kStepFieldNumber:
      report.step = static_cast<int64_t>(number);
      break;
    case v1::RankStatus::kLostFieldNumber:
      report.lost = number;
      break;
    case v1::RankStatus::kStoppedMsFieldNumber:
      report.stopped_ms = number;
      break;
    case v1::RankStatus::kRecordedFieldNumber:
      report.recorded = number;
      break;
    case v1::RankStatus::kCpuBusyMsFieldNumber:
      report.cpu_busy_ms = number;
      break;
    case v1::RankStatus::kIoBusyMsFieldNumber:
      report.io_busy_ms = number;
      break;
    case v1::RankStatus::kLeftLoopFieldNumber:
      report.left_loop = number != 0;
      break;
    case v1::RankStatus::kOpenKindFieldNumber: {
      const auto kind = static_cast<OpenPhase::Kind>(static_cast<uint32_t>(number) & 0xff);
      const bool is_known = static_cast<uint32_t>(number) <= static_cast<uint32_t>(OpenPhase::Kind::kCommunication);
      report.open.kind = is_known ? kind : OpenPhase::Kind::kNone;
      break;
    }
    case v1::RankStatus::kOpenSinceNsFieldNumber:
      report.open.since_ns = number;
      break;
    case v1::RankStatus::kSavedStepFieldNumber:
      saved.step = static_cast<int64_t>(number);
      break;
    case v1::RankStatus::kSavedNsFieldNumber:
      saved.ns = number;
      break;
    default:
      break;
  }
}

void TakeDouble(uint32_t field, uint64_t bits, RankReport& report) {
  if (field == v1::RankStatus::kStepMsFieldNumber) report.step_ms = std::bit_cast<double>(bits);
  if (field == v1::RankStatus::kOverheadNsPerMarkFieldNumber) report.overhead_ns_per_mark = std::bit_cast<double>(bits);
}

}  // namespace

void FillKinds(KindMask kinds, v1::KindStates* message) {
  for (const Kind& one : kKinds) (message->*one.set_state)((kinds & MaskOf(one.kind)) != 0);
}

KindMask ReadKinds(const v1::KindStates& message) {
  KindMask kinds = 0;
  for (const Kind& one : kKinds) {
    if ((message.*one.state)()) kinds |= MaskOf(one.kind);
  }
  return kinds;
}

void FillWanted(const SwitchState& state, v1::WantedState* message) {
  message->set_revision(state.revision);
  FillKinds(state.effective, message->mutable_kinds());
}

void FillRankReport(const RankReport& report, v1::RankStatus* message) {
  message->set_rank(report.rank);
  message->set_pid(report.pid);
  if (report.local_rank >= 0) message->set_local_rank(report.local_rank);
  message->set_attached(report.attached);
  message->set_reason(ValidUtf8(report.reason));
  message->set_applied_revision(report.applied_revision);
  message->set_failed_revision(report.failed_revision);
  FillKinds(report.applied, message->mutable_applied());
  message->set_step(report.step);
  message->set_step_ms(report.step_ms);
  v1::MarkCounts* marks = message->mutable_marks();
  for (const Kind& one : kKinds) (marks->*one.set_count)(report.marks[Index(one.kind)]);
  marks->set_other(report.marks[kNumSwitches]);
  message->set_lost(report.lost);
  message->set_overhead_ns_per_mark(report.overhead_ns_per_mark);
  message->set_stopped_ms(report.stopped_ms);
  message->set_recorded(report.recorded);
  message->set_cpu_busy_ms(report.cpu_busy_ms);
  message->set_io_busy_ms(report.io_busy_ms);
  message->set_left_loop(report.left_loop);
  message->set_open_kind(static_cast<uint32_t>(report.open.kind));
  message->set_open_since_ns(report.open.since_ns);
  message->set_open_operation(report.open.operation);
  if (report.saved.step < 0) return;
  message->set_saved_step(report.saved.step);
  message->set_saved_ns(report.saved.ns);
}

absl::StatusOr<RankReport> ReadRankReport(std::string_view wire) {
  RankReport report;
  report.step = 0;  // as where nothing is said
  SavedInStep saved;
  bool sound = true;
  WireReader in(wire);
  while (sound && in.Next()) {
    if (in.type() == WireReader::Type::kVarint) {
      TakeNumber(in.field(), in.number(), report, saved);
    } else if (in.type() == WireReader::Type::kFixed64) {
      TakeDouble(in.field(), in.number(), report);
    } else if (in.Is(v1::RankStatus::kReasonFieldNumber, WireReader::Type::kBytes)) {
      report.reason = in.bytes();
      sound = IsUtf8(report.reason);
    } else if (in.Is(v1::RankStatus::kOpenOperationFieldNumber, WireReader::Type::kBytes)) {
      report.open.operation = in.bytes();
      sound = IsUtf8(report.open.operation);
    } else if (in.Is(v1::RankStatus::kAppliedFieldNumber, WireReader::Type::kBytes)) {
      sound = MergeKinds(in.bytes(), report.applied);
    } else if (in.Is(v1::RankStatus::kMarksFieldNumber, WireReader::Type::kBytes)) {
      sound = MergeMarks(in.bytes(), report.marks);
    }
  }
  if (!sound || in.broken()) return absl::InvalidArgumentError("no sound taskd.v1.RankStatus");
  if (report.step < 0 || report.step > StepFold::kMaxStep) report.step = -1;
  if (saved.step >= 0 && saved.step <= StepFold::kMaxStep) report.saved = saved;
  return report;
}

void FillRankAnswer(const RankAnswer& answer, v1::RankAnswer* message) {
  message->set_rank(answer.rank);
  message->set_node(answer.node);
  message->set_state(StateOf(answer.state));
  message->set_ms(answer.ms);
  message->set_reason(ValidUtf8(answer.reason));
}

RankAnswer ReadRankAnswer(const v1::RankAnswer& message) {
  RankAnswer answer;
  answer.rank = message.rank();
  answer.node = message.node();
  answer.state = StateOf(message.state());
  answer.ms = message.ms();
  answer.reason = message.reason();
  return answer;
}

}  // namespace taskd::proto
