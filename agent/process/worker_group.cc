#include "agent/process/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agent/process/equal_lines.h"
#include "agent/process/line_tee.h"
#include "agent/process/memory_kills.h"
#include "agent/process/process_tree.h"
#include "agent/process/spawn.h"
#include "common/files.h"
#include "common/log.h"
#include "common/realtime.h"
#include "common/unique_fd.h"

namespace taskd::process {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kFirstLookNs = 2 * kNsPerMs;  // then twice as long, up to kLongestLookNs
constexpr int64_t kLongestLookNs = 100 * kNsPerMs;
// For what ranks that ended with 0 have left behind; helpers that look for their parent do so once a second.
constexpr int64_t kMomentNs = 2'000 * kNsPerMs;
constexpr int64_t kGiveUpKillingNs = 30'000 * kNsPerMs;  // processes in a driver that does not return never end
constexpr int64_t kGiveUpConsoleNs = 5'000 * kNsPerMs;   // without a single byte that it took
constexpr int64_t kLongestFlushNs = 30'000 * kNsPerMs;   // files may be far ahead of it
constexpr int64_t kKillAtOnceNs = 2'000 * kNsPerMs;
constexpr size_t kMaxErrorFileBytes = 1 << 20;

std::string ReadErrorFile(const std::string& path) {
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY);
  return file.ok() ? ReadSome(file->get(), kMaxErrorFileBytes) : "";
}

// Python's and PyTorch's own helpers end with those that use them, and hold nothing that would be lost.
bool IsHelper(absl::string_view command_line) {
  return absl::StrContains(command_line, "multiprocessing.resource_tracker") ||
         absl::StrContains(command_line, "multiprocessing.forkserver") ||
         absl::StrContains(command_line, "torch_shm_manager");
}

struct Rank {
  WorkerSpec spec;
  pid_t pid = 0;
  UniqueFd pidfd;
  std::unique_ptr<StreamTee> out;
  std::unique_ptr<StreamTee> err;
  int64_t err_offset = 0;  // of the file that stderr goes to, when the rank began
  bool ended = false;      // waited for
  bool reported = false;   // its end was dealt with
  bool was_stopped = false;
  int wait_status = 0;
};

// stdout or stderr of the launcher, for the lines of ranks.
struct RankConsole {
  RankConsole(EventLoop* loop, int fd)
      : console(loop, fd), lines(loop, [this](std::string text, const std::shared_ptr<Console::Share>& share) {
          console.Write(std::move(text), share);
        }) {}
  Console console;
  EqualLines lines;
};

class WorkerGroupImpl : public WorkerGroup {
 public:
  WorkerGroupImpl(EventLoop* loop, int64_t grace_ns, Callbacks callbacks)
      : loop_(loop), grace_ns_(grace_ns), callbacks_(std::move(callbacks)) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::signal(SIGPIPE, SIG_IGN);  // a console that breaks ends no job; ranks get the default back
    // Children from before an exec (a container's start script) are not ours to end.
    for (const ProcessInfo& child : Descendants(::getpid(), {})) {
      if (child.parent == ::getpid()) spared_.insert(child.pid);
    }
    sigset_t children;
    ::sigemptyset(&children);
    ::sigaddset(&children, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &children, nullptr);
    signal_fd_.reset(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
    loop_->Add(signal_fd_.get(), EPOLLIN, [this](uint32_t) {
      signalfd_siginfo ignored;
      while (::read(signal_fd_.get(), &ignored, sizeof(ignored)) > 0) {
      }
      Reap();
      if (phase_ != Phase::kRunning) Advance();
    });
    Later(0, [this] { Reap(); });  // what ended before the signal was ours to see
  }

  ~WorkerGroupImpl() override {
    if (timer_) loop_->Cancel(*timer_);
    if (grace_timer_) loop_->Cancel(*grace_timer_);
    loop_->Remove(signal_fd_.get());
    for (auto& [local_rank, rank] : ranks_) Forget(*rank);
    if (started_) KillAtOnce();
  }

