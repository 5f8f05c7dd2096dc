#include "manager/ledger/job_ledger.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/realtime.h"
#include "ledger/render.h"
#include "ledger/straggler.h"
#include "nlohmann/json.hpp"

namespace taskd::manager {
namespace {

constexpr int64_t kOldestEventNs = 3600'000'000'000;
constexpr int kStateSchema = 1;

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

struct State {
  ledger::Ledger::Kept kept;
  int parent = 0;
};

absl::StatusOr<State> ReadState(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  try {
    if (json.value("schema", 0) != kStateSchema) return absl::InvalidArgumentError("it is of a later release");
    State state;
    std::string job;
    absl::StatusOr<ledger::Report> report = ledger::ReadJson(json.value("report", ""), &job);
    if (!report.ok()) return report.status();
    state.kept.report = *std::move(report);
    state.kept.done_until = json.value("done_until", int64_t{-1});
    state.kept.saved_step = json.value("saved_step", int64_t{-1});
    state.kept.base = json.value("base", int64_t{0});
    state.kept.round = json.value("round", -1);
    state.kept.ended = json.value("ended", false);
    state.parent = json.value("parent", 0);
    const bool same_boot = json.value("boot_id", "") == BootId();
    const int64_t then = json.value(same_boot ? "steady_ns" : "unix_ns", int64_t{0});
    state.kept.dead_ns = std::max<int64_t>(0, (same_boot ? SteadyNs() : RealtimeNs()) - then);
    if (!same_boot) state.parent = 0;
    return state;
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

ledger::IncidentKind KindOfRestart(const std::string& reason) {
  if (absl::StrContains(reason, " lost: ")) return ledger::IncidentKind::kNodeLost;
  if (absl::StartsWith(reason, "rank ")) return ledger::IncidentKind::kRankExit;
  return ledger::IncidentKind::kOrdered;
}

JobLedger::JobLedger(const Options& options, const std::string& kept)
    : options_(options),
      unix_offset_ns_(RealtimeNs() - SteadyNs()),
      ledger_({.now_ns = SteadyNs(),
               .unix_offset_ns = unix_offset_ns_,
               .slots = options.slots,
               .launched = options.launched}) {
  if (kept.empty()) return;
  absl::StatusOr<State> state = ReadState(kept);
  if (!state.ok()) {
    spdlog::warn("the kept ledger is left out, it begins anew: {}", state.status().message());
    return;
  }
  // Another launcher: the one that it was kept under has not come to its end.
  const bool other_launcher = options.launched && state->parent != getppid();
  if (other_launcher && !state->kept.ended) {
    state->kept.ended = true;
    if (!state->kept.report.attempts.empty()) {
      ledger::Attempt& attempt = state->kept.report.attempts.back();
      attempt.until_ns = state->kept.report.until_ns;
      attempt.outcome = "its launcher was lost";
    }
  }
  ledger_.Resume(state->kept, Now());
  if (options.slots > 0) ledger_.SetSlots(options.slots, Now(), Now());
}

int64_t JobLedger::Now() const { return SteadyNs(); }

int64_t JobLedger::Happened(int64_t unix_ns, int64_t now_ns) const {
  const int64_t at_ns = unix_ns - unix_offset_ns_;
  return unix_ns > 0 && at_ns <= now_ns && at_ns >= now_ns - kOldestEventNs ? at_ns : now_ns;
}

void JobLedger::OnEvent(const SupervisionEvent& event) {
  using Kind = SupervisionEvent::Kind;
  std::lock_guard lock(mutex_);
  const int64_t now_ns = Now();
  const int64_t at_ns = Happened(event.time_ns, now_ns);
  switch (event.kind) {
    case Kind::kStarted:
      if (event.rank < 0) ledger_.Started(event.round, at_ns, now_ns);
      break;
    case Kind::kExited: {
      ledger::Ledger::Exit exit = {event.rank, event.node, event.code != 0 || event.signal != 0};
      exit.text = event.signal != 0 ? absl::StrCat("rank ", event.rank, " ended by signal ", event.signal)
                                    : absl::StrCat("rank ", event.rank, " ended with code ", event.code);
      ledger_.Exited(exit, at_ns, now_ns);
      break;
    }
    case Kind::kRestarting:
      ledger_.Restarting(KindOfRestart(event.message), event.message, at_ns, now_ns);
      break;
    case Kind::kEnded:
      ledger_.Ended(event.code, event.message, at_ns, now_ns);
      break;
    case Kind::kHang:
      ledger_.Hang(0, event.rank >= 0 ? std::vector<int>{event.rank} : std::vector<int>{}, event.message, now_ns);
      break;
    case Kind::kResumed:
      ledger_.Resumed(now_ns, now_ns);
      break;
    default:
      break;
  }
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
    due = std::chrono::steady_clock::now() - saved_at_ >= kSaveEvery || ledger_.incidents() != saved_incidents_;
  }
  if (due) SaveNow();
}

void JobLedger::SaveNow() {
  if (!options_.save) return;
  std::string text;
  {
    std::lock_guard lock(mutex_);
    text = StateText();
    saved_at_ = std::chrono::steady_clock::now();
    saved_incidents_ = ledger_.incidents();
  }
  const absl::Status saved = options_.save(text);
  std::lock_guard lock(mutex_);
  if (!saved.ok() && !save_failed_) {
    spdlog::error("the ledger cannot be kept, a restarted manager would begin it anew: {}", saved.message());
  } else if (saved.ok() && save_failed_) {
    spdlog::info("the ledger is kept again");
  }
  save_failed_ = !saved.ok();
}

// With the mutex.
std::string JobLedger::StateText() const {
  nlohmann::ordered_json json;
  json["schema"] = kStateSchema;
  json["boot_id"] = BootId();
  json["steady_ns"] = SteadyNs();
  json["unix_ns"] = RealtimeNs();
  json["parent"] = getppid();
  json["done_until"] = ledger_.done_until();
  json["saved_step"] = ledger_.saved_step();
  json["base"] = ledger_.base();
  json["round"] = ledger_.round();
  json["ended"] = ledger_.ended();
  json["report"] = ledger::RenderJson(ledger_.report(), options_.job);
  return json.dump();
}

ledger::Report JobLedger::report() const {
  std::lock_guard lock(mutex_);
  ledger_.Look(Now());
  return ledger_.report();
}

std::string JobLedger::Json() const { return ledger::RenderJson(report(), options_.job); }

}  // namespace taskd::manager
