#include "agent/commands/folder_ledger.h"

#include <algorithm>

#include "agent/commands/folder_diagnosis.h"
#include "ledger/ledger.h"
#include "ledger/straggler.h"

namespace taskd::commands {
namespace {

constexpr int64_t kAdvanceNs = 1'000'000'000;

}  // namespace

void FirstStep::Add(const StepFold& fold) {
  at_ns_ = std::min(at_ns_, static_cast<int64_t>(fold.previous_end_ns != 0 ? fold.previous_end_ns : fold.start_ns));
}

absl::StatusOr<ledger::Report> LedgerOfFolder(const JobSource& source, const readers::SourcesDiagnosis& diagnosed,
                                              const FirstStep& first) {
  int64_t now_ns = first.at_ns(), advanced_ns = first.at_ns();
  ledger::Ledger book({.now_ns = now_ns});
  book.SetKnownStragglers(ledger::StragglersOf(diagnosed.report.verdicts), now_ns);
  absl::StatusOr<readers::SourcesDiagnosis> again = DiagnoseFolder(source, [&](int rank, const StepFold& fold) {
    now_ns = std::max(now_ns, static_cast<int64_t>(fold.end_ns));
    book.Step(rank, fold, now_ns);
    if (now_ns - advanced_ns < kAdvanceNs) return;
    advanced_ns = now_ns;
    book.Advance(now_ns);
  });
  if (!again.ok()) return again.status();
  book.Advance(now_ns);
  return book.report();
}

}  // namespace taskd::commands
