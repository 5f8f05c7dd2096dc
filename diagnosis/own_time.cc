#include "diagnosis/own_time.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

constexpr double kNever = 1e9;
constexpr int kRotationSteps = 512;
constexpr size_t kNoiseSamples = 64;  // of one class and step
constexpr int kNoiseEvery = 8;        // steps
constexpr size_t kAhead = 8;          // ranks, whose memory is on its way while others are looked at

// What is the same for all streams of self times with this noise.
Stream::Limits OwnLimits(const OwnTime::NoiseLevel& noise, const Thresholds& h) {
  Stream::Limits limits = {.dead = parameters.own_dead, .most = parameters.own_most, .h = h};
  limits.SetNoise(std::max(parameters.own_sigma, noise.one), noise.scales);
  return limits;
}

Stream::Limits DataLimits(const OwnTime::NoiseLevel& noise, const Thresholds& h) {
  Stream::Limits limits = {
      .dead = parameters.data_dead, .most = parameters.data_most, .h = h, .jump = parameters.data_jump};
  limits.SetNoise(std::max(parameters.data_sigma, noise.one), noise.scales);
  return limits;
}

// So few that one of them moves what is known of the others.
bool IsSmall(size_t peers) { return peers <= static_cast<size_t>(parameters.small_hosts); }

// Until it is known how means of some steps differ: what ranks differ by is more than a step's own noise where that goes
// together for a while. Of a few ranks that cannot be told from one that is slow.
double YoungSigma(double one, double of_ranks) {
  if (of_ranks == 0) return parameters.young_small_noise * one;
  return std::max(one, of_ranks > parameters.autocorrelated * one ? parameters.young_noise * of_ranks : of_ranks);
}

// What a time would be without a deviation of `d` (log).
Stream::Time Without(double ns, double d) { return {ns * (1 - std::exp(-d)), ns * std::exp(-d)}; }

double ForwardOwnOf(const PeerViews& peers) {
  std::vector<double> values;
  for (const OwnView& own : peers.views) values.push_back(static_cast<double>(own.fold->forward_own_ns));
  return LowerMedian(values);
}

}  // namespace

void OwnTime::Regroup(const Layout& layout) {
  ranks_.resize(static_cast<size_t>(layout.size()));
  slowest_.resize(ranks_.size());
  // Classes are in the order of stages; one that was there keeps its past.
  classes_.resize(layout.classes().size());
  for (Rank& rank : ranks_) rank.BreakOff();
  for (const std::vector<int>& ranks : layout.classes()) {
    if (IsSmall(ranks.size())) continue;
    for (const int rank : ranks) ranks_[static_cast<size_t>(rank)].on_cpu = {};
  }
  work_.Regroup(layout.size(), classes_.size());
}

void OwnTime::RelearnLevels() {
  for (Class& peers : classes_) {
    peers.seen = 0;
    peers.level = 0;
    peers.wait_level_ns = 0;
    peers.drift.Reset();
  }
  data_seen_ = 0;
  data_level_ns_ = 0;
  common_shift_ = common_wait_shift_ = 0;
}

void OwnTime::ResetRank(int rank) {
  if (rank < size()) ranks_[static_cast<size_t>(rank)] = Rank();
  work_.ResetRank(rank);
}

void OwnTime::BeginStep(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, bool is_silent) {
  FollowMode(ChooseMode(layout, folds), is_silent);
  views_.resize(classes_.size());
  for (size_t c = 0; c < classes_.size(); ++c) {
    views_[c].clear();
    views_[c].reserve(std::min(folds.size(), layout.classes()[c].size()));
  }
}

void OwnTime::Take(const Layout& layout, int r, const StepFold& fold) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (rank.process_id != fold.process_id && rank.process_id != 0) {
    rank.Rebase();
    rank.data.Rebase();
  }
  rank.process_id = fold.process_id;
  rank.has_device = rank.has_device || fold.issues > 0 || fold.device_busy_ns > 0;
  if (mode_ == Mode::kNone) return;
  if (const std::optional<OwnView> view = MakeView(layout, r, fold, mode_)) {
    views_[static_cast<size_t>(view->peer_class)].push_back(*view);
  }
}

