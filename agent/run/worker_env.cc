#include "agent/run/worker_env.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "agent/process/guard.h"
#include "common/environment.h"
#include "common/log.h"

namespace taskd::run {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIdInName = 64;
constexpr int kStdout = 1;  // bits of StreamChoice
constexpr int kStderr = 2;

constexpr char kRunPath[] =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

absl::Status CannotCreate(const std::string& path, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat("log folder ", path, " cannot be created: ", reason));
}

absl::Status CreateFolders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? CannotCreate(path, error.message()) : absl::OkStatus();
}

// A run's id may be anything, also a path.
std::string FileNameOf(const std::string& id) {
  std::string name = id.substr(0, kMaxIdInName);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  if (name.starts_with('.')) name[0] = '_';
  return name;
}

std::string SignalNames(const std::vector<int>& signals) {
  return absl::StrJoin(signals, ",", [](std::string* out, int signal) {
    const char* name = ::sigabbrev_np(signal);
    absl::StrAppend(out, "SIG", name == nullptr ? "?" : name);
  });
}

class Builder {
 public:
  Builder(const RunOptions& options, const Assignment& assignment, const WorkerContext& context)
      : options_(options), assignment_(assignment), place_(PlaceOnNode(options, assignment)), context_(context) {}

  absl::StatusOr<process::WorkerSpec> Build(int index) const {
    const int local_rank = place_.first_local_rank + index;
    process::WorkerSpec spec;
    spec.local_rank = local_rank;
    spec.rank = assignment_.rank_base + index;
    std::string folder;
    if (!context_.logs.path.empty()) {
      folder = absl::StrCat(context_.logs.path, "/attempt_", assignment_.restart_count, "/", local_rank);
      if (absl::Status status = CreateFolders(folder); !status.ok()) return status;
      spec.error_file = folder + "/error.json";
      std::error_code ignored;  // a restart after a change of membership has the same attempt
      fs::remove(spec.error_file, ignored);
    }
    spec.argv = Command(local_rank);
    if (static_cast<size_t>(local_rank) < context_.cpus.size()) {
      spec.cpus = context_.cpus[static_cast<size_t>(local_rank)];
    }
    spec.environment = EnvironmentOf(spec);
    if (options_.virtual_local_rank) {
      if (absl::Status status = ShowOneDevice(local_rank, &spec.environment); !status.ok()) return status;
    }
    for (const auto& [name, value] : context_.extra) spec.environment[name] = value;
    spec.out = Sink(spec, kStdout, folder.empty() ? "" : folder + "/stdout.log");
    spec.err = Sink(spec, kStderr, folder.empty() ? "" : folder + "/stderr.log");
    return spec;
  }

 private:
  std::vector<std::string> Command(int local_rank) const {
    std::vector<std::string> argv;
    if (!options_.no_python) {
      const std::string python = ValueOf(context_.environment, "PYTHON_EXEC");
      argv = {python.empty() ? "python3" : python, "-u"};
      if (options_.module) argv.push_back("-m");
      if (options_.run_path) argv.insert(argv.end(), {"-c", kRunPath});
    }
    argv.push_back(options_.program);
    for (const std::string& argument : options_.arguments) {
      argv.push_back(absl::StrReplaceAll(argument, {{"${local_rank}", std::to_string(local_rank)}}));
    }
    return argv;
  }

