#include "agent/commands/rdma.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/rdma/nccl_log.h"
#include "agent/rdma/rdma_environment.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd::commands {
namespace {

struct RdmaCheckOptions {
  std::string log;  // "-": stdin
  bool json = false;
};

absl::StatusOr<rdma::NcclLogReport> ReadLog(const std::string& path) {
  UniqueFd opened;
  int fd = STDIN_FILENO;
  if (path != "-") {
    opened.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.valid()) return absl::InvalidArgumentError(fmt::format("{}: {}", path, strerror(errno)));
    fd = opened.get();
  }
  rdma::NcclLogClassifier classifier;
  std::vector<char> buffer(256 << 10);
  while (true) {
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got == 0) return classifier.Finish();
    if (got > 0) {
      classifier.Add({buffer.data(), static_cast<size_t>(got)});
    } else if (errno != EINTR) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", path, strerror(errno)));
    }
  }
}

void PrintJson(const rdma::NcclLogReport& report) {
  nlohmann::ordered_json result = {{"verdict", report.verdict()}, {"gdrdma", report.gdrdma},
                                   {"rdma", report.rdma},         {"socket", report.socket},
                                   {"intra", report.intra},       {"first_offending", nullptr}};
  if (report.first_offending_line > 0) {
    result["first_offending"] = {{"line", report.first_offending_line}, {"text", report.first_offending_text}};
  }
  // A log may hold any bytes.
  std::cout << PrintableJson(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) << std::endl;
}

void PrintText(const rdma::NcclLogReport& report) {
  std::cout << fmt::format("{}: channels gdrdma {}, rdma {}, socket {}; within nodes {}\n", report.verdict(),
                           report.gdrdma, report.rdma, report.socket, report.intra);
  if (report.first_offending_line > 0) {
    std::cout << fmt::format("line {}: {}\n", report.first_offending_line, Printable(report.first_offending_text));
  }
  std::cout.flush();
}

// Prints the verdict on stdout; true: gdrdma or rdma. INVALID_ARGUMENT: the log cannot be read; nothing was printed.
absl::StatusOr<bool> RunRdmaCheck(const RdmaCheckOptions& options) {
  const absl::StatusOr<rdma::NcclLogReport> report = ReadLog(options.log);
  if (!report.ok()) return report.status();
  options.json ? PrintJson(*report) : PrintText(*report);
  return report->verdict() == "gdrdma" || report->verdict() == "rdma";
}

// Prints the 17 variables, NAME=value, for NODE_LIST and this machine. `mode`: auto, on or off. INVALID_ARGUMENT: wrong
// usage or NODE_LIST. FAILED_PRECONDITION: a condition is not met. Then nothing was printed.
absl::Status RunRdmaEnvironment(const std::string& mode_name) {
  const absl::StatusOr<rdma::RdmaMode> mode = rdma::ParseRdmaMode(mode_name);
  if (!mode.ok()) return mode.status();
  const char* list = std::getenv("NODE_LIST");
  std::vector<rdma::NodeEntry> nodes;
  // No list is a job without nodes: a condition that is not met.
  if (list != nullptr && *list != '\0') {
    absl::StatusOr<std::vector<rdma::NodeEntry>> parsed = rdma::ParseNodeList(list);
    if (!parsed.ok()) return parsed.status();
    nodes = *std::move(parsed);
  }
  const auto get = [](const char* name) -> const char* { return std::getenv(name); };
  if (absl::Status met = rdma::CheckRdmaConditions(*mode, nodes, rdma::SysfsFolder(get)); !met.ok()) return met;
  std::string lines;
  for (const auto& [name, value] : rdma::RdmaEnvironment(get)) {
    if (value.find('\n') != value.npos) {
      return absl::InvalidArgumentError(fmt::format("{}: a value of several lines cannot be printed", name));
    }
    lines += fmt::format("{}={}\n", name, value);
  }
  std::cout << lines << std::flush;
  return absl::OkStatus();
}

class RdmaCheckCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.AddPositional("LOG", options_.log, "a log with NCCL_DEBUG=INFO, - for stdin").Required();
    flags.Add("--json", options_.json, "print one JSON object");
  }

  absl::StatusOr<bool> Run() override { return RunRdmaCheck(options_); }

 private:
  RdmaCheckOptions options_;
};

class RdmaEnvironmentCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--rdma", mode_, "auto, or on or off whatever the conditions say").ShowDefault();
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = RunRdmaEnvironment(mode_); !status.ok()) return status;
    return true;
  }

 private:
  std::string mode_ = "auto";
};

}  // namespace

std::unique_ptr<Command> MakeRdmaEnvironmentCommand() { return std::make_unique<RdmaEnvironmentCommand>(); }
std::unique_ptr<Command> MakeRdmaCheckCommand() { return std::make_unique<RdmaCheckCommand>(); }

}  // namespace taskd::commands