void OwnTime::Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step,
                      double period_ns, double arl_factor) {
  ++idle_steps_;
  weather_.Forget(step);
  forward_weather_.Forget(step);
  on_cpu_weather_.Forget(step);
  gusts_.Forget(step);
  period_ns_ = period_ns;
  const size_t streams = on_cpu_noise_.steps.ready() ? 4 : 3;  // of a rank
  thresholds_ = ThresholdsFor(arl_factor * static_cast<double>(streams * std::max<size_t>(1, folds.size())));
  const Thresholds& h = thresholds_;
  if (mode_ != Mode::kNone) {
    ObserveOwn(layout, step, h);
    if (mode_ == Mode::kAll) ObserveForward(layout, folds, step, h);
    ObserveClasses(step, h);
  }
  ObserveData(folds, step, period_ns, h);
  ObserveCheckpoints(folds, step, period_ns);
}

// A job that communicates in every other step is still one that communicates.
void OwnTime::FollowMode(Mode mode, bool is_silent) {
  silent_steps_ = Communicates(mode) ? 0 : silent_steps_ + 1;
  if (Communicates(mode_) && silent_steps_ > 0 && silent_steps_ < parameters.silent_steps && !is_silent) return;
  if (mode != mode_) ChangeMode(mode);
}

// Other times are compared from now on: what is known of the old ones does not apply to them.
void OwnTime::ChangeMode(Mode mode) {
  const bool ended = Communicates(mode_) && !Communicates(mode);
  mode_ = mode;
  shared_noise_ = on_cpu_noise_ = Noise();
  for (Rank& rank : ranks_) {
    if (ended) rank.Drop();
    rank.Rebase();
    rank.on_cpu = {};
  }
  for (Class& peers : classes_) peers = Class();
}

void OwnTime::ObserveOwn(const Layout& layout, int64_t step, const Thresholds& h) {
  Slowest slowest;
  for (size_t c = 0; c < views_.size(); ++c) {
    std::vector<OwnView>& views = views_[c];
    classes_[c].present = static_cast<int>(views.size());
    classes_[c].reference_ns = 0;
    classes_[c].wait_ns = WaitNsOf(views);
    if (work_.Compensate(c, step, views)) ForgetNoise(views, classes_[c]);
    if (views.empty()) continue;
    const PeerViews peers = ComparePeers(std::move(views), mode_);
    ObservePeers(peers, classes_[c], step, h, slowest);
    if (IsSmall(layout.classes()[c].size())) ObserveOnCpu(peers, step, h);
  }
  CountSlowest(slowest);
}

double OwnTime::WaitNsOf(const std::vector<OwnView>& views) {
  std::vector<double> waits;
  for (const OwnView& own : views) {
    if (own.fold->cpu_wait_ns == 0) return 0;
    waits.push_back(static_cast<double>(own.fold->cpu_wait_ns));
  }
  return LowerMedian(waits);
}

// Their times are other ones from now on.
void OwnTime::ForgetNoise(const std::vector<OwnView>& views, Class& peers) {
  (views.size() >= parameters.small_class ? peers.noise : shared_noise_) = Noise();
  peers.seen = 0;
  peers.level = 0;
  peers.wait_level_ns = 0;
  peers.has_last = false;
  peers.drift.Reset();
  for (const OwnView& own : views) {
    Rank& rank = ranks_[static_cast<size_t>(own.rank)];
    rank.Rebase();
    rank.noise = {};
  }
}

const OwnTime::NoiseLevel& OwnTime::NoiseOfMany(Noise& noise) {
  if (noise.IsYoung())
    noise.level.one = std::max(noise.level.one, YoungSigma(noise.steps.sigma(), noise.ranks.sigma()));
  return noise.level;
}

