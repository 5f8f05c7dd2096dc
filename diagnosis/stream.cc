#include "diagnosis/stream.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

constexpr uint64_t kForgotten = 1 << 20;  // observations of all sources
constexpr uint8_t kAllScales = (1U << kScales) - 1;
constexpr uint8_t kWatched = 1U << kScales;  // for long enough without a rise before the last Rebase()

}  // namespace

Thresholds ThresholdsFor(double arl) {
  Thresholds thresholds;
  for (size_t scale = 0; scale < kScales; ++scale) thresholds[scale] = CusumThreshold(arl * kScales, kDrift[scale]);
  return thresholds;
}

void Stream::Learn(double d, const Limits& limits) {
  // Winsorised, so that what is wrong from the start cannot become normal.
  const double most = limits.most + parameters.clip * limits.sigma;
  const double value = std::clamp(d, -most, most);
  base_ += (value - base_) / std::min(seen_, parameters.remembered);
}

// What a rise is measured from. A sum that decides over many steps has to know the own past all the better; half of its
// drift makes up for what may be unequal.
// `known`: what Known() has.
double Stream::LimitOf(size_t scale, const Limits& limits, double known) const {
  const double sigma = limits.sigmas[scale];
  double limit = limits.most;
  if (seen_ >= parameters.learn) {
    const double unknown = scale > 0 ? sigma / known : 0;
    limit = std::min(std::max(base(), 0.0) + limits.dead + unknown, limits.most);
  }
  return LimitFor(limit, scale, limits);
}

// The root of how many observations the own past is of.
double Stream::Known() const { return std::sqrt(std::min(seen_, parameters.remembered)); }

double Stream::LimitFor(double unequal, size_t scale, const Limits& limits) {
  return scale > 0 ? std::max(0.0, unequal - kDrift[scale] * limits.sigmas[scale] / 2) : unequal;
}

void Stream::ShiftIn(size_t window, bool bit) {
  if (!bit && window_counts_[window] == 0) return;
  Bits& bits = windows_.Begin()[window];
  const bool oldest = IsSet(bits, kSpikeWindow - 1);
  window_counts_[window] = static_cast<uint8_t>(window_counts_[window] + (bit ? 1 : 0) - (oldest ? 1 : 0));
  bits[1] = bits[1] << 1 | bits[0] >> 63;
  bits[0] = bits[0] << 1 | (bit ? 1 : 0);
}

void Stream::ForgetWindows() {
  windows_ = {};
  window_counts_ = {};
}

// The big spikes or, failing that, all of them, where they are more than healthy peers have; else nothing. What hits peers
// for some steps in a row is there once, not as often as it has steps.
std::optional<size_t> Stream::FindRecurring(const Limits& limits) const {
  auto beyond_chance = [this](size_t window, double rate) {
    const int hits = CountStarts(window);
    return hits >= parameters.events && LogBinomialTail(trials(), hits, rate) < parameters.recurrence_ln_p;
  };
  if (beyond_chance(kBigSpikes, limits.big_rate)) return kBigSpikes;
  if (beyond_chance(kSpikes, limits.spike_rate)) return kSpikes;
  return std::nullopt;
}

Stream::Event Stream::Observe(int64_t step, double d, const Time& time, const Limits& limits) {
  ++seen_;
  if (seen_ <= parameters.learn) Learn(d, limits);
  const Observation now = Classify(step, d, time, LimitOf(0, limits), limits);
  Remember(now, limits);
  const State before = state_;
  switch (before) {
    case State::kQuiet:
      state_ = WatchForRise(now, limits);
      break;
    case State::kLasting:
      state_ = FollowLasting(now, limits);
      break;
    case State::kIntermittent:
      state_ = FollowIntermittent(now);
      break;
  }
  if (seen_ > parameters.learn && !raised() && risen_ < parameters.rising) Learn(d, limits);
  if ((before == State::kQuiet) == (state_ == State::kQuiet)) return Event::kNone;
  if (state_ == State::kQuiet) {
    BeginQuiet(step);
    return Event::kCleared;
  }
  BeginRaised(step, limits);
  return Event::kRaised;
}

