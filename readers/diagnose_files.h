// The diagnosis of a folder of mark files: all ranks are read beside each other, as they ran, in memory that grows with
// ranks and not with the length of the job.
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

// Called now and then, from the calling thread.
using ReadProgress = std::function<void(uint64_t bytes_read, uint64_t bytes)>;

// Called once after the last step: what the engine knows beyond its report, and the node of each rank in the order of
// MarkDirectory::ranks, -1 where it is unknown.
using DiagnosisEnd = std::function<void(const diagnosis::Engine& engine, const std::vector<int>& nodes)>;

// Reads what was there when the folder was listed. The same files give the same report, whatever `threads` (at least 1)
// is. Lines that are no marks, and files that cannot be read, are left out and noted. INVALID_ARGUMENT: there is no
// mark in it.
absl::StatusOr<diagnosis::Report> DiagnoseFiles(const MarkDirectory& directory, int threads,
                                                const ReadProgress& progress, const DiagnosisEnd& at_end = nullptr,
                                                const StepSeen& on_step = nullptr);

}  // namespace taskd::readers
