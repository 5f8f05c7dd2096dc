// Supervision between the core's types and the wire.
#pragma once

#include "manager/supervision/supervision_core.h"
#include "taskd/v1/supervision.pb.h"

namespace taskd::manager {

SupervisionEvent ReadEvent(const v1::SupervisionEvent& message);  // an unknown kind stays unknown
void FillSupervision(const SupervisionSnapshot& snapshot, v1::SupervisionStatus* message);
void FillEvidence(const HangEvidence& evidence, v1::HangEvidence* message);
void FillNotice(const HangVerdict& verdict, v1::HangNotice* message);

}  // namespace taskd::manager