Stream::Observation Stream::Classify(int64_t step, double d, const Time& time, double limit, const Limits& limits) {
  const double z = (d - limit) / limits.sigma;
  return {.step = step,
          .d = d,
          .time = time,
          .z = z,
          .spike = z > parameters.unusual && d > limit + 2 * limits.dead,
          .jump = z > parameters.jump_sigmas && d > limits.jump};
}

void Stream::Remember(const Observation& now, const Limits& limits) {
  ShiftIn(kJumps, now.jump);
  ShiftIn(kBigSpikes, now.spike && now.d > limits.big);
  for (size_t level = 0; level < kLevels; ++level) ShiftIn(level, now.z > static_cast<double>(level) + 2);
  if (windows_.begun() && window_counts_ == decltype(window_counts_){}) windows_ = {};
  const double weight = 1.0 / std::min(seen_, kSpikeWindow / 2);
  window_excess_ += weight * (now.time.excess - window_excess_);
  window_reference_ += weight * (now.time.reference - window_reference_);
  window_d_ += weight * (now.d - window_d_);
}

Stream::State Stream::WatchForRise(const Observation& now, const Limits& limits) {
  AddToSums(now, limits);
  if (risen_ == 0) return State::kQuiet;
  if (risen_ > 1 || jumps_ >= limits.jumps) return RaiseBySum(now.step, limits);
  if (!now.spike || window_excess_ <= 0) return State::kQuiet;
  if (const std::optional<size_t> recurring = FindRecurring(limits)) {
    return RaiseByRecurrence(now.step, (*windows_)[*recurring]);
  }
  return State::kQuiet;
}

void Stream::AddToSums(const Observation& now, const Limits& limits) {
  jumps_ = now.jump ? jumps_ + 1 : 0;
  risen_ = 0;
  lead_ = 0;
  const double known = Known();
  for (size_t scale = 0; scale < kScales && limits.sigmas[scale] > 0; ++scale) {
    const double z = scale == 0 ? now.z : (now.d - LimitOf(scale, limits, known)) / limits.sigmas[scale];
    AddTo(scale, now, std::clamp(z, -limits.clip, limits.clip));
    const float value = (*sums_)[scale].value;
    if (value == 0) continue;
    const double risen = value / limits.h[scale];
    if (risen <= risen_ || risen_ > 1) continue;
    risen_ = risen;
    lead_ = static_cast<uint8_t>(scale);
  }
  mean_ = (*sums_)[lead_].mean;
  // One whose noise is not known stands still.
  const auto is_empty = [](const Sum& sum) { return sum.value == 0; };
  if (risen_ == 0 && sums_.begun() && std::all_of(sums_->begin(), sums_->end(), is_empty)) sums_ = {};
}

// Where a step adds much more than all before it, the rise began there, and those were noise.
void Stream::AddTo(size_t scale, const Observation& now, double z) {
  const float before = (*sums_)[scale].value;
  const float value = std::max(0.0F, before + static_cast<float>(z - kDrift[scale]));
  if (before == 0 && value == 0) {
    rose_later_ |= static_cast<uint8_t>(1U << scale);
    return;
  }
  Sum& sum = sums_.Begin()[scale];
  sum.value = value;
  if (sum.value == 0 || (sum.value > parameters.begins * before && seen_ > parameters.learn)) {
    sum = {.value = sum.value};
    rose_later_ |= static_cast<uint8_t>(1U << scale);
  }
  if (sum.value == 0) return;
  if (sum.first_step < 0) sum.first_step = now.step;
  ++sum.count;
  const float weight = 1.0F / static_cast<float>(sum.count);
  sum.mean += weight * (static_cast<float>(now.d) - sum.mean);
  sum.mean_excess += weight * (static_cast<float>(now.time.excess) - sum.mean_excess);
  sum.mean_reference += weight * (static_cast<float>(now.time.reference) - sum.mean_reference);
}

