#include "manager/http.h"

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"

namespace taskd::manager {
namespace {

// A reader that stalls gives its thread back after this.
constexpr time_t kTimeoutS = 2;
constexpr size_t kThreads = 2;
constexpr size_t kMaxRequestBytes = 4096;

// One metric of the Prometheus text format. The label values are names of ours and need no escaping.
class MetricsText {
 public:
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void Add(uint64_t value) { text_ += fmt::format("{} {}\n", name_, value); }
  void Add(std::string_view kind, uint64_t value) {
    text_ += fmt::format("{}{{kind=\"{}\"}} {}\n", name_, kind, value);
  }
  void Gauge(std::string_view name, std::string_view help, uint64_t value) {
    Begin(name, "gauge", help);
    Add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string_view name_;
  std::string text_;
};

// Sums over the job only: a series a rank would be 16,384 of each for whoever collects them.
std::string Metrics(const JobShape& shape, const JobSnapshot& snapshot) {
  uint64_t connected = 0, attached = 0, known = 0, lost = 0;
  std::array<uint64_t, kNumMarkCounts> marks{};
  for (const JobSnapshot::Node& node : snapshot.nodes) {
    connected += node.connected ? 1 : 0;
    for (const RankReport& rank : node.ranks) {
      ++known;
      attached += node.connected && rank.attached ? 1 : 0;
      lost += rank.lost;
      for (int i = 0; i < kNumMarkCounts; ++i) marks[i] += rank.marks[i];
    }
  }
  MetricsText metrics;
  metrics.Gauge("taskd_nodes_connected", "Nodes whose proxy is connected.", connected);
  metrics.Gauge("taskd_ranks_known", "Ranks that proxies have reported.", known);
  metrics.Gauge("taskd_ranks_attached", "Ranks that can be switched now.", attached);
  metrics.Gauge("taskd_ranks_expected", "Ranks of the job as configured, 0 if not.",
                static_cast<uint64_t>(shape.nodes) * shape.procs_per_node);
  metrics.Gauge("taskd_switch_revision", "Revision of the wanted switch state.", snapshot.wanted.revision);
  metrics.Begin("taskd_switch_on", "gauge", "1 where marks of the kind are wanted.");
  for (int i = 0; i < kNumSwitches; ++i) {
    metrics.Add(SwitchKindName(static_cast<SwitchKind>(i)), snapshot.wanted.effective >> i & 1);
  }
  metrics.Begin("taskd_marks_total", "counter", "Marks and ranges written to the files.");
  for (int i = 0; i < kNumMarkCounts; ++i) {
    metrics.Add(i < kNumSwitches ? SwitchKindName(static_cast<SwitchKind>(i)) : "other", marks[i]);
  }
  metrics.Begin("taskd_marks_lost_total", "counter", "Marks overwritten before they were read, or without a ring.");
  metrics.Add(lost);
  return metrics.text();
}

}  // namespace

class HttpServer::Impl {
 public:
  ~Impl() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Start(const HostPort& address, std::shared_ptr<ManagerCore> core) {
    absl::Status free = CheckCanListen("--http", address);
    if (!free.ok()) return free;
    // Not the library's default, which adds SO_REUSEPORT: a second manager would get some of the requests.
    server_.set_socket_options([](int fd) {
      int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_read_timeout(kTimeoutS);
    server_.set_write_timeout(kTimeoutS);
    server_.set_keep_alive_timeout(kTimeoutS);
    server_.set_payload_max_length(kMaxRequestBytes);
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/metrics", [core](const httplib::Request&, httplib::Response& response) {
      response.set_content(Metrics(core->shape(), core->Snapshot()), "text/plain; version=0.0.4; charset=utf-8");
    });
    port_ = address.port;
    if (port_ == 0) {
      port_ = server_.bind_to_any_port(address.host);
    } else if (!server_.bind_to_port(address.host, port_)) {
      port_ = -1;
    }
    if (port_ < 0) return absl::UnavailableError(absl::StrCat("--http: cannot listen on ", FormatHostPort(address)));
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    // stop() before the loop runs would be lost.
    while (!server_.is_running() && !ended_) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              std::shared_ptr<ManagerCore> core) {
  auto impl = std::make_unique<Impl>();
  absl::Status status = impl->Start(address, std::move(core));
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace taskd::manager
