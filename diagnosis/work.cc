#include "diagnosis/work.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kPairs = 8;  // of one class and step

bool IsUsable(const StepFold& fold) { return fold.works > 0 && fold.odd_works == 0 && fold.work > 0; }

// What peers have: the median of all, of two in the middle their mean; for one of two ranks the other's. The lower median
// would make everybody one who gets more.
class Middle {
 public:
  explicit Middle(std::vector<double> values) : values_(std::move(values)) {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    middle_ = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  }
  double Above(size_t index) const { return values_[index] - (values_.size() == 2 ? values_[1 - index] : middle_); }

 private:
  std::vector<double> values_;
  double middle_;
};

// A time as it may be with `ratio` times the work, where nobody knows: towards what peers take, and no further.
double WithUsualWork(double time, double of_peers, double ratio) {
  const double steepest = time * std::pow(ratio, parameters.steepest);
  return time > of_peers ? std::clamp(steepest, of_peers, time) : std::clamp(steepest, time, of_peers);
}

void Blend(float& mean, double value, float share) { mean += share * (static_cast<float>(value) - mean); }

}  // namespace

// ---- WorkFit

double WorkFit::Gain::z() const { return square > 0 ? sum / std::sqrt(square) : 0; }

double WorkFit::TimeOf(double work, double elasticity) const {
  return std::max(parameters.least_time, 1 - elasticity + elasticity * work / usual_work_);
}

double WorkFit::TimeOf(double work) const { return finding_ == Finding::kExplains ? TimeOf(work, elasticity_) : 1; }

void WorkFit::BeginStep(double usual_work) {
  if (steps_ > 0 &&
      (usual_work > parameters.other_scale * usual_work_ || usual_work * parameters.other_scale < usual_work_)) {
    *this = WorkFit();
  }
  if (++steps_ <= parameters.usual_work_steps) usual_work_ += (usual_work - usual_work_) / steps_;
  if (steps_ > 1) Judge();
  const double keep = 1 - parameters.fit_forget;
  count_ *= keep;
  error_ *= keep;
  for (Gain& gain : gains_) {
    gain.sum *= keep;
    gain.square *= keep;
  }
}

void WorkFit::Add(const Change& rank, const Change& peer) {
  const double change = std::log(rank.own_ns * peer.last_own_ns / (rank.last_own_ns * peer.own_ns));
  const double error = std::abs(change);
  ++count_;
  error_ += error;
  for (size_t i = 1; i < kCandidates; ++i) {
    const double e = kElasticities[i];
    const double explained =
        std::log(TimeOf(rank.work, e) * TimeOf(peer.last_work, e) / (TimeOf(rank.last_work, e) * TimeOf(peer.work, e)));
    const double gain = error - std::abs(change - explained);
    gains_[i].sum += gain;
    gains_[i].square += gain * gain;
  }
}

void WorkFit::Judge() {
  size_t best = 0;
  for (size_t i = 1; i < kCandidates; ++i) {
    if (gains_[i].sum > gains_[best].sum) best = i;
  }
  const double z = best > 0 ? gains_[best].z() : 0;
  const bool gains =
      count_ >= parameters.changes && z > parameters.gain_sigmas && gains_[best].sum > parameters.least_gain * error_;
  if (gains || (finding_ == Finding::kExplains && z > parameters.doubtful)) {
    finding_ = Finding::kExplains;
    elasticity_ = kElasticities[best];
    if (best == 0 || best + 1 == kCandidates) return;
    // The parabola through the candidate and its neighbours: its top.
    const double x0 = kElasticities[best - 1], x1 = kElasticities[best], x2 = kElasticities[best + 1];
    const double left = (gains_[best].sum - gains_[best - 1].sum) / (x1 - x0);
    const double right = (gains_[best].sum - gains_[best + 1].sum) / (x2 - x1);
    if (left + right > 0) elasticity_ = ((x0 + x1) * right + (x1 + x2) * left) / (2 * (left + right));
    return;
  }
  const bool nothing = count_ >= parameters.changes && gains_[parameters.some_elasticity].z() < -parameters.gain_sigmas;
  finding_ = nothing ? Finding::kExplainsNothing : Finding::kUnknown;
  elasticity_ = 0;
}

// ---- Work

void Work::Regroup(int ranks, size_t classes) {
  ranks_.resize(static_cast<size_t>(ranks));
  classes_.resize(classes);
  for (Late<Rank>& rank : ranks_) {
    if (rank.begun()) rank.Begin().seen_at = -2;
  }
}

void Work::ResetRank(int rank) {
  if (static_cast<size_t>(rank) < ranks_.size()) ranks_[static_cast<size_t>(rank)] = {};
}

double Work::OwnOf(const OwnView& view, bool by_full) {
  return std::max(1.0, by_full ? view.full : view.cut + view.rest);
}