// Without the rank's own unrest. Two ranks have theirs in common, their difference: then without what is seldom. Looked at
// now and then: it takes a pass over all that is known.
const OwnTime::NoiseLevel& OwnTime::NoiseOfFew(int rank, size_t peers, int observations, Noise& noise,
                                               NoiseLevel& level) {
  auto& [one, scales] = level;
  if (scales[0] > 0 && !noise.IsYoung() && (observations + rank) % kNoiseEvery != 0) return level;
  const bool pair = peers == 2;
  one = pair ? noise.steps.median_sigma() : noise.steps.SigmaWithout(rank);
  scales = pair ? noise.blocks.SigmasOfPair(one) : noise.blocks.SigmasWithout(rank, one, IsSmall(peers));
  // Also where only this rank's are known.
  if (scales[0] == 0) one = YoungSigma(one, IsSmall(peers) ? 0 : noise.ranks.SigmaWithout(rank));
  return level;
}

void OwnTime::ObservePeers(const PeerViews& peers, Class& peer_class, int64_t step, const Thresholds& h,
                           Slowest& slowest) {
  const size_t count = peers.views.size();
  double& average = peer_class.average_reference_ns;
  peer_class.reference_ns = peers.reference_ns();
  average += (peers.cut_ns - average) * (average > 0 ? parameters.own_average : 1);

  Noise& noise = count >= parameters.small_class ? peer_class.noise : shared_noise_;
  noise.Update();
  const size_t stride = count / kNoiseSamples + 1;
  StreamTails tails;
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&ranks_[static_cast<size_t>(peers.views[i + kAhead].rank)].own);
    tails.Count(ranks_[static_cast<size_t>(peers.views[i].rank)].own);
  }
  // Without communication marks a forward may hold waits: few peers then prove nothing.
  const size_t enough = mode_ == Mode::kForward ? parameters.forward_peers : 2;
  double forward_own_ns = -1;
  Stream::Limits limits;
  bool known = false;
  for (size_t i = 0; i < count; ++i) {
    const OwnView& own = peers.views[i];
    Rank& rank = ranks_[static_cast<size_t>(own.rank)];
    const Deviation deviation = DeviationOf(peers, i, mode_);
    if (i % stride == static_cast<size_t>(step) % stride) {
      if (rank.has_last_deviation && count > 1) {
        noise.steps.Add(own.rank, std::abs(deviation.unrest - rank.last_deviation));
      }
      noise.AddApart(own.rank, deviation.judged);
    }
    rank.last_deviation = deviation.unrest;
    rank.has_last_deviation = true;
    rank.own_ns = deviation.own_ns;
    rank.actual_own_ns = deviation.own_ns / own.work_factor;
    rank.own_reference_ns = deviation.reference_ns;
    rank.average_own_ns += (rank.own_ns - rank.average_own_ns) * (rank.average_own_ns > 0 ? parameters.own_average : 1);
    if (count < enough || !noise.steps.ready()) continue;
    const double d = deviation.judged;
    if (d > slowest.deviation) slowest = {own.rank, d};
    // Of many it is the same for all.
    if (!known || count <= parameters.leave_one_out) {
      const NoiseLevel& level = count > parameters.leave_one_out
                                    ? NoiseOfMany(noise)
                                    : NoiseOfFew(own.rank, count, rank.own.observations(), noise, rank.noise.Begin());
      limits = OwnLimits(level, h);
      known = true;
    }
    tails.Apply(limits, rank.own);
    const Stream::Event event = rank.own.Observe(step, d, Without(rank.own_ns, d), limits);
    if (event == Stream::Event::kCleared)
      weather_.Add(own.rank, rank.own.returned(), step, period_ns_, rank.own.mean_excess());
    noise.blocks.Add(own.rank, d, !rank.own.StandsOut());
    if (d > parameters.own_most + parameters.unusual * limits.one) gusts_.Add(own.rank, step);
    idle_steps_ = 0;
    Profile(peers, own, step, forward_own_ns, rank);
  }
  ObserveIssues(peers.views);
}

