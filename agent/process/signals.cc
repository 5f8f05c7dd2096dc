#include "agent/process/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
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

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create(EventLoop* loop, const std::vector<int>& signals,
                                                                 OnSignal on_signal) {
  std::unique_ptr<SignalWatch> watch(new SignalWatch(loop, std::move(on_signal)));
  sigset_t taken;
  sigemptyset(&taken);
  for (int signal : signals) sigaddset(&taken, signal);
  sigset_t blocked = taken;
  sigaddset(&blocked, SIGCHLD);
  if (sigprocmask(SIG_BLOCK, &blocked, nullptr) == 0) {
    watch->fd_.reset(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  if (!watch->fd_.valid()) return absl::UnavailableError(absl::StrCat("signals cannot be handled: ", strerror(errno)));
  loop->Add(watch->fd_.get(), EPOLLIN, [watch = watch.get()](uint32_t) {
    signalfd_siginfo info;
    while (read(watch->fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      watch->Received(static_cast<int>(info.ssi_signo));
    }
  });
  return watch;
}

void SignalWatch::CompareWith(const Guard& guard) {
  compares_ = true;
  loop_->Add(guard.fd(), EPOLLIN, [this, fd = guard.fd()](uint32_t) { ReadGuard(fd); });
}

void SignalWatch::ReadGuard(int fd) {
  unsigned char signal = 0;
  ssize_t count = 0;
  while ((count = recv(fd, &signal, 1, MSG_DONTWAIT)) == 1) guards_ns_[signal] = EventLoop::NowNs();
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  loop_->Remove(fd);  // somebody has killed the guard
  compares_ = false;
}

void SignalWatch::Received(int signal) {
  const IfAlone if_alone = on_signal_(signal);
  if (!if_alone) return;
  if (!compares_) return if_alone();
  const int64_t received_ns = EventLoop::NowNs();
  loop_->RunAfter(kOthersNs, [this, signal, received_ns, if_alone] {
    const auto guards = guards_ns_.find(signal);
    if (guards == guards_ns_.end() || guards->second < received_ns - kOthersNs) if_alone();
  });
}

}  // namespace taskd::process
