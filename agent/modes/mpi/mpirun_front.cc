#include "agent/modes/mpi/mpirun_front.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/process/signals.h"
#include "common/runtime_dir.h"

namespace taskd::modes {
namespace {

constexpr char kSocketVariable[] = "TASKD_MPIRUN_SOCKET";
constexpr char kFolderVariable[] = "TASKD_MPIRUN_FRONT";
constexpr char kSocketName[] = "/front.sock";
constexpr size_t kMaxLine = 64;
constexpr int kCannotExecute = 127;

std::optional<sockaddr_un> SocketAddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Answers are a few bytes: they always fit.
void SendLine(int fd, int64_t number) {
  const std::string line = absl::StrCat(number, "\n");
  [[maybe_unused]] ssize_t sent = send(fd, line.data(), line.size(), MSG_NOSIGNAL);
}

}  // namespace

MpirunFront::MpirunFront(EventLoop* loop, std::string folder, bool is_launcher, OnCall on_call)
    : loop_(loop), folder_(std::move(folder)), is_launcher_(is_launcher), on_call_(std::move(on_call)) {}

absl::StatusOr<std::unique_ptr<MpirunFront>> MpirunFront::Create(EventLoop* loop, const std::string& folder,
                                                                 const std::string& program, bool is_launcher,
                                                                 OnCall on_call) {
  auto fail = [](const std::string& path) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  };
  // It comes first in PATH: what others put there would run as this user.
  if (absl::StatusOr<UniqueFd> own = OpenOwnDir(folder, true); !own.ok()) return own.status();
  for (const char* name : {"/mpirun", "/mpiexec"}) {
    const std::string link = folder + name;
    unlink(link.c_str());
    if (symlink(program.c_str(), link.c_str()) != 0) return fail(link);
  }
  const std::string path = folder + kSocketName;
  unlink(path.c_str());
  const std::optional<sockaddr_un> address = SocketAddressOf(path);
  if (!address) return absl::UnavailableError(absl::StrCat(path, ": the name is too long for a socket"));
  std::unique_ptr<MpirunFront> front(new MpirunFront(loop, folder, is_launcher, std::move(on_call)));
  front->listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!front->listener_.valid() ||
      bind(front->listener_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0 ||
      listen(front->listener_.get(), SOMAXCONN) != 0) {
    return fail(path);
  }
  loop->Add(front->listener_.get(), EPOLLIN, [raw = front.get()](uint32_t) { raw->Accept(); });
  return front;
}

MpirunFront::~MpirunFront() {
  for (const auto& [fd, caller] : callers_) loop_->Remove(fd);
  if (listener_.valid()) loop_->Remove(listener_.get());
  for (const char* name : {"/mpirun", "/mpiexec", kSocketName}) unlink((folder_ + name).c_str());
  rmdir(folder_.c_str());
}

void MpirunFront::AddTo(std::map<std::string, std::string>* environment) const {
  (*environment)[kSocketVariable] = folder_ + kSocketName;
  (*environment)[kFolderVariable] = absl::StrCat(is_launcher_ ? "launcher:" : "worker:", folder_);
  std::string& path = (*environment)["PATH"];
  path = path.empty() ? absl::StrCat(folder_, ":/usr/local/bin:/usr/bin:/bin") : absl::StrCat(folder_, ":", path);
}

void MpirunFront::Accept() {
  int fd;
  while ((fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
    callers_[fd].fd.reset(fd);
    loop_->Add(fd, EPOLLIN, [this, fd](uint32_t) { Read(fd); });
  }
}

void MpirunFront::Read(int fd) {
  Caller& caller = callers_[fd];
  char buffer[256];
  ssize_t got;
  while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
    for (char c : std::string_view(buffer, static_cast<size_t>(got))) {
      if (c == '\n') {
        OnLine(caller, std::exchange(caller.line, ""));
      } else if (caller.line.size() < kMaxLine) {
        caller.line += c;
      }
    }
    if (!is_launcher_ && caller.number != 0 && Answer(caller)) return Close(fd);
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) Close(fd);
}

void MpirunFront::OnLine(Caller& caller, const std::string& line) {
  const bool asks = line == (is_launcher_ ? "start" : "wait");
  if (asks && caller.number == 0) {
    caller.number = ++calls_;
    if (is_launcher_) {
      SendLine(caller.fd.get(), caller.number);
      on_call_(caller.number, false, 0);
    }
    return;
  }
  int code = 0;
  if (is_launcher_ && caller.number != 0 && !caller.ended && line.rfind("ended ", 0) == 0 &&
      absl::SimpleAtoi(line.substr(6), &code)) {
    caller.ended = true;
    on_call_(caller.number, true, code);
  }
}

bool MpirunFront::Answer(Caller& caller) {
  auto found = codes_.find(caller.number);
  if (found == codes_.end() && !released_) return false;
  SendLine(caller.fd.get(), found == codes_.end() ? *released_ : found->second);
  return true;
}

void MpirunFront::AnswerAll() {
  std::vector<int> answered;
  for (auto& [fd, caller] : callers_) {
    if (!is_launcher_ && caller.number != 0 && Answer(caller)) answered.push_back(fd);
  }
  for (int fd : answered) Close(fd);
}

