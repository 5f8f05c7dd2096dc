#include "manager/manager.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include "common/address.h"
#include "common/job_file.h"
#include "common/job_secret.h"
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
  StopSignal stop(options->exit_on_stdin_eof);
  absl::StatusOr<std::unique_ptr<manager::ManagerServer>> server = manager::ManagerServer::Start(*options);
  if (!server.ok()) return server.status();
  if (options->allow_plaintext) {
    spdlog::warn("--allow-plaintext: anybody who can reach {} in plain text can switch this job's marks on and off",
                 options->listen);
  }
  if (IsStandIn(options->secret)) {
    spdlog::warn("no TASKD_TOKEN and no --tls-dir: whoever knows the job's id can join it and end it");
  }
  JobFile file = DescribeListener({ParseHostPort("--listen", options->listen)->host, (*server)->port()});
  file.job = options->job;
  file.task_id = options->task_id;
  file.secret = options->secret;
  if ((*server)->http_port() != 0) {
    file.http = FormatHostPort({ParseHostPort("--http", options->http)->host, (*server)->http_port()});
  }
  absl::StatusOr<std::unique_ptr<JobFileHandle>> job_file = JobFileHandle::Write(file);
  if (!job_file.ok()) {
    spdlog::warn("{}; this user's tools find the job by --manager and TASKD_TOKEN alone", job_file.status().message());
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
