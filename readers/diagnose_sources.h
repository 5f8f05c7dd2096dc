// One answer from whatever other tools left behind (docs/from-other-tools.md), and from TaskD's own mark files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "diagnosis/hang.h"
#include "diagnosis/verdict.h"
#include "readers/diagnose_files.h"

namespace taskd::readers {

// A file that something was read from, or could not be.
struct Source {
  std::string path;
  std::string format;  // "kineto", "flight_recorder", "nccl_ras", "unknown"
  int rank = -1;       // -1: unknown
  uint64_t records = 0;
  std::string note;  // what is wrong with it; empty: nothing

  friend bool operator==(const Source&, const Source&) = default;
};

struct SourcesDiagnosis {
  diagnosis::Report report;
  std::string name;             // of the job: after the folder, or the first file
  std::vector<Source> sources;  // none of TaskD's own mark files
  std::optional<diagnosis::Hang> hang;
};

// `paths`, at least one: files, folders and patterns, or folders of mark files of one job. Files are read side by side on `threads`.
// INVALID_ARGUMENT: something that was named is not there, or nothing in it is of a known format. FAILED_PRECONDITION:
// what is there says nothing.
absl::StatusOr<SourcesDiagnosis> DiagnoseSources(const std::vector<std::string>& paths, int threads,
                                                 const ReadProgress& progress, const StepSeen& on_step = nullptr);

}  // namespace taskd::readers
