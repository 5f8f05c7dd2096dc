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
  template <typename Number>
  void Add(Number value) {
    text_ += fmt::format("{} {}\n", name_, value);
  }
  void Add(std::string_view kind, uint64_t value) {
    text_ += fmt::format("{}{{kind=\"{}\"}} {}\n", name_, kind, value);
  }
  template <typename Number>
  void Gauge(std::string_view name, std::string_view help, Number value) {
    Begin(name, "gauge", help);
    Add(value);
  }
  template <typename Number>
  void Counter(std::string_view name, std::string_view help, Number value) {
    Begin(name, "counter", help);
    Add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string_view name_;
  std::string text_;
};

// Sums over the job only: a series a rank would be 16,384 of each for whoever collects them.
std::string Metrics(const JobShape& shape, const JobSnapshot& snapshot, const DiagnosisCore::Stats& diagnosis,
                    const SupervisionSnapshot& supervision) {
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
  metrics.Counter("taskd_marks_lost_total", "Marks overwritten before they were read, or without a ring.", lost);
  metrics.Gauge("taskd_verdicts_open", "Open verdicts of the diagnosis.", diagnosis.open_verdicts);
  metrics.Gauge("taskd_verdicts_cost_ms_per_step", "What the dearest open verdict costs a step.",
                diagnosis.cost_ms_per_step);
  metrics.Gauge("taskd_diagnosis_live_ranks", "Ranks that steps wait for.", diagnosis.feed.live_ranks);
  metrics.Counter("taskd_folds_received_total", "Steps of single ranks that proxies have sent.", diagnosis.received);
  metrics.Begin("taskd_folds_dropped_total", "counter", "Steps of single ranks that were not judged.");
  metrics.Add("overload", diagnosis.dropped);
  metrics.Add("refused", diagnosis.feed.refused);
  metrics.Gauge("taskd_folds_unsent", "Steps that the connected proxies could not send, since they started.",
                diagnosis.feed.proxy_dropped);
  metrics.Gauge("taskd_diagnosis_lag_seconds", "From the arrival of the last folds to their judgement.",
                diagnosis.lag_s);
  metrics.Counter("taskd_diagnosis_busy_seconds_total", "Time spent on judging.", diagnosis.busy_s);
  metrics.Counter("taskd_restarts_total", "Restarts of the ranks that the launcher has reported.",
                  supervision.restarts);
  metrics.Counter("taskd_rank_exits_total", "Ends of ranks that the launcher has reported.", supervision.rank_exits);
  metrics.Gauge("taskd_hung_ranks", "Live ranks of a job that hangs, else 0.", supervision.hung_ranks);
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

  absl::Status Start(const HostPort& address, std::shared_ptr<ManagerCore> core,
                     std::shared_ptr<DiagnosisCore> diagnosis, std::shared_ptr<SupervisionCore> supervision) {
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
    server_.Get("/metrics", [core, diagnosis, supervision](const httplib::Request&, httplib::Response& response) {
      response.set_content(Metrics(core->shape(), core->Snapshot(), diagnosis->stats(), supervision->Snapshot()),
                           "text/plain; version=0.0.4; charset=utf-8");
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
                                                              std::shared_ptr<ManagerCore> core,
                                                              std::shared_ptr<DiagnosisCore> diagnosis,
                                                              std::shared_ptr<SupervisionCore> supervision) {
  auto impl = std::make_unique<Impl>();
  absl::Status status = impl->Start(address, std::move(core), std::move(diagnosis), std::move(supervision));
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace taskd::manager