double Stream::SmallestRise(const Limits& limits, int steps) const {
  constexpr double kNinetyNine = 2.33;  // standard deviations
  double smallest = INFINITY;
  const double known = Known();
  const double root = std::sqrt(steps);
  // Of what was there from the start the own past tells nothing.
  const auto limit = [&](size_t scale) {
    return steps < seen_ ? LimitOf(scale, limits, known) : LimitFor(limits.most, scale, limits);
  };
  for (size_t scale = 0; scale < kScales && limits.sigmas[scale] > 0 && steps > 0; ++scale) {
    const double z = kDrift[scale] + (limits.h[scale] + kNinetyNine * root) / steps;
    if (z < limits.clip)
      smallest = std::min(smallest, limit(scale) + parameters.noise_margin * z * limits.sigmas[scale]);
  }
  // A few large ones in a row.
  if (steps >= limits.jumps) {
    const double jump = std::max(limits.jump, limit(0) + parameters.jump_sigmas * limits.sigma);
    smallest = std::min(smallest, jump + (kNinetyNine + std::log(limits.jumps)) * limits.sigma);
  }
  return smallest;
}

void Stream::RaisedBy(double statistic, double threshold) {
  Rise& rise = rise_.Begin();
  rise.statistic = static_cast<float>(statistic);
  rise.threshold = static_cast<float>(threshold);
}

Stream::Trace Stream::trace(const Thresholds& h) const {
  if (raised()) return {rise_->statistic, rise_->threshold, rise_->onset, 0, measured()};
  const Sum& lead = (*sums_)[lead_];
  if (risen_ == 0) return {.threshold = h[0], .measured = WindowMeans(-1)};
  return {lead.value, lead.value / risen_, lead.first_step, lead.count, LeadMeans(-1)};
}

Stream::State Stream::RaiseBySum(int64_t step, const Limits& limits) {
  if (jumps_ >= limits.jumps) lead_ = 0;
  const Sum& lead = (*sums_)[lead_];
  if (risen_ > 1) {
    RaisedBy(lead.value, limits.h[lead_]);
  } else {
    RaisedBy(jumps_, limits.jumps);
  }
  mean_ = lead.mean;
  Rise& rise = rise_.Begin();
  const bool again = rise.cleared >= 0 && step - rise.cleared < parameters.same_deviation &&
                     mean_ < 2 * rise.last_mean && rise.last_mean < 2 * mean_;
  rise.returns = again ? rise.returns + 1 : 0;
  rise.returned = lead.first_step;
  if (!again) {
    rise.onset = lead.first_step;
    rise.from_start = (rose_later_ >> lead_ & 1) == 0;
  }
  const bool comes_and_goes = rise.returns >= parameters.returns;
  rise.measured.Begin(comes_and_goes ? WindowMeans(step) : LeadMeans(step));
  return comes_and_goes ? State::kIntermittent : State::kLasting;
}

// How many steps ago spikes that recur began, without those of before that were alone; and how many they are.
std::pair<int, int> Stream::FindFirst(const Bits& spikes) {
  std::vector<int> ages;
  for (int age = 0; age < kSpikeWindow; ++age) {
    if (IsSet(spikes, age)) ages.push_back(age);
  }
  size_t oldest = ages.size() - 1;
  for (; oldest >= static_cast<size_t>(parameters.events); --oldest) {
    const double usual = static_cast<double>(ages[oldest - 1] - ages[0]) / static_cast<double>(oldest - 1);
    if (ages[oldest] - ages[oldest - 1] <= parameters.alone * std::max(1.0, usual)) break;
  }
  return {ages[oldest], static_cast<int>(oldest) + 1};
}

