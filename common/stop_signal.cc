#include "common/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/service_notify.h"

namespace taskd {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void IgnoreStraySignals() {
  for (int ignored : {SIGPIPE, SIGUSR1, SIGUSR2, SIGHUP}) signal(ignored, SIG_IGN);
}

StopSignal::StopSignal(bool on_stdin_eof) : on_stdin_eof_(on_stdin_eof) {
  sigset_t signals = StopSignals();
  signals_.reset(signalfd(-1, &signals, SFD_CLOEXEC));
  // Without a descriptor the signals keep their default and end the process.
  if (signals_.valid()) pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  IgnoreStraySignals();
}

void StopSignal::SayReady() const {
  if (on_stdin_eof_) {
    send(STDIN_FILENO, "\n", 1, MSG_NOSIGNAL | MSG_DONTWAIT);  // a pipe's end takes nothing
  } else {
    NotifyServiceManager("READY=1");
  }
}

std::string StopSignal::Wait(const std::function<void()>& job_ends) {
  bool told = false;
  auto tell = [&] {
    if (!std::exchange(told, true)) job_ends();
  };
  while (true) {
    pollfd polls[2] = {{signals_.get(), POLLIN, 0}, {on_stdin_eof_ ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(polls, 2, -1) < 0) continue;
    signalfd_siginfo info;
    if ((polls[0].revents & POLLIN) != 0 && read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      tell();
      if (!on_stdin_eof_) {
        NotifyServiceManager("STOPPING=1");
        return info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
      }
    }
    if (polls[1].revents == 0) continue;
    char ignored[256];
    ssize_t got = read(STDIN_FILENO, ignored, sizeof(ignored));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    tell();
    if (got <= 0) return "stdin has closed";
  }
}

}  // namespace taskd
