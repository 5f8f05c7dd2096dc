// What has happened to the job, in order and numbered: what the launcher reported, hangs, changes of the switch,
// verdicts that were opened and cleared. For people who look; bounded, and begins anew with the manager.
//
// Safe from any thread. Sinks of the cores: only takes note.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/switch.h"
#include "diagnosis/verdict.h"
#include "manager/supervision/supervision_core.h"
#include "manager/switch/core.h"
#include "manager/verdicts/diagnosis_core.h"

namespace taskd::manager {

struct LoggedEvent {
  uint64_t number = 0;  // from 1, without gaps
  int64_t time_ns = 0;  // Unix
  std::string kind;     // of SupervisionKindName, or "switch", "verdict_opened", "action_decided", ...
  std::string text;     // one line for people
  int rank = -1;        // of a launcher's event
  int node = -1;
  std::string detail;  // merged stacks; else empty
};

class EventLog final : public ReportSink, public ChangeSink {
 public:
  static constexpr size_t kMaxEvents = 1000;
  static constexpr size_t kMaxBytes = size_t{1} << 20;  // of texts and details
  static constexpr size_t kMaxTextBytes = 4096;         // of one event's text

  EventLog() = default;
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void Add(const SupervisionEvent& event);
  void Add(const diagnosis::Report& report, int64_t time_ns);
  void Add(const SwitchState& state, int64_t time_ns);
  void Add(LoggedEvent event);  // its number is filled in

  // Those above `since`, oldest first, the newest `most`.
  std::vector<LoggedEvent> Since(uint64_t since, size_t most) const;
  uint64_t last() const;
  // The newest event with stacks that is not older; number 0: none.
  LoggedEvent NewestStacks(int64_t not_before_ns) const;

  // ReportSink and ChangeSink.
  void Changed(std::shared_ptr<const diagnosis::Report> report) override;
  void Changed(const SwitchState& state) override;
  void Close() override {}

 private:
  void Append(LoggedEvent event);

  mutable std::mutex mutex_;
  std::deque<LoggedEvent> events_;
  size_t bytes_ = 0;
  uint64_t last_ = 0;
  std::map<uint64_t, bool> verdicts_;  // by id: whether it is open
  bool verdicts_known_ = false;
  bool wanted_known_ = false;
};

}  // namespace taskd::manager
