#include "agent/process/daemons.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/process/exit_code.h"
#include "agent/process/guard.h"
#include "agent/process/process_tree.h"
#include "agent/process/spawn.h"
#include "common/address.h"
#include "common/environment.h"
#include "common/files.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "common/runtime_dir.h"
#include "marks/mark_folder.h"

namespace taskd::process {
namespace {

constexpr int kManagerPort = 9601;
constexpr int kProxyPort = 9602;
constexpr int kHttpPort = 9603;
constexpr int kPortsTried = 100;
constexpr int kManagersTried = 6;
constexpr char kLockFile[] = "/lock";
constexpr char kJoinedFile[] = "/launchers";  // locked by each that needs the proxy of another one
constexpr time_t kYoungS = 60;
constexpr auto kFolderPatience = std::chrono::milliseconds(500);
constexpr auto kManagerPatience = std::chrono::milliseconds(1500);
constexpr auto kTurnPatience = std::chrono::seconds(2);
constexpr auto kManagersShare = std::chrono::milliseconds(1000);  // of the time until the deadline
constexpr auto kPoll = std::chrono::milliseconds(5);

bool IsFree(const HostPort& address) { return CheckCanListen("", address).ok(); }

// Beside the program: as built, as installed, or in the Python package.
std::string FindLibrary(const std::string& program) {
  const std::filesystem::path folder = std::filesystem::path(program).parent_path();
  for (const char* place :
       {"../lib/libtaskd.so", "libtaskd.so", "../libs/libtaskd.so", "../python/cython_api/libs/libtaskd.so"}) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::canonical(folder / place, error);
    if (!error) return path.string();
  }
  return "";
}

// Not valid: it cannot be made.
UniqueFd OpenLock(const std::string& path) {
  absl::StatusOr<UniqueFd> lock = OpenOrCreateFile(path, O_RDWR, 0600);
  return lock.ok() ? *std::move(lock) : UniqueFd();
}

// Removes what killed launchers left behind, whose folders are no longer locked. `own`: from an earlier
// process with this one's number. Not young ones: their launchers may be about to lock them.
void Sweep(const std::string& parent, const std::string& own) {
  struct stat info;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    const std::string folder = entry->path().string();
    if (!absl::StartsWith(entry->path().filename().string(), "run-")) continue;
    absl::StatusOr<UniqueFd> lock = OpenFile(absl::StrCat(folder, kLockFile), O_RDWR);
    if (!lock.ok() || fstat(lock->get(), &info) != 0 || (folder != own && info.st_mtime > time(nullptr) - kYoungS)) {
      continue;
    }
    std::error_code ignored;
    if (flock(lock->get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(folder, ignored);
  }
}

// A folder of this launcher's own that no other user can replace: programs and sockets in it are trusted. Empty: none
// can be made.
std::string MakeRunFolder(const std::string& name) {
  absl::StatusOr<std::string> runtime = RuntimeDir();
  if (runtime.ok()) {
    std::string folder = absl::StrCat(*runtime, "/run-", name);
    Sweep(*runtime, folder);
    absl::StatusOr<UniqueFd> made = OpenOwnDir(folder, true);
    if (made.ok()) return folder;
    runtime = made.status();
  }
  absl::StatusOr<std::string> fresh = MakeFreshDir();
  if (fresh.ok()) {
    spdlog::warn("{}; {} is used in its place", runtime.status().message(), *fresh);
    return *fresh;
  }
  spdlog::warn("{}; {}; there is no folder for TaskD's own sockets and programs", runtime.status().message(),
               fresh.status().message());
  return "";
}

// Whoever has a name has it in the network namespace that ports are in, until `taken` or the process goes. False: a process
// of this user's or root's has it. A stranger's says nothing: any user can take any name.
bool TakeName(std::string_view name, UniqueFd& taken) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // after a zero: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  taken.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(taken.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 || errno != EADDRINUSE) return true;
  return MayBeStrangers({.gone = false, .user = UserOfAbstractSocket(name)});
}

// Whether a signal that ends this process is pending: the launcher blocks these and handles them in its loop.
bool EndIsAsked() {
  sigset_t pending;
  if (sigpending(&pending) != 0) return false;
  return std::ranges::any_of(std::array{SIGTERM, SIGINT, SIGHUP, SIGQUIT},
                             [&](int signal) { return sigismember(&pending, signal) == 1; });
}

// Managers of several jobs that start here at once would want the same ports, and each loser says so. So they take turns.
UniqueFd AwaitTurn() {
  UniqueFd turn;
  const auto deadline = std::chrono::steady_clock::now() + kTurnPatience;
  while (!TakeName("taskd-manager-starts", turn) && std::chrono::steady_clock::now() < deadline && !EndIsAsked()) {
    std::this_thread::sleep_for(kPoll);
  }
  return turn;
}

// Where a manager listens that other nodes reach there.
HostPort ListenAddress(const HostPort& reached) {
  if (IsLoopback(reached)) return reached;
  return {reached.host.find(':') != std::string::npos ? "::" : "0.0.0.0", reached.port};
}

// A child of ours that was reaped elsewhere counts as ended.
bool HasEnded(pid_t pid, int* exit_code = nullptr) {
  int status = 0;
  const pid_t result = waitpid(pid, &status, WNOHANG);
  if (exit_code != nullptr) *exit_code = result == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  return result == pid || (result < 0 && errno == ECHILD);
}

}  // namespace

