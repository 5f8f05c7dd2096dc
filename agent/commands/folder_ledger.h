// Where the time went of a folder of files, or of one file, as commands give it (JobSource::from). Marks tell of steps, and
// of nothing that was before the first mark or between two processes.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "agent/commands/job_flags.h"
#include "ledger/report.h"
#include "marks/step_fold.h"
#include "readers/diagnose_sources.h"

namespace taskd::commands {

// When what steps tell of begins, Unix time.
class FirstStep {
 public:
  void Add(const StepFold& fold);
  bool seen() const { return at_ns_ != std::numeric_limits<int64_t>::max(); }
  int64_t at_ns() const { return at_ns_; }

 private:
  int64_t at_ns_ = std::numeric_limits<int64_t>::max();
};

// `diagnosed`, `first`: what DiagnoseFolder has found there. The files are read once more, because what stragglers have
// cost is known at the end. Errors: as DiagnoseFolder has them.
absl::StatusOr<ledger::Report> LedgerOfFolder(const JobSource& source, const readers::SourcesDiagnosis& diagnosed,
                                              const FirstStep& first);

}  // namespace taskd::commands
