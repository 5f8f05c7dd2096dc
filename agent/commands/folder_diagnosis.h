// The diagnosis of files and folders, as commands give it (JobSource::from).
#pragma once

#include "absl/status/statusor.h"
#include "agent/commands/job_flags.h"
#include "readers/diagnose_sources.h"

namespace taskd::commands {

// Shows progress on a terminal. The name is the job's, where that is given. Errors: as DiagnoseSources has them.
absl::StatusOr<readers::SourcesDiagnosis> DiagnoseFolder(const JobSource& source,
                                                         const readers::StepSeen& on_step = nullptr);

}  // namespace taskd::commands
