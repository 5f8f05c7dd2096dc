#include "proxy/proxy.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/descriptors.h"
#include "common/log.h"
#include "common/runtime_dir.h"
#include "common/stop_signal.h"
#include "common/switch_file.h"
#include "common/tick_clock.h"
#include "proto/channel.h"
#include "proto/grpc_listener.h"
#include "proxy/aging.h"
#include "proxy/hello_server.h"
#include "proxy/node.h"
#include "proxy/profiling_dir.h"
#include "proxy/shm_segments.h"
#include "proxy/state_file.h"
#include "proxy/uplink.h"

namespace taskd {
namespace {

// Without a manager for this long, the node's own switch file is obeyed: longer than a manager takes to restart.
constexpr uint64_t kManagerGraceNs = 2'000'000'000;
constexpr std::chrono::milliseconds kFirstWordPatience{1000};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// The socket's folder, made for this user alone where it is missing. Whoever could replace it, or a folder above, could
// put another socket in the place of ours.
absl::Status MakeSocketFolder(const std::string& socket) {
  const size_t slash = socket.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : socket.substr(0, slash);
  absl::StatusOr<UniqueFd> own = OpenOwnDir(folder, true);
  if (own.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--socket: ", own.status().message()));
}

// Who decides on the switch: the manager while it is there, the node's own file once it has been away for a while.
class SwitchAuthority {
 public:
  SwitchAuthority(Node* node, std::string state_path, std::string task_folder)
      : node_(node), state_path_(std::move(state_path)), task_folder_(std::move(task_folder)) {}

  void OnManagerWanted(const WantedKinds& wanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    Apply(wanted);
  }

  void OnManagerConnected(bool connected) {
    std::lock_guard<std::mutex> lock(mutex_);
    connected_ = connected;
    alone_since_ns_ = ReadMonotonicNs();
  }

  void OnFileChange(const SwitchChange& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    file_state_ = ApplyClusterdChange(file_state_.value_or(SwitchState{}), change);
    file_applied_ = false;
  }

  // Until it is known whether marks are wanted, or `patience` is over.
  void WaitUntilDecided(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> lock(mutex_);
    decided_.wait_for(lock, patience, [this] { return applied_.has_value(); });
  }

  // Called a few times a second.
  void Tick() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (connected_ || !file_state_ || ReadMonotonicNs() - alone_since_ns_ < kManagerGraceNs) {
      // After the manager the file has to be applied anew.
      if (connected_) file_applied_ = false;
      return;
    }
    if (file_applied_) return;
    file_applied_ = true;
    spdlog::info("no manager answers: the switch file decides");
    Apply({file_state_->effective, 0});
  }

 private:
  void Apply(const WantedKinds& wanted) {
    const bool changed = !applied_ || applied_->kinds != wanted.kinds;
    applied_ = wanted;
    node_->SetWanted(wanted);
    decided_.notify_all();
    if (changed) SaveProxyState(state_path_, {task_folder_, wanted.kinds});
  }

  Node* const node_;
  const std::string state_path_;
  const std::string task_folder_;
  std::mutex mutex_;
  std::condition_variable decided_;
  bool connected_ = false;
  bool file_applied_ = false;
  uint64_t alone_since_ns_ = ReadMonotonicNs();
  std::optional<SwitchState> file_state_;
  std::optional<WantedKinds> applied_;
};

// Calls `work` every `interval` in a thread of its own until it goes out of scope; then `work`'s argument becomes true.
class Periodic {
 public:
  template <typename Duration, typename Work>
  Periodic(Duration interval, Work work)
      : thread_([this, interval, work] {
          std::unique_lock<std::mutex> lock(mutex_);
          while (!stopping_) {
            lock.unlock();
            work(stopping_);
            lock.lock();
            wake_.wait_for(lock, interval, [this] { return stopping_.load(); });
          }
        }) {}
  ~Periodic() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

// Health for probes, on the address that agents of other implementations expect. It tells that a proxy is there and
// nothing more, so it answers in plain text, as probes ask.
class HealthServer {
 public:
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const std::string& address) {
    absl::StatusOr<HostPort> listen = ParseHostPort("--listen", address);
    if (!listen.ok()) return listen.status();
    auto health = std::make_unique<HealthServer>();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    SetServerLimits(builder, kHealthBufferBytes);
    health->fed_ = std::make_unique<FedServer>(builder, grpc::InsecureServerCredentials());
    health->server_ = builder.BuildAndStart();
    if (health->server_ == nullptr) return absl::UnavailableError("--listen: gRPC does not start");
    absl::StatusOr<std::unique_ptr<GrpcListener>> listener =
        GrpcListener::Listen(*listen, {}, [fed = health->fed_.get()](GrpcListener::Speaks speaks, UniqueFd connection) {
          if (speaks != GrpcListener::Speaks::kTls) fed->Take(std::move(connection));
        });
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat("--listen: ", listener.status().message()));
    }
    health->listener_ = *std::move(listener);
    return health;
  }
  ~HealthServer() {
    listener_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

 private:
  static constexpr size_t kHealthBufferBytes = size_t{4} << 20;

  std::unique_ptr<FedServer> fed_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcListener> listener_;
};

absl::Status CheckOptions(const ProxyOptions& options, const Security& security) {
  if (options.node_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--node-rank: ", options.node_rank, " is not 0 or above"));
  }
  if (options.disk_limit_mb < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--disk-limit-mb: ", options.disk_limit_mb, " is not 0 or above"));
  }
  if (options.profiling_dir.empty()) return absl::InvalidArgumentError("--profiling-dir: is empty");
  if (auto address = ParseHostPort("--manager", options.manager); !address.ok()) return address.status();
  if (auto address = ParseHostPort("--listen", options.listen); !address.ok()) return address.status();
  return CheckListenAllowed(options.listen, security, options.allow_plaintext);
}

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
  const Security security = {options.tls_dir, options.secret};
  if (absl::Status checked = CheckOptions(options, security); !checked.ok()) return checked;
  const std::string socket = options.socket.empty() ? DefaultSocketPath() : options.socket;
  if (absl::Status made = MakeSocketFolder(socket); !made.ok()) return made;