std::map<std::string, std::string> MarkVariables(const std::string& library,
                                                 const std::map<std::string, std::string>& environment) {
  std::map<std::string, std::string> added;
  if (library.empty()) return added;
  const std::string preloaded = ValueOf(environment, "LD_PRELOAD");
  const bool has_it = absl::StrContains(absl::StrCat(":", preloaded, ":"), absl::StrCat(":", library, ":"));
  added["LD_PRELOAD"] = preloaded.empty() ? library : has_it ? preloaded : absl::StrCat(preloaded, ":", library);

  // What is set to nothing asks for none.
  const auto tool = environment.find("NVTX_INJECTION64_PATH");
  if (tool == environment.end()) {
    added["NVTX_INJECTION64_PATH"] = library;
  } else if (!tool->second.empty() && std::filesystem::path(tool->second).filename() != "libtaskd.so" &&
             ValueOf(environment, "TASKD_NVTX_CHAIN").empty()) {
    added["NVTX_INJECTION64_PATH"] = library;
    added["TASKD_NVTX_CHAIN"] = tool->second;
  }

  const std::filesystem::path profiler = std::filesystem::path(library).parent_path() / "libnccl-profiler-taskd.so";
  std::error_code error;
  if (!environment.contains("NCCL_PROFILER_PLUGIN") && std::filesystem::exists(profiler, error)) {
    added["NCCL_PROFILER_PLUGIN"] = profiler.string();
  }
  return added;
}

std::chrono::milliseconds RestartPause::After(std::chrono::nanoseconds lived) {
  if (lived >= kSoundLife) next_ = kFirst;
  return std::exchange(next_, std::min(2 * next_, kLongest));
}

bool EndedByStopSignal(int wait_status) {
  return WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) == SIGTERM || WTERMSIG(wait_status) == SIGINT
                                  : WEXITSTATUS(wait_status) == 0;
}

Daemons::Daemons(DaemonOptions options)
    : options_(std::move(options)), program_(ThisProgram()), library_(FindLibrary(program_)) {
  manager_.name = "manager";
  proxy_.name = "proxy";
  const bool shares = !options_.shared.empty();
  folder_ = MakeRunFolder(shares && options_.starts_proxy ? options_.shared : absl::StrCat(getpid()));
  socket_ = Variable("TASKD_SOCKET");
  if (shares && !options_.starts_proxy && socket_.empty()) {
    const absl::StatusOr<std::string> runtime = RuntimeDir();
    if (runtime.ok()) socket_ = absl::StrCat(*runtime, "/run-", options_.shared, "/proxy.sock");
  }
  if (folder_.empty()) return;
  lock_ = OpenLock(absl::StrCat(folder_, kLockFile));
  if (lock_.valid()) flock(lock_.get(), LOCK_EX | LOCK_NB);
  if (socket_.empty()) socket_ = absl::StrCat(folder_, "/proxy.sock");
}

