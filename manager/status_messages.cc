#include "manager/status_messages.h"

#include "diagnosis/render.h"
#include "manager/diagnosis_core.h"

namespace taskd::manager {
namespace {

constexpr int kMaxOpenVerdicts = 20;

}  // namespace

void FillDiagnosis(const diagnosis::Report& report, v1::DiagnosisStatus* message) {
  message->set_state(diagnosis::Name(report.state));
  message->set_headline(diagnosis::WriteHeadline(report));
  message->set_coverage(CoverageOf(report));
  for (const diagnosis::Verdict& verdict : report.verdicts) {
    if (verdict.open && message->open_verdicts_size() < kMaxOpenVerdicts) message->add_open_verdicts(verdict.text);
  }
}

}  // namespace taskd::manager
