#include "manager/page/event_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace taskd::manager {
namespace {

int64_t UnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string TextOf(const SupervisionEvent& event) {
  using Kind = SupervisionEvent::Kind;
  std::string text;
  if (event.rank >= 0) absl::StrAppend(&text, "rank ", event.rank);
  if (event.node >= 0) absl::StrAppend(&text, text.empty() ? "" : " ", "node ", event.node);
  if (event.signal != 0) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "signal ", event.signal);
  } else if (event.kind == Kind::kExited || event.kind == Kind::kEnded) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "code ", event.code);
  }
  const std::string line = event.message.substr(0, event.message.find('\n'));
  if (!line.empty()) absl::StrAppend(&text, text.empty() ? "" : ": ", line);
  return text;
}

std::string TextOf(const diagnosis::Verdict& verdict) {
  return verdict.text.empty() ? absl::StrCat(Name(verdict.scope), ": ", Name(verdict.cause)) : verdict.text;
}

}  // namespace

void EventLog::Append(LoggedEvent event) {
  CutUtf8(&event.text, kMaxTextBytes);
  event.number = ++last_;
  bytes_ += event.text.size() + event.detail.size();
  events_.push_back(std::move(event));
  while (events_.size() > kMaxEvents || bytes_ > kMaxBytes) {
    bytes_ -= events_.front().text.size() + events_.front().detail.size();
    events_.pop_front();
  }
}

void EventLog::Add(const SupervisionEvent& event) {
  LoggedEvent logged;
  logged.time_ns = event.time_ns;
  logged.kind = SupervisionKindName(event.kind);
  logged.text = TextOf(event);
  logged.rank = event.rank;
  logged.node = event.node;
  if (event.kind == SupervisionEvent::Kind::kStacks) logged.detail = event.message;
  std::lock_guard lock(mutex_);
  Append(std::move(logged));
}

void EventLog::Add(const diagnosis::Report& report, int64_t time_ns) {
  std::map<uint64_t, bool> now;
  std::lock_guard lock(mutex_);
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    now[verdict.id] = verdict.open;
    const auto before = verdicts_.find(verdict.id);
    const bool was_open = before != verdicts_.end() && before->second;
    if (verdict.open == was_open && (verdict.open || before != verdicts_.end())) continue;
    LoggedEvent logged;
    logged.time_ns = time_ns;
    logged.kind = absl::StrCat("verdict_", verdict.open ? "opened" : StateName(verdict));
    logged.text = TextOf(verdict);
    if (verdict.scope == diagnosis::Scope::kRank && verdict.ids.size() == 1) logged.rank = verdict.ids[0];
    if (verdict.scope == diagnosis::Scope::kNode && verdict.ids.size() == 1) logged.node = verdict.ids[0];
    Append(std::move(logged));
  }
  verdicts_ = std::move(now);
}

void EventLog::Add(const SwitchState& state, int64_t time_ns) {
  LoggedEvent logged;
  logged.time_ns = time_ns;
  logged.kind = "switch";
  for (int i = 0; i < kNumSwitches; ++i) {
    absl::StrAppend(&logged.text, i == 0 ? "" : ", ", std::string(SwitchKindWord(static_cast<SwitchKind>(i))),
                    (state.effective >> i & 1) != 0 ? " on" : " off");
  }
  absl::StrAppend(&logged.text, " (revision ", state.revision, ")");
  std::lock_guard lock(mutex_);
  Append(std::move(logged));
}

void EventLog::Add(LoggedEvent event) {
  std::lock_guard lock(mutex_);
  Append(std::move(event));
}

std::vector<LoggedEvent> EventLog::Since(uint64_t since, size_t most) const {
  std::lock_guard lock(mutex_);
  const auto begin = std::partition_point(events_.begin(), events_.end(),
                                          [since](const LoggedEvent& event) { return event.number <= since; });
  const auto there = static_cast<size_t>(events_.end() - begin);
  return {events_.end() - static_cast<std::ptrdiff_t>(std::min(there, most)), events_.end()};
}

uint64_t EventLog::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

LoggedEvent EventLog::NewestStacks(int64_t not_before_ns) const {
  std::lock_guard lock(mutex_);
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    if (!event->detail.empty() && event->time_ns >= not_before_ns) return *event;
  }
  return {};
}

// What holds when the manager starts, the verdicts and the switch that it has kept, is no change.

void EventLog::Changed(std::shared_ptr<const diagnosis::Report> report) {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(verdicts_known_, true)) {
      for (const diagnosis::Verdict& verdict : report->verdicts) verdicts_[verdict.id] = verdict.open;
      return;
    }
  }
  Add(*report, UnixNs());
}

void EventLog::Changed(const SwitchState& state) {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(wanted_known_, true)) return;
  }
  Add(state, UnixNs());
}

}  // namespace taskd::manager