  void Spare(pid_t pid) override { spared_.insert(pid); }

  absl::Status Start(const std::vector<WorkerSpec>& workers) override;

  std::map<int, pid_t> pids() const override {
    std::map<int, pid_t> result;
    for (const auto& [local_rank, rank] : ranks_) {
      if (!rank->ended) result[local_rank] = rank->pid;
    }
    return result;
  }

  void Signal(int signal) override {
    for (const auto& [local_rank, rank] : ranks_) {
      if (!rank->ended) ::kill(rank->pid, signal);
    }
  }

  void Stop(int first_signal) override;

 private:
  // kRunning: also before the first Start and after on_stopped. Then the ranks' groups have time to end; then
  // everything that descends from them is killed; then output is still on its way to the console.
  enum class Phase : uint8_t { kRunning, kTerminating, kKilling, kFlushing };

  absl::Status StartOne(const WorkerSpec& spec);
  absl::StatusOr<UniqueFd> OpenSink(const WorkerSpec& spec, int stream, std::unique_ptr<StreamTee>* tee);
  void Reap();
  void OnPidfd(Rank& rank);
  void Report(Rank& rank);
  void Forget(Rank& rank);
  WorkerExit ExitOf(const Rank& rank);

  bool AllEndedWell() const;
  void SignalLeftBehind(const Rank& rank) const;
  std::vector<std::string> LeftBehind() const;  // names, without helpers; empty: unknown
  // False: what was left behind may still end by itself.
  bool EndLeftBehind(bool at_once);
  void EndGraceAfter(int64_t delay_ns);
  void Advance();
  bool AllReported() const;
  bool GroupsAreEmpty() const;
  void BeginKilling();
  void Kill();
  void BeginFlush();
  void Flush();
  void Finish();
  std::vector<StreamTee*> Tees() const;
  void KillAtOnce();
  void Later(int64_t delay_ns, EventLoop::Callback callback);
  void LookAgain();

  EventLoop* const loop_;
  const int64_t grace_ns_;
  const Callbacks callbacks_;
  UniqueFd signal_fd_;
  std::set<pid_t> spared_;
  std::unique_ptr<RankConsole> stdout_;  // before the ranks, whose tees use them
  std::unique_ptr<RankConsole> stderr_;
  std::map<int, std::unique_ptr<Rank>> ranks_;  // by local rank
  MemoryKills memory_kills_;                    // since these ranks were started
  bool started_ = false;

  Phase phase_ = Phase::kRunning;
  int first_signal_ = 0;  // of this Stop(); 0: the ranks had theirs from elsewhere
  // All ranks have ended with 0: until when what they left behind may end by itself.
  std::optional<int64_t> moment_until_ns_;
  int64_t killing_since_ns_ = 0;
  int64_t look_delay_ns_ = kFirstLookNs;
  uint64_t flushed_bytes_ = 0;
  int64_t flushed_at_ns_ = 0;
  int64_t flushing_since_ns_ = 0;
  std::optional<EventLoop::TimerId> timer_;
  std::optional<EventLoop::TimerId> grace_timer_;
};

absl::Status WorkerGroupImpl::Start(const std::vector<WorkerSpec>& workers) {
  if (!ranks_.empty() || phase_ != Phase::kRunning) {
    return absl::FailedPreconditionError("ranks of an earlier start are still there");
  }
  started_ = true;
  memory_kills_ = MemoryKills();
  for (const WorkerSpec& spec : workers) {
    absl::Status status = StartOne(spec);
    if (status.ok()) continue;
    for (auto& [local_rank, rank] : ranks_) Forget(*rank);
    ranks_.clear();
    KillAtOnce();
    return absl::Status(status.code(),
                        absl::StrCat("rank ", spec.rank, " (local rank ", spec.local_rank, "): ", status.message()));
  }
  return absl::OkStatus();
}

