#include "proxy/proxy.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/descriptors.h"
#include "common/http_access.h"
#include "common/http_server.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "common/node_identity.h"
#include "common/runtime_dir.h"
#include "common/stop_signal.h"
#include "common/switch_file.h"
#include "common/task_name.h"
#include "common/utf8.h"
#include "marks/mark_folder.h"
#include "proto/channel.h"
#include "proxy/aging.h"
#include "proxy/health_server.h"
#include "proxy/hello_server.h"
#include "proxy/metrics.h"
#include "proxy/node.h"
#include "proxy/node_events.h"
#include "proxy/periodic.h"
#include "proxy/profiling_dir.h"
#include "proxy/shm_segments.h"
#include "proxy/state_file.h"
#include "proxy/switch_authority.h"
#include "proxy/tick_clock.h"
#include "proxy/uplink.h"

namespace taskd::proxy {
namespace {

constexpr std::chrono::milliseconds kFirstWordPatience{1000};
constexpr std::chrono::milliseconds kFolderPatience{2000};

// The socket's folder, made for this user alone where it is missing. Whoever could replace it, or a folder above, could
// put another socket there instead of ours.
absl::Status MakeSocketFolder(const std::string& socket) {
  const size_t slash = socket.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : socket.substr(0, slash);
  absl::StatusOr<UniqueFd> own = OpenOwnDir(folder, true);
  if (own.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--socket: ", own.status().message()));
}

absl::Status CheckOptions(const ProxyOptions& options, const proto::Security& security) {
  if (options.node_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--node-rank: ", options.node_rank, " is not 0 or above"));
  }
  if (options.disk_limit_mb < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--disk-limit-mb: ", options.disk_limit_mb, " is not 0 or above"));
  }
  if (auto address = ParseHostPort("--manager", options.manager); !address.ok()) return address.status();
  if (auto address = ParseHostPort("--listen", options.listen); !address.ok()) return address.status();
  if (!options.http.empty()) {
    if (auto address = ParseHostPort("--http", options.http); !address.ok()) return address.status();
  }
  return proto::CheckListenAllowed(options.listen, security, options.allow_plaintext);
}

// What a proxy before us at this socket has left of the task.
struct Task {
  std::string folder;  // of the task; empty: nobody has named it
  std::optional<KindMask> last_wanted;
  bool is_known = false;  // the last proxy at this socket had the same
};

// Completes `wishes` by the folder that the ranks of this socket had before.
absl::StatusOr<Task> FindTask(const std::string& socket, MarkFolderWishes* wishes) {
  Task task;
  task.folder = !wishes->mindx_task_id.empty() ? wishes->mindx_task_id : PlainFileName(wishes->task_name);
  if (task.folder.empty()) task.folder = wishes->name;
  if (std::optional<ProxyState> state = LoadProxyState(StateFilePath(socket))) {
    if (!ListSegments(socket).empty()) {  // another proxy was here
      if (task.folder.empty()) task.folder = state->task_folder;
      if (task.folder == state->task_folder) task.last_wanted = state->wanted;
      if (wishes->name.empty()) wishes->name = state->mark_folder;
    }
    task.is_known = task.folder == state->task_folder;
  }
  for (const auto& [variable, name] :
       {std::pair("MINDX_TASK_ID", task.folder), std::pair("TASKD_MARK_FOLDER", wishes->name)}) {
    if (name.empty()) continue;
    if (absl::Status checked = CheckTaskFolder(variable, name); !checked.ok()) return checked;
  }
  return task;
}

MarkFolder FindMarkFolder(const MarkFolderWishes& wishes) {
  MarkFolder folder = ChooseMarkFolder(wishes, kFolderPatience);
  if (folder.path.empty()) {
    spdlog::log(wishes.given.empty() ? spdlog::level::info : spdlog::level::warn,
                "mark files: none ({}); steps are counted and judged without them", folder.refusal);
  } else if (!folder.refusal.empty()) {
    spdlog::info("mark files: {} ({})", folder.path, folder.refusal);
  }
  return folder;
}

NodeOptions NodeOptionsOf(const ProxyOptions& options, const std::string& host, const std::string& socket) {
  return {.node_rank = options.node_rank,
          .host = host,
          .socket = socket,
          .disk_limit_mb = options.disk_limit_mb,
          .rank_backlog_bytes = static_cast<size_t>(options.rank_backlog_mb) << 20,
          .node_backlog_bytes = static_cast<size_t>(options.node_backlog_mb) << 20};
}

// The parts of a proxy, and how they are connected.
class Proxy {
 public:
  Proxy(const ProxyOptions& options, const proto::Security& security, std::string socket, const Task& task,
        const MarkFolder& folder, NodeIdentity identity)
      : options_(options),
        socket_(std::move(socket)),
        task_(task),
        folder_(folder),
        identity_(std::move(identity)),
        host_(identity_.host),
        dir_(folder.path.empty() ? ProfilingDir::WithoutMarkFiles(socket_)
                                 : ProfilingDir(folder.path, folder.task_folder)),
        node_(NodeOptionsOf(options, host_, socket_), dir_),
        authority_(&node_, StateFilePath(socket_), State()),
        uplink_(Uplink::Options{.manager = options.manager,
                                .security = security,
                                .node_rank = options.node_rank,
                                .node = identity_,
                                .identity = absl::StrCat(host_, ":", socket_),
                                .mark_folder = folder.path,
                                .task_folder = folder.task_folder,
                                .no_mark_files = folder.path.empty() ? folder.refusal : ""},
                &node_,
                Uplink::Callbacks{[this](const WantedKinds& wanted) { authority_.OnManagerWanted(wanted); },
                                  [this](bool connected) { authority_.OnManagerConnected(connected); },
                                  [this](uint64_t id, const std::string& name, const std::string& args) {
                                    if (name == proto::kNodeEventOperator) {
                                      events_.Send(id, args);
                                    } else {
                                      hello_server_.CallAgents(id, name, args);
                                    }
                                  }}),
        hello_server_(&node_, [this](const AgentAnswer& answer) { uplink_.SendAgentAnswer(answer); }),
        events_(identity_.node_name, [this](uint64_t id, bool ok, const std::string& message) {
          uplink_.SendAgentAnswer({id, ok, message});
        }) {
    if (task.last_wanted) node_.SetWanted({*task.last_wanted, 0});
    SaveProxyState(StateFilePath(socket_), State());
  }

  absl::Status Start() {
    if (absl::Status started = StartHealth(); !started.ok()) return started;
    if (absl::Status started = StartHttp(); !started.ok()) return started;
    node_.Start();
    if (absl::Status started = hello_server_.Start(socket_); !started.ok()) return started;
    RemoveOldGroups();
    if (absl::Status started = uplink_.Start(); !started.ok()) return started;
    spdlog::info("node {} serves its ranks on {}, manager {}, {} in {}", options_.node_rank, socket_, options_.manager,
                 dir_.has_mark_files() ? "files" : "no mark files, the ranks' groups", dir_.TaskPath());
    return absl::OkStatus();
  }

  void ServeUntil(StopSignal& stop) {
    SwitchFileWatcher switch_file(options_.switch_file,
                                  [this](const SwitchChange& change) { authority_.OnFileChange(change); });
    Periodic authority_tick(std::chrono::milliseconds(200), [this](const std::atomic<bool>&) { authority_.Tick(); });
    PeriodicAging aging(dir_.path());
    Periodic aging_tick(std::chrono::seconds(1), [&](const std::atomic<bool>&) {
      if (dir_.has_mark_files()) aging.Tick(ReadMonotonicNs(), node_.disk_limits());
    });
    spdlog::info("stopping: {}", stop.Wait([this] { uplink_.ExpectEnd(); }));
    // A job that is over before the manager was reached: what it recorded is written once it is known to be wanted.
    if (!task_.last_wanted && !node_.Reports().empty()) authority_.WaitUntilDecided(kFirstWordPatience);
  }

  // As Node::Stop.
  absl::Status Stop() {
    http_.reset();
    events_.Stop();
    hello_server_.Stop();
    absl::Status left = node_.Stop();
    uplink_.Stop();
    for (auto made = folder_.made.rbegin(); made != folder_.made.rend(); ++made)
      rmdir(made->c_str());  // if it is empty
    return left;
  }

 private:
  // An earlier job's, at the same socket. Ranks write theirs once, also for proxies to come.
  void RemoveOldGroups() const {
    std::error_code ignored;
    if (!task_.is_known) std::filesystem::remove_all(ProfilingDir::WithoutMarkFiles(socket_).TaskPath(), ignored);
  }

  ProxyState State() const {
    std::string name = folder_.Name();
    std::string task = !task_.folder.empty() ? task_.folder : !name.empty() ? name : DefaultTaskName(time(nullptr));
    return {std::move(task), task_.last_wanted, dir_.TaskPath(), std::move(name)};
  }

  absl::Status StartHealth() {
    absl::StatusOr<std::unique_ptr<HealthServer>> health = HealthServer::Start(options_.listen);
    if (health.ok()) {
      health_ = *std::move(health);
    } else if (!options_.listen_is_default || absl::IsInvalidArgument(health.status())) {
      return health.status();
    } else {
      // Another job's proxy has it: nobody misses anything.
      const auto level = absl::IsAlreadyExists(health.status()) ? spdlog::level::info : spdlog::level::warn;
      spdlog::log(level, "{}; going on without it: ranks use the socket", health.status().message());
    }
    return absl::OkStatus();
  }

  absl::Status StartHttp() {
    if (options_.http.empty()) return absl::OkStatus();
    HttpHandlers pages;
    pages["/healthz"] = [](const HttpRequest&) {
      HttpResponse response;
      response.body = std::make_shared<const std::string>("ok\n");
      return response;
    };
    pages["/metrics"] = MakeMetrics(&node_, options_.node_rank, host_);
    absl::StatusOr<HostPort> address = ParseHostPort("--http", options_.http);
    if (!address.ok()) return address.status();
    absl::StatusOr<std::vector<std::string>> hosts = ParseHttpHosts("--http-host", options_.http_host);
    if (!hosts.ok()) return hosts.status();
    hosts->push_back(absl::AsciiStrToLower(address->host));
    const std::string& secret = options_.token.empty() ? options_.secret : options_.token;
    const HttpAccess access{.anyone = options_.allow_plaintext,
                            .own_user = options_.token.empty(),
                            .token = ViewToken(secret),
                            .secret = secret,
                            .hosts = *std::move(hosts)};
    absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Start(*address, Protect(std::move(pages), access));
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
    spdlog::info("node {} shows its metrics on {} (port {})", options_.node_rank, options_.http, http_->port());
    return absl::OkStatus();
  }

  const ProxyOptions& options_;
  const std::string socket_;
  const Task task_;
  const MarkFolder folder_;
  const NodeIdentity identity_;
  const std::string& host_;
  const ProfilingDir dir_;
  Node node_;
  SwitchAuthority authority_;
  Uplink uplink_;
  HelloServer hello_server_;
  NodeEvents events_;
  std::unique_ptr<HealthServer> health_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

std::string DefaultSocketPath() {
  const char* task = std::getenv("MINDX_TASK_ID");
  return absl::StrCat("/tmp/taskd-", geteuid(), "/", task != nullptr && *task != '\0' ? task : "default",
                      "/proxy.sock");
}

absl::Status RunProxy(const ProxyOptions& options) {
  RaiseDescriptorLimit();
  // Before any thread, so that all inherit the mask.
  StopSignal stop(options.exit_on_stdin_eof);
  const proto::Security security = {.tls_dir = options.tls_dir, .secret = options.secret, .tls_name = options.tls_name};
  if (absl::Status checked = CheckOptions(options, security); !checked.ok()) return checked;
  const std::string socket = options.socket.empty() ? DefaultSocketPath() : options.socket;
  if (absl::Status checked = CheckSocketPath(socket); !checked.ok()) return checked;
  if (absl::Status made = MakeSocketFolder(socket); !made.ok()) return made;
  MarkFolderWishes wishes = options.mark_folder;
  absl::StatusOr<Task> task = FindTask(socket, &wishes);
  if (!task.ok()) return task.status();

  Proxy proxy(options, security, socket, *task, FindMarkFolder(wishes), OwnNodeIdentity());
  if (absl::Status started = proxy.Start(); !started.ok()) return started;
  proxy.ServeUntil(stop);
  return proxy.Stop();
}

}  // namespace taskd::proxy
