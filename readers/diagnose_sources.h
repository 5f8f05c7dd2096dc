// Diagnoses a job from files of other tools (docs/from-other-tools.md) and from TaskD's own mark files, together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "diagnosis/hang.h"
#include "diagnosis/verdict.h"
#include "readers/diagnose_files.h"
#include "readers/source_files.h"
#include "readers/source_marks.h"

namespace taskd::readers {

// A file that was read, or that could not be read. If there are other files too, each rank's folder of mark files is
// one source, and its records are steps.
struct Source {
  std::string path;
  SourceFormat format = SourceFormat::kUnknown;
  int rank = -1;  // -1: unknown
  uint64_t records = 0;
  std::string note;  // defects of the file; empty: none

  friend bool operator==(const Source&, const Source&) = default;
};

struct SourcesDiagnosis {
  diagnosis::Report report;
  std::string name;             // job's name, from the folder or the first file
  std::string choice;           // as MarkDirectory::choice
  std::vector<Source> sources;  // empty if there are only TaskD's own mark files
  std::optional<diagnosis::Hang> hang;
  // If files of several formats were read: the formats that proved each of the report's verdicts, and the hang.
  std::vector<std::vector<SourceFormat>> proved_by;
  SourceFormat hang_proved_by = SourceFormat::kUnknown;

  // The format of the steps that StepSeen received: marks, else profiles, else NCCL Inspector.
  SourceFormat steps_format = SourceFormat::kUnknown;
  std::vector<SourceRank> ranks;
  std::vector<diagnosis::Verdict> verdicts;  // verdicts from these steps
};

// Called with each engine that has judged steps, after its last step: marks, then profiles, then NCCL Inspector.
using EngineSeen = std::function<void(const diagnosis::Engine& engine)>;

// `paths`, at least one, are files, folders and patterns of one job. Folders of mark files and other files are judged
// separately, and the results are joined. `threads` threads read files in parallel. INVALID_ARGUMENT: a path does not
// exist, or none contains a known format. FAILED_PRECONDITION: the files prove nothing.
absl::StatusOr<SourcesDiagnosis> DiagnoseSources(const std::vector<std::string>& paths, int threads,
                                                 const ReadProgress& progress, const StepSeen& on_step = nullptr,
                                                 const EngineSeen& on_engine = nullptr);

}  // namespace taskd::readers