// Not IsFree(): who listens there to find out takes the port away from who is about to.
bool Daemons::Answers(const HostPort& address) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(address.port));
  v6.sin6_addr = in6addr_loopback;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = v6.sin6_port;
  if (inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) != 1 || v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const bool is_v6 = address.host.find(':') != std::string::npos;
  UniqueFd fd(socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd.valid() && (is_v6 ? connect(fd.get(), reinterpret_cast<sockaddr*>(&v6), sizeof(v6))
                              : connect(fd.get(), reinterpret_cast<sockaddr*>(&v4), sizeof(v4))) == 0;
}

// For the tools that the user, or a rank, starts on this node. The manager's own node has the manager's.
void Daemons::LeaveJobFile(const std::string& manager) {
  absl::StatusOr<HostPort> address = ParseHostPort("--manager", manager);
  if (!address.ok() || secret_.empty() || manager_.pid != 0 || job_file_ != nullptr) return;
  JobFile job = DescribeManager(*address);
  job.secret = secret_;
  job.job = Variable("TASKD_JOB");
  if (job.job.empty()) job.job = options_.default_job;
  job.task_id = Variable("TASKD_TASK_ID");
  absl::StatusOr<std::unique_ptr<JobFileHandle>> file = JobFileHandle::Write(job);
  if (file.ok()) {
    job_file_ = *std::move(file);
  } else {
    spdlog::warn("tools on this node need --manager and TASKD_TOKEN: {}", file.status().message());
  }
}

// By the environment: a command line is read by everybody on the machine. What the operator gave, they have already.
void Daemons::SetSecretOf(Daemon& daemon) const {
  if (!secret_.empty() && Variable("TASKD_TOKEN").empty()) daemon.environment["TASKD_SECRET"] = secret_;
}

std::string Daemons::Variable(const std::string& name) const { return ValueOf(options_.environment, name); }

// For listeners whose port another job on this machine may have: no peer needs a fixed port here.
void Daemons::TakeAnyPortIfTaken(const std::string& variable, const std::string& flag, int port,
                                 std::vector<std::string>& argv) const {
  if (!Variable(variable).empty() || IsFree({"127.0.0.1", port})) return;
  argv.push_back(flag);
  argv.push_back("127.0.0.1:0");
}

bool Daemons::Start(Daemon& daemon) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    spdlog::warn("cannot start the {}: {}", daemon.name, strerror(errno));
    return false;
  }
  UniqueFd daemons_end(ends[0]);
  daemon.stdin_end.reset(ends[1]);

  // Their lines are about TaskD; stdout is the training's. They outlive a launcher that is killed until they see the
  // end of their stdin: the proxy first writes what was recorded.
  absl::StatusOr<pid_t> pid =
      Spawn(daemon.argv, daemon.environment, {.in = daemons_end.get(), .out = STDERR_FILENO, .outlives_caller = true});
  daemon.pid = pid.ok() ? *pid : 0;
  daemon.started_at = std::chrono::steady_clock::now();
  if (!pid.ok()) spdlog::warn("cannot start the {}: {}", daemon.name, pid.status().message());
  return pid.ok();
}

std::string Daemons::StartManager(const std::string& host) {
  const HostPort named = {host, kManagerPort};
  HostPort reached = {IsLoopback(named) ? "127.0.0.1" : host, kManagerPort};
  reached.port = StartManagerFrom(ListenAddress(reached), kPortsTried);
  return reached.port == 0 ? "" : FormatHostPort(reached);
}

bool Daemons::StartManagerAt(const HostPort& reached) { return StartManagerFrom(ListenAddress(reached), 1) != 0; }

