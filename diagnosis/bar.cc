#include "diagnosis/bar.h"

#include <algorithm>
#include <cmath>

namespace taskd::diagnosis {
namespace {

// Of a few the one that is slow shows in the noise of the others, too.
constexpr double kFewMargin = 1.4;

}  // namespace

double Bar::LeastOwnRise(int compared, const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const {
  if (IsCrowd(compared)) return std::max(fine.rise, CostingAmong(compared, fine.noise, min_cost_share_, own_ns));
  const double rise = kFewMargin * fine.rise;
  if (lasted_ns >= kGustNs && fine.rise < kUsualRise * fine.noise) {
    return std::max(rise, Costing(min_cost_share_, own_ns));
  }
  const double least =
      lasted_ns >= kStretchNs ? Costing(kFewCostShare, own_ns) : std::max(kLargeRise, kLargeZ * fine.noise);
  return std::max(rise, least);
}

double Bar::LeastOnCpuRise(const OwnTime::Fineness& fine, double own_ns, double lasted_ns) const {
  return lasted_ns < kOnCpuNs ? INFINITY : std::max(kFewMargin * fine.rise, Costing(min_cost_share_, own_ns));
}

double Bar::LeastDataRise(int compared, const OwnTime::Fineness& fine, double lasted_ns) const {
  if (IsCrowd(compared)) return std::max(fine.rise, min_cost_share_);
  return std::max(fine.rise, lasted_ns >= kStretchNs ? kFewCostShare : kLargeShare);
}

double Bar::Costing(double share, double own_ns) const { return std::log1p(share * period_ns_ / own_ns); }

double Bar::CostingAmong(int compared, double noise, double share, double own_ns) const {
  // A verdict needs the share once, of some steps: it comes out sooner or later where it is half of it in the mean.
  constexpr double kInTheMean = 0.5;
  const double wanted = Costing(kInTheMean * share, own_ns);
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
