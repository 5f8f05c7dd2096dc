// What `taskd status` and the page show of the diagnosis.
#pragma once

#include "diagnosis/verdict.h"
#include "manager/switch/core.h"
#include "taskd/v1/control.pb.h"

namespace taskd::manager {

// All that is known of a node.
void FillNode(const JobSnapshot::Node& node, v1::NodeStatus* message);
void FillDiagnosis(const diagnosis::Report& report, v1::DiagnosisStatus* message);

}  // namespace taskd::manager
