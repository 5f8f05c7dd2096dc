#include "agent/process/worker_exit.h"

#include <signal.h>
#include <string.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace taskd::process {

using nlohmann::json;

std::string DescribeEnd(const WorkerExit& exit) {
  if (exit.signal == 0) {
    return absl::StrCat("exit code ", exit.code,
                        exit.killed_by.empty() ? "" : absl::StrCat(", what it ran was ", exit.killed_by));
  }
  if (exit.signal == SIGKILL && !exit.killed_by.empty()) return exit.killed_by;
  const char* name = ::sigabbrev_np(exit.signal);
  if (name == nullptr) return absl::StrCat("signal ", exit.signal);
  return absl::StrCat("SIG", name, " (signal ", exit.signal, ")");
}

std::string MessageOfErrorFile(std::string_view text) {
  const json file = json::parse(text, nullptr, false);
  if (!file.is_object()) return "";
  auto outer = file.find("message");
  if (outer == file.end()) return "";
  if (outer->is_string()) return outer->get<std::string>();
  if (!outer->is_object()) return "";
  auto inner = outer->find("message");
  return inner != outer->end() && inner->is_string() ? inner->get<std::string>() : "";
}

}  // namespace taskd::process
