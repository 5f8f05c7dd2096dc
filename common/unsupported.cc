#include "common/unsupported.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/printable.h"

namespace taskd {

std::vector<std::string> UnsupportedRequests(const Environment& environment) {
  std::vector<std::string> requests;
  for (const auto& [variable, what] :
       {std::pair("PROCESS_RECOVER", "process-level rescheduling and online recovery"),
        std::pair("ENABLE_RESTART_FAULT_PROCESS", "restart of a faulty process in place"),
        std::pair("TASKD_PROCESS_ENABLE", "process-level recovery by MindIO")}) {
    if (ValueOf(environment, variable) == "on") requests.push_back(absl::StrCat(what, " (", variable, "=on)"));
  }
  const std::string availability = ValueOf(environment, "HIGH_AVAILABILITY");
  if (!availability.empty()) {
    const bool elastic = absl::StrContains(availability, "elastic-training");
    requests.push_back(absl::StrCat(elastic ? "elastic training" : "high availability by MindIO",
                                    " (HIGH_AVAILABILITY=", Printable(availability), ")"));
  }
  return requests;
}

std::string UnsupportedLine(const std::vector<std::string>& requests) {
  return absl::StrCat("not supported, and will not happen: ", absl::StrJoin(requests, ", "),
                      "; a rank that fails ends its round, and --max-restarts or the scheduler starts the next one");
}

}  // namespace taskd
