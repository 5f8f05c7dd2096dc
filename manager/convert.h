// Between the messages of taskd.v1 and the core's types.
#pragma once

#include "common/switch.h"
#include "manager/core.h"
#include "taskd/v1/control.pb.h"
#include "taskd/v1/node.pb.h"
#include "taskd/v1/switch.pb.h"

namespace taskd::manager {

inline KindMask ReadKinds(const v1::KindStates& message) {
  return (message.step() ? MaskOf(SwitchKind::kStep) : 0) |
         (message.save_checkpoint() ? MaskOf(SwitchKind::kSaveCheckpoint) : 0) |
         (message.fp() ? MaskOf(SwitchKind::kForward) : 0) |
         (message.dataloader() ? MaskOf(SwitchKind::kDataLoader) : 0) |
         (message.communication() ? MaskOf(SwitchKind::kCommunication) : 0);
}

inline void FillKinds(KindMask kinds, v1::KindStates* out) {
  out->set_step((kinds & MaskOf(SwitchKind::kStep)) != 0);
  out->set_save_checkpoint((kinds & MaskOf(SwitchKind::kSaveCheckpoint)) != 0);
  out->set_fp((kinds & MaskOf(SwitchKind::kForward)) != 0);
  out->set_dataloader((kinds & MaskOf(SwitchKind::kDataLoader)) != 0);
  out->set_communication((kinds & MaskOf(SwitchKind::kCommunication)) != 0);
}

inline void FillWanted(const SwitchState& state, v1::WantedState* out) {
  out->set_revision(state.revision);
  FillKinds(state.effective, out->mutable_kinds());
}

}  // namespace taskd::manager