  Environment EnvironmentOf(const process::WorkerSpec& spec) const {
    Environment result = context_.environment;
    const Assignment& a = assignment_;
    auto set = [&result](const char* name, int value) { result[name] = std::to_string(value); };
    set("RANK", spec.rank);
    set("LOCAL_RANK", options_.virtual_local_rank ? 0 : spec.local_rank);
    set("GROUP_RANK", place_.node);
    set("ROLE_RANK", a.role_rank_base + spec.rank - a.rank_base);
    result["ROLE_NAME"] = options_.role;
    set("LOCAL_WORLD_SIZE", place_.local_world_size);
    set("WORLD_SIZE", a.world_size);
    set("GROUP_WORLD_SIZE", place_.nodes);
    set("ROLE_WORLD_SIZE", a.role_world_size);
    result["MASTER_ADDR"] = context_.master_addr;
    set("MASTER_PORT", context_.master_port);
    set("TORCHELASTIC_RESTART_COUNT", a.restart_count);
    set("TORCHELASTIC_MAX_RESTARTS", options_.max_restarts);
    result["TORCHELASTIC_RUN_ID"] = options_.rdzv_id;
    result["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    result["TORCHELASTIC_ERROR_FILE"] = spec.error_file;
    result["TORCHELASTIC_SIGNALS_TO_HANDLE"] = SignalNames(options_.signals_to_handle);
    // PyTorch 1 knows this name; from 2.2 on each rank warns of it.
    if (!context_.has_torch2) result.emplace("NCCL_ASYNC_ERROR_HANDLING", "1");
    result.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (place_.local_world_size > 1) result.emplace("OMP_NUM_THREADS", "1");
    if (!context_.cookie.empty()) {
      // An outer launcher's guard has to find the ranks of one that runs inside of a rank.
      std::string& cookies = result[process::kCookieVariable];
      absl::StrAppend(&cookies, cookies.empty() ? "" : ",", context_.cookie);
    }
    return result;
  }

  static absl::Status ShowOneDevice(int local_rank, Environment* environment) {
    for (const char* variable : {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}) {
      auto found = environment->find(variable);
      if (found == environment->end()) {
        (*environment)[variable] = std::to_string(local_rank);
        continue;
      }
      const std::vector<std::string> visible = absl::StrSplit(found->second, ',');
      if (static_cast<size_t>(local_rank) >= visible.size() || visible[static_cast<size_t>(local_rank)].empty()) {
        return absl::InvalidArgumentError(absl::StrCat(variable, " '", found->second, "': no device for local rank ",
                                                       local_rank, ", which --virtual-local-rank needs"));
      }
      found->second = visible[static_cast<size_t>(local_rank)];
    }
    return absl::OkStatus();
  }

  process::StreamSink Sink(const process::WorkerSpec& spec, int stream, const std::string& file) const {
    const bool teed = (options_.tee.Of(spec.local_rank) & stream) != 0;
    const bool redirected = (options_.redirects.Of(spec.local_rank) & stream) != 0;
    const std::vector<int>& filter = options_.local_ranks_filter;
    const bool shown = filter.empty() || std::find(filter.begin(), filter.end(), spec.local_rank) != filter.end();
    process::StreamSink sink;
    if (teed || redirected) sink.file = file;
    sink.console = shown && (teed || !redirected);
    if (teed && sink.console) sink.prefix = Prefix();
    return sink;
  }

  // What is the same for all ranks of the node is put in.
  std::string Prefix() const {
    const std::string pattern = ValueOf(context_.environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    if (pattern.empty()) return absl::StrCat("[", options_.role, "${local_rank}]:");
    return absl::StrReplaceAll(
        pattern,
        {{"${role_name}", options_.role}, {"${group_rank}", std::to_string(place_.node)}, {"${node}", context_.host}});
  }

  const RunOptions& options_;
  const Assignment& assignment_;
  const NodePlace place_;
  const WorkerContext& context_;
};

}  // namespace

int NodeOf(const RunOptions& options, const Assignment& assignment, int group_rank) {
  if (!options.task || static_cast<size_t>(group_rank) >= assignment.hosts.size()) return group_rank;
  const auto begin = assignment.hosts.begin();
  const std::string& host = assignment.hosts[static_cast<size_t>(group_rank)];
  const std::set<std::string_view> before(begin, std::find(begin, assignment.hosts.end(), host));
  return static_cast<int>(before.size());
}

NodePlace PlaceOnNode(const RunOptions& options, const Assignment& assignment) {
  if (!options.task) return {assignment.group_rank, assignment.group_world_size, 0, options.procs_per_node};
  const std::set<std::string_view> hosts(assignment.hosts.begin(), assignment.hosts.end());
  return {NodeOf(options, assignment, assignment.group_rank), static_cast<int>(hosts.size()), options.task->local_rank,
          options.task->local_world_size};
}

absl::StatusOr<LogFolder> CreateLogFolder(const RunOptions& options, const std::string& temporary_dir) {
  if (options.log_dir == "/dev/null") return LogFolder{};
  LogFolder folder;
  folder.temporary = options.log_dir.empty();
  const std::string id = FileNameOf(options.rdzv_id);
  if (folder.temporary) {
    folder.path = absl::StrCat(temporary_dir.empty() ? "/tmp" : temporary_dir, "/taskd_", id, "_XXXXXX");
  } else {
    std::error_code error;
    const fs::path base = fs::absolute(options.log_dir, error);  // ranks may change their folder
    if (error) return CannotCreate(options.log_dir, error.message());
    if (absl::Status status = CreateFolders(base.string()); !status.ok()) return status;
    folder.path = absl::StrCat(base.string(), base.string().ends_with('/') ? "" : "/", id, "_XXXXXX");
  }
  if (::mkdtemp(folder.path.data()) != nullptr) return folder;
  const absl::Status failed = CannotCreate(folder.path, std::strerror(errno));
  if (!folder.temporary || !temporary_dir.empty()) return failed;
  // Under a root file system that is read-only.
  folder.path = absl::StrCat("/dev/shm/taskd_", id, "_XXXXXX");
  if (::mkdtemp(folder.path.data()) != nullptr) return folder;
  for (int rank = 0; rank < options.procs_per_node; ++rank) {
    if ((options.tee.Of(rank) | options.redirects.Of(rank)) != 0) return failed;
  }
  spdlog::warn("{}; ranks write no error files, --log-dir can name a folder", failed.message());
  return LogFolder{};
}

void RemoveEmptyFolders(const LogFolder& folder) {
  if (!folder.temporary || folder.path.empty()) return;
  std::vector<fs::path> folders = {folder.path};
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder.path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) folders.push_back(entry->path());
  }
  // The deeper ones were found later. What holds a file stays: rmdir refuses it.
  for (auto path = folders.rbegin(); path != folders.rend(); ++path) ::rmdir(path->c_str());
}

absl::StatusOr<std::vector<process::WorkerSpec>> BuildWorkers(const RunOptions& options, const Assignment& assignment,
                                                              const WorkerContext& context) {
  const Builder builder(options, assignment, context);
  std::vector<process::WorkerSpec> workers;
  for (int local_rank = 0; local_rank < options.procs_per_node; ++local_rank) {
    absl::StatusOr<process::WorkerSpec> worker = builder.Build(local_rank);
    if (!worker.ok()) return worker.status();
    workers.push_back(*std::move(worker));
  }
  return workers;
}

}  // namespace taskd::run