  std::string task_folder = options.task_id;
  std::optional<KindMask> last_wanted;
  if (!ListSegments(socket).empty()) {  // another proxy was here
    if (std::optional<ProxyState> state = LoadProxyState(StateFilePath(socket))) {
      if (task_folder.empty()) task_folder = state->task_folder;
      if (task_folder == state->task_folder) last_wanted = state->wanted;
    }
  }
  if (task_folder.empty()) task_folder = absl::StrCat("default_task_id_", time(nullptr));
  if (absl::Status checked = CheckTaskFolder(task_folder); !checked.ok()) return checked;

  const std::string host = HostName();
  Node node({.node_rank = options.node_rank,
             .host = host,
             .socket = socket,
             .disk_limit_mb = options.disk_limit_mb,
             .rank_backlog_bytes = static_cast<size_t>(options.rank_backlog_mb) << 20,
             .node_backlog_bytes = static_cast<size_t>(options.node_backlog_mb) << 20},
            ProfilingDir(options.profiling_dir, task_folder));
  if (last_wanted) node.SetWanted({*last_wanted, 0});
  SwitchAuthority authority(&node, StateFilePath(socket), task_folder);
  SaveProxyState(StateFilePath(socket), {task_folder, last_wanted});

  std::unique_ptr<Uplink> uplink;
  HelloServer hello_server(&node, [&](const AgentAnswer& answer) { uplink->SendAgentAnswer(answer); });
  uplink = std::make_unique<Uplink>(
      Uplink::Options{options.manager, security, options.node_rank, host, absl::StrCat(host, ":", socket)}, &node,
      Uplink::Callbacks{[&](const WantedKinds& wanted) { authority.OnManagerWanted(wanted); },
                        [&](bool connected) { authority.OnManagerConnected(connected); },
                        [&](uint64_t id, const std::string& name, const std::string& args) {
                          hello_server.CallAgents(id, name, args);
                        }});

  absl::StatusOr<std::unique_ptr<HealthServer>> health = HealthServer::Start(options.listen);
  if (!health.ok()) {
    if (!options.listen_is_default || absl::IsInvalidArgument(health.status())) return health.status();
    spdlog::warn("{}; going on without it: ranks use the socket", health.status().message());
  }
  node.Start();
  if (absl::Status started = hello_server.Start(socket); !started.ok()) return started;
  if (absl::Status started = uplink->Start(); !started.ok()) return started;
  spdlog::info("node {} serves its ranks on {}, manager {}, files in {}/{}", options.node_rank, socket, options.manager,
               options.profiling_dir, task_folder);
  {
    SwitchFileWatcher switch_file(options.switch_file,
                                  [&](const SwitchChange& change) { authority.OnFileChange(change); });
    Periodic authority_tick(std::chrono::milliseconds(200), [&](const std::atomic<bool>&) { authority.Tick(); });
    PeriodicAging aging(options.profiling_dir);
    Periodic aging_tick(std::chrono::seconds(1),
                        [&](const std::atomic<bool>&) { aging.Tick(ReadMonotonicNs(), node.disk_limit_mb()); });
    spdlog::info("stopping: {}", stop.Wait());
    // A job that is over before the manager was reached: what it recorded is written once it is known to be wanted.
    if (!last_wanted && !node.Reports().empty()) authority.WaitUntilDecided(kFirstWordPatience);
  }
  hello_server.Stop();
  const absl::Status left = node.Stop();
  uplink->Stop();
  return left;
}

}  // namespace taskd
