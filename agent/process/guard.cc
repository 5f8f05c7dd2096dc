#include "agent/process/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"

namespace taskd::process {
namespace {

constexpr int kSocket = 3;  // the only descriptor of the guard beside 0, 1 and 2
constexpr int kMaxLooks = 3000;
constexpr timespec kBetweenLooks{0, 10'000'000};

std::string ReadEnvironment(const char* pid) {
  const int fd = ::open(absl::StrCat("/proc/", pid, "/environ").c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  char buffer[1 << 14];
  for (ssize_t count; fd >= 0 && (count = ::read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  if (fd >= 0) ::close(fd);
  return text;
}

// Returns how many were found.
int KillAll(const std::string& cookie) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return 0;
  int found = 0;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 1 || pid == ::getpid() || !HasCookie(ReadEnvironment(entry->d_name), cookie)) continue;
    ++found;
    ::kill(pid, SIGKILL);
  }
  ::closedir(proc);
  return found;
}

void Tell(char what) { ::send(kSocket, &what, 1, MSG_NOSIGNAL | MSG_DONTWAIT); }

// Returns when the launcher is gone. Its goodbye ends the guard.
void TellSignalsUntilItEnds(const sigset_t& signals) {
  const int signal_fd = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  while (true) {
    pollfd polls[2] = {{kSocket, POLLIN, 0}, {signal_fd, POLLIN, 0}};
    if (::poll(polls, 2, -1) < 0) continue;
    signalfd_siginfo info;
    while (::read(signal_fd, &info, sizeof(info)) == sizeof(info)) Tell(static_cast<char>(info.ssi_signo));
    if (polls[0].revents == 0) continue;
    char word = 0;
    const ssize_t count = ::recv(kSocket, &word, 1, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return;
    if (count == 1 && word != Guard::kAsk) ::_exit(0);
    if (count == 1) Tell(Guard::kAnswer);
  }
}

[[noreturn]] void RunGuard(int fd, const std::string& cookie) {
  // A session of its own, and deaf: what ends the launcher must not end its guard.
  ::setsid();
  ::prctl(PR_SET_NAME, "taskd-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // Holds nothing that others wait for: neither a folder nor the end of a pipe.
  if (::chdir("/") != 0) ::_exit(1);
  const int null = ::open("/dev/null", O_RDWR);
  if (fd != kSocket) ::dup2(fd, kSocket);
  if (null != kSocket) {
    for (int i = 0; i < kSocket; ++i) ::dup2(null, i);
  }
  if (::close_range(kSocket + 1, ~0U, 0) != 0) {
    for (int i = kSocket + 1; i < 65536; ++i) ::close(i);
  }
  TellSignalsUntilItEnds(all);
  // Until two passes in a row find nothing: a process that forks during one pass is found by the next.
  for (int looks = 0, empty = 0; empty < 2 && looks < kMaxLooks; ++looks) {
    empty = KillAll(cookie) == 0 ? empty + 1 : 0;
    ::nanosleep(&kBetweenLooks, nullptr);
  }
  ::_exit(0);
}

}  // namespace

std::string NewCookie() {
  std::random_device random;
  std::string cookie;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&cookie, absl::Hex(random(), absl::kZeroPad8));
  return cookie;
}

bool HasCookie(std::string_view environment, std::string_view cookie) {
  const std::string name = absl::StrCat(kCookieVariable, "=");
  while (!environment.empty()) {
    const size_t end = std::min(environment.find('\0'), environment.size());
    std::string_view variable = environment.substr(0, end);
    environment.remove_prefix(std::min(end + 1, environment.size()));
    if (!variable.starts_with(name)) continue;
    variable.remove_prefix(name.size());
    while (true) {
      const size_t comma = std::min(variable.find(','), variable.size());
      if (variable.substr(0, comma) == cookie) return true;
      if (comma == variable.size()) break;
      variable.remove_prefix(comma + 1);
    }
  }
  return false;
}

absl::StatusOr<std::unique_ptr<Guard>> Guard::Start(const std::string& cookie) {
  auto fail = [](const char* what) {
    return absl::UnavailableError(absl::StrCat("guard: ", what, ": ", std::strerror(errno)));
  };
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fail("no socket");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    RunGuard(ends[0], cookie);
  }
  ::close(ends[0]);
  if (pid < 0) {
    ::close(ends[1]);
    return fail("no process");
  }
  return std::unique_ptr<Guard>(new Guard(pid, ends[1]));
}

Guard::~Guard() {
  ::send(fd_, "", 1, MSG_NOSIGNAL);
  ::close(fd_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace taskd::process
