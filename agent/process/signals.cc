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

std::vector<int> NotIgnored(std::vector<int> signals) {
  std::erase_if(signals, [](int signal) {
    struct sigaction action {};
    return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  });
  return signals;
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
      watch->Receive(static_cast<int>(info.ssi_signo));
    }
  });
  return watch;
}

void SignalWatch::CompareWith(const Guard& guard) {
  guard_ = guard.fd();
  loop_->Add(guard_, EPOLLIN, [this](uint32_t) { ReadGuard(); });
}

void SignalWatch::Receive(int signal) {
  IfAlone if_alone = on_signal_(signal);
  if (!if_alone) return;
  if (guard_ < 0) return if_alone();
  loop_->RunAfter(kOthersNs,
                  [this, received = Received{signal, EventLoop::NowNs(), std::move(if_alone)}] { AskGuard(received); });
}

// On a busy machine it may have got the signal and not have run since.
void SignalWatch::AskGuard(const Received& received) {
  if (guard_ < 0 || send(guard_, &Guard::kAsk, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return Decide(received);
  undecided_.emplace(++asked_, received);
  loop_->RunAfter(kAnswerNs, [this, question = asked_] { WaitNoLonger(question); });
}

void SignalWatch::ReadGuard() {
  char word = 0;
  ssize_t count = 0;
  while ((count = recv(guard_, &word, 1, MSG_DONTWAIT)) == 1) {
    if (word == Guard::kAnswer) {
      WaitNoLonger(++answered_);
    } else {
      guards_ns_[word] = EventLoop::NowNs();
    }
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  loop_->Remove(std::exchange(guard_, -1));  // somebody has killed the guard
  while (!undecided_.empty()) WaitNoLonger(undecided_.begin()->first);
}

void SignalWatch::WaitNoLonger(uint64_t question) {
  const auto found = undecided_.find(question);
  if (found == undecided_.end()) return;
  const Received received = std::move(found->second);
  undecided_.erase(found);
  Decide(received);
}

void SignalWatch::Decide(const Received& received) const {
  const auto guards = guards_ns_.find(received.signal);
  if (guards == guards_ns_.end() || guards->second < received.at_ns - kOthersNs) received.if_alone();
}

}  // namespace taskd::process