Stream::State Stream::RaiseByRecurrence(int64_t step, const Bits& spikes) {
  const auto [age, recurring] = FindFirst(spikes);
  Rise& rise = rise_.Begin();
  rise.onset = rise.returned = step - age;
  RaisedBy(recurring, parameters.events);
  // Most steps since the first one: it lasts, only not evenly enough for the sum.
  if (recurring >= parameters.lasting_share * (age + 1)) {
    rise.measured.Begin(LeadMeans(step));
    return State::kLasting;
  }
  rise.measured.Begin(WindowMeans(step));
  mean_ = window_d_;
  return State::kIntermittent;
}

Stream::State Stream::FollowLasting(const Observation& now, const Limits& limits) {
  Rise& rise = rise_.Begin();
  const double limit = LimitOf(rise.scale, limits);
  const double half_way = (limit + mean_) / 2;
  // What varies by itself is not over because of a few good steps.
  if (now.d > limit)
    rise.spread += (std::abs(now.d - mean_) - rise.spread) / std::min(rise.count, parameters.raised_steps);
  const double noise = std::max(limits.sigma, limits.sigmas[rise.scale]);
  const double sigma = std::max(noise, 1.25 * rise.spread);
  // The mirrored test, as patient as the sum that raised it.
  rise.down_h = limits.h[rise.scale];
  rise.down = std::max(0.0, rise.down + std::clamp((half_way - now.d) / sigma, -parameters.clip, parameters.clip));
  if (rise.down > rise.down_h) return State::kQuiet;
  rise.measured.Add(now.step, now.time.excess, now.time.reference, IsFading());
  // Not of what may be after its end.
  if (IsFading() && now.d <= half_way) return State::kLasting;
  // As long as it does not stand out the mean is of all steps, so that it does once it is there for long enough.
  const int most = rise.stands_out ? std::max(parameters.raised_steps, 4 * kBlock[rise.scale]) : parameters.remembered;
  rise.count = std::min(rise.count + 1, most);
  mean_ += (now.d - mean_) / rise.count;
  Weigh(limits);
  return State::kLasting;
}

// What is known of means of `count` steps.
Stream::Means Stream::MeansOf(int count, const Limits& limits) {
  const auto is_known = [&](size_t scale) { return scale < kScales && limits.sigmas[scale] > 0; };
  Means means;
  while (is_known(means.scale + 1) && kBlock[means.scale + 1] <= count) ++means.scale;
  const double sigma = limits.sigmas[means.scale];
  means.error = means.expected = std::max(limits.sigma, sigma) / std::sqrt(count);
  means.longest = means.scale;
  while (is_known(means.longest + 1)) ++means.longest;
  means.go_together = limits.sigmas[means.longest] > parameters.autocorrelated * limits.one;
  if (!means.go_together) return means;
  // More of them than a block has may say no more than that.
  double most = sigma / std::sqrt(std::min(kBlock[means.scale], count));
  if (is_known(means.scale + 1)) most = std::min(most, limits.sigmas[means.scale + 1] / std::sqrt(count));
  means.error = std::max(means.error, most);
  means.expected =
      count > kBlock[means.longest] ? SigmaBeyond(means.longest, count, limits) / std::sqrt(count) : means.error;
  return means;
}

// Of means of more steps than any whose noise is known. What grew from the step to blocks of four goes on to grow; what grew
// further may as well end there, so by half of it.
double Stream::SigmaBeyond(size_t longest, int count, const Limits& limits) {
  const double sigma = limits.sigmas[longest];
  const double shorter = longest > 0 ? limits.sigmas[longest - 1] : limits.one;
  const double growth = std::clamp(sigma / shorter, 1.0, parameters.most_growth);
  const double scales = std::log2(static_cast<double>(count) / kBlock[longest]) / 2;
  return sigma * std::pow(growth, longest > 0 ? scales / 2 : scales);
}

