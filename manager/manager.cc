#include "manager/manager.h"

#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "common/address.h"
#include "common/descriptors.h"
#include "common/job_file.h"
#include "common/job_secret.h"
#include "common/log.h"
#include "common/stop_signal.h"
#include "common/unsupported.h"
#include "manager/options.h"
#include "manager/server.h"
#include "proto/ended_jobs.h"

namespace taskd::manager {
namespace {

// Everything that must last is on disk by then; whoever still holds a connection open does not keep the process alive.
constexpr unsigned kLastResortS = 4;

// So that this user's tools find the job. Without it they need --manager.
std::unique_ptr<JobFileHandle> LeaveJobFile(const ManagerOptions& options, int port, int http_port) {
  absl::StatusOr<HostPort> listen = ParseHostPort("--listen", options.listen);
  if (!listen.ok()) return nullptr;
  listen->port = port;
  JobFile job = DescribeListener(*listen);
  job.job = options.job.empty() ? options.default_job : options.job;
  job.task_id = options.task_id;
  job.secret = options.secret;
  if (absl::StatusOr<HostPort> http = ParseHostPort("--http", options.http); http.ok() && http_port != 0) {
    job.http = FormatHostPort({http->host, http_port});
  }
  absl::StatusOr<std::unique_ptr<JobFileHandle>> file = JobFileHandle::Write(job);
  if (file.ok()) return *std::move(file);
  const bool is_known = !options.token.empty() || !options.tls_dir.empty() || IsStandIn(options.secret);
  spdlog::warn("{}: {}",
               is_known ? "tools need --manager to find this job"
                        : "nobody can find this job or its secret; set TASKD_TOKEN for all its parts",
               file.status().message());
  return nullptr;
}

}  // namespace

absl::Status RunManager(const ManagerOptions& given) {
  absl::StatusOr<ManagerOptions> options = manager::ResolveManagerOptions(given);
  if (!options.ok()) return options.status();
  RaiseDescriptorLimit();
  StopSignal stop(options->exit_on_stdin_eof);
  // Whoever is answered finds the job and its secret.
  std::unique_ptr<JobFileHandle> job_file;
  absl::StatusOr<std::unique_ptr<ManagerServer>> server = ManagerServer::Start(
      *options, [&](int port, int http_port) { job_file = LeaveJobFile(*options, port, http_port); });
  if (!server.ok()) return server.status();
  if (options->allow_plaintext) {
    spdlog::warn("--allow-plaintext: anybody who can reach {} in plain text can switch this job's marks on and off",
                 options->listen);
  }
  if (!options->tls_dir.empty() && options->tls_name.empty()) {
    spdlog::warn(
        "--tls-dir without --tls-name: everybody with a certificate of ca.crt, whatever name it has, can join this job "
        "and end it");
  }
  if (IsStandIn(options->secret)) {
    spdlog::warn("no TASKD_TOKEN and no --tls-dir: whoever knows the job's id can join it and end it{}{}",
                 given.report_fault ? "; so --report-fault reports nothing" : "",
                 given.on_slow.order_to.empty() ? "" : "; so nothing is sent to --order-to");
  }
  if (!options->not_supported.empty()) spdlog::warn("{}", UnsupportedLine(options->not_supported));
  spdlog::info("manager of job '{}' answers gRPC on {} (port {})", options->job, options->listen, (*server)->port());
  stop.SayReady();
  spdlog::info("stopping: {}", stop.Wait());
  job_file.reset();
  std::signal(SIGALRM, [](int) { _exit(0); });
  alarm(kLastResortS);
  std::optional<v1::EndedJob> ended = (*server)->LastAnswers();
  server->reset();
  // Last: storage may hang.
  if (ended) {
    absl::Status kept = proto::KeepEndedJob(*std::move(ended));
    if (!kept.ok()) spdlog::info("this job cannot be asked after its end: {}", kept.message());
  }
  alarm(0);
  return absl::OkStatus();
}

}  // namespace taskd::manager