// The descriptor that the rank gets; not valid: the launcher's own.
absl::StatusOr<UniqueFd> WorkerGroupImpl::OpenSink(const WorkerSpec& spec, int stream,
                                                   std::unique_ptr<StreamTee>* tee) {
  const StreamSink& sink = stream == STDOUT_FILENO ? spec.out : spec.err;
  if (sink.console && sink.file.empty() && sink.prefix.empty()) return UniqueFd();
  if (sink.console) {
    std::unique_ptr<RankConsole>& console = stream == STDOUT_FILENO ? stdout_ : stderr_;
    if (!console) console = std::make_unique<RankConsole>(loop_, stream);
    absl::StatusOr<std::unique_ptr<StreamTee>> made =
        StreamTee::Create(loop_, {sink.file, &console->lines, spec.local_rank, spec.rank, sink.prefix});
    if (!made.ok()) return made.status();
    *tee = *std::move(made);
    return (*tee)->TakeWriteEnd();
  }
  if (sink.file.empty()) {
    UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!null.valid()) return absl::UnavailableError(absl::StrCat("/dev/null: ", std::strerror(errno)));
    return null;
  }
  absl::StatusOr<UniqueFd> file = OpenOrCreateFile(sink.file, O_WRONLY | O_APPEND, 0666, {.follow_own_links = true});
  if (!file.ok()) return absl::UnavailableError(absl::StrCat("log file ", file.status().message()));
  ::fcntl(file->get(), F_SETFL, O_APPEND);  // the rank's own descriptor: not O_NONBLOCK
  return file;
}

absl::Status WorkerGroupImpl::StartOne(const WorkerSpec& spec) {
  auto rank = std::make_unique<Rank>();
  rank->spec = spec;
  absl::StatusOr<UniqueFd> out = OpenSink(spec, STDOUT_FILENO, &rank->out);
  if (!out.ok()) return out.status();
  absl::StatusOr<UniqueFd> err = OpenSink(spec, STDERR_FILENO, &rank->err);
  if (!err.ok()) return err.status();
  struct stat status {};
  if (!spec.err.file.empty() && ::stat(spec.err.file.c_str(), &status) == 0) rank->err_offset = status.st_size;
  absl::StatusOr<pid_t> pid =
      Spawn(spec.argv, spec.environment, {.out = out->get(), .err = err->get(), .cpus = spec.cpus});
  if (!pid.ok()) return pid.status();
  rank->pid = *pid;
  memory_kills_.Watch(rank->pid);
  // Kernels before 5.3 have none; then ends are seen with SIGCHLD, in no special order within one look.
  rank->pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, rank->pid, 0)));
  if (rank->pidfd.valid()) {
    ::fcntl(rank->pidfd.get(), F_SETFD, FD_CLOEXEC);
    loop_->Add(rank->pidfd.get(), EPOLLIN, [this, raw = rank.get()](uint32_t) { OnPidfd(*raw); });
  }
  ranks_[spec.local_rank] = std::move(rank);
  return absl::OkStatus();
}

void WorkerGroupImpl::Reap() {
  int status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &status, WNOHANG | __WALL)) > 0 || (pid < 0 && errno == EINTR)) {
    if (pid < 0) continue;
    auto found = std::find_if(ranks_.begin(), ranks_.end(),
                              [&](const auto& entry) { return entry.second->pid == pid && !entry.second->ended; });
    if (found == ranks_.end()) {
      spared_.erase(pid);
      if (callbacks_.on_other_exit) callbacks_.on_other_exit(pid, status);
      continue;
    }
    Rank& rank = *found->second;
    rank.ended = true;
    rank.wait_status = status;
    // Otherwise the rank's pidfd reports it: the loop handles exits in the order in which they happened.
    if (!rank.pidfd.valid()) Report(rank);
  }
}

