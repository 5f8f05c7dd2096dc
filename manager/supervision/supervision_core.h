// What launchers reported of the ranks they supervise, what the ranks' steps show about hangs, and who wants to hear of
// them. Without transport.
//
// Design: one mutex around everything; sinks are called under it. One thread looks at the job once a second. Time in
// which it did not run is no time in which the ranks did nothing (ObservedClock).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/observed_clock.h"
#include "manager/supervision/hang_evidence.h"
#include "manager/supervision/hang_watch.h"
#include "manager/switch/core.h"

namespace taskd::manager {

// taskd.v1.SupervisionEvent.
struct SupervisionEvent {
  enum class Kind { kUnknown, kStarted, kExited, kRestarting, kEnded, kHang, kResumed, kStacks, kEvidence };
  enum class Cause { kUnknown, kRankExit, kNodeLost, kTerminated, kInterrupted, kNodeJoined, kOrdered, kTimedOut };
  Kind kind = Kind::kUnknown;
  int round = 0;
  int restart_count = 0;
  int rank = -1;
  int node = -1;
  int pid = 0;
  int code = 0;
  int signal = 0;
  int world_size = 0;
  Cause cause = Cause::kUnknown;  // of kRestarting and kEnded
  std::string message;            // for people
  int64_t time_ns = 0;
  std::shared_ptr<const HangEvidence> evidence;  // of kEvidence; of kStacks the frames of the hang's first origin
};

// "started", "exited", ...
const char* SupervisionKindName(SupervisionEvent::Kind kind);

struct SupervisionSnapshot {
  enum class State { kUnknown, kRunning, kRestarting, kHung, kEnded };  // taskd.v1.SupervisionStatus.State
  State state = State::kUnknown;
  uint64_t restarts = 0;
  uint64_t rank_exits = 0;
  int hung_ranks = 0;
  std::optional<HangVerdict> hang;               // the open one, or the one in which the job ended
  std::shared_ptr<const HangEvidence> evidence;  // of it; null: none has come
  HangFrames frames;                             // of it
  std::vector<SupervisionEvent> events;          // newest last
  std::string waits_for;                         // whom the rendezvous waits for; empty: for nobody
  SteadyTime waits_since;                        // if it does

  // All that is known of `hang`, which there is.
  HangEvidence hang_answer() const {
    return MergeEvidence(*hang, evidence == nullptr ? HangEvidence() : *evidence, frames);
  }
};

// A launcher that wants to hear of hangs. Called under the core's lock: takes note and goes.
class HangSink {
 public:
  virtual void OnVerdict(const HangVerdict& verdict) = 0;
  virtual void Close() = 0;  // the core ends; not called again

 protected:
  ~HangSink() = default;
};

// Every function may be called from any thread.
class SupervisionCore {
 public:
  static constexpr size_t kMaxEvents = 200;
  static constexpr size_t kMaxEventsBytes = size_t{256} * 1024;  // of their messages; an answer holds them all
  static constexpr size_t kMaxMessageBytes = size_t{64} * 1024;

  // `look`: the job as it is now, called once a second in a thread of the core. Empty: nobody looks (tests call Look).
  // `on_event`: hears of each event, in order, under the core's lock: takes note and goes. `on_waits`: of SetWaitsFor.
  explicit SupervisionCore(std::function<JobPulse()> look, std::function<void(const SupervisionEvent&)> on_event = {},
                           std::function<void(const std::string& waits_for)> on_waits = {});
  ~SupervisionCore();
  SupervisionCore(const SupervisionCore&) = delete;
  SupervisionCore& operator=(const SupervisionCore&) = delete;

  // Takes all or none. INVALID_ARGUMENT: a kind that only the manager knows (hang is ours), numbers below -1.
  absl::Status Report(std::vector<SupervisionEvent> events, SteadyTime now);
  // Whom the rendezvous waits for; empty: for nobody.
  void SetWaitsFor(std::string waits_for, SteadyTime now);
  void Look(const JobPulse& job, SteadyTime now, int64_t realtime_ns);

  // Looks at the job once more. Whether the ranks may be ended because of the hang with this number.
  struct Confirmation {
    bool is_open = false;
    std::string why_not;  // of an open one, why not now; empty: they may
  };
  Confirmation ConfirmAction(uint64_t hang, SteadyTime now, int64_t realtime_ns);

  // From now on; the settings are the job's. Reports an open hang at once. False: closed, nothing was reported.
  bool Subscribe(HangSink* sink, const HangOptions& options);
  void Unsubscribe(HangSink* sink);

  SupervisionSnapshot Snapshot() const;
  // Ends the thread and closes the sinks.
  void Close();

 private:
  // INVALID_ARGUMENT: it makes no sense.
  static absl::Status Check(const SupervisionEvent& event);
  // Counts it. Returns a hang that it ends. With the mutex.
  std::optional<HangVerdict> Take(const SupervisionEvent& event, SteadyTime now);
  // Ranks have ended. Returns the hang that this ends. With the mutex.
  std::optional<HangVerdict> EndHang(SteadyTime now);
  void Add(SupervisionEvent event);
  void Publish(const HangVerdict& verdict, int64_t realtime_ns);
  SteadyTime Observed(SteadyTime now);
  void Run();

  const std::function<JobPulse()> look_;
  const std::function<void(const SupervisionEvent&)> on_event_;
  const std::function<void(const std::string&)> on_waits_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool closed_ = false;
  SupervisionSnapshot::State state_ = SupervisionSnapshot::State::kUnknown;
  uint64_t restarts_ = 0;
  uint64_t rank_exits_ = 0;
  std::deque<SupervisionEvent> events_;
  size_t events_bytes_ = 0;
  std::string waits_for_;
  SteadyTime waits_since_;
  ObservedClock clock_;
  HangWatch watch_;                               // in that clock's time
  std::shared_ptr<const HangEvidence> evidence_;  // of its open hang
  HangFrames frames_;                             // of it
  struct EndedHang {
    HangVerdict verdict;
    std::shared_ptr<const HangEvidence> evidence;
    HangFrames frames;
  };
  std::optional<EndedHang> ended_in_;  // open when the ranks ended, until they start again
  std::set<HangSink*> sinks_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace taskd::manager
