#include "diagnosis/marked_kinds.h"

namespace taskd::diagnosis {

void MarkedKinds::SetOn(int rank, KindMask kinds) {
  if (on_.size() <= static_cast<size_t>(rank)) on_.resize(static_cast<size_t>(rank) + 1);
  on_[static_cast<size_t>(rank)] = kinds;
}

void MarkedKinds::Take(const std::vector<std::pair<int, StepFold>>& folds) {
  KindMask came = MaskOf(SwitchKind::kStep);
  KindMask on = 0;
  for (const auto& [rank, fold] : folds) {
    const auto at = static_cast<size_t>(rank);
    on |= at < on_.size() ? on_[at].value_or(kAllKindsMask) : kAllKindsMask;
    // One that ends after its step is an operation, too.
    if (!fold.ops.empty() || fold.covered_ns > 0) came |= MaskOf(SwitchKind::kCommunication);
    if (fold.forwards > 0) came |= MaskOf(SwitchKind::kForward);
    if (fold.dataloaders > 0) came |= MaskOf(SwitchKind::kDataLoader);
    if (fold.checkpoints > 0) came |= MaskOf(SwitchKind::kSaveCheckpoint);
  }
  came |= on & MaskOf(SwitchKind::kSaveCheckpoint);
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    kinds_[kind].off = (on >> kind & 1) == 0;
    kinds_[kind].silent_steps = (came >> kind & 1) != 0 ? 0 : kinds_[kind].silent_steps + 1;
    kinds_[kind].came = kinds_[kind].came || kinds_[kind].silent_steps == 0;
  }
}

bool MarkedKinds::HasEnded(SwitchKind kind) const {
  return Of(kind).came && IsSilent(kind) && (Of(kind).off || Of(kind).silent_steps >= kSilentSteps);
}

SwitchKind KindOf(const Verdict& verdict) {
  if (verdict.evidence.empty()) return SwitchKind::kStep;
  const std::string& feature = verdict.evidence.front().feature;
  if (feature == "own_time" || feature == "transfer") return SwitchKind::kCommunication;
  if (feature == "dataloader") return SwitchKind::kDataLoader;
  if (feature == "save_checkpoint") return SwitchKind::kSaveCheckpoint;
  return feature == "forward" ? SwitchKind::kForward : SwitchKind::kStep;
}

}  // namespace taskd::diagnosis
