#include "proto/node_messages.h"

#include "common/utf8.h"
#include "marks/step_fold.h"

namespace taskd::proto {
namespace {

constexpr int Index(SwitchKind kind) { return static_cast<int>(kind); }

// One kind of mark in the three messages that have a field for each.
struct Kind {
  SwitchKind kind;
  bool (v1::KindStates::*state)() const;
  void (v1::KindStates::*set_state)(bool);
  uint64_t (v1::MarkCounts::*count)() const;
  void (v1::MarkCounts::*set_count)(uint64_t);
};

constexpr Kind kKinds[] = {
    {SwitchKind::kStep, &v1::KindStates::step, &v1::KindStates::set_step, &v1::MarkCounts::step,
     &v1::MarkCounts::set_step},
    {SwitchKind::kSaveCheckpoint, &v1::KindStates::save_checkpoint, &v1::KindStates::set_save_checkpoint,
     &v1::MarkCounts::save_checkpoint, &v1::MarkCounts::set_save_checkpoint},
    {SwitchKind::kForward, &v1::KindStates::fp, &v1::KindStates::set_fp, &v1::MarkCounts::fp, &v1::MarkCounts::set_fp},
    {SwitchKind::kDataLoader, &v1::KindStates::dataloader, &v1::KindStates::set_dataloader, &v1::MarkCounts::dataloader,
     &v1::MarkCounts::set_dataloader},
    {SwitchKind::kCommunication, &v1::KindStates::communication, &v1::KindStates::set_communication,
     &v1::MarkCounts::communication, &v1::MarkCounts::set_communication},
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
  if (report.saved.step < 0) return;
  message->set_saved_step(report.saved.step);
  message->set_saved_ns(report.saved.ns);
}

RankReport ReadRankReport(const v1::RankStatus& message) {
  RankReport report;
  report.rank = message.rank();
  report.pid = message.pid();
  if (message.has_local_rank() && message.local_rank() >= 0) report.local_rank = message.local_rank();
  report.attached = message.attached();
  report.reason = message.reason();
  report.applied_revision = message.applied_revision();
  report.failed_revision = message.failed_revision();
  report.applied = ReadKinds(message.applied());
  report.step = message.step() < 0 || message.step() > StepFold::kMaxStep ? -1 : message.step();
  report.step_ms = message.step_ms();
  for (const Kind& one : kKinds) report.marks[Index(one.kind)] = (message.marks().*one.count)();
  report.marks[kNumSwitches] = message.marks().other();
  report.lost = message.lost();
  report.overhead_ns_per_mark = message.overhead_ns_per_mark();
  report.stopped_ms = message.stopped_ms();
  if (message.has_saved_step() && message.saved_step() >= 0 && message.saved_step() <= StepFold::kMaxStep) {
    report.saved = {message.saved_step(), message.saved_ns()};
  }
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
