// When a daemon has to end: SIGTERM, SIGINT, or the end of stdin where a parent holds the other end.
//
// With such a parent it is the parent who decides. A scheduler signals every process of a job at once, and what the ranks
// record until they end still has to be taken: a signal, like anything that the parent writes into stdin, says only that
// the job ends.
#pragma once

#include <functional>
#include <string>

#include "common/unique_fd.h"

namespace taskd {

// What ends no daemon: SIGPIPE; SIGUSR1, SIGUSR2 and SIGHUP, which schedulers send to every process of a job and mean
// for its ranks (a checkpoint before the time is over), and terminals that close.
void IgnoreStraySignals();

// Create it before the first thread: SIGTERM and SIGINT are blocked from then on, in threads made later too, and
// delivered to Wait() alone, also where the process has no free descriptor by then. IgnoreStraySignals() is done.
class StopSignal {
 public:
  explicit StopSignal(bool on_stdin_eof);

  // Tells who has started the daemon that it serves: a parent whose end of stdin is a socket by one byte, else a service
  // manager (service_notify.h), which Wait() tells that the daemon ends.
  void SayReady() const;

  // Blocks until it is time to stop; returns why ("SIGTERM", "SIGINT", "stdin has closed"). `job_ends`: called before,
  // once, as soon as it is known.
  std::string Wait(const std::function<void()>& job_ends = [] {});

 private:
  const bool on_stdin_eof_;
  UniqueFd signals_;
};

}  // namespace taskd
