// The job's status for programs: what `taskd status --json` prints and the manager's HTTP gives.
#pragma once

#include <string>

#include "taskd/v1/control.pb.h"

namespace taskd::proto {

// One object, no line feed at the end. Valid UTF-8, and safe for a terminal, whatever names it holds.
std::string RenderStatusJson(const v1::JobStatus& status);

// "running", …; "unknown": no launcher has reported.
const char* NameOf(v1::SupervisionStatus::State state);

}  // namespace taskd::proto