// mean() against the noise of as many steps. Where steps do not go together the sums have said that it stands out.
void Stream::Weigh(const Limits& limits) {
  Rise& rise = rise_.Begin();
  const int count = std::max(1, rise.count);
  const Means means = MeansOf(count, limits);
  const double beyond = mean_ - LimitOf(means.scale, limits);
  rise.error = means.error;
  rise.clear = means.scale > 0 && beyond > parameters.significant * means.error;
  rise.beyond_weather = rise.clear && mean_ < parameters.unusual * limits.sigma;
  rise.stands_out = !means.go_together ||
                    beyond > (rise.stands_out ? parameters.still_significant : parameters.significant) * means.error;
  rise.usual = means.go_together && beyond < parameters.still_significant * means.expected;
}

Stream::State Stream::FollowIntermittent(const Observation& now) {
  mean_ = window_d_;
  Rise& rise = rise_.Begin();
  rise.measured.Add(now.step, now.time.excess, now.time.reference, false);
  int& quiet = rise.quiet;
  quiet = now.spike ? 0 : quiet + 1;
  const int patience = std::max(parameters.quiet_steps, 6 * trials() / std::max(1, spikes()));
  return quiet < patience ? State::kIntermittent : State::kQuiet;
}

Measured::Means Stream::LeadMeans(int64_t step) const {
  const Sum& lead = (*sums_)[lead_];
  return {lead.first_step, step, lead.count, lead.mean_excess, lead.mean_reference};
}

Measured::Means Stream::WindowMeans(int64_t step) const {
  const int steps = std::min(seen_, kSpikeWindow / 2);
  return {step - steps + 1, step, steps, window_excess_, window_reference_};
}

void Stream::BeginRaised(int64_t step, const Limits& limits) {
  Rise& rise = rise_.Begin();
  rise.scale = state_ == State::kLasting ? lead_ : 0;
  rise.count = (*sums_)[lead_].count;
  const double sigma = std::max(limits.sigma, limits.sigmas[rise.scale]);
  const double finer = std::sqrt(kBlock[rise.scale] / kBlock[0]);
  rise.z = finer * (mean_ - std::clamp(base(), 0.0, limits.most)) / sigma;
  rise.stands_out = false;
  Weigh(limits);
  rise.raised_step = step;
  rise.rose_in_quiet = limits.sigma < parameters.quiet_noise;
  rise.down = rise.spread = 0;
  rise.down_h = limits.h[rise.scale];
  rise.quiet = 0;
}

void Stream::BeginQuiet(int64_t step) {
  sums_ = {};
  rose_later_ |= kAllScales;
  risen_ = 0;
  jumps_ = 0;
  ForgetWindows();
  Rise& rise = rise_.Begin();
  rise.down = 0;
  rise.cleared = step;
  rise.last_mean = mean_;
}

void Stream::Rebase() {
  if (!raised()) {
    sums_ = {};
    // Watched for long enough without a rise, now or before: one that is there in the next step was not there from the
    // start.
    rose_later_ = seen_ > parameters.learn || (rose_later_ & kWatched) != 0 ? kWatched | kAllScales : 0;
    risen_ = 0;
    jumps_ = 0;
  }
  seen_ = 0;
  base_ = 0;
  ForgetWindows();
}

void Stream::Drop() {
  if (!raised()) return;
  state_ = State::kQuiet;
  sums_ = {};
  rise_ = {};
  rose_later_ |= kWatched;
}

void StreamTails::Count(const Stream& stream) {
  if (stream.raised()) return;
  jumps_.Add(stream.jumps(), stream.trials());
  spike_starts_.Add(stream.spike_starts(), stream.trials());
  big_spike_starts_.Add(stream.big_spike_starts(), stream.trials());
  for (size_t level = 0; level < Stream::kLevels; ++level) {
    outliers_[level].Add(stream.outliers(level), stream.trials());
  }
}

void StreamTails::Apply(Stream::Limits& limits, const Stream& stream, bool leave_out) const {
  leave_out = leave_out && !stream.raised();
  const int trials = leave_out ? stream.trials() : 0;
  std::array<double, Stream::kLevels> rates;
  for (size_t level = 0; level < Stream::kLevels; ++level) {
    rates[level] = outliers_[level].Without(leave_out ? stream.outliers(level) : 0, trials);
  }
  limits.spike_rate = spike_starts_.Without(leave_out ? stream.spike_starts() : 0, trials);
  limits.big_rate = big_spike_starts_.Without(leave_out ? stream.big_spike_starts() : 0, trials);
  limits.clip = CusumClip(rates);
  limits.jump_rate = jumps_.Without(leave_out ? stream.jumps() : 0, trials);
  limits.jumps = StepsBeyondChance(limits.jump_rate);
}

