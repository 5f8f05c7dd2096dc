// Nothing of the ranks survives a launcher that was killed with SIGKILL.
//
// Ranks die with the launcher by PR_SET_PDEATHSIG, but what they started does not. The guard is a small process that
// holds one end of a socket. When the launcher is gone without a goodbye, it ends every process that has the
// launcher's cookie in its environment, wherever that process went (other sessions, adopted by init). What has cleared
// its environment, or overwrote it (setproctitle), is not found.
//
// Like the ranks it is in a session of its own. So a signal that it gets as well has been sent to every process of the
// job, as Slurm does; it tells the launcher (signals.h).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/own_process.h"

namespace taskd::process {

// Each rank's environment has it (worker_env.h). A launcher inside a rank appends its own cookie with a comma, so that
// the outer guard finds the inner ranks, too.
using taskd::kCookieVariable;

// Random, of letters and digits.
std::string NewCookie();

// Whether `environment`, as in /proc/PID/environ, has the cookie.
bool HasCookie(std::string_view environment, std::string_view cookie);

class Guard {
 public:
  // Call before the first thread: it forks, and the guard goes on in the fork. WorkerGroup::Spare(pid()) afterwards.
  // UNAVAILABLE: no process or socket can be had.
  static absl::StatusOr<std::unique_ptr<Guard>> Start(const std::string& cookie);
  ~Guard();  // dismisses the guard, which ends without doing anything. Waits for it unless another part does.

  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  // Has a byte for each signal that the guard got, its number, and a kAnswer for each kAsk that is written to it, behind
  // the signals that it had got by then; its end: the guard is gone.
  int fd() const { return fd_; }
  static constexpr char kAsk = 1;
  static constexpr char kAnswer = 0;

 private:
  Guard(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  const pid_t pid_;
  const int fd_;
};

}  // namespace taskd::process
