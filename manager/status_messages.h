// What `taskd status` and the page show of the diagnosis.
#pragma once

#include "diagnosis/verdict.h"
#include "taskd/v1/control.pb.h"

namespace taskd::manager {

void FillDiagnosis(const diagnosis::Report& report, v1::DiagnosisStatus* message);

}  // namespace taskd::manager