// Many peers show what is usual whatever hits them. A few need it told apart.
void OwnTime::ObserveOnCpu(const PeerViews& peers, int64_t step, const Thresholds& h) {
  const bool known = peers.views.size() >= 2 && mode_ != Mode::kForward &&
                     std::all_of(peers.views.begin(), peers.views.end(), [this](const OwnView& own) {
                       return own.fold->cpu_wait_ns > 0 && !ranks_[static_cast<size_t>(own.rank)].has_device;
                     });
  std::vector<double> on_cpu;
  StreamTails tails;
  for (const OwnView& own : peers.views) {
    Rank& rank = ranks_[static_cast<size_t>(own.rank)];
    if (!known) {
      // It would stay as it was.
      if (rank.on_cpu->own.observations() > 0 && ++rank.on_cpu.Begin().missed > parameters.missed_waits)
        rank.on_cpu = {};
      continue;
    }
    const double waited = own.work_factor * static_cast<double>(own.fold->cpu_wait_ns);
    // Some of the waiting is in communication, so that little may be left.
    on_cpu.push_back(std::max(parameters.least_busy * rank.own_ns, rank.own_ns - waited));
    tails.Count(rank.on_cpu->own);
  }
  if (!known) return;
  std::vector<double> values = on_cpu;
  const MedianOfOthers of_others(values);
  Noise& noise = on_cpu_noise_;
  noise.Update();
  for (size_t i = 0; i < peers.views.size(); ++i) {
    const int r = peers.views[i].rank;
    Rank& rank = ranks_[static_cast<size_t>(r)];
    OnCpu& state = rank.on_cpu.Begin();
    // As far as each view of the step has it.
    const double with_waits = DeviationOf(peers, i, mode_).judged;
    const double shown = std::log(rank.own_ns / rank.own_reference_ns);
    const double d = std::log(on_cpu[i] / of_others.Without(on_cpu[i])) + with_waits - shown;
    if (state.has_last_deviation) noise.steps.Add(r, std::abs(d - state.last_deviation));
    noise.AddApart(r, d);
    state.last_deviation = d;
    state.has_last_deviation = true;
    state.missed = 0;
    if (!noise.steps.ready()) continue;
    const NoiseLevel& level = NoiseOfFew(r, peers.views.size(), state.own.observations(), noise, state.noise);
    Stream::Limits limits = OwnLimits(level, h);
    tails.Apply(limits, state.own);
    // Who waits less than its peers loses no more than it is behind them.
    const Stream::Time time = Without(rank.own_ns, std::min(d, with_waits));
    if (state.own.Observe(step, d, time, limits) == Stream::Event::kCleared)
      on_cpu_weather_.Add(r, state.own.returned(), step, period_ns_, state.own.mean_excess());
    noise.blocks.Add(r, d, !state.own.StandsOut());
  }
}

// How a deviation looks: where in the step the time lies that the rank takes longer.
void OwnTime::Profile(const PeerViews& peers, const OwnView& own, int64_t step, double& forward_own_ns, Rank& rank) {
  const StepFold& fold = *own.fold;
  const double forward = own.work_factor * static_cast<double>(fold.forward_ns);
  if (!rank.own.IsRising(0.25) && !rank.on_cpu->own.IsRising(0.25)) {
    rank.look = {};
    rank.forward_level_ns +=
        (forward - rank.forward_level_ns) * (rank.forward_level_ns > 0 ? parameters.own_average : 1);
    return;
  }
  if (fold.broken > 0) return;
  const double excess = rank.own_ns - rank.own_reference_ns;
  Look& look = rank.look.Begin();
  const bool deviates = excess > parameters.deviating * peers.cut_ns;
  const double share = 1.0 / std::min(++look.profiled, parameters.profiled_steps);

  const auto tail = static_cast<double>(fold.tail_ns);
  const double tail_ratio = peers.tail_ns > 0 ? tail / peers.tail_ns : 1;
  look.tail_ratio += share * (tail_ratio - look.tail_ratio);
  const double tail_share = excess > 0 ? std::clamp((tail - peers.tail_ns) / excess, 0.0, 1.0) : 0;
  look.tail_share += share * (tail_share - look.tail_share);
  // Of steps that deviate only: a pause lies in forward, slow computation in everything.
  if (deviates && forward_own_ns < 0) forward_own_ns = ForwardOwnOf(peers);
  const bool by_peers = deviates && forward_own_ns > 0;
  if (by_peers || (deviates && rank.forward_level_ns > 0)) {
    // Forward without what it waits for is as long as the peers', from the first step on. Else by its own past.
    const double longer =
        by_peers ? static_cast<double>(fold.forward_own_ns) - forward_own_ns : forward - rank.forward_level_ns;
    const double part = std::clamp(longer / excess, 0.0, 1.0);
    look.forward_share += (part - look.forward_share) / std::min(++look.deviating, parameters.profiled_steps);
    if (excess > parameters.large_excess * peers.cut_ns) {
      const double weight = 1.0 / std::min(++look.large, parameters.profiled_steps);
      look.large_share += weight * (part - look.large_share);
      look.large_square += weight * (part * part - look.large_square);
    }
  }
  if (deviates && fold.device_busy_ns > 0 && peers.busy_ns > 0) {
    const double longer = own.work_factor * static_cast<double>(fold.device_busy_ns) - peers.busy_ns;
    const double part = std::clamp(longer / excess, 0.0, 1.0);
    look.busy_share += (part - look.busy_share) / std::min(++look.profiled_busy, parameters.profiled_steps);
  }
  // Of all steps: of a short one it is only known about when it waited.
  if (fold.cpu_wait_ns > 0 && peers.cpu_wait_of_others) {
    const auto waited = static_cast<double>(fold.cpu_wait_ns);
    const double usual = peers.cpu_wait_of_others->Without(waited);
    look.cpu_wait.wait.Add(step, waited - usual, usual, rank.slow().IsFading());
    look.cpu_wait.own.Add(step, excess, rank.own_reference_ns, rank.slow().IsFading());
  }
  double longest = 0;
  for (const OpFold& op : fold.ops) longest = std::max(longest, own.work_factor * static_cast<double>(op.max_gap_ns));
  const double gap_share = deviates ? std::min(1.0, longest / excess) : look.longest_gap_share;
  look.longest_gap_share += share * (gap_share - look.longest_gap_share);
}