Work::Use Work::Listen(const std::vector<OwnView>& views) {
  bool any = false, all = true;
  for (const OwnView& view : views) {
    const bool says = view.fold->works > 0;
    if (!says && !ranks_[static_cast<size_t>(view.rank)].begun()) {
      all = false;
      continue;
    }
    Rank& rank = At(view.rank);
    const bool usable = IsUsable(*view.fold);
    const float share = rank.steps == 0 ? 1 : parameters.said_share;
    Blend(rank.said, usable ? 1 : 0, share);
    Blend(rank.odd, says && !usable ? 1 : 0, share);
    rank.steps += usable ? 1 : 0;
    any = any || rank.said > 0.5F || rank.odd > 0.5F;
    all = all && rank.said > 0.5F && !rank.other_unit;
  }
  if (!any) return Use::kNone;
  return all && views.size() >= 2 ? Use::kUsed : Use::kUnusable;
}

void Work::FollowLoad(Rank& rank, double more, double own_more, double spread, int64_t step) {
  if (rank.first_step < 0) {
    rank.first_step = step;
    rank.more = static_cast<float>(more);
    rank.own_more = static_cast<float>(own_more);
  }
  Blend(rank.more, more, parameters.load_share);
  Blend(rank.own_more, own_more, parameters.load_share);
  const double slack = std::max(parameters.least_load / 2, spread / 2);
  const float before = rank.rise;
  const double further = rank.more < 0 ? -more : more;
  rank.rise = static_cast<float>(std::clamp(before + further - slack, 0.0, parameters.most_load_rise * slack));
  if (before <= 0 && rank.rise > 0) rank.rise_step = step;
  const double least =
      std::max(parameters.least_load, parameters.load_sigmas * spread * std::sqrt(parameters.load_share / 2));
  const double now = std::abs(rank.more);
  if (!rank.loaded && now > least && rank.steps >= parameters.load_steps) {
    rank.loaded = true;
    rank.loaded_since = rank.rise_step >= 0 ? rank.rise_step : rank.first_step;
    rank.misfit = 0;
    rank.fitted = 0;
  } else if (rank.loaded && now < least / 2) {
    rank.loaded = false;
  }
}

// Its work is far from its peers', and its time is not. Which of a few ranks is the odd one cannot be told.
bool Work::CountsOtherUnits(const Rank& rank, const WorkFit& fit) const {
  if (rank.steps < parameters.load_steps) return false;
  const double more = rank.more;
  if (std::abs(more) > parameters.other_units) return rank.own_more / more < parameters.follows;
  const bool from_start = rank.loaded && rank.loaded_since <= rank.first_step + parameters.start_steps;
  if (!from_start || std::abs(more) < parameters.maybe_other_units || fit.finding() != WorkFit::Finding::kExplains)
    return false;
  return rank.own_more / more < parameters.follows * std::min(1.0, fit.elasticity());
}

void Work::Learn(Class& peers, const std::vector<OwnView>& views, int64_t step) {
  std::vector<double> works, owns;
  double sum = 0;
  for (const OwnView& view : views) {
    works.push_back(std::log(view.fold->work));
    owns.push_back(std::log(OwnOf(view, peers.by_full)));
    sum += works.back();
  }
  peers.fit.BeginStep(std::exp(sum / static_cast<double>(views.size())));
  const Middle work(std::move(works)), own(std::move(owns));
  double deviation = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    Rank& rank = At(views[i].rank);
    deviation += std::abs(work.Above(i) - rank.more);
    FollowLoad(rank, work.Above(i), own.Above(i), peers.spread, step);
    rank.other_unit = CountsOtherUnits(rank, peers.fit);
  }
  const double spread = 1.25 * deviation / static_cast<double>(views.size());
  peers.spread += (spread - peers.spread) * (peers.steps == 0 ? 1 : parameters.said_share);

  // Neighbours in pairs, other ones each time.
  const size_t count = views.size();
  const size_t pairs = std::min(kPairs, count / 2);
  const size_t first = static_cast<size_t>(peers.steps) * 2 * pairs + static_cast<size_t>(peers.steps) / count;
  for (size_t i = 0; i < pairs; ++i) {
    const OwnView& a = views[(first + 2 * i) % count];
    const OwnView& b = views[(first + 2 * i + 1) % count];
    const Rank& rank = At(a.rank);
    const Rank& peer = At(b.rank);
    if (rank.seen_at + 1 != peers.steps || peer.seen_at + 1 != peers.steps) continue;
    peers.fit.Add({OwnOf(a, peers.by_full), rank.own_ns, a.fold->work, rank.work},
                  {OwnOf(b, peers.by_full), peer.own_ns, b.fold->work, peer.work});
  }
  for (const OwnView& view : views) {
    Rank& rank = At(view.rank);
    rank.own_ns = OwnOf(view, peers.by_full);
    rank.work = view.fold->work;
    rank.seen_at = peers.steps;
  }
  ++peers.steps;
}

