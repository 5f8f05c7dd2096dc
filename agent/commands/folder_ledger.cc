#include "agent/commands/folder_ledger.h"

#include <algorithm>

#include "agent/commands/folder_diagnosis.h"
#include "ledger/ledger.h"
#include "ledger/straggler.h"

namespace taskd::commands {
namespace {

constexpr int64_t kAdvanceNs = 1'000'000'000;

}  // namespace

SeenSteps::SeenSteps(const JobSource& source)
    : keeps_(std::find(source.from.begin(), source.from.end(), "-") != source.from.end()) {}

void SeenSteps::Add(int rank, const StepFold& fold) {
  first_ns_ =
      std::min(first_ns_, static_cast<int64_t>(fold.previous_end_ns != 0 ? fold.previous_end_ns : fold.start_ns));
  if (keeps_) kept_.emplace_back(rank, fold);
}

bool HaveSteps(const readers::SourcesDiagnosis& diagnosed, const SeenSteps& seen) {
  return seen.any() && diagnosed.steps_format != readers::SourceFormat::kNcclInspector;
}

absl::StatusOr<ledger::Report> LedgerOfFolder(const JobSource& source, const readers::SourcesDiagnosis& diagnosed,
                                              const SeenSteps& seen) {
  int64_t now_ns = seen.first_ns_, advanced_ns = seen.first_ns_;
  ledger::Ledger book({.now_ns = now_ns});
  book.SetKnownStragglers(ledger::StragglersOf(diagnosed.verdicts), now_ns);
  const auto add = [&](int rank, const StepFold& fold) {
    now_ns = std::max(now_ns, static_cast<int64_t>(fold.end_ns));
    book.Step(rank, fold, now_ns);
    if (now_ns - advanced_ns < kAdvanceNs) return;
    advanced_ns = now_ns;
    book.Advance(now_ns);
  };
  if (seen.keeps_) {
    for (const auto& [rank, fold] : seen.kept_) add(rank, fold);
  } else if (absl::StatusOr<readers::SourcesDiagnosis> again = DiagnoseFolder(source, add); !again.ok()) {
    return again.status();
  }
  book.Advance(now_ns);
  return book.report();
}

}  // namespace taskd::commands
