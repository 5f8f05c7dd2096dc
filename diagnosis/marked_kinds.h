// Which kinds of marks come. A verdict rests on one of them: without it nobody knows whether the verdict is over.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "common/switch.h"
#include "diagnosis/verdict.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

class MarkedKinds {
 public:
  void SetOn(int rank, KindMask kinds);
  // All folds of a step that is judged.
  void Take(const std::vector<std::pair<int, StepFold>>& folds);
  // No rank marked it in the last step. Of a checkpoint, which is not in each step: no rank could.
  bool IsSilent(SwitchKind kind) const { return Of(kind).silent_steps > 0; }
  // It was marked, and will not come: it is switched off, or has not come for so long.
  bool HasEnded(SwitchKind kind) const;
  // It was marked, and did not come in the last step: whether it will is not known.
  bool MayHaveEnded(SwitchKind kind) const { return Of(kind).came && IsSilent(kind) && !HasEnded(kind); }

 private:
  static constexpr int kSilentSteps = 16;
  struct Kind {
    bool came = false;     // ever
    int silent_steps = 0;  // the last ones
    bool off = false;      // on all ranks of the last step
  };

  const Kind& Of(SwitchKind kind) const { return kinds_[static_cast<size_t>(kind)]; }

  std::vector<std::optional<KindMask>> on_;  // by rank; none: not known
  std::array<Kind, kNumSwitches> kinds_;
};

// What the verdict was found by.
SwitchKind KindOf(const Verdict& verdict);

}  // namespace taskd::diagnosis