void OwnTime::CountSlowest(const Slowest& slowest) {
  if (slowest.rank < 0) return;
  ++slowest_[static_cast<size_t>(slowest.rank)];
  if (++slowest_steps_ < kRotationSteps) return;
  slowest_steps_ /= 2;
  for (uint16_t& count : slowest_) count /= 2;
}

// In jobs without blocking operations a barrier without marks makes everybody's own time equal. Forward ranges still
// tell, where they hold no waits.
void OwnTime::ObserveForward(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step,
                             const Thresholds& h) {
  std::vector<std::vector<double>> by_class(classes_.size());
  auto class_of = [&](int rank) { return static_cast<size_t>(layout.rank(rank).peer_class); };
  for (const auto& [rank, fold] : folds) {
    if (fold.forwards > 0) by_class[class_of(rank)].push_back(static_cast<double>(fold.forward_ns));
  }
  std::vector<double> references;
  std::vector<size_t> sizes;
  for (std::vector<double>& values : by_class) {
    sizes.push_back(values.size());
    references.push_back(LowerMedian(values));
  }
  forward_noise_.Update();
  StreamTails tail_rates;
  for (const auto& [r, fold] : folds) tail_rates.Count(*ranks_[static_cast<size_t>(r)].forward);
  Stream::Limits limits = OwnLimits(NoiseOfMany(forward_noise_), h);
  for (const auto& [r, fold] : folds) {
    const double reference = references[class_of(r)];
    if (fold.forwards == 0 || sizes[class_of(r)] < parameters.forward_peers || reference <= 0) continue;
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const double forward = work_.WithBenefit(r, static_cast<double>(fold.forward_ns), reference);
    const double d = std::log(std::max(1.0, forward) / reference);
    if (rank.forward_reference_ns > 0) forward_noise_.steps.Add(r, std::abs(d - rank.last_forward));
    forward_noise_.AddApart(r, d);
    rank.last_forward = d;
    rank.forward_reference_ns = reference;
    if (!forward_noise_.steps.ready()) continue;
    Stream& stream = rank.forward.Begin();
    tail_rates.Apply(limits, stream);
    if (stream.Observe(step, d, {forward - reference, reference}, limits) == Stream::Event::kCleared)
      forward_weather_.Add(r, stream.returned(), step, period_ns_, stream.mean_excess());
    forward_noise_.blocks.Add(r, d, !stream.StandsOut());
  }
}