void WorkerGroupImpl::OnPidfd(Rank& rank) {
  if (!rank.ended) {
    if (::waitpid(rank.pid, &rank.wait_status, WNOHANG | __WALL) != rank.pid) return;
    rank.ended = true;
  }
  Report(rank);
}

void WorkerGroupImpl::Forget(Rank& rank) {
  if (rank.pidfd.valid()) loop_->Remove(rank.pidfd.get());
  rank.pidfd.reset();
}

WorkerExit WorkerGroupImpl::ExitOf(const Rank& rank) {
  WorkerExit exit;
  exit.local_rank = rank.spec.local_rank;
  exit.rank = rank.spec.rank;
  exit.pid = rank.pid;
  exit.time_ns = RealtimeNs();
  exit.signal = WIFSIGNALED(rank.wait_status) ? WTERMSIG(rank.wait_status) : 0;
  exit.code = exit.signal != 0 ? 128 + exit.signal : WEXITSTATUS(rank.wait_status);
  if (exit.ok()) return exit;
  if (exit.signal == SIGKILL || (exit.code == 128 + SIGKILL && memory_kills_.HasKill(rank.pid))) {
    exit.killed_by = memory_kills_.Explain(rank.pid);
  }
  if (!rank.spec.error_file.empty()) {
    exit.error_json = ReadErrorFile(rank.spec.error_file);
    exit.error_message = MessageOfErrorFile(exit.error_json);
  }
  if (rank.err) {
    exit.last_lines = rank.err->last_lines();
  } else if (!rank.spec.err.file.empty()) {
    exit.last_lines = LastLinesOfFile(rank.spec.err.file, rank.err_offset);
  } else {
    exit.stderr_unread = true;
  }
  return exit;
}

void WorkerGroupImpl::Report(Rank& rank) {
  Forget(rank);
  rank.reported = true;
  if (rank.out) rank.out->Drain();
  if (rank.err) rank.err->Drain();
  if (!rank.was_stopped && callbacks_.on_exit) callbacks_.on_exit(ExitOf(rank));
  if (phase_ == Phase::kTerminating && !moment_until_ns_) SignalLeftBehind(rank);
  if (phase_ != Phase::kRunning) Later(0, [this] { Advance(); });
}

void WorkerGroupImpl::Stop(int first_signal) {
  if (phase_ == Phase::kRunning) {
    phase_ = Phase::kTerminating;
    first_signal_ = 0;
    look_delay_ns_ = kFirstLookNs;
    for (auto& [local_rank, rank] : ranks_) {
      if (rank->ended) continue;
      // A rank that ended before is reported as such when the loop comes to it.
      if (::waitpid(rank->pid, &rank->wait_status, WNOHANG | __WALL) == rank->pid) {
        rank->ended = true;
      } else {
        rank->was_stopped = true;
      }
    }
    if (callbacks_.on_left_behind && AllEndedWell()) moment_until_ns_ = EventLoop::NowNs() + kMomentNs;
    EndGraceAfter(first_signal == SIGKILL ? 0 : grace_ns_);
  } else if (phase_ != Phase::kTerminating) {
    return;
  } else if (first_signal == SIGKILL) {
    EndGraceAfter(0);
  }
  if (first_signal != 0) first_signal_ = first_signal;
  for (const auto& [local_rank, rank] : ranks_) {
    if (rank->ended) {
      if (!moment_until_ns_) SignalLeftBehind(*rank);
    } else {
      ::kill(rank->pid, first_signal);
      ::kill(-rank->pid, SIGCONT);  // stopped ones would not notice
    }
  }
  Later(0, [this] { Advance(); });
}

bool WorkerGroupImpl::AllEndedWell() const {
  return !ranks_.empty() && std::ranges::all_of(ranks_, [](const auto& entry) {
    return entry.second->ended && !entry.second->was_stopped && entry.second->wait_status == 0;
  });
}

