// From the streams' state to accusations: who deviates, whether it matters, what it is and what it costs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/book.h"
#include "diagnosis/cost.h"
#include "diagnosis/layout.h"
#include "diagnosis/own_time.h"
#include "diagnosis/periods.h"
#include "diagnosis/transfers.h"
#include "diagnosis/veto.h"

namespace taskd::diagnosis {

// What looks at a rank: one feature against one reference each.
enum class Detector : uint8_t { kOwnTime, kOwnPast, kForward, kDataloader, kCheckpoint, kTransfer };

struct JudgeInput {
  const Layout& layout;
  const OwnTime& own;
  const Transfers& transfers;
  const std::vector<int>& microbatches;  // by rank
  int64_t step = 0;                      // all steps here are places in one count (lives.h)
  double period_ns = 0;                  // of the last steps
  double min_cost_share = 0.01;
  bool planned_change = false;  // everybody does more or less than before
  bool is_over = false;         // no step will follow
  // The first step of the life of the job that this one belongs to.
  std::function<int64_t(int64_t step)> first_step_of;
  // Whether the rank takes part in the job as it is now.
  std::function<bool(int rank)> is_present;
  // How much longer steps have become since `onset` (periods.h).
  std::function<Periods::Lost(int64_t onset)> lost_since;
  // How long ago the step `onset` began, ns, as far back as is remembered.
  std::function<double(int64_t onset)> time_since;
  // What a step took, ns: mean of first..last, as far back as is remembered.
  std::function<double(int64_t first, int64_t last)> mean_step;
};

// What was decided of a deviation of these ranks that chance does not explain.
struct Decision {
  Detector detector = Detector::kOwnTime;
  std::vector<int> ranks;  // in ascending order
  std::string key;         // of its accusation (KeyOf); empty: nobody was accused
  Held held;               // by the first rule that holds
};

struct Judgement {
  std::vector<Accusation> accusations;  // those with `confirmed` false are held by a rule
  std::vector<Decision> decisions;      // of all that is raised
};

// As of the present step. `costs` is carried over from step to step.
Judgement Accuse(const JudgeInput& input, CostMeans& costs);

}  // namespace taskd::diagnosis
