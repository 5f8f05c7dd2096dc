#include "manager/supervision/supervision_core.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/realtime.h"
#include "common/switch.h"
#include "common/utf8.h"

namespace taskd::manager {
namespace {

constexpr std::chrono::seconds kLookEvery{1};

std::string LogLine(const SupervisionEvent& event) {
  std::string line = SupervisionKindName(event.kind);
  if (event.rank >= 0) absl::StrAppend(&line, " rank ", event.rank);
  if (event.node >= 0) absl::StrAppend(&line, " node ", event.node);
  if (event.pid > 0) absl::StrAppend(&line, " pid ", event.pid);
  using Kind = SupervisionEvent::Kind;
  if (event.signal != 0) {
    absl::StrAppend(&line, " signal ", event.signal);
  } else if (event.kind == Kind::kExited || event.kind == Kind::kEnded) {
    absl::StrAppend(&line, " code ", event.code);
  }
  absl::StrAppend(&line, " (round ", event.round, ", restarts ", event.restart_count, ")");
  if (!event.message.empty()) absl::StrAppend(&line, ": ", event.message);
  // Stacks have lines; anything else is one line in the log.
  if (event.kind != Kind::kStacks) std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

const char* SupervisionKindName(SupervisionEvent::Kind kind) {
  switch (kind) {
    case SupervisionEvent::Kind::kStarted:
      return "started";
    case SupervisionEvent::Kind::kExited:
      return "exited";
    case SupervisionEvent::Kind::kRestarting:
      return "restarting";
    case SupervisionEvent::Kind::kEnded:
      return "ended";
    case SupervisionEvent::Kind::kHang:
      return "hang";
    case SupervisionEvent::Kind::kResumed:
      return "resumed";
    case SupervisionEvent::Kind::kStacks:
      return "stacks";
    case SupervisionEvent::Kind::kEvidence:
      return "evidence";
    case SupervisionEvent::Kind::kUnknown:
      break;
  }
  return "unknown";
}

SupervisionCore::SupervisionCore(std::function<JobPulse()> look, std::function<void(const SupervisionEvent&)> on_event,
                                 std::function<void(const std::string&)> on_waits)
    : look_(std::move(look)),
      on_event_(std::move(on_event)),
      on_waits_(std::move(on_waits)),
      clock_(std::chrono::nanoseconds(kLookEvery).count()) {
  if (look_) thread_ = std::thread([this] { Run(); });
}

SupervisionCore::~SupervisionCore() { Close(); }

SteadyTime SupervisionCore::Observed(SteadyTime now) {
  const auto since_boot = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch());
  return SteadyTime(std::chrono::nanoseconds(clock_.Look(since_boot.count())));
}

void SupervisionCore::Run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLookEvery, [this] { return closed_; })) {
    lock.unlock();
    Look(look_(), std::chrono::steady_clock::now(), RealtimeNs());
    lock.lock();
  }
}

void SupervisionCore::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (HangSink* sink : sinks_) sink->Close();
    sinks_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SupervisionCore::Add(SupervisionEvent event) {
  CutUtf8(&event.message, kMaxMessageBytes);
  // The launcher reports it to people. Stacks have lines, of which each becomes one of the log.
  for (const absl::string_view line : absl::StrSplit(LogLine(event), '\n')) spdlog::info("job: {}", line);
  if (on_event_) on_event_(event);
  events_bytes_ += event.message.size();
  events_.push_back(std::move(event));
  while (events_.size() > kMaxEvents || events_bytes_ > kMaxEventsBytes) {
    events_bytes_ -= events_.front().message.size();
    events_.pop_front();
  }
}

void SupervisionCore::Publish(const HangVerdict& verdict, int64_t realtime_ns) {
  evidence_ = nullptr;
  frames_ = {};
  SupervisionEvent event;
  event.kind = verdict.hung ? SupervisionEvent::Kind::kHang : SupervisionEvent::Kind::kResumed;
  if (verdict.origins.size() == 1) event.rank = verdict.origins[0];
  event.message = verdict.text;
  event.time_ns = realtime_ns;
  if (!events_.empty()) {
    event.round = events_.back().round;
    event.restart_count = events_.back().restart_count;
  }
  Add(std::move(event));
  for (HangSink* sink : sinks_) sink->OnVerdict(verdict);
}

absl::Status SupervisionCore::Check(const SupervisionEvent& event) {
  using Kind = SupervisionEvent::Kind;
  if (event.kind == Kind::kUnknown || event.kind == Kind::kHang || event.kind == Kind::kResumed) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: ", SupervisionKindName(event.kind), " is not for launchers to report"));
  }
  for (const auto& [name, number, least] :
       {std::tuple("rank", event.rank, -1), std::tuple("node", event.node, -1), std::tuple("pid", event.pid, 0),
        std::tuple("round", event.round, 0), std::tuple("restart_count", event.restart_count, 0),
        std::tuple("world_size", event.world_size, 0)}) {
    if (number < least) return absl::InvalidArgumentError(absl::StrCat(name, ": ", number, " is below ", least));
  }
  return absl::OkStatus();
}