void MpirunFront::Ended(uint32_t number, int code) {
  codes_.emplace(number, code);
  AnswerAll();
}

void MpirunFront::Release(int code) {
  if (!released_) released_ = code;
  AnswerAll();
}

void MpirunFront::Close(int fd) {
  auto found = callers_.find(fd);
  if (found == callers_.end()) return;
  loop_->Remove(fd);
  Caller caller = std::move(found->second);
  callers_.erase(found);
  // Killed before it could report.
  if (is_launcher_ && caller.number != 0 && !caller.ended) on_call_(caller.number, true, 128 + SIGKILL);
}

// ---- The front

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct FrontPlace {
  bool is_launcher = false;
  std::string folder;
};

FrontPlace Place() {
  const std::string text = Variable(kFolderVariable);
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return {};
  return {text.substr(0, colon) == "launcher", text.substr(colon + 1)};
}

// PATH as it was before the front.
std::string PathWithout(const std::string& folder) {
  std::string path;
  for (absl::string_view part : absl::StrSplit(Variable("PATH"), ':')) {
    if (part != folder) absl::StrAppend(&path, path.empty() ? "" : ":", part);
  }
  return path;
}

// Becomes the real one. Programs that it starts see PATH as it is: they may call mpirun, too.
int Execute(const std::string& name, const std::string& folder, char** argv) {
  for (absl::string_view part : absl::StrSplit(PathWithout(folder), ':')) {
    const std::string candidate = absl::StrCat(part.empty() ? "." : part, "/", name);
    if (access(candidate.c_str(), X_OK) != 0) continue;
    argv[0] = const_cast<char*>(candidate.c_str());
    execv(candidate.c_str(), argv);
  }
  std::cerr << name << ": not found in PATH " << PathWithout(folder) << std::endl;
  return kCannotExecute;
}

// Asks about the program itself: nothing is started by it.
bool IsQuestion(int argc, char** argv) {
  if (argc == 1) return true;
  const std::string_view first = argv[1];
  return argc == 2 && (first == "--version" || first == "-V" || first == "--help" || first == "-h" || first == "-help");
}

int Connect() {
  const std::optional<sockaddr_un> address = SocketAddressOf(Variable(kSocketVariable));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!address || fd < 0) return -1;
  return connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) == 0 ? fd : -1;
}

std::optional<int> ReadNumber(int fd) {
  std::string line;
  char c;
  ssize_t got;
  while ((got = read(fd, &c, 1)) == 1 || (got < 0 && errno == EINTR)) {
    int number = 0;
    if (got == 1 && c == '\n') return absl::SimpleAtoi(line, &number) ? std::optional(number) : std::nullopt;
    if (got == 1) line += c;
  }
  return std::nullopt;
}

void SendText(int fd, const std::string& line) {
  [[maybe_unused]] ssize_t sent = send(fd, line.data(), line.size(), MSG_NOSIGNAL);
}

volatile sig_atomic_t real_pid = 0;

// The real one has a process group of its own, so that it gets each signal once: from here.
void Forward(int signal) {
  if (real_pid > 0) kill(real_pid, signal);
}

// Ends as the child did, so that a shell sees the same.
int EndAs(int wait_status) {
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status);
  signal(WTERMSIG(wait_status), SIG_DFL);
  raise(WTERMSIG(wait_status));
  return 128 + WTERMSIG(wait_status);
}

int RunReal(int socket_fd, const std::string& name, const std::string& folder, char** argv) {
  const std::vector<int> forwarded = process::NotIgnored({SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2});
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  for (int one : forwarded) sigaddset(&blocked, one);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    std::cerr << name << ": " << std::strerror(errno) << std::endl;
    return 1;
  }
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kCannotExecute);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    _exit(Execute(name, folder, argv));
  }
  real_pid = pid;
  struct sigaction action {};
  action.sa_handler = Forward;
  for (int one : forwarded) sigaction(one, &action, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  real_pid = 0;
  SendText(socket_fd, absl::StrCat("ended ", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), "\n"));
  return EndAs(status);
}

}  // namespace

bool IsMpirunFront(const std::string& program) {
  const std::string name = program.substr(program.rfind('/') + 1);
  return (name == "mpirun" || name == "mpiexec") && !Variable(kFolderVariable).empty();
}

int RunMpirunFront(int argc, char** argv) {
  const std::string program = argv[0];
  const std::string name = program.substr(program.rfind('/') + 1);
  const FrontPlace place = Place();
  if (IsQuestion(argc, argv)) return Execute(name, place.folder, argv);
  const int fd = Connect();
  if (place.is_launcher) {
    // Without its launcher there is nothing that waits for it either.
    if (fd < 0) return Execute(name, place.folder, argv);
    SendText(fd, "start\n");
    ReadNumber(fd);
    return RunReal(fd, name, place.folder, argv);
  }
  if (fd >= 0) SendText(fd, "wait\n");
  const std::optional<int> code = fd < 0 ? std::nullopt : ReadNumber(fd);
  if (code) return *code;
  std::cerr << name << ": `taskd run` of this node is gone, so nobody knows how node 0's " << name << " ends"
            << std::endl;
  return 1;
}

}  // namespace taskd::modes