bool Work::Compensate(size_t peer_class, int64_t step, std::vector<OwnView>& views) {
  Class& peers = classes_[peer_class];
  const Use before = std::exchange(peers.use, Listen(views));
  peers.shift = 0;
  if (peers.use != Use::kUsed) {
    for (const OwnView& view : views) {
      if (peers.use == Use::kNone && !ranks_[static_cast<size_t>(view.rank)].begun()) continue;
      Rank& rank = At(view.rank);
      rank.used = false;
      rank.benefit = 1;
      rank.silent = peers.use == Use::kUnusable && rank.said <= 0.5F && rank.odd <= 0.5F;
    }
    return before == Use::kUsed;
  }
  std::erase_if(views, [](const OwnView& view) { return !IsUsable(*view.fold); });
  if (views.empty()) return false;
  // Gaps that are cut at overlapped operations miss much of the work of those who wait.
  double cut = 0, full = 0;
  for (const OwnView& view : views) {
    cut += view.cut + view.rest;
    full += view.full;
  }
  peers.by_full = full > parameters.least_full * cut;
  Learn(peers, views, step);

  const WorkFit& fit = peers.fit;
  const bool explains = fit.finding() == WorkFit::Finding::kExplains;
  const bool changed = before != Use::kUsed || fit.finding() != peers.used_finding ||
                       std::abs(fit.elasticity() - peers.used_elasticity) > parameters.other_elasticity;
  if (changed) peers.used_elasticity = fit.elasticity();
  peers.used_finding = fit.finding();

  double mean = 0;
  std::vector<double> works, owns;
  for (const OwnView& view : views) {
    mean += std::log(view.fold->work);
    works.push_back(view.fold->work);
    owns.push_back(OwnOf(view, peers.by_full));
  }
  const double usual = fit.TimeOf(std::exp(mean / static_cast<double>(views.size())));
  peers.shift = std::log(usual);
  const double median = LowerMedian(works), median_own = LowerMedian(owns);
  std::vector<double> corrected;
  for (OwnView& view : views) {
    Rank& rank = At(view.rank);
    rank.used = true;
    rank.silent = false;
    rank.explains = explains;
    rank.benefit = static_cast<float>(std::min(1.0, std::pow(median / view.fold->work, parameters.steepest)));
    double factor = 1;
    if (explains) {
      factor = usual / fit.TimeOf(view.fold->work);
    } else if (fit.finding() == WorkFit::Finding::kUnknown) {
      const double own = OwnOf(view, peers.by_full);
      factor = WithUsualWork(own, median_own, median / view.fold->work) / own;
    }
    corrected.push_back(OwnOf(view, peers.by_full) * factor);
    view.work_factor = factor;
  }
  // A line is near the truth where the peers are; whose work is always far from theirs may be off it from the start.
  const double reference = LowerMedian(corrected);
  for (OwnView& view : views) {
    Rank& rank = At(view.rank);
    const bool far = explains && rank.loaded && std::abs(rank.more) > parameters.unfit_load;
    if (!far) {
      rank.misfit = 0;
      rank.fitted = 0;
    } else if (rank.fitted < parameters.fit_steps) {
      const double rest = std::log(OwnOf(view, peers.by_full) * view.work_factor / reference);
      rank.misfit += static_cast<float>((rest - rank.misfit) / ++rank.fitted);
    }
    if (far) {
      const double most = parameters.misfit * std::abs(rank.more);
      view.work_factor *= std::exp(-std::clamp<double>(rank.misfit, -most, most));
    }
    view.cut *= view.work_factor;
    view.full *= view.work_factor;
    view.rest *= view.work_factor;
  }
  return changed;
}

double Work::ShiftOf(size_t peer_class) const { return classes_[peer_class].shift; }

// Not below what its peers take, or these would seem to take longer.
double Work::WithBenefit(int rank, double time_ns, double reference_ns) const {
  if (static_cast<size_t>(rank) >= ranks_.size() || time_ns <= reference_ns) return time_ns;
  return std::max(reference_ns, time_ns * static_cast<double>(ranks_[static_cast<size_t>(rank)]->benefit));
}

std::vector<Work::Load> Work::loads() const {
  std::vector<Load> loads;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = *ranks_[i];
    if (!rank.used || !rank.loaded || rank.more < parameters.notable_load || rank.own_more < parameters.notable_load)
      continue;
    loads.push_back({static_cast<int>(i), std::exp(rank.more), rank.loaded_since,
                     rank.loaded_since <= rank.first_step + parameters.start_steps, rank.explains});
  }
  return loads;
}

Work::Unusable Work::unusable() const {
  Unusable unusable;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = *ranks_[i];
    if (rank.silent) {
      unusable.silent.push_back(static_cast<int>(i));
    } else if (rank.odd > 0.5F) {
      unusable.odd.push_back(static_cast<int>(i));
    } else if (rank.other_unit) {
      unusable.units.push_back(static_cast<int>(i));
    }
  }
  return unusable;
}

}  // namespace taskd::diagnosis