int Daemons::StartManagerFrom(HostPort listen, int ports) {
  const UniqueFd turn = AwaitTurn();
  port_.reset();
  const int first = listen.port;
  int failures = 0;
  for (; listen.port < first + ports; ++listen.port) {
    if (EndIsAsked()) return 0;
    // Free or not: a proxy, or an HTTP listener, of a job that starts now may be about to listen there.
    if (ports > 1 && (listen.port == kProxyPort || listen.port == kHttpPort)) continue;
    if (!IsFree(listen)) continue;
    // Free, but a manager that a starved machine keeps from starting is about to listen there.
    if (ports > 1 && !TakeName(absl::StrCat("taskd-manager-at-", listen.port), port_)) continue;
    PrepareManager(listen);
    if (!Start(manager_)) return 0;
    int exit_code = 0;
    if (AwaitManager(listen, &exit_code)) return listen.port;
    manager_.pid = 0;
    if (!IsFree(listen)) {
      spdlog::warn("port {} was taken by another process while the manager started{}", listen.port,
                   ports > 1 ? "; the next free one is used" : "");
    }
    if (exit_code == kWrongUsage || ++failures >= kManagersTried) {
      spdlog::warn("no manager: it does not start");
      return 0;
    }
  }
  spdlog::warn("no manager: no free port from {} to {}", first, first + ports - 1);
  return 0;
}

void Daemons::PrepareManager(const HostPort& listen) {
  std::vector<std::string>& argv = manager_.argv;
  argv = {program_, "manager", "--listen", FormatHostPort(listen), "--exit-on-stdin-eof"};
  if (options_.nodes > 0) {
    argv.insert(argv.end(), {"--nodes", std::to_string(options_.nodes), "--procs-per-node",
                             std::to_string(options_.procs_per_node)});
  }
  if (listen.port == kHttpPort && Variable("TASKD_HTTP").empty()) {  // not against itself
    argv.insert(argv.end(), {"--http", "127.0.0.1:0"});
  } else {
    TakeAnyPortIfTaken("TASKD_HTTP", "--http", kHttpPort, argv);
  }
  if (!options_.default_job.empty() && Variable("TASKD_DEFAULT_JOB").empty()) {
    argv.insert(argv.end(), {"--default-job", options_.default_job});
  }
  const bool forgets = options_.forgets || Variable("TASKD_TASK_ID").empty();
  if (!folder_.empty() && Variable("TASKD_STATE_DIR").empty() && forgets) {
    // For a manager that has to be started again; the next job begins anew.
    argv.insert(argv.end(), {"--state-dir", absl::StrCat(folder_, "/manager")});
  }
  manager_.environment = options_.environment;
  SetSecretOf(manager_);
  manager_.environment["TASKD_STARTED_BY"] = "run";
  manager_.environment.erase("TASKD_LISTEN");  // the proxy's
  manager_.environment.try_emplace("TASKD_LOG_LEVEL", "warning");
}

