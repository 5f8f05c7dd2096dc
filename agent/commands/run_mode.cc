#include "agent/commands/run_mode.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <utility>

#include "agent/commands/run_task.h"
#include "agent/modes/mode_runner.h"
#include "agent/modes/node_files.h"
#include "agent/modes/plans/mode_options.h"
#include "agent/process/exit_code.h"
#include "agent/process/process_tree.h"
#include "agent/process/run_line.h"
#include "agent/ranktable/rank_table.h"
#include "agent/ranktable/rank_table_file.h"
#include "agent/rdma/rdma_environment.h"
#include "common/log.h"
#include "common/own_process.h"
#include "proto/channel.h"

namespace taskd::commands {
namespace {

// Blocks as long as the resolver takes.
std::string FirstIpv4(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return "";
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(list->ai_addr)->sin_addr, text, sizeof(text));
  freeaddrinfo(list);
  return text;
}

// FirstIpv4 for a dry run, which waits for nothing: where names do not resolve (the job's nodes are not there yet) each
// may take a while to fail, and there may be thousands.
class QuickNames {
 public:
  // The resolver's own patience with a DNS server that is gone is 10 s a name.
  QuickNames() { setenv("RES_OPTIONS", "timeout:1 attempts:2", 0); }

  std::string FirstIpv4(const std::string& host) {
    if (failing_ > kLongest) return "";
    const auto begin = std::chrono::steady_clock::now();
    std::string address = commands::FirstIpv4(host);
    if (address.empty()) failing_ += std::chrono::steady_clock::now() - begin;
    return address;
  }

 private:
  static constexpr std::chrono::seconds kLongest{1};  // for all that fail
  std::chrono::steady_clock::duration failing_{};
};

}  // namespace

int Refuse(const absl::Status& status) {
  process::PrintRunLine(std::string(status.message()));
  return process::kWrongUsage;
}

int RunModeCommand(const std::vector<std::string>& arguments, Environment environment) {
  std::string help;
  absl::StatusOr<modes::ModeOptions> options = modes::ParseModeOptions(arguments, environment, &help);
  if (!help.empty()) {
    std::cout << help << std::flush;
    return 0;
  }
  if (!options.ok()) return Refuse(options.status());
  if (!options->ledger.empty()) environment["TASKD_LEDGER"] = options->ledger;
  if (!options->marks.empty()) environment["TASKD_MARKS"] = options->marks;
  if (const std::optional<int> code = RunTaskCommand(*options, environment)) return *code;
  modes::ModeRun run;
  run.environment = environment;
  run.machine.ipv4 = FirstIpv4;
  run.machine.gpus = modes::CountNvidiaSmiLines;
  const size_t max_bytes = static_cast<size_t>(options->max_input_mb) << 20;
  run.machine.read_file = [max_bytes](const std::string& path) {
    return ranktable::ReadRankTableFile(path, max_bytes);
  };
  run.machine.root = geteuid() == 0;
  run.machine.sysfs = rdma::SysfsFolder([&](const char* name) -> const char* {
    auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
  if (options->dry_run) {
    QuickNames names;
    run.machine.ipv4 = [&](const std::string& host) { return names.FirstIpv4(host); };
    const absl::StatusOr<modes::ModePlan> plan = modes::PlanMode(*options, environment, run.machine);
    if (!plan.ok()) return Refuse(plan.status());
    std::cout << (options->json ? modes::ModePlanJson(*plan) + "\n" : modes::ModePlanText(*plan)) << std::flush;
    return 0;
  }
  run.options = *std::move(options);
  run.security = {.tls_dir = ValueOf(environment, "TASKD_TLS_DIR"),
                  .secret = ValueOf(environment, "TASKD_TOKEN"),
                  .tls_name = ValueOf(environment, "TASKD_TLS_NAME")};
  if (run.options.remote_start == modes::RemoteStart::kTaskd && run.security.secret.empty() &&
      run.security.tls_dir.empty()) {
    return Refuse(absl::InvalidArgumentError(
        "--remote-start 'taskd': needs TASKD_TOKEN (the same on every node) or TASKD_TLS_DIR: without either anybody "
        "could start processes"));
  }
  run.program = process::ThisProgram();
  if (run.program.empty()) run.program = "taskd";
  CloseProcess();
  InitLog("run");
  proto::InitGrpcLog();
  return modes::RunMode(std::move(run));
}

}  // namespace taskd::commands
