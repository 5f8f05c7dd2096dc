#include "manager/ledger/job_ledger.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/realtime.h"
#include "ledger/kept.h"
#include "ledger/render.h"
#include "ledger/straggler.h"

namespace taskd::manager {
namespace {

constexpr int64_t kOldestEventNs = 3600'000'000'000;
constexpr uint64_t kMostStoppedMs = uint64_t{1000} * 86400 * 1000;

int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Of one boot all processes have one steady clock.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Since it was written. Clocks of two machines may be apart: never less than nothing.
int64_t SilentNs(const ledger::Writer& writer) {
  const bool same_boot = writer.boot_id == BootId();
  return std::max<int64_t>(0, same_boot ? SteadyNs() - writer.steady_ns : RealtimeNs() - writer.unix_ns);
}

ledger::Writer ThisWriter() { return {BootId(), SteadyNs(), RealtimeNs(), getppid()}; }

}  // namespace

ledger::IncidentKind KindOfNext(SupervisionEvent::Cause cause) {
  switch (cause) {
    case SupervisionEvent::Cause::kTerminated:
      return ledger::IncidentKind::kEviction;
    case SupervisionEvent::Cause::kInterrupted:  // schedulers do not send SIGINT, people do
      return ledger::IncidentKind::kOrdered;
    default:
      return ledger::IncidentKind::kRequeue;
  }
}

ledger::IncidentKind KindOfRestart(SupervisionEvent::Cause cause) {
  switch (cause) {
    case SupervisionEvent::Cause::kRankExit:
      return ledger::IncidentKind::kRankExit;
    case SupervisionEvent::Cause::kNodeLost:
      return ledger::IncidentKind::kNodeLost;
    case SupervisionEvent::Cause::kTerminated:
      return ledger::IncidentKind::kEviction;
    default:
      return ledger::IncidentKind::kOrdered;
  }
}

SupervisionEvent::Cause CauseOfEnd(int signal) {
  if (signal == 0) return SupervisionEvent::Cause::kUnknown;
  return signal == SIGINT ? SupervisionEvent::Cause::kInterrupted : SupervisionEvent::Cause::kTerminated;
}

JobLedger::JobLedger(const Options& options, const std::string& kept)
    : options_(options),
      begun_ns_(SteadyNs()),
      unix_offset_ns_(RealtimeNs() - begun_ns_),
      ledger_({.now_ns = begun_ns_,
               .unix_offset_ns = unix_offset_ns_,
               .slots = options.slots,
               .launched = options.launched}) {
  if (kept.empty()) return;
  absl::StatusOr<ledger::KeptLedger> former = ledger::ReadKept(kept);
  if (!former.ok()) {
    spdlog::warn("the kept ledger is left out, it begins anew: {}", former.status().message());
    return;
  }
  former->kept.dead_ns = SilentNs(former->writer);
  if (!GoesOn(*former) && !former->kept.ended) {
    former->kept.ended = true;
    if (!former->kept.report.attempts.empty()) {
      ledger::Attempt& attempt = former->kept.report.attempts.back();
      attempt.until_ns = former->kept.report.until_ns;
      attempt.outcome = ledger::Ledger::kLostLauncher;
    }
  }
  ledger_.Resume(former->kept, Now());
  if (options.slots > 0) ledger_.SetSlots(options.slots, Now(), Now());
}

bool JobLedger::GoesOn(const ledger::KeptLedger& former) const {
  if (former.kept.ended) return false;
  // Under a launcher: an attempt is its own. Process ids are those of one boot.
  return !options_.launched || (former.writer.boot_id == BootId() && former.writer.parent == getppid());
}

void JobLedger::Precede(const std::string& kept) {
  absl::StatusOr<ledger::KeptLedger> former = ledger::ReadKept(kept);
  if (!former.ok()) {
    spdlog::warn("the kept ledger is left out: {}", former.status().message());
    return;
  }
  former->kept.dead_ns = SilentNs(former->writer);
  // What was written after this one had begun is another manager's, whose attempt went on beside it.
  const bool beside = former->kept.dead_ns < SteadyNs() - begun_ns_;
  const bool goes_on = !beside && GoesOn(*former);
  std::lock_guard saving(saving_);
  std::lock_guard lock(mutex_);
  shared_until_ = {};
  ledger_.Precede(former->kept, goes_on ? ledger::Category::kUnknown : ledger::Category::kQueue, Now());
}

int64_t JobLedger::Now() const { return SteadyNs(); }

int64_t JobLedger::Happened(int64_t unix_ns, int64_t now_ns) const {
  const int64_t at_ns = unix_ns - unix_offset_ns_;
  return unix_ns > 0 && at_ns <= now_ns && at_ns >= now_ns - kOldestEventNs ? at_ns : now_ns;
}

void JobLedger::OnEvent(const SupervisionEvent& event) {
  using Kind = SupervisionEvent::Kind;
  std::lock_guard lock(mutex_);
  shared_until_ = {};  // there are few of these
  const int64_t now_ns = Now();
  const int64_t at_ns = Happened(event.time_ns, now_ns);
  switch (event.kind) {
    case Kind::kStarted:
      if (event.rank >= 0) break;
      ledger_.SetSlots(event.world_size, at_ns, now_ns);
      ledger_.Started(event.round, at_ns, now_ns);
      break;
    case Kind::kExited: {
      ledger::Ledger::Exit exit = {event.rank, event.node, event.code != 0 || event.signal != 0};
      exit.text = event.signal != 0 ? absl::StrCat("rank ", event.rank, " ended by signal ", event.signal)
                                    : absl::StrCat("rank ", event.rank, " ended with code ", event.code);
      ledger_.Exited(exit, at_ns, now_ns);
      break;
    }
    case Kind::kRestarting:
      ledger_.Restarting(KindOfRestart(event.cause), event.message, at_ns, now_ns);
      break;
    case Kind::kEnded:
      ledger_.Ended(event.code, event.message, at_ns, now_ns, KindOfNext(event.cause));
      break;
    case Kind::kHang:
      ledger_.Hang(0, event.rank >= 0 ? std::vector<int>{event.rank} : std::vector<int>{},
                   std::string(absl::StripPrefix(event.message, "hang: ")), now_ns);  // the incident's kind says it
      break;
    case Kind::kResumed:
      ledger_.Resumed(now_ns, now_ns);
      break;
    default:
      break;
  }
  WarnOfMissingMarks();
}

void JobLedger::WarnOfMissingMarks() {
  if (warned_ || !ledger_.lacks_marks()) return;
  warned_ = true;
  spdlog::warn(
      "marks are on, and no rank has made one{}: taskd is not in their Python (install it there, or start the script "
      "with -m taskd.torch; docs/marks.md)",
      ledger_.ended() ? "" : " yet; if they train by now");
}

void JobLedger::OnWaits(const std::string& waits_for) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = Now();
  ledger_.Waits(!waits_for.empty(), now_ns, now_ns);
}

