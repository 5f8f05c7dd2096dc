#include "agent/commands/ui.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <iostream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/find_job.h"
#include "agent/commands/job_flags.h"
#include "common/address.h"
#include "common/job_file.h"
#include "common/job_secret.h"
#include "common/unique_fd.h"

namespace taskd::commands {
namespace {

constexpr timeval kPatience{5, 0};

struct UiOptions {
  std::string manager;  // HOST:PORT; empty: the only job of this user here, or `job`
  std::string job;
};

// Where a browser on this machine finds it.
HostPort Reachable(HostPort http) {
  if (http.host == "0.0.0.0") http.host = "127.0.0.1";
  if (http.host == "::") http.host = "::1";
  return http;
}

// The status of a reply to a request for the page. UNAVAILABLE: nobody answers there.
absl::StatusOr<int> AskForPage(const HostPort& http) {
  const absl::Status nobody =
      absl::UnavailableError(absl::StrCat("nobody answers at http://", FormatHostPort(http), "/"));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(http.host.c_str(), std::to_string(http.port).c_str(), &hints, &found) != 0) return nobody;
  UniqueFd connection(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const bool connected = connect(connection.get(), found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (!connected) return nobody;
  const std::string request =
      absl::StrCat("HEAD / HTTP/1.1\r\nHost: ", FormatHostPort(http), "\r\nConnection: close\r\n\r\n");
  if (send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return nobody;
  }
  // "HTTP/1.1 200"
  char head[12];
  if (recv(connection.get(), head, sizeof head, MSG_WAITALL) != sizeof head) return nobody;
  int status = 0;
  if (!absl::SimpleAtoi(absl::string_view(head + 9, 3), &status)) return nobody;
  return status;
}

// Prints to stdout. INVALID_ARGUMENT: wrong usage; any other error: there is no page.
absl::Status RunUi(const UiOptions& options) {
  absl::StatusOr<JobFile> job = FindJob(options.manager, options.job);
  if (std::ostringstream line; options.manager.empty() && AskEndedJob(job.status(), options.job, line)) {
    return absl::NotFoundError(absl::StrCat(absl::StripSuffix(line.str(), "\n"), "; taskd report writes its page"));
  }
  if (!job.ok()) return job.status();
  if (job->http.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "the manager at ", JobAddress(*job), " serves no HTTP: its address was taken; start it with --http HOST:PORT"));
  }
  absl::StatusOr<HostPort> http = ParseHostPort("http", job->http);
  if (!http.ok()) return http.status();
  *http = Reachable(*http);
  absl::StatusOr<int> status = AskForPage(*http);
  if (!status.ok()) return status.status();
  std::cout << "http://" << FormatHostPort(*http) << "/";
  // This user's browser needs no token where this user's command needs none.
  if (*status == 401) {
    const std::string token = ViewToken(TokenOfEnvironment().empty() ? job->secret : TokenOfEnvironment());
    if (!token.empty()) std::cout << "?token=" << token;
  }
  std::cout << std::endl;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("stdout cannot be written");
}

class UiCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", options_.manager, kManagerHelp);
    flags.Add("--job", options_.job, "NAMESPACE/NAME of the job to find, without --manager").JobName();
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = RunUi(options_); !status.ok()) return status;
    return true;
  }

 private:
  UiOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeUiCommand() { return std::make_unique<UiCommand>(); }

}  // namespace taskd::commands