std::optional<HangVerdict> SupervisionCore::Take(const SupervisionEvent& event, SteadyTime now) {
  using Kind = SupervisionEvent::Kind;
  using State = SupervisionSnapshot::State;
  switch (event.kind) {
    case Kind::kStarted:
      state_ = State::kRunning;
      ended_in_.reset();
      return event.rank < 0 ? watch_.Restarted(now) : std::nullopt;
    case Kind::kExited:
      ++rank_exits_;
      if (event.code == 0) watch_.EndedWell();
      return std::nullopt;
    case Kind::kRestarting:
      state_ = State::kRestarting;
      ended_in_.reset();
      ++restarts_;
      return watch_.Restarted(now);
    case Kind::kEnded:
      state_ = State::kEnded;
      waits_for_.clear();
      return EndHang(now);
    case Kind::kEvidence:
    case Kind::kStacks:
      // The newest replaces what came before; of a hang that is over nobody wants to know any more.
      if (!watch_.open().has_value() || event.evidence == nullptr || event.evidence->hang != watch_.open()->number) {
        return std::nullopt;
      }
      if (event.kind == Kind::kEvidence) {
        evidence_ = event.evidence;
      } else {
        frames_ = {event.evidence->frames, event.evidence->text};
      }
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

absl::Status SupervisionCore::Report(std::vector<SupervisionEvent> events, SteadyTime now) {
  for (const SupervisionEvent& event : events) {
    if (absl::Status checked = Check(event); !checked.ok()) return checked;
  }
  const int64_t realtime_ns = RealtimeNs();
  std::lock_guard lock(mutex_);
  const SteadyTime observed = Observed(now);
  for (SupervisionEvent& event : events) {
    if (event.time_ns == 0) event.time_ns = realtime_ns;
    const std::optional<HangVerdict> over = Take(event, observed);
    event.evidence = nullptr;  // the event's line is enough
    Add(std::move(event));
    if (over.has_value()) Publish(*over, realtime_ns);
  }
  return absl::OkStatus();
}

void SupervisionCore::SetWaitsFor(std::string waits_for, SteadyTime now) {
  CutUtf8(&waits_for, kMaxTextBytes);
  std::lock_guard lock(mutex_);
  if (waits_for_.empty()) waits_since_ = now;
  if (on_waits_) on_waits_(waits_for);
  waits_for_ = std::move(waits_for);
}

void SupervisionCore::Look(const JobPulse& job, SteadyTime now, int64_t realtime_ns) {
  const bool steps_on = (job.wanted.effective & MaskOf(SwitchKind::kStep)) != 0;
  std::lock_guard lock(mutex_);
  if (closed_) return;
  const SteadyTime observed = Observed(now);
  const bool all_ended = job.is_seen && job.ranks.empty() && watch_.open().has_value();
  std::optional<HangVerdict> verdict = all_ended ? EndHang(observed) : watch_.Update(job.ranks, steps_on, observed);
  if (verdict.has_value()) Publish(*verdict, realtime_ns);
}

SupervisionCore::Confirmation SupervisionCore::ConfirmAction(uint64_t hang, SteadyTime now, int64_t realtime_ns) {
  if (look_) Look(look_(), now, realtime_ns);
  std::lock_guard lock(mutex_);
  if (!watch_.open().has_value() || watch_.open()->number != hang) return {};
  return {true, watch_.WhyNotEnd(Observed(now))};
}

bool SupervisionCore::Subscribe(HangSink* sink, const HangOptions& options) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  watch_.SetOptions(options);
  sinks_.insert(sink);
  if (watch_.open().has_value()) sink->OnVerdict(*watch_.open());
  return true;
}

void SupervisionCore::Unsubscribe(HangSink* sink) {
  std::lock_guard lock(mutex_);
  sinks_.erase(sink);
}

// Its ranks have ended: if that is the job's end, it ended in this hang.
std::optional<HangVerdict> SupervisionCore::EndHang(SteadyTime now) {
  if (watch_.open().has_value()) ended_in_ = EndedHang{*watch_.open(), evidence_, frames_};
  return watch_.Restarted(now);
}

SupervisionSnapshot SupervisionCore::Snapshot() const {
  std::lock_guard lock(mutex_);
  SupervisionSnapshot snapshot;
  snapshot.state = state_;
  if (state_ == SupervisionSnapshot::State::kEnded && ended_in_.has_value()) {
    snapshot.hang = ended_in_->verdict;
    snapshot.evidence = ended_in_->evidence;
    snapshot.frames = ended_in_->frames;
  }
  if (watch_.open().has_value()) {
    snapshot.state = SupervisionSnapshot::State::kHung;
    snapshot.hung_ranks = watch_.open()->ranks;
    snapshot.hang = watch_.open();
    snapshot.evidence = evidence_;
    snapshot.frames = frames_;
  }
  snapshot.restarts = restarts_;
  snapshot.rank_exits = rank_exits_;
  snapshot.events.assign(events_.begin(), events_.end());
  snapshot.waits_for = waits_for_;
  snapshot.waits_since = waits_since_;
  return snapshot;
}

}  // namespace taskd::manager