std::array<float, kScales> BlockMeans::Add(double d) {
  std::array<float, kScales> distances;
  distances.fill(-1);
  if (steps_ == 0) sums_ = {};
  newest_[static_cast<size_t>(steps_ % kBlock[0])] = static_cast<float>(d);
  if (++steps_ % kBlock[0] != 0) return distances;
  // Without the lowest and the highest one: what a single step can do is bounded in the sums, too.
  const auto [low, high] = std::minmax_element(newest_.begin(), newest_.end());
  const float middle = (std::accumulate(newest_.begin(), newest_.end(), -*low) - *high) / 2;
  for (float& sum : sums_) sum += middle;
  for (size_t scale = 0; scale < kScales && steps_ % kBlock[scale] == 0; ++scale) {
    const int block = steps_ / kBlock[scale] - 1;
    const float mean = std::exchange(sums_[scale], 0) * kBlock[0] / static_cast<float>(kBlock[scale]);
    auto& means = means_[scale];
    // To the oldest one that is there.
    const auto oldest = static_cast<size_t>(block < kApart ? 0 : block % kApart);
    if (block > 0) distances[scale] = std::abs(mean - means[oldest]) / std::sqrt(2.0F);
    means[static_cast<size_t>(block % kApart)] = mean;
  }
  return distances;
}

void ScaleNoise::Add(int source, double d, bool quiet) {
  ++added_;
  Source* listened = Listen(source);
  if (listened == nullptr) return;
  listened->heard = added_;
  if (!quiet) return listened->means.Restart();
  const std::array<float, kScales> distances = listened->means.Add(d);
  for (size_t scale = 0; scale < kScales && distances[scale] >= 0; ++scale) {
    auto& [blocks, next, measured, changed] = scales_[scale];
    if (blocks.size() < kBlocks) {
      blocks.push_back({source, distances[scale]});
    } else {
      blocks[next++ % kBlocks] = {source, distances[scale]};
    }
    changed = true;
  }
}

// nullptr: there are enough others.
ScaleNoise::Source* ScaleNoise::Listen(int id) {
  for (Source& source : sources_) {
    if (source.id == id) return &source;
  }
  if (sources_.size() < kSources) return &sources_.emplace_back(Source{id, added_, {}});
  // In place of one that is heard no more.
  if (added_ < none_forgotten_until_) return nullptr;
  const auto oldest = std::min_element(sources_.begin(), sources_.end(),
                                       [](const Source& a, const Source& b) { return a.heard < b.heard; });
  none_forgotten_until_ = oldest->heard + kForgotten;
  if (added_ < none_forgotten_until_) return nullptr;
  *oldest = {id, added_, {}};
  return &*oldest;
}

// As of one observation, of the blocks in scratch_. What few show may be less than it is.
double ScaleNoise::SigmaOf(size_t scale, bool typical) {
  if (scratch_.size() < kEnough) return 0;
  const auto size = static_cast<double>(scratch_.size());
  auto quantile = [&](double share) {
    const auto at = scratch_.begin() + static_cast<std::ptrdiff_t>(size * share);
    std::nth_element(scratch_.begin(), at, scratch_.end());
    return *at;
  };
  double sigma = 1.4826 * quantile(0.5);
  // More than what a change of all of them at once leaves behind.
  if (!typical && scratch_.size() >= parameters.quartile_blocks) sigma = std::max(sigma, quantile(0.75) / 1.15);
  return parameters.trimmed * sigma * (1 + 0.5 / std::sqrt(size)) * std::sqrt(kBlock[scale]);
}