// The manager says so by its stdin (StopSignal::SayReady). Another launcher may take the port in this moment: then this
// manager ends at once, and that one answers.
bool Daemons::AwaitManager(const HostPort& listen, int* exit_code) {
  const auto deadline = std::chrono::steady_clock::now() + kManagerPatience;
  while (!HasEnded(manager_.pid, exit_code)) {
    char byte;
    if (recv(manager_.stdin_end.get(), &byte, 1, MSG_DONTWAIT) == 1) {
      spdlog::info(
          "the manager is at port {0}: taskd status, or with --manager {1} where several jobs run; the page: taskd ui",
          listen.port, FormatHostPort({IsLoopback(listen) ? listen.host : "127.0.0.1", listen.port}));
      return true;
    }
    if (std::chrono::steady_clock::now() > deadline || EndIsAsked()) {
      if (Answers(listen)) {  // another process
        kill(manager_.pid, SIGKILL);
        waitpid(manager_.pid, nullptr, 0);
        return false;
      }
      spdlog::warn("the manager does not answer yet; marks may come late");
      return true;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

void Daemons::JoinProxy() {
  const absl::StatusOr<std::string> runtime = RuntimeDir();
  if (!runtime.ok()) return;
  const std::string folder = absl::StrCat(*runtime, "/run-", options_.shared);
  joined_ = OpenLock(absl::StrCat(folder, kJoinedFile));
  if (joined_.valid()) flock(joined_.get(), LOCK_SH | LOCK_NB);
}

// A launcher that is killed lets its lock go.
bool Daemons::IsNeededByOthers() const {
  if (options_.shared.empty() || !options_.starts_proxy || folder_.empty()) return false;
  absl::StatusOr<UniqueFd> joined = OpenFile(absl::StrCat(folder_, kJoinedFile), O_RDWR);
  return joined.ok() && flock(joined->get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

void Daemons::AwaitOtherLaunchers() const {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(options_.patience_s);
  const auto deadline = std::min(patience, deadline_ - kManagersShare);
  while (IsNeededByOthers() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
}

bool Daemons::HasOuterProxy() const {
  return !Variable(kCookieVariable).empty() && !Variable("TASKD_SOCKET").empty() && !Variable("TASKD_MANAGER").empty();
}

std::string Daemons::ChooseMarkFolder() {
  if (HasOuterProxy()) return "";
  MarkFolderWishes wishes = WishesOfEnvironment(options_.environment);
  for (const std::string& name : {options_.default_job, options_.label}) {
    if (wishes.job.empty()) wishes.job = name;
  }
  MarkFolder folder = taskd::ChooseMarkFolder(wishes, kFolderPatience);
  made_ = std::move(folder.made);
  const std::string marks = Variable("TASKD_MARKS");
  const std::string state = marks.empty() ? "marks are off (taskd switch all=on, or taskd run --marks all)"
                                          : absl::StrCat("marks are on (", marks, ")");
  if (folder.path.empty()) {
    marks_line_ = absl::StrCat(state, "; no folder can be written (", folder.refusal,
                               "), so steps are counted and judged without files");
  } else {
    marks_line_ = absl::StrCat(state, "; they go to ", folder.TaskPath());
  }
  return folder.Name();
}

void Daemons::StartProxy(int node_rank, const std::string& manager, const std::string& mark_folder) {
  if (!options_.shared.empty() && !options_.starts_proxy) return JoinProxy();
  // The proxy's own default may be another job's manager.
  if (manager.empty()) {
    spdlog::warn("no proxy, so nothing is recorded: the job has no manager");
    return;
  }
  LeaveJobFile(manager);
  if (HasOuterProxy()) {
    spdlog::info("the proxy at {} is the outer launcher's", socket_);
    return;
  }
  if (socket_.empty()) {
    spdlog::warn(
        "no proxy, so nothing is seen of the ranks: there is no folder for its socket; TASKD_SOCKET can name one");
    return;
  }
  proxy_.argv = {program_, "proxy",     "--node-rank", std::to_string(node_rank), "--socket",
                 socket_,  "--manager", manager,       "--exit-on-stdin-eof"};
  TakeAnyPortIfTaken("TASKD_LISTEN", "--listen", kProxyPort, proxy_.argv);
  proxy_.environment = options_.environment;
  proxy_.environment["TASKD_STARTED_BY"] = "run";
  SetSecretOf(proxy_);
  if (manager_.pid != 0) proxy_.environment.erase("TASKD_HTTP");  // the manager's, on this node
  if (Variable("TASKD_JOB").empty()) proxy_.environment["TASKD_JOB"] = options_.default_job;
  proxy_.environment["TASKD_MARK_FOLDER"] = mark_folder;
  proxy_.environment.try_emplace("TASKD_LOG_LEVEL", "warning");
  if (library_.empty()) {
    spdlog::warn("libtaskd.so is not beside {}: nothing is preloaded, so no marks but the ranks' own", program_);
  }
  if (Start(proxy_) && !marks_line_.empty()) spdlog::info("{}", std::exchange(marks_line_, ""));
}

std::optional<std::chrono::milliseconds> Daemons::OnExit(pid_t pid, int wait_status) {
  for (Daemon* daemon : {&manager_, &proxy_}) {
    if (daemon->pid != pid || pid == 0) continue;
    daemon->pid = 0;
    if (ending_) return std::nullopt;
    const std::string how = WIFSIGNALED(wait_status) ? absl::StrCat("signal ", WTERMSIG(wait_status))
                                                     : absl::StrCat("code ", WEXITSTATUS(wait_status));
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kWrongUsage) {
      spdlog::warn("the {} has ended ({}); training goes on without it", daemon->name, how);
      return std::nullopt;
    }
    daemon->ended_pid = pid;
    const std::chrono::milliseconds pause = daemon->pause.After(std::chrono::steady_clock::now() - daemon->started_at);
    spdlog::warn("the {} has ended ({}) and is started again in {} s", daemon->name, how,
                 static_cast<double>(pause.count()) / 1000);
    return pause;
  }
  return std::nullopt;
}

void Daemons::StartAgain(pid_t pid) {
  for (Daemon* daemon : {&manager_, &proxy_}) {
    if (ending_ || daemon->pid != 0 || daemon->ended_pid != pid) continue;
    daemon->ended_pid = 0;
    Start(*daemon);
  }
}

std::map<std::string, std::string> Daemons::RankEnvironment(const std::string& manager) const {
  std::map<std::string, std::string> added = MarkVariables(library_, options_.environment);
  if (!manager.empty()) added["TASKD_MANAGER"] = manager;
  if (!socket_.empty()) added["TASKD_SOCKET"] = socket_;
  if (Variable("TASKD_TORCH").empty()) added["TASKD_TORCH"] = "1";
  return added;
}

std::vector<pid_t> Daemons::pids() const {
  std::vector<pid_t> pids;
  for (const Daemon* daemon : {&manager_, &proxy_}) {
    if (daemon->pid != 0) pids.push_back(daemon->pid);
  }
  return pids;
}

void Daemons::ExpectEnd() {
  if (std::exchange(ending_, true)) return;
  // Not a signal, which ends a daemon that has not yet come to handling it.
  for (const Daemon* daemon : {&manager_, &proxy_}) {
    if (daemon->pid != 0 && send(daemon->stdin_end.get(), "\n", 1, MSG_NOSIGNAL) < 0) continue;  // it has ended
  }
}

bool Daemons::EndProxy() {
  ending_ = true;
  joined_.reset();
  if (proxy_.pid != 0 && !proxy_.asked_to_end && IsNeededByOthers()) return true;
  AskToEnd(proxy_);
  return proxy_.pid != 0;
}

void Daemons::AskToEnd(Daemon& daemon) {
  if (daemon.asked_to_end) return;
  daemon.asked_to_end = std::chrono::steady_clock::now();
  daemon.stdin_end.reset();
}

void Daemons::AwaitEnd(Daemon& daemon, std::chrono::steady_clock::time_point deadline) {
  if (daemon.pid == 0) return;
  deadline = std::min(deadline, *daemon.asked_to_end + kEndPatience);
  while (!HasEnded(daemon.pid)) {
    if (std::chrono::steady_clock::now() > deadline) {
      spdlog::warn("the {} does not end; it is killed", daemon.name);
      kill(daemon.pid, SIGKILL);
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  daemon.pid = 0;
}

void Daemons::End() {
  AwaitOtherLaunchers();
  // The proxy's last folds are for the manager.
  AskToEnd(proxy_);
  AwaitEnd(proxy_, deadline_ - kManagersShare);
  AskToEnd(manager_);
  AwaitEnd(manager_, deadline_);
  std::error_code ignored;  // a folder that stays does no harm
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  // A proxy has removed the empty folder itself: on storage that hangs it can be killed, and this process cannot.
  if (proxy_.argv.empty() && !made_.empty()) rmdir(made_.back().c_str());
}

}  // namespace taskd::process
