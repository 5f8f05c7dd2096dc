#include "diagnosis/bar.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
double Bar::LeastOwnRise(int compared, const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const {
  if (IsCrowd(compared)) return std::max(fine.rise, CostingAmong(compared, fine.noise, min_cost_share_, own_ns));
  const double rise = parameters.small_margin * fine.rise;
  if (lasted_ns >= parameters.known_noise_ns && fine.rise < parameters.unusual * fine.noise) {
    return std::max(rise, Costing(min_cost_share_, own_ns));
  }
  const double least = lasted_ns >= least_ns() ? Costing(parameters.small_cost, own_ns)
                                               : std::max(parameters.large_rise, parameters.unusual * fine.noise);
  return std::max(rise, least);
}

double Bar::LeastOnCpuRise(const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const {
  return lasted_ns < parameters.on_cpu_ns
             ? INFINITY
             : std::max(parameters.small_margin * fine.rise, Costing(min_cost_share_, own_ns));
}

double Bar::LeastDataRise(int compared, const OwnTime::Fineness& fine, double lasted_ns) const {
  if (IsCrowd(compared)) return std::max(fine.rise, min_cost_share_);
  return std::max(fine.rise, lasted_ns >= least_ns() ? parameters.small_cost : parameters.large_cost);
}

double Bar::Costing(double share, double own_ns) const { return std::log1p(share * period_ns_ / own_ns); }

double Bar::CostingAmong(int compared, double noise, double share, double own_ns) const {
  // It comes out sooner or later: a verdict needs the share once, of some steps.
  const double wanted = Costing(parameters.cost_in_the_mean * share, own_ns);
  if (noise <= 0) return wanted;
  const double two_ln = 2 * std::log(compared - 1);
  const double slowest = noise * (std::sqrt(two_ln) - 0.5);    // of the others, in the mean
  const double spread = noise * std::sqrt(1 + 1.44 / two_ln);  // of how far the rank is from it
  // By how much it is slower than that, in the mean; `chance`: in how many steps.
  const auto late = [&](double rise, double* chance) {
    const double y = (rise - slowest) / spread;
    *chance = 0.5 * std::erfc(-y * M_SQRT1_2);
    return spread * (y * *chance + std::exp(-y * y / 2) * M_2_SQRTPI * M_SQRT1_2 / 2);
  };
  double chance;
  const double usual = late(0, &chance);
  // Newton, from where it is always the slowest: the function is convex.
  double rise = wanted + usual + slowest;
  for (int i = 0; i < 4; ++i) rise -= (late(rise, &chance) - usual - wanted) / chance;
  return rise;
}

}  // namespace taskd::diagnosis