void ScaleNoise::Update(double one, bool typical) {
  bool changed = false;
  std::array<size_t, kScales> blocks;
  for (size_t scale = 0; scale < kScales; ++scale) {
    Scale& now = scales_[scale];
    blocks[scale] = now.blocks.size();
    if (!std::exchange(now.changed, false)) continue;
    changed = true;
    scratch_.clear();
    for (const Block& block : now.blocks) scratch_.push_back(block.distance);
    now.measured = static_cast<float>(SigmaOf(scale, typical));
  }
  if (!changed) return;
  for (size_t scale = 0; scale < kScales; ++scale) sigmas_[scale] = scales_[scale].measured;
  Expect(sigmas_, blocks, one);
}

ScaleSigmas ScaleNoise::SigmasWithout(int source, double one, bool typical) {
  return SigmasOf(source, 1, one, typical);
}

ScaleSigmas ScaleNoise::SigmasOfPair(double one) { return SigmasOf(std::nullopt, 2, one, true); }

ScaleSigmas ScaleNoise::SigmasOf(std::optional<int> left_out, size_t times, double one, bool typical) {
  ScaleSigmas sigmas{};
  std::array<size_t, kScales> blocks;
  for (size_t scale = 0; scale < kScales; ++scale) {
    scratch_.clear();
    for (const Block& block : scales_[scale].blocks) {
      if (block.source != left_out) scratch_.push_back(block.distance);
    }
    blocks[scale] = scratch_.size() / times;
    sigmas[scale] = static_cast<float>(SigmaOf(scale, typical));
  }
  Expect(sigmas, blocks, one);
  return sigmas;
}

// Few blocks say little. That noise grows to the next scale as it did to the one before counts as some more of them.
void ScaleNoise::Expect(ScaleSigmas& sigmas, const std::array<size_t, kScales>& blocks, double one) {
  double shorter = one;
  for (size_t scale = 1; scale < kScales && sigmas[scale] > 0; ++scale) {
    const double before = sigmas[scale - 1];
    const double growth =
        shorter > 0 ? std::clamp(before / shorter, 1.0, parameters.most_growth) : parameters.most_growth;
    const double expected = growth * before;
    const double measured = sigmas[scale];
    const auto count = static_cast<double>(blocks[scale]);
    const double square = (parameters.growth_blocks * expected * expected + count * measured * measured) /
                          (parameters.growth_blocks + count);
    sigmas[scale] = static_cast<float>(std::sqrt(square));
    shorter = before;
  }
}

void Stream::Limits::SetNoise(double one, const ScaleSigmas& measured) {
  this->one = sigma = sigmas[0] = one;
  double growth = 1;     // from one scale to the next: of noise that goes together for a while
  double shorter = one;  // of the scale before, as it was measured
  for (size_t scale = 0; scale < kScales; ++scale) {
    if (measured[scale] > 0) {
      const double block = std::max(shorter, static_cast<double>(measured[scale]));
      const bool next = scale + 1 < kScales && measured[scale + 1] > 0;
      growth = next ? std::max(1.0, measured[scale + 1] / block) : block / shorter;
      // A sum decides over twice a block: between this block and the next one, which are four times as long. Where only the
      // first ones are known, noise that has grown that much hardly ends there.
      const double more = scale == 0 && !next ? parameters.autocorrelated : std::sqrt(growth);
      const double of_sum = growth > parameters.autocorrelated ? more * block : block;
      sigmas[scale] = scale == 0 ? of_sum : std::max(sigmas[scale - 1], of_sum);
      shorter = block;
    } else {
      // Noise that does not grow from one scale to the next hardly begins to do so with the one after that.
      const bool known = scale > 0 && measured[scale - 1] > 0 && growth < parameters.autocorrelated;
      sigmas[scale] = known ? parameters.unmeasured * sigmas[scale - 1] : scale == 0 ? one : 0;
    }
  }
  sigma = sigmas[0];
}

}  // namespace taskd::diagnosis
