// How small a slowdown would have been named by now.
#pragma once

#include <optional>
#include <vector>

#include "diagnosis/judge.h"
#include "diagnosis/verdict.h"

namespace taskd::diagnosis {

// What Accuse() would have told by now; verdict.h says what the numbers are.
struct Fineness {
  std::optional<Resolution> own_time, dataloader, transfer;
  std::vector<double> own_time_of_ranks;  // 0: not known
  double own_noise = 0;                   // of a typical rank, of one step: standard deviation over peers' own time
  int more_steps = 0;                     // until a tenth can be told, about; 0: never, as it is now
};
Fineness FindFineness(const JudgeInput& input);

}  // namespace taskd::diagnosis
