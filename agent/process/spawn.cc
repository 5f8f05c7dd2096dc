#include "agent/process/spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/process/args.hpp>
#include <boost/process/child.hpp>
#include <boost/process/env.hpp>
#include <boost/process/environment.hpp>
#include <boost/process/error.hpp>
#include <boost/process/exe.hpp>
#include <boost/process/extend.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/descriptors.h"

namespace taskd::process {
namespace {

namespace bp = boost::process;

constexpr int kSignals = 65;
constexpr int kOrphaned = 127;
constexpr size_t kCpusAWord = CHAR_BIT * sizeof(unsigned long);  // as the kernel has it
constexpr char kNotBound[] = "taskd: sched_setaffinity failed, the rank is not bound to its CPUs\n";

std::vector<unsigned long> CpuMask(const std::set<int>& cpus) {
  std::vector<unsigned long> mask(cpus.empty() ? 0 : static_cast<size_t>(*cpus.rbegin()) / kCpusAWord + 1);
  for (int cpu : cpus) mask[static_cast<size_t>(cpu) / kCpusAWord] |= 1UL << (static_cast<size_t>(cpu) % kCpusAWord);
  return mask;
}

// Between fork and exec: only what is safe in a signal handler.
struct ProcessSetup : bp::extend::handler {
  SpawnOptions options;
  pid_t parent;
  std::optional<rlimit> descriptors;
  std::vector<unsigned long> cpu_mask;

  explicit ProcessSetup(const SpawnOptions& options)
      : options(options), parent(::getpid()), descriptors(DescriptorLimitBefore()), cpu_mask(CpuMask(options.cpus)) {}

  template <typename Executor>
  void on_exec_setup(Executor&) const {
    ::setsid();
    if (!options.outlives_caller) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kOrphaned);  // it died before prctl
    }
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    for (int signal = 1; signal < kSignals; ++signal) ::sigaction(signal, &standard, nullptr);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (descriptors) ::setrlimit(RLIMIT_NOFILE, &*descriptors);
    if (options.in >= 0) ::dup2(options.in, STDIN_FILENO);
    if (options.out >= 0) ::dup2(options.out, STDOUT_FILENO);
    if (options.err >= 0) ::dup2(options.err, STDERR_FILENO);
    if (!cpu_mask.empty() && ::sched_setaffinity(0, cpu_mask.size() * sizeof(unsigned long),
                                                 reinterpret_cast<const cpu_set_t*>(cpu_mask.data())) != 0) {
      [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, kNotBound, sizeof(kNotBound) - 1);
    }
    // Closed by exec, not here: the pipe that reports whether exec worked is among them.
    ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  }
};

// Kernels before 5.11 cannot do that for a range.
void MarkDescriptors() {
  static const bool has_close_range = ::close_range(~0U, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
  if (has_close_range) return;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr) {
    const int fd = std::atoi(entry->d_name);
    if (fd > STDERR_FILENO) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name,
                                        const std::map<std::string, std::string>& environment) {
  if (name.find('/') != std::string::npos) return name;
  const auto variable = environment.find("PATH");
  const std::string path = variable == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : variable->second;
  bool denied = false;
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    const std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    struct stat status {};
    if (::stat(candidate.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) continue;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    denied = true;
  }
  return absl::NotFoundError(
      absl::StrCat("cannot execute '", name, "': ", denied ? "not executable" : "not found", " in PATH ", path));
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment,
                            const SpawnOptions& options) {
  if (argv.empty()) return absl::InvalidArgumentError("nothing to execute");
  absl::StatusOr<std::string> program = FindProgram(argv[0], environment);
  if (!program.ok()) return program.status();
  bp::environment variables;
  for (const auto& [name, value] : environment) variables.set(name, value);  // [] reads beyond shorter entries' ends
  const std::vector<std::string> arguments(argv.begin() + 1, argv.end());
  MarkDescriptors();
  std::error_code error;
  bp::child child(bp::exe = *program, bp::args = arguments, variables, error, ProcessSetup(options));
  if (error) return absl::UnavailableError(absl::StrCat("cannot execute '", *program, "': ", error.message()));
  const pid_t pid = child.id();
  child.detach();
  return pid;
}

}  // namespace taskd::process
