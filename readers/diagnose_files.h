// Diagnoses a folder of mark files. All ranks are read in parallel, as they ran; memory grows with the number of ranks,
// not with the length of the job.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "diagnosis/engine.h"
#include "diagnosis/verdict.h"
#include "readers/fold_merge.h"
#include "readers/mark_directory.h"

namespace taskd::readers {

// Called from time to time on the calling thread.
using ReadProgress = std::function<void(uint64_t bytes_read, uint64_t bytes)>;

// Called once after the last step, with the engine and the node of each rank in the order of MarkDirectory::ranks (-1:
// unknown).
using DiagnosisEnd = std::function<void(const diagnosis::Engine& engine, const std::vector<int>& nodes)>;

// Reads the files as they were when the folder was listed. The result does not depend on `threads` (at least 1).
// Malformed lines and unreadable files are left out and noted. INVALID_ARGUMENT: the folder contains no mark.
absl::StatusOr<diagnosis::Report> DiagnoseFiles(const MarkDirectory& directory, int threads,
                                                const ReadProgress& progress, const DiagnosisEnd& at_end = nullptr,
                                                const StepSeen& on_step = nullptr);

}  // namespace taskd::readers