std::optional<double> OwnTime::CpuWait::Share() const {
  const Measured::Means waits = wait.means(), owns = own.means();
  if (owns.steps < parameters.enough_waits || owns.excess <= 0) return std::nullopt;
  // Some of the waiting is in communication, so that little may be left.
  const double busy = std::max(0.0, owns.value() - waits.value());
  const double busy_reference = std::max(parameters.least_busy * owns.reference, owns.reference - waits.reference);
  return std::clamp((waits.value() - waits.reference * busy / busy_reference) / owns.excess, 0.0, 1.0);
}

void OwnTime::Rank::Rebase() {
  own.Rebase();
  if (on_cpu->own.observations() > 0) on_cpu.Begin().own.Rebase();
  BreakOff();
}

void OwnTime::Rank::Drop() {
  own.Drop();
  if (forward->raised()) forward.Begin().Drop();
}

void OwnTime::Rank::BreakOff() {
  has_last_deviation = false;
  if (on_cpu->has_last_deviation) on_cpu.Begin().has_last_deviation = false;
}

double OwnTime::Look::scatter() const {
  // Of a variable between 0 and 1: its variance, and the most that it can be.
  const double most = large_share * (1 - large_share);
  return large < parameters.enough_large || most < 0.05 ? 0 : (large_square - large_share * large_share) / most;
}

// The share of its usual issue latency that a rank has left. Whoever waits for others has a longer one, so among peers
// the low ones are what is usual.
void OwnTime::ObserveIssues(const std::vector<OwnView>& owns) {
  std::vector<double> issues;
  for (const OwnView& own : owns) {
    if (own.fold->issues > 0) issues.push_back(static_cast<double>(own.fold->issue_p50_ns));
  }
  if (issues.empty()) return;
  const auto quarter = issues.begin() + static_cast<std::ptrdiff_t>(issues.size() / 4);
  std::nth_element(issues.begin(), quarter, issues.end());
  const double usual = *quarter;
  for (const OwnView& own : owns) {
    if (own.fold->issues == 0) continue;
    Rank& rank = ranks_[static_cast<size_t>(own.rank)];
    const auto now = static_cast<double>(own.fold->issue_p50_ns);
    if (++rank.issues_seen <= parameters.learn) {
      rank.issue_level_ns += (std::max(now, usual) - rank.issue_level_ns) / rank.issues_seen;
      continue;
    }
    const double ratio = rank.issue_level_ns > 0 ? std::min(1.0, now / rank.issue_level_ns) : 1;
    rank.issue_ratio += parameters.issue_average * (ratio - rank.issue_ratio);
    if (rank.issue_ratio > 0.7)
      rank.issue_level_ns += 0.02 * (std::min(now, 1.2 * rank.issue_level_ns) - rank.issue_level_ns);
  }
}

void OwnTime::ObserveClasses(int64_t step, const Thresholds& h) {
  std::vector<double> shifts, waits;
  // Of steps where it is known.
  const auto follow_wait = [](Class& peers, double share) {
    if (peers.wait_ns == 0) return;
    peers.wait_level_ns += (peers.wait_level_ns > 0 ? share : 1) * (peers.wait_ns - peers.wait_level_ns);
  };
  for (Class& peers : classes_) {
    if (peers.reference_ns <= 0) continue;
    const double y = std::log(peers.reference_ns) - work_.ShiftOf(static_cast<size_t>(&peers - classes_.data()));
    if (peers.has_last) class_noise_.steps.Add(static_cast<int>(&peers - classes_.data()), std::abs(y - peers.last));
    peers.last = y;
    peers.has_last = true;
    ++peers.seen;
    if (peers.seen <= parameters.learn) {
      peers.level += (y - peers.level) / peers.seen;
      follow_wait(peers, 1.0 / peers.seen);
      continue;
    }
    shifts.push_back(y - peers.level);
    const bool knows_waits = peers.wait_ns > 0 && peers.wait_level_ns > 0;
    waits.push_back(knows_waits ? (peers.wait_ns - peers.wait_level_ns) / std::exp(peers.level) : 0);
  }
  class_noise_.Update();
  common_shift_ = LowerMedian(shifts);
  common_wait_shift_ = LowerMedian(waits);
  if (!class_noise_.steps.ready()) return;
  StreamTails tail_rates;
  for (const Class& peers : classes_) tail_rates.Count(peers.drift);
  Stream::Limits limits = OwnLimits(class_noise_.level, h);
  for (Class& peers : classes_) {
    if (peers.reference_ns <= 0 || peers.seen <= parameters.learn) continue;
    const double d = peers.last - peers.level - (classes_.size() > 1 ? common_shift_ : 0);
    tail_rates.Apply(limits, peers.drift);
    peers.drift.Observe(step, d, Without(peers.reference_ns, d), limits);
    class_noise_.blocks.Add(static_cast<int>(&peers - classes_.data()), d, !peers.drift.StandsOut());
    idle_steps_ = 0;
    if (peers.drift.IsRising(0.3)) continue;
    peers.level += parameters.level_forget * (peers.last - peers.level);
    follow_wait(peers, parameters.level_forget);
  }
}

