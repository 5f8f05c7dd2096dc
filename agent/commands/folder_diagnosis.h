// The diagnosis of files and folders, as commands give it (JobSource::from).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "agent/commands/job_flags.h"
#include "readers/diagnose_sources.h"

namespace taskd::commands {

// Shows progress on a terminal. The name is the job's, where that is given. Errors: as DiagnoseSources has them.
absl::StatusOr<readers::SourcesDiagnosis> DiagnoseFolder(const JobSource& source,
                                                         const readers::StepSeen& on_step = nullptr,
                                                         const readers::EngineSeen& on_engine = nullptr);

// Says in a line on stderr which job of several was taken, if there are several.
void SayChoice(const std::string& command, const readers::SourcesDiagnosis& diagnosed);

// That what is there does not have it, "no step" or "no time line": which formats those are, and what they are good for.
std::string LacksEverywhere(const readers::SourcesDiagnosis& diagnosed, std::string_view what);

}  // namespace taskd::commands
