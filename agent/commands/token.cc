#include "agent/commands/token.h"

#include <iostream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/find_job.h"
#include "common/job_secret.h"

namespace taskd::commands {
namespace {

struct TokenOptions {
  std::string manager;  // as for FindJob
  std::string job;
};

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: there is no token.
absl::Status RunToken(const TokenOptions& options) {
  std::string secret = TokenOfEnvironment();
  if (secret.empty()) {
    absl::StatusOr<JobFile> job = FindJob(options.manager, options.job);
    if (!job.ok()) return job.status();
    secret = job->secret;
  }
  const std::string token = ViewToken(secret);
  if (token.empty()) {
    return absl::FailedPreconditionError(
        "the job has no secret that a token could be made of; set TASKD_TOKEN for all its parts");
  }
  std::cout << token << std::endl;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

class TokenCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add(
        "--manager", options_.manager,
        "HOST:PORT of the manager, where TASKD_TOKEN is not set [the only job that this user runs on this machine]");
    flags.Add("--job", options_.job, "NAMESPACE/NAME of the job to find").JobName();
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = RunToken(options_); !status.ok()) return status;
    return true;
  }

 private:
  TokenOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenCommand() { return std::make_unique<TokenCommand>(); }

}  // namespace taskd::commands