void OwnTime::ObserveData(const std::vector<std::pair<int, StepFold>>& folds, int64_t step, double period,
                          const Thresholds& h) {
  std::vector<double> values;
  for (const auto& [rank, fold] : folds) {
    if (fold.dataloaders > 0) values.push_back(static_cast<double>(fold.dataloader_own_ns));
  }
  if (values.empty() || period <= 0) return;
  const size_t loaders = values.size();
  const MedianOfOthers others(values);
  const double reference = others.of_all();
  data_noise_.Update();
  ++data_seen_;
  StreamTails tail_rates;
  for (const auto& [r, fold] : folds) tail_rates.Count(ranks_[static_cast<size_t>(r)].data);
  if (data_seen_ <= parameters.learn) data_level_ns_ += (reference - data_level_ns_) / data_seen_;
  Stream::Limits limits = DataLimits(data_noise_.level, h);
  for (const auto& [r, fold] : folds) {
    if (fold.dataloaders == 0) continue;
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const auto own = static_cast<double>(fold.dataloader_own_ns);
    if (rank.data_ns > 0 && r % (static_cast<int>(loaders / kNoiseSamples) + 1) == 0) {
      data_noise_.steps.Add(r, std::abs(own - rank.data_ns) / period);
    }
    rank.data_ns = own;
    const double usual = loaders >= 2 ? others.Without(own) : data_level_ns_;
    if (!data_noise_.steps.ready() || (loaders < 2 && data_seen_ <= parameters.learn)) continue;
    const double excess = own - usual;
    if (loaders <= parameters.leave_one_out)
      limits = DataLimits({data_noise_.steps.SigmaWithout(r), data_noise_.level.scales}, h);
    tail_rates.Apply(limits, rank.data);
    rank.data.Observe(step, excess / period, {excess, usual}, limits);
    data_noise_.blocks.Add(r, excess / period, !rank.data.StandsOut());
  }
  if (data_noise_.steps.ready() && data_seen_ > parameters.learn && loaders >= 2) {
    const double excess = reference - data_level_ns_;
    Stream::Limits common = DataLimits({data_noise_.level.one, {}}, h);
    common.jump = parameters.jump;
    tail_rates.Apply(common, common_data_, false);
    common_data_.Observe(step, excess / period, {excess, data_level_ns_}, common);
    if (!common_data_.IsRising(0.3)) data_level_ns_ += parameters.level_forget * excess;
  }
}

