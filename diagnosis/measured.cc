#include "diagnosis/measured.h"

#include <algorithm>
#include <utility>

namespace taskd::diagnosis {

void Measured::Means::Add(const Means& more) {
  if (more.steps == 0) return;
  if (steps == 0) first_step = more.first_step;
  last_step = more.last_step;
  steps += more.steps;
  const double share = static_cast<double>(more.steps) / steps;
  excess += share * (more.excess - excess);
  reference += share * (more.reference - reference);
}

void Measured::Begin(const Means& known) {
  *this = {};
  now_ = known;
}

void Measured::Add(int64_t step, double excess, double reference, bool may_be_over) {
  held_.Add({step, step, 1, excess, reference});
  if (may_be_over) return;
  now_.Add(std::exchange(held_, {}));
  if (now_.steps >= kBlock) before_ = std::exchange(now_, {});
}

Measured::Means Measured::means() const {
  Means all = before_;
  all.Add(now_);
  return all;
}

}  // namespace taskd::diagnosis