std::vector<std::string> WorkerGroupImpl::LeftBehind() const {
  std::vector<std::string> names;
  for (const ProcessInfo& process : Descendants(::getpid(), spared_)) {
    if (process.parent != ::getpid() || process.state == 'Z') continue;  // it goes with its parent
    const std::string folder = absl::StrCat("/proc/", process.pid);
    const std::string command_line = ReadSystemFile(folder + "/cmdline");
    if (IsHelper(command_line)) continue;
    const std::string name = ReadSystemFile(folder + "/comm");
    // Without a command line it is ending, or just being started.
    names.push_back(
        command_line.empty() ? "" : absl::StrCat(absl::StripTrailingAsciiWhitespace(name), " (pid ", process.pid, ")"));
  }
  return names;
}

bool WorkerGroupImpl::EndLeftBehind(bool at_once) {
  if (!moment_until_ns_) return true;
  std::vector<std::string> names = LeftBehind();
  if (!names.empty() && !at_once && EventLoop::NowNs() < *moment_until_ns_) return false;
  moment_until_ns_.reset();
  std::erase(names, "");
  if (!names.empty()) callbacks_.on_left_behind(names);
  for (const auto& [local_rank, rank] : ranks_) SignalLeftBehind(*rank);
  return true;
}

// To the members of a group whose rank has ended.
void WorkerGroupImpl::SignalLeftBehind(const Rank& rank) const {
  const std::vector<ProcessInfo> all = Descendants(::getpid(), spared_);
  if (std::ranges::find(all, rank.pid, &ProcessInfo::group) == all.end()) return;
  ::kill(-rank.pid, first_signal_);
  ::kill(-rank.pid, SIGCONT);
}

void WorkerGroupImpl::EndGraceAfter(int64_t delay_ns) {
  if (grace_timer_) loop_->Cancel(*grace_timer_);
  grace_timer_ = loop_->RunAfter(delay_ns, [this] {
    grace_timer_.reset();
    BeginKilling();
  });
}

void WorkerGroupImpl::Later(int64_t delay_ns, EventLoop::Callback callback) {
  if (timer_) loop_->Cancel(*timer_);
  timer_ = loop_->RunAfter(delay_ns, [this, callback = std::move(callback)] {
    timer_.reset();
    callback();
  });
}

void WorkerGroupImpl::LookAgain() {
  Later(look_delay_ns_, [this] { Advance(); });
  look_delay_ns_ = std::min(look_delay_ns_ * 2, kLongestLookNs);
}

bool WorkerGroupImpl::AllReported() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& entry) { return entry.second->reported; });
}

bool WorkerGroupImpl::GroupsAreEmpty() const {
  std::set<pid_t> groups;
  for (const auto& [local_rank, rank] : ranks_) groups.insert(rank->pid);
  for (const ProcessInfo& process : Descendants(::getpid(), spared_)) {
    if (groups.contains(process.group) && process.state != 'Z') return false;
  }
  return true;
}

void WorkerGroupImpl::Advance() {
  for (auto& [local_rank, rank] : ranks_) {
    if (rank->ended && !rank->reported && !rank->pidfd.valid()) Report(*rank);
  }
  switch (phase_) {
    case Phase::kRunning:
      return;
    case Phase::kTerminating:
      // What ranks started may still be at work on SIGTERM, as the program behind a shell script.
      if (AllReported() && EndLeftBehind(/*at_once=*/false) && GroupsAreEmpty()) {
        BeginKilling();
      } else {
        LookAgain();
      }
      return;
    case Phase::kKilling:
      return Kill();
    case Phase::kFlushing:
      return Flush();
  }
}

void WorkerGroupImpl::BeginKilling() {
  if (phase_ != Phase::kTerminating) return;
  EndLeftBehind(/*at_once=*/true);
  if (grace_timer_) loop_->Cancel(*grace_timer_);
  grace_timer_.reset();
  phase_ = Phase::kKilling;
  killing_since_ns_ = EventLoop::NowNs();
  look_delay_ns_ = kFirstLookNs;
  Kill();
}

