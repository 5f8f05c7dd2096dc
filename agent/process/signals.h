// Signals of a launcher as events of its loop, and whether the ranks have had them, too.
//
// Kubernetes and people signal the launcher, which passes the signal on. Slurm signals every process of a step, in any
// order, the ranks included; who passes that on makes them write their checkpoint twice. There is no telling from the
// signal itself. So the guard, a process beside the ranks, notes what it gets: what the launcher got and the guard did
// not is the launcher's alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/process/guard.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"

namespace taskd::process {

// Those of `signals` that this process does not ignore. Who has started it with one ignored, as nohup does with SIGHUP and
// a shell with SIGINT of what it puts into the background, wants it to stay so.
std::vector<int> NotIgnored(std::vector<int> signals);

// "SIGTERM"; "signal 34" for those without a name.
std::string SignalName(int signal);

// On the loop's thread, until the loop ends; to be kept as long.
class SignalWatch {
 public:
  // Called for each signal, at once. What it returns is called later if the signal came to this process alone: after
  // kOthersNs, once the guard has said what it got.
  using IfAlone = std::function<void()>;
  using OnSignal = std::function<IfAlone(int signal)>;

  // The longest that passes until every process has a signal that all are sent.
  static constexpr int64_t kOthersNs = 100'000'000;
  // A guard that does not get a CPU for so long is not waited for.
  static constexpr int64_t kAnswerNs = 5'000'000'000;

  // Takes the place of these signals' default action. Blocks them, and SIGCHLD for the WorkerGroup, in this thread and
  // in those that it starts from now on. Without CompareWith() every signal came to this process alone.
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create(EventLoop* loop, const std::vector<int>& signals,
                                                             OnSignal on_signal);
  // The guard has to live until the loop ends.
  void CompareWith(const Guard& guard);

  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  struct Received {
    int signal;
    int64_t at_ns;
    IfAlone if_alone;
  };

  SignalWatch(EventLoop* loop, OnSignal on_signal) : loop_(loop), on_signal_(std::move(on_signal)) {}

  void Receive(int signal);
  void AskGuard(const Received& received);
  void ReadGuard();
  void WaitNoLonger(uint64_t question);
  // By what the guard has said until now.
  void Decide(const Received& received) const;

  EventLoop* const loop_;
  const OnSignal on_signal_;
  UniqueFd fd_;
  int guard_ = -1;  // -1: there is none to compare with
  uint64_t asked_ = 0, answered_ = 0;
  std::map<uint64_t, Received> undecided_;  // by question to the guard, from 1: it answers in their order
  std::map<int, int64_t> guards_ns_;        // signal -> when the guard last got it
};

}  // namespace taskd::process
