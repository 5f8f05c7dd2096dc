// Where the time went of a folder of files, or of one file, as commands give it (JobSource::from). Marks tell of steps, and
// of nothing that was before the first mark or between two processes.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/commands/job_flags.h"
#include "ledger/report.h"
#include "marks/step_fold.h"
#include "readers/diagnose_sources.h"

namespace taskd::commands {

// What a first reading has seen of the steps.
class SeenSteps {
 public:
  explicit SeenSteps(const JobSource& source);
  void Add(int rank, const StepFold& fold);
  bool any() const { return first_ns_ != std::numeric_limits<int64_t>::max(); }

 private:
  friend absl::StatusOr<ledger::Report> LedgerOfFolder(const JobSource&, const readers::SourcesDiagnosis&,
                                                       const SeenSteps&);

  const bool keeps_;                                        // standard input is there once
  int64_t first_ns_ = std::numeric_limits<int64_t>::max();  // when what they tell of begins, Unix time
  std::vector<std::pair<int, StepFold>> kept_;
};

// What NCCL Inspector is read as stands for stretches of operations, between which nobody knows what ranks do.
bool HaveSteps(const readers::SourcesDiagnosis& diagnosed, const SeenSteps& seen);

// `diagnosed`, `seen`: what DiagnoseFolder has found there; there are steps. The files are read once more, because what
// stragglers have cost is known at the end. Errors: as DiagnoseFolder has them.
absl::StatusOr<ledger::Report> LedgerOfFolder(const JobSource& source, const readers::SourcesDiagnosis& diagnosed,
                                              const SeenSteps& seen);

}  // namespace taskd::commands
