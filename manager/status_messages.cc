#include "manager/status_messages.h"

#include "diagnosis/render.h"
#include "manager/diagnosis_core.h"

namespace taskd::manager {

void FillDiagnosis(const diagnosis::Report& report, v1::DiagnosisStatus* message) {
  message->set_state(diagnosis::Name(report.state));
  message->set_headline(diagnosis::WriteHeadline(report));
  message->set_coverage(CoverageOf(report));
}

}  // namespace taskd::manager