void WorkerGroupImpl::Kill() {
  Reap();
  const std::vector<ProcessInfo> left = Descendants(::getpid(), spared_);
  if (left.empty() && AllReported()) return BeginFlush();
  for (const ProcessInfo& process : left) ::kill(process.pid, SIGKILL);
  if (EventLoop::NowNs() - killing_since_ns_ < kGiveUpKillingNs) return LookAgain();
  const std::string who = absl::StrJoin(left, ", ", [](std::string* text, const ProcessInfo& process) {
    absl::StrAppend(text, process.pid, " (state ", std::string(1, process.state), ")");
  });
  spdlog::error("processes that do not end after SIGKILL are left behind: {}", who);
  BeginFlush();
}

void WorkerGroupImpl::BeginFlush() {
  phase_ = Phase::kFlushing;
  for (auto& [local_rank, rank] : ranks_) Forget(*rank);
  for (StreamTee* tee : Tees()) {
    tee->Drain();
    tee->Close();
  }
  look_delay_ns_ = kFirstLookNs;
  flushed_bytes_ = 0;
  flushing_since_ns_ = flushed_at_ns_ = EventLoop::NowNs();
  Flush();
}

void WorkerGroupImpl::Flush() {
  bool idle = true;
  uint64_t written = 0;
  for (const RankConsole* one : {stdout_.get(), stderr_.get()}) {
    if (one == nullptr) continue;
    idle = idle && one->console.idle();
    written += one->console.written_bytes();
  }
  for (StreamTee* tee : Tees()) idle = idle && !tee->behind();
  const int64_t now_ns = EventLoop::NowNs();
  if (written != flushed_bytes_) flushed_at_ns_ = now_ns;
  flushed_bytes_ = written;
  const bool gives_up = now_ns - flushed_at_ns_ >= kGiveUpConsoleNs || now_ns - flushing_since_ns_ >= kLongestFlushNs;
  if (!idle && !gives_up) return LookAgain();
  size_t dropped = 0;
  for (StreamTee* tee : Tees()) dropped += tee->DropBehind();
  for (RankConsole* one : {stdout_.get(), stderr_.get()}) dropped += one == nullptr ? 0 : one->console.DropQueue();
  if (dropped > 0) spdlog::warn("{} bytes of output are not on the console: nobody reads it", dropped);
  Later(0, [this] { Finish(); });
}

void WorkerGroupImpl::Finish() {
  ranks_.clear();
  phase_ = Phase::kRunning;
  const std::function<void()> on_stopped = callbacks_.on_stopped;  // it may destroy the group
  if (on_stopped) on_stopped();
}

std::vector<StreamTee*> WorkerGroupImpl::Tees() const {
  std::vector<StreamTee*> tees;
  for (const auto& [local_rank, rank] : ranks_) {
    for (StreamTee* tee : {rank->out.get(), rank->err.get()}) {
      if (tee != nullptr) tees.push_back(tee);
    }
  }
  return tees;
}

// Without the loop.
void WorkerGroupImpl::KillAtOnce() {
  const int64_t deadline_ns = EventLoop::NowNs() + kKillAtOnceNs;
  while (EventLoop::NowNs() < deadline_ns) {
    const std::vector<ProcessInfo> left = Descendants(::getpid(), spared_);
    if (left.empty()) return;
    for (const ProcessInfo& process : left) ::kill(process.pid, SIGKILL);
    for (const ProcessInfo& process : left) ::waitpid(process.pid, nullptr, WNOHANG | __WALL);
    const timespec pause{0, kNsPerMs};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

std::unique_ptr<WorkerGroup> WorkerGroup::Create(EventLoop* loop, int64_t grace_ns, Callbacks callbacks) {
  return std::make_unique<WorkerGroupImpl>(loop, grace_ns, std::move(callbacks));
}

}  // namespace taskd::process