void OwnTime::ObserveCheckpoints(const std::vector<std::pair<int, StepFold>>& folds, int64_t step, double period_ns) {
  std::vector<double> values;
  for (const auto& [rank, fold] : folds) {
    if (fold.checkpoints > 0) values.push_back(static_cast<double>(fold.checkpoint_ns));
  }
  if (values.empty() || period_ns <= 0) return;
  const bool alone = values.size() < 2;
  const double reference = LowerMedian(values);
  if (last_checkpoint_step_ >= 0) checkpoint_interval_ = std::max<int64_t>(1, step - last_checkpoint_step_);
  last_checkpoint_step_ = step;
  const double interval = checkpoint_interval();
  // Savings of a few milliseconds differ by half of it and more.
  const double small = parameters.small_save * period_ns * interval;
  auto log_ratio = [small](double a, double b) { return std::log((a + small) / (b + small)); };
  checkpoint_noise_.Update();
  Stream::Limits limits = {
      .dead = parameters.save_dead, .most = parameters.save_dead, .h = {parameters.save_h}, .jump = kNever};
  limits.SetNoise(std::max(parameters.save_sigma, checkpoint_noise_.sigma()), {});
  for (const auto& [r, fold] : folds) {
    if (fold.checkpoints == 0) continue;
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const auto own = static_cast<double>(std::max<uint64_t>(1, fold.checkpoint_ns));
    if (rank.checkpoint_ns > 0) checkpoint_noise_.Add(r, std::abs(log_ratio(own, rank.checkpoint_ns)));
    rank.checkpoint_ns = own;
    const double usual = alone ? checkpoint_level_ : reference;
    if (usual <= 0) continue;
    rank.checkpoint.Begin().Observe(step, log_ratio(own, usual), {own - usual, usual}, limits);
  }
  if (!alone && checkpoints_seen_ >= 1) {
    // The median of many savings in one step weighs as much as several steps of one rank.
    limits.h = {parameters.common_save_h};
    common_checkpoint_.Observe(step, log_ratio(reference, checkpoint_level_),
                               {reference - checkpoint_level_, checkpoint_level_}, limits);
  }
  ++checkpoints_seen_;
  if (checkpoints_seen_ <= 3) {
    checkpoint_level_ += (reference - checkpoint_level_) / checkpoints_seen_;
  } else if (!common_checkpoint_.IsRising(0.3)) {
    checkpoint_level_ += 0.05 * (reference - checkpoint_level_);
  }
}

std::optional<OwnTime::Fineness> OwnTime::OwnFineness(const Layout& layout, int rank, size_t count, int steps) const {
  const Class& peers = classes_[static_cast<size_t>(layout.rank(rank).peer_class)];
  const Rank& state = ranks_[static_cast<size_t>(rank)];
  // One without peers: against its own past.
  const Stream& stream = count >= 2 ? state.own : peers.drift;
  if (stream.observations() == 0) return std::nullopt;
  const Noise& noise = count >= parameters.small_class ? peers.noise : shared_noise_;
  const NoiseLevel& level = count < 2                          ? class_noise_.level
                            : count > parameters.leave_one_out ? noise.level
                                                               : *state.noise;
  const Stream::Limits limits = OwnLimits(level, thresholds_);
  return Fineness{stream.SmallestRise(limits, steps), limits.sigma};
}

std::optional<OwnTime::Fineness> OwnTime::OnCpuFineness(int rank, int steps) const {
  const Rank& state = ranks_[static_cast<size_t>(rank)];
  const Stream& stream = state.on_cpu->own;
  if (stream.observations() == 0 || state.own.observations() == 0) return std::nullopt;
  // It is known of some of them.
  const double known = std::min(1.0, static_cast<double>(stream.observations()) / state.own.observations());
  const NoiseLevel& level = state.on_cpu->noise;
  const Stream::Limits limits = OwnLimits(level, thresholds_);
  return Fineness{stream.SmallestRise(limits, static_cast<int>(known * steps)), limits.sigma};
}

std::optional<OwnTime::Fineness> OwnTime::DataFineness(int rank, int steps) const {
  const Stream& stream = ranks_[static_cast<size_t>(rank)].data;
  if (stream.observations() == 0) return std::nullopt;
  const Stream::Limits limits = DataLimits(data_noise_.level, thresholds_);
  return Fineness{stream.SmallestRise(limits, steps), limits.sigma};
}

double OwnTime::rotation() const {
  if (slowest_steps_ < 20) return 0;
  size_t present = 0;
  for (const Rank& rank : ranks_) present += rank.own_ns > 0 ? 1 : 0;
  if (present < 2) return 0;
  double entropy = 0;
  for (uint16_t count : slowest_) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / slowest_steps_;
    entropy -= p * std::log(p);
  }
  return entropy / std::log(static_cast<double>(std::min<size_t>(present, static_cast<size_t>(slowest_steps_))));
}

}  // namespace taskd::diagnosis
