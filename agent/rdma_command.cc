#include "agent/rdma_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "agent/rdma/nccl_log.h"
#include "agent/rdma/rdma_environment.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "fmt/format.h"

namespace taskd {
namespace {

absl::StatusOr<NcclLogReport> ReadLog(const std::string& path) {
  UniqueFd opened;
  int fd = STDIN_FILENO;
  if (path != "-") {
    opened.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!opened.valid()) return absl::InvalidArgumentError(fmt::format("{}: {}", path, strerror(errno)));
    fd = opened.get();
  }
  NcclLogClassifier classifier;
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

void PrintJson(const NcclLogReport& report) {
  nlohmann::ordered_json result = {{"verdict", report.verdict()}, {"gdrdma", report.gdrdma},
                                   {"rdma", report.rdma},         {"socket", report.socket},
                                   {"intra", report.intra},       {"first_offending", nullptr}};
  if (report.first_offending_line > 0) {
    result["first_offending"] = {{"line", report.first_offending_line}, {"text", report.first_offending_text}};
  }
  // A log may hold any bytes.
  std::cout << PrintableJson(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) << std::endl;
}

void PrintText(const NcclLogReport& report) {
  std::cout << fmt::format("{}: channels gdrdma {}, rdma {}, socket {}; within nodes {}\n", report.verdict(),
                           report.gdrdma, report.rdma, report.socket, report.intra);
  if (report.first_offending_line > 0) {
    std::cout << fmt::format("line {}: {}\n", report.first_offending_line, Printable(report.first_offending_text));
  }
  std::cout.flush();
}

}  // namespace

absl::StatusOr<bool> RunRdmaCheck(const RdmaCheckOptions& options) {
  const absl::StatusOr<NcclLogReport> report = ReadLog(options.log);
  if (!report.ok()) return report.status();
  options.json ? PrintJson(*report) : PrintText(*report);
  return report->verdict() == "gdrdma" || report->verdict() == "rdma";
}

absl::Status RunRdmaEnvironment(const std::string& mode_name) {
  const absl::StatusOr<RdmaMode> mode = ParseRdmaMode(mode_name);
  if (!mode.ok()) return mode.status();
  const char* list = std::getenv("NODE_LIST");
  std::vector<NodeEntry> nodes;
  // No list is a job without nodes: a condition that is not met.
  if (list != nullptr && *list != '\0') {
    absl::StatusOr<std::vector<NodeEntry>> parsed = ParseNodeList(list);
    if (!parsed.ok()) return parsed.status();
    nodes = *std::move(parsed);
  }
  const auto get = [](const char* name) -> const char* { return std::getenv(name); };
  if (absl::Status met = CheckRdmaConditions(*mode, nodes, SysfsFolder(get)); !met.ok()) return met;
  std::string lines;
  for (const auto& [name, value] : RdmaEnvironment(get)) {
    if (value.find('\n') != value.npos) {
      return absl::InvalidArgumentError(fmt::format("{}: a value of several lines cannot be printed", name));
    }
    lines += fmt::format("{}={}\n", name, value);
  }
  std::cout << lines << std::flush;
  return absl::OkStatus();
}

}  // namespace taskd
