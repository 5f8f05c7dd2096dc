// What a rise has to be, besides beyond chance, until it is worth a verdict: it has a price, and of a few ranks or lines it
// is more than what a busy machine does to them. And the other way round, from which size on it is.
#pragma once

#include "diagnosis/own_time.h"
#include "diagnosis/parameters.h"
#include "diagnosis/veto.h"

namespace taskd::diagnosis {

// Another process on a machine takes a core for seconds, and its ranks are slower for as long. Many peers show how often
// that happens, a few do not: there a rise has to cost more, and to last or be so large that nothing but a fault is.
// So it is with transfers that hosts make.
class Bar {
 public:
  // `period_ns`: of a step. `has_device`: ranks compute on devices, which others leave alone. `is_over`: nothing can be
  // waited for any more.
  Bar(double period_ns, double min_cost_share, bool has_device, bool is_over = false)
      : period_ns_(period_ns), min_cost_share_(min_cost_share), has_device_(has_device), is_over_(is_over) {}

  // So many that how often they differ shows what is usual.
  bool IsCrowd(int compared) const {
    return compared > (has_device_ ? parameters.small_devices : parameters.small_hosts);
  }
  bool IsWorthIt(double cost_ns) const { return cost_ns >= min_cost_share_ * period_ns_; }
  // kCost: it is not worth a verdict.
  Held OfCost(double cost_ns) const {
    return IsWorthIt(cost_ns) ? Held{} : Held{Veto::kCost, cost_ns, min_cost_share_ * period_ns_};
  }
  // kCost, kDuration: it is one of a few, and what a busy machine does to them.
  Held OfUnrest(int compared, bool large, double lasted_ns, double cost_ns, double least_share) const {
    if (IsCrowd(compared)) return {};
    if (cost_ns < least_share * period_ns_) return {Veto::kCost, cost_ns, least_share * period_ns_};
    return large || lasted_ns >= least_ns() ? Held{} : Held{Veto::kDuration, lasted_ns, least_ns()};
  }
  // How long it has to last.
  double least_ns() const { return is_over_ ? parameters.over_ns : parameters.small_ns; }

  // The smallest rise (of the logarithm) that is named of one of so many ranks which takes `own_ns` otherwise, once it is
  // there for so long; `fine` is what chance allows.
  double LeastOwnRise(int compared, const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const;
  // The same where it shows in the time that the rank takes while it has a CPU; infinite: not after so short a while.
  double LeastOnCpuRise(const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const;
  // Likewise of the loader, as a share of the step.
  double LeastDataRise(int compared, const OwnTime::Fineness& fine, double lasted_ns) const;

 private:
  double Costing(double share, double own_ns) const;
  // The rise of one of so many, whose steps differ by `noise` anyway, that makes steps longer by this share: they end with
  // the slowest of the others as a rule, and that is some noise above what is usual.
  double CostingAmong(int compared, double noise, double share, double own_ns) const;

  const double period_ns_;
  const double min_cost_share_;
  const bool has_device_;
  const bool is_over_;
};

}  // namespace taskd::diagnosis
