// One answer from whatever other tools left behind (docs/from-other-tools.md), and from TaskD's own mark files.
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

// A file that something was read from, or could not be. Beside other files each rank's folder of mark files is one, and
// its records are steps.
struct Source {
  std::string path;
  SourceFormat format = SourceFormat::kUnknown;
  int rank = -1;  // -1: unknown
  uint64_t records = 0;
  std::string note;  // what is wrong with it; empty: nothing

  friend bool operator==(const Source&, const Source&) = default;
};

struct SourcesDiagnosis {
  diagnosis::Report report;
  std::string name;             // of the job: after the folder, or the first file
  std::string choice;           // as MarkDirectory::choice
  std::vector<Source> sources;  // none where there are only TaskD's own mark files
  std::optional<diagnosis::Hang> hang;
  // Where files of several formats were read: which of them proved each of the report's verdicts, and the hang.
  std::vector<std::vector<SourceFormat>> proved_by;
  SourceFormat hang_proved_by = SourceFormat::kUnknown;

  // Whose steps were handed to StepSeen: those of marks, else of profilers, else of NCCL Inspector.
  SourceFormat steps_format = SourceFormat::kUnknown;
  std::vector<SourceRank> ranks;
  std::vector<diagnosis::Verdict> verdicts;  // that these steps prove
};

// Called with each engine that has judged steps, after its last one: that of marks, of profilers, of NCCL Inspector.
using EngineSeen = std::function<void(const diagnosis::Engine& engine)>;

// `paths`, at least one: files, folders and patterns. Folders of mark files and other files are of one job, and are judged
// each by itself: what they prove is put together. Files are read side by side on `threads`.
// INVALID_ARGUMENT: something that was named is not there, or nothing in it is of a known format. FAILED_PRECONDITION:
// what is there says nothing.
absl::StatusOr<SourcesDiagnosis> DiagnoseSources(const std::vector<std::string>& paths, int threads,
                                                 const ReadProgress& progress, const StepSeen& on_step = nullptr,
                                                 const EngineSeen& on_engine = nullptr);

}  // namespace taskd::readers
