#include "agent/commands/folder_diagnosis.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "agent/commands/progress.h"

namespace taskd::commands {

absl::StatusOr<readers::SourcesDiagnosis> DiagnoseFolder(const JobSource& source, const readers::StepSeen& on_step) {
  Progress progress;
  absl::StatusOr<readers::SourcesDiagnosis> read = readers::DiagnoseSources(
      source.from, ReadingThreads(), [&](uint64_t done, uint64_t all) { progress.Show("reading", done, all); },
      on_step);
  progress.Clear();
  if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat("--from: ", read.status().message()));
  if (!source.job.empty()) read->name = source.job;
  return read;
}

}  // namespace taskd::commands
