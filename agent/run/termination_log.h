// Why a container ended, where Kubernetes looks for it: `kubectl describe pod` shows the first container's
// /dev/termination-log, and `kubectl get pod -o jsonpath` reads it from the pod's status.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "agent/run/failure_report.h"

namespace taskd::run {

inline constexpr char kTerminationLog[] = "/dev/termination-log";
inline constexpr size_t kMaxTerminationLogBytes = 4096;  // kubelet takes no more

// The reason first: how the first of `failures` ended, its error, as many of its newest lines as there is room for, and
// the other failures; `line`, which ended the launcher, last, or alone where no rank failed. Without control characters.
std::string TerminationMessage(const std::string& line, const std::vector<RankFailure>& failures);

// Replaces the text of `path`, where that is a regular file that may be written; does nothing anywhere else, and never
// waits. At most kMaxTerminationLogBytes are written, of whole characters.
void WriteTerminationLog(const std::string& text, const std::string& path = kTerminationLog);

}  // namespace taskd::run
