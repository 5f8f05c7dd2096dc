#include "agent/commands/store.h"

#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/descriptors.h"
#include "common/environment.h"
#include "common/event_loop.h"
#include "common/log_file.h"
#include "common/own_process.h"
#include "common/service_notify.h"
#include "common/stop_signal.h"
#include "common/unique_fd.h"
#include "store/server.h"

namespace taskd::commands {
namespace {

struct StoreOptions {
  std::string listen;            // HOST:PORT; port 0: a free one
  std::string upstream;          // HOST:PORT of a taskd store whose tier this is; empty: none
  std::string dialect = "auto";  // auto, 1.x, 2.1, 2.x: what clients without VALIDATE are taken for
  uint32_t memory_limit_mb = 0;  // in MiB (StoreServer::Options); 0: DefaultStoreMemoryBytes()
  std::string secret;            // TASKD_TOKEN: what tiers prove; empty: nothing
  double stats_s = 0;            // a line of JSON on stderr so often; 0: never
};

absl::StatusOr<store::StoreDialect> UnvalidatedDialect(const std::string& dialect) {
  if (dialect == "auto" || dialect == "1.x" || dialect == "2.x") return store::StoreDialect::k1x;
  if (dialect == "2.1") return store::StoreDialect::k21;
  return absl::InvalidArgumentError(absl::StrCat("--dialect: '", dialect, "' is not auto, 1.x, 2.1 or 2.x"));
}

std::string StatsLine(const store::StoreStats& stats) {
  return absl::StrCat("{\"connections\":", stats.connections, ",\"tiers\":", stats.tiers,
                      ",\"requests\":", stats.requests, ",\"upstream_requests\":", stats.upstream_requests,
                      ",\"upstream_bytes\":", stats.upstream_bytes, ",\"keys\":", stats.keys,
                      ",\"waiting\":", stats.waiting, ",\"refused\":", stats.refused, ",\"bytes\":", stats.bytes, "}");
}

// Prints "listening HOST:PORT" when it is ready, and returns after SIGTERM or SIGINT. Raises the soft limit of open
// files: each client takes one. INVALID_ARGUMENT: wrong usage. ALREADY_EXISTS: the address is in use.
absl::Status RunStore(const StoreOptions& options) {
  absl::StatusOr<HostPort> listen = ParseHostPort("--listen", options.listen);
  if (!listen.ok()) return listen.status();
  if (!options.upstream.empty()) {
    absl::StatusOr<HostPort> upstream = ParseHostPort("--upstream", options.upstream);
    if (!upstream.ok()) return upstream.status();
    if (upstream->port == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--upstream: '", options.upstream, "': no store has port 0"));
    }
  }
  absl::StatusOr<store::StoreDialect> unvalidated = UnvalidatedDialect(options.dialect);
  if (!unvalidated.ok()) return unvalidated.status();

  RaiseDescriptorLimit();
  IgnoreStraySignals();
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  UniqueFd signals(signalfd(-1, &ending, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals.valid()) return absl::InternalError("cannot wait for signals: signalfd failed");

  EventLoop loop;
  store::StoreServer::Options server_options;
  server_options.listen = *listen;
  server_options.upstream = options.upstream;
  server_options.unvalidated = *unvalidated;
  server_options.secret = options.secret;
  server_options.memory_limit_bytes =
      options.memory_limit_mb > 0 ? uint64_t{options.memory_limit_mb} << 20 : store::DefaultStoreMemoryBytes();
  absl::StatusOr<std::unique_ptr<store::StoreServer>> server = store::StoreServer::Start(&loop, server_options);
  if (!server.ok()) return server.status();
  loop.Add(signals.get(), EPOLLIN, [&](uint32_t) { loop.Stop(); });

  const auto interval_ns = static_cast<int64_t>(std::min(options.stats_s, 1e9) * 1e9);
  std::function<void()> print_stats = [&] {
    WriteToStderr(StatsLine((*server)->stats()) + "\n");
    loop.RunAfter(interval_ns, print_stats);
  };
  if (interval_ns > 0) loop.RunAfter(interval_ns, print_stats);

  WriteToStdout(absl::StrCat("listening ", FormatHostPort({listen->host, (*server)->port()}), "\n"));
  NotifyServiceManager("READY=1");
  loop.Run();
  NotifyServiceManager("STOPPING=1");
  loop.Remove(signals.get());
  return absl::OkStatus();
}

class StoreCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--listen", options_.listen, "HOST:PORT; port 0 for a free one").Required();
    flags.Add("--upstream", options_.upstream, "HOST:PORT of a taskd store: be a tier of that one");
    flags
        .Add("--dialect", options_.dialect,
             "auto, 1.x, 2.1 or 2.x: what clients that do not tell their release are taken for")
        .ShowDefault();
    flags
        .Add("--memory-limit-mb", options_.memory_limit_mb,
             "MiB of memory beyond which writes are refused [4096, or a quarter of the container's where that is less]")
        .Range(1, 1 << 24);
    flags.Add("--stats-s", options_.stats_s, "print a line of JSON on stderr every so many seconds").Positive();
  }

  absl::StatusOr<bool> Run() override {
    options_.secret = TokenOfEnvironment();
    CloseProcess();
    TakeLogVariables(OwnEnvironment(), "store.log");
    if (absl::Status status = RunStore(options_); !status.ok()) return status;
    return true;
  }

 private:
  StoreOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeStoreCommand() { return std::make_unique<StoreCommand>(); }

}  // namespace taskd::commands
