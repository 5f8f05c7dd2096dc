#include "manager/actions/command_receiver.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/descriptors.h"
#include "common/environment.h"
#include "common/files.h"
#include "common/order_to.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "policy/render.h"

namespace taskd::manager {
namespace {

using policy::Outcome;

constexpr int kTryAgain = 75;  // EX_TEMPFAIL of sysexits.h
constexpr int kNotExecuted = 126;
constexpr int kSignals = 65;
constexpr int kLookMs = 20;
constexpr size_t kTailBytes = 4096;
constexpr char kNotExecutedText[] = "it cannot be executed\n";

OrderAnswer Again(const char* what) { return {Outcome::kSent, absl::StrCat(what, ": ", std::strerror(errno))}; }

// "NAME=VALUE", and pointers to them, as execve() has them.
struct Variables {
  explicit Variables(const Environment& environment) {
    for (const auto& [name, value] : environment) texts.push_back(absl::StrCat(name, "=", value));
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
  }
  std::vector<std::string> texts;
  std::vector<char*> pointers;
};

// What the child needs, made before fork().
struct Child {
  const char* path;
  char* const* variables;
  int in, out;
  pid_t parent;
  bool may_gain;  // it has all privileges already
  std::optional<rlimit> descriptors;
};

// Between fork and exec: only what is safe in a signal handler.
[[noreturn]] void Execute(const Child& child) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != child.parent) ::_exit(kNotExecuted);  // it died before prctl
  if (!child.may_gain) ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < kSignals; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (child.descriptors) ::setrlimit(RLIMIT_NOFILE, &*child.descriptors);
  ::dup2(child.in, STDIN_FILENO);
  ::dup2(child.out, STDOUT_FILENO);
  ::dup2(child.out, STDERR_FILENO);
  ::close_range(3, ~0U, 0);  // all of ours close by themselves; kernels before 5.9 have to rely on it
  char* const arguments[] = {const_cast<char*>(child.path), nullptr};
  ::execve(child.path, arguments, child.variables);
  [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, kNotExecutedText, sizeof(kNotExecutedText) - 1);
  ::_exit(kNotExecuted);
}

// The end of what comes out of a pipe.
class Output {
 public:
  explicit Output(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }  // -1: its end has come
  size_t bytes() const { return bytes_; }
  // Takes what is there now, and little more than `most` bytes in all.
  void Read(size_t most) {
    char piece[4096];
    while (fd_.get() >= 0 && bytes_ <= most) {
      const ssize_t got = ::read(fd_.get(), piece, sizeof(piece));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return;
      if (got == 0) fd_.reset();
      bytes_ += static_cast<size_t>(got);
      tail_.append(piece, static_cast<size_t>(got));
      if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
    }
  }
  // The last line that is not empty.
  std::string LastLine() const {
    std::string last;
    for (absl::string_view line : absl::StrSplit(tail_, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (!line.empty()) last = Printable(std::string(line));
    }
    return last;
  }

 private:
  UniqueFd fd_;
  size_t bytes_ = 0;
  std::string tail_;
};

bool HasEnded(pid_t pid) {
  siginfo_t info{};
  // It stays a zombie, so that nobody else gets its number while its group is killed.
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

OrderAnswer AnswerOf(int status, const std::string& line) {
  const std::string said = line.empty() ? "" : absl::StrCat(": ", line);
  if (WIFSIGNALED(status)) {
    return {Outcome::kFailed, absl::StrCat("it was ended by signal ", WTERMSIG(status), said)};
  }
  const int code = WEXITSTATUS(status);
  if (code == 0) return {Outcome::kTaken, line.empty() ? "exit code 0" : line};
  return {code == kTryAgain ? Outcome::kSent : Outcome::kFailed, absl::StrCat("exit code ", code, said)};
}

}  // namespace

CommandReceiver::CommandReceiver(std::string path, Now now) : path_(std::move(path)), now_(std::move(now)) {}

OrderAnswer CommandReceiver::Send(const policy::Action& action) {
  // It may have changed since the manager's start.
  if (const absl::Status checked = CheckCommand(path_); !checked.ok()) {
    return {Outcome::kFailed, std::string(checked.message())};
  }
  // A file, which takes all of it at once.
  const UniqueFd input(::memfd_create("taskd-order", MFD_CLOEXEC));
  if (input.get() < 0 || WriteAll(input.get(), policy::RenderJson(action) + "\n") != 0 ||
      ::lseek(input.get(), 0, SEEK_SET) != 0) {
    return Again("its input cannot be made");
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Again("pipe2");
  Output output{UniqueFd(ends[0])};
  UniqueFd their_end(ends[1]);
  ::fcntl(output.fd(), F_SETFL, O_NONBLOCK);
  Environment environment = OwnEnvironment();
  environment["TASKD_ACTION_ID"] = action.id;
  environment["TASKD_NODE_NAME"] = action.node_name;
  Variables variables(environment);
  const Child child{path_.c_str(),    variables.pointers.data(), input.get(), their_end.get(), ::getpid(),
                    ::geteuid() == 0, DescriptorLimitBefore()};
  const auto deadline = now_() + kLimit;
  const pid_t pid = ::fork();
  if (pid < 0) return Again("fork");
  if (pid == 0) Execute(child);
  their_end.reset();

  std::string killed;  // why
  while (killed.empty() && !HasEnded(pid)) {
    pollfd readable{output.fd(), POLLIN, 0};
    ::poll(&readable, 1, kLookMs);
    output.Read(kMostOutput);
    if (output.bytes() > kMostOutput) killed = absl::StrCat("printed more than ", kMostOutput, " bytes");
    if (now_() >= deadline) killed = absl::StrCat("had not ended after ", kLimit.count(), " s");
    if (stopped_) killed = "was still running when the manager ended";
  }
  ::kill(-pid, SIGKILL);
  ::kill(pid, SIGKILL);  // one that has no group of its own yet
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  output.Read(kMostOutput);
  const std::string line = output.LastLine();
  if (killed.empty()) return AnswerOf(status, line);
  return {Outcome::kFailed, absl::StrCat("it ", killed, " and was killed", line.empty() ? "" : ": ", line)};
}

OrderAnswer CommandReceiver::Withdraw(const policy::Action&) {
  return {Outcome::kFailed, "a command's work cannot be taken back"};
}

}  // namespace taskd::manager
