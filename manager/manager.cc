#include "manager/manager.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include "common/descriptors.h"
#include "common/log.h"
#include "common/stop_signal.h"
#include "manager/server.h"

namespace taskd {
namespace {

// Everything that must last is on disk by then; whoever still holds a connection open does not keep the process alive.
constexpr unsigned kLastResortS = 4;

}  // namespace

absl::Status RunManager(const ManagerOptions& given) {
  absl::StatusOr<ManagerOptions> options = manager::ResolveManagerOptions(given);
  if (!options.ok()) return options.status();
  RaiseDescriptorLimit();
  StopSignal stop(options->exit_on_stdin_eof);
  absl::StatusOr<std::unique_ptr<manager::ManagerServer>> server = manager::ManagerServer::Start(*options);
  if (!server.ok()) return server.status();
  if (options->allow_plaintext && options->tls_dir.empty() && options->token.empty()) {
    spdlog::warn("--allow-plaintext: anybody who can reach {} can switch this job's marks and call its agents",
                 options->listen);
  }
  spdlog::info("manager of job '{}' answers gRPC on {} (port {})", options->job, options->listen, (*server)->port());
  spdlog::info("stopping: {}", stop.Wait());
  std::signal(SIGALRM, [](int) { _exit(0); });
  alarm(kLastResortS);
  server->reset();
  alarm(0);
  return absl::OkStatus();
}

}  // namespace taskd
