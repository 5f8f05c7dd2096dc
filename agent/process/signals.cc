#include "agent/process/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::process {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

absl::StatusOr<UniqueFd> WatchSignals(EventLoop* loop, const std::vector<int>& signals,
                                      std::function<void(int signal)> callback) {
  sigset_t taken;
  sigemptyset(&taken);
  for (int signal : signals) sigaddset(&taken, signal);
  sigset_t blocked = taken;
  sigaddset(&blocked, SIGCHLD);
  UniqueFd fd;
  if (sigprocmask(SIG_BLOCK, &blocked, nullptr) == 0) fd.reset(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("signals cannot be handled: ", strerror(errno)));
  loop->Add(fd.get(), EPOLLIN, [fd = fd.get(), callback = std::move(callback)](uint32_t) {
    signalfd_siginfo info;
    while (read(fd, &info, sizeof(info)) == sizeof(info)) callback(static_cast<int>(info.ssi_signo));
  });
  return fd;
}

}  // namespace taskd::process