void JobLedger::OnPresence(int rank, bool attached) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = Now();
  ledger_.Seen(rank, attached, now_ns, now_ns);
}

void JobLedger::OnStopped(int rank, uint64_t stopped_ms) {
  std::lock_guard lock(mutex_);
  const int64_t now_ns = Now();
  const auto stopped_ns = static_cast<int64_t>(std::min<uint64_t>(stopped_ms, kMostStoppedMs)) * 1'000'000;
  ledger_.Suspended(rank, now_ns - stopped_ns, now_ns, now_ns);
}

void JobLedger::OnSaved(int rank, const SavedInStep& saved) {
  std::lock_guard lock(mutex_);
  ledger_.Saved(rank, saved, Now());
}

void JobLedger::OnStep(int rank, const StepFold& fold) {
  std::lock_guard lock(mutex_);
  ledger_.Step(rank, fold, Now());
}

void JobLedger::Changed(const SwitchState& state) {
  std::lock_guard lock(mutex_);
  ledger_.SetStepsOn((state.effective & MaskOf(SwitchKind::kStep)) != 0, Now());
}

void JobLedger::KeepUp(const std::shared_ptr<const diagnosis::Report>& report) {
  bool due = false;
  {
    std::lock_guard lock(mutex_);
    const int64_t now_ns = Now();
    if (report != verdicts_) {
      verdicts_ = report;
      ledger_.SetStragglers(ledger::StragglersOf(report->verdicts), now_ns);
    }
    ledger_.Advance(now_ns);
    WarnOfMissingMarks();
    due = std::chrono::steady_clock::now() - saved_at_ >= kSaveEvery || ledger_.incidents() != saved_incidents_;
  }
  if (due) SaveNow();
}

void JobLedger::SaveNow() {
  if (!options_.save) return;
  std::lock_guard saving(saving_);
  ledger::KeptLedger state;
  {
    std::lock_guard lock(mutex_);
    state = State();
    saved_at_ = std::chrono::steady_clock::now();
    saved_incidents_ = ledger_.incidents();
  }
  options_.save(ledger::RenderKept(state));
}

ledger::KeptLedger JobLedger::State() const {
  ledger::KeptLedger state;
  state.job = options_.job;
  state.task = options_.task;
  state.writer = ThisWriter();
  state.kept.report = *MakeReport();
  // Of the report's end, which may be long ago.
  const int64_t ago_ns = state.writer.steady_ns + unix_offset_ns_ - state.kept.report.until_ns;
  state.writer.steady_ns -= ago_ns;
  state.writer.unix_ns -= ago_ns;
  state.kept.done_until = ledger_.done_until();
  state.kept.saved_step = ledger_.saved_step();
  state.kept.base = ledger_.base();
  state.kept.round = ledger_.round();
  state.kept.ended = ledger_.ended();
  state.kept.next = ledger_.next();
  return state;
}

const std::shared_ptr<const ledger::Report>& JobLedger::MakeReport() const {
  const SteadyTime begun = std::chrono::steady_clock::now();
  report_ = std::make_shared<const ledger::Report>(ledger_.report());
  const SteadyTime now = std::chrono::steady_clock::now();
  shared_until_ = now + std::min<std::chrono::steady_clock::duration>(kShare * (now - begun), kSharedAtMost);
  return report_;
}

std::shared_ptr<const ledger::Report> JobLedger::report() const {
  std::lock_guard lock(mutex_);
  if (report_ != nullptr && std::chrono::steady_clock::now() < shared_until_) return report_;
  ledger_.Look(Now());
  return MakeReport();
}

int64_t JobLedger::UnsavedSteps() const {
  std::lock_guard lock(mutex_);
  return std::max<int64_t>(ledger_.done_until() - std::max<int64_t>(ledger_.saved_step(), -1), 0);
}

std::string JobLedger::Json() const { return ledger::RenderJson(*report(), options_.job); }

}  // namespace taskd::manager
