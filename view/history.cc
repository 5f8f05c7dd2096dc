#include "view/history.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/median.h"

namespace taskd::view {
namespace {

constexpr float kUnknown = -1;
constexpr std::array<std::string_view, History::kValues> kNames = {"own_time", "period", "dataloader", "communication"};

float Milliseconds(uint64_t ns) { return static_cast<float>(static_cast<double>(ns) / 1e6); }

uint8_t Quantize(float value, float median) {
  if (value < 0) return History::kNoData;
  if (median <= 0) return value > 0 ? 254 : 0;
  const double ratio = std::min<double>(value / median, History::kMaxRatio);
  return static_cast<uint8_t>(std::lround(ratio / History::kMaxRatio * 254));
}

}  // namespace

std::string_view Name(History::Value value) { return kNames[static_cast<size_t>(value)]; }

std::optional<History::Value> HistoryValueFromName(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<History::Value>(found - kNames.begin());
}

History::Steps::iterator History::Beyond() const {
  const Progress::Position& reached = progress_.reached();
  if (reached.life < 0) return steps_.begin();
  return steps_.upper_bound({static_cast<uint32_t>(reached.life), reached.step});
}

History::Steps::iterator History::Recent() const {
  auto recent = Beyond();
  for (size_t i = 0; i < kRecentSteps && recent != steps_.begin(); ++i) --recent;
  return recent;
}

void History::Erase(Steps::iterator step) {
  bytes_ -= step->second.size;
  if (found_.step == &step->second) found_.step = nullptr;
  steps_.erase(step);
}

// What a rank said that is far ahead now, or of a run that the job did not begin.
void History::DropOdd(const StepId& but) {
  while (!steps_.empty()) {
    const auto last = std::prev(steps_.end());
    const int life = static_cast<int>(last->first.run);
    const bool orphan = life > progress_.reached().life && !progress_.is_restarting();
    if (last->first == but || (!orphan && !progress_.IsFarAhead({life, last->first.step}))) return;
    Erase(last);
  }
}

History::Step* History::Find(const StepId& id) {
  DropOdd(id);
  auto recent = Recent();
  for (auto older = recent; older != steps_.begin() && !std::prev(older)->second.samples.empty(); --older) {
    Settle(std::prev(older)->second);
  }
  auto found = steps_.find(id);
  if (found != steps_.end()) return &found->second;
  // Older than what still has its numbers: nobody else has reported it, or it had to go.
  if (recent != steps_.begin() && id < recent->first) return nullptr;
  found = steps_.try_emplace(id).first;
  if (static_cast<size_t>(std::distance(Beyond(), steps_.end())) > kAheadSteps) {
    const auto last = std::prev(steps_.end());
    const bool is_last = last == found;
    Erase(last);
    if (is_last) return nullptr;
  }
  return &found->second;
}

void History::Count(Step& step) const {
  size_t size = sizeof(Steps::value_type) + step.samples.capacity() * sizeof(Sample) + step.reported.capacity() / 8;
  for (const std::vector<uint8_t>& bytes : step.bytes) size += bytes.capacity();
  bytes_ += size - step.size;
  step.size = size;
}

void History::Refresh(Step& step) {
  if (!step.stale) return;
  step.stale = false;
  std::vector<float> known;
  for (size_t value = 0; value < kValues; ++value) {
    known.clear();
    for (const Sample& sample : step.samples) {
      if (sample[value] >= 0) known.push_back(sample[value]);
    }
    if (known.empty()) continue;
    step.medians_ms[value] = UpperMedian(known);
    std::vector<uint8_t>& bytes = step.bytes[value];
    bytes.resize(step.samples.size());
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      bytes[rank] = Quantize(step.samples[rank][value], step.medians_ms[value]);
    }
  }
}

void History::Settle(Step& step) {
  if (step.samples.empty()) return;
  Refresh(step);
  std::vector<Sample>().swap(step.samples);
  for (std::vector<uint8_t>& bytes : step.bytes) bytes.shrink_to_fit();
  Count(step);
}

void History::MakeRoom() {
  while (steps_.size() > limits_.steps || bytes_ > limits_.bytes) {
    const auto end = Recent();
    if (end == steps_.begin()) {
      if (Beyond() == steps_.end()) return;
      Erase(std::prev(steps_.end()));
      continue;
    }
    int most = 0;
    for (const auto& [id, step] : steps_) most = std::max(most, step.ranks);
    auto gone = std::find_if(steps_.begin(), end, [most](const auto& one) { return one.second.ranks * 4 < most; });
    Erase(gone == end ? steps_.begin() : gone);
  }
}

void History::AddToTotals(uint64_t period_ns, const StepPhasesNs& phases_ns) {
  const double period_s = static_cast<double>(period_ns) / 1e9;
  const auto bound = std::lower_bound(kDurationBoundsS.begin(), kDurationBoundsS.end(), period_s);
  ++totals_.durations[static_cast<size_t>(bound - kDurationBoundsS.begin())];
  totals_.duration_s += period_s;
  for (size_t phase = 0; phase < phases_ns.size(); ++phase) {
    totals_.phases_s[phase] += static_cast<double>(phases_ns[phase]) / 1e9;
  }
}

void History::CountProductive() {
  const auto end = Beyond();
  if (productive_until_.has_value() &&
      progress_.IsFarAhead({static_cast<int>(productive_until_->run), productive_until_->step})) {
    productive_until_.reset();  // one rank's, while it was alone
  }
  auto step = productive_until_.has_value() ? steps_.upper_bound(*productive_until_) : steps_.begin();
  for (; step != end && step != steps_.end() && (end == steps_.end() || step->first < end->first); ++step) {
    if (productive_until_.has_value() && step->first.run > productive_until_->run) {
      redone_until_ = std::max(redone_until_, productive_until_->step);
    }
    productive_until_ = step->first;
    if (step->first.step <= redone_until_) continue;
    std::vector<float> periods;
    for (const Sample& sample : step->second.samples) {
      const float period = sample[static_cast<size_t>(Value::kPeriod)];
      if (period >= 0) periods.push_back(period);
    }
    if (periods.empty()) continue;
    totals_.productive_s += static_cast<double>(LowerMedian(periods)) / 1e3;
  }
}

void History::Add(int rank, const StepFold& fold, uint64_t now_ns) {
  if (rank < 0 || rank >= kMaxRanks || fold.step < 0 || fold.step > StepFold::kMaxStep) return;
  const auto index = static_cast<size_t>(rank);
  Sample sample;
  sample.fill(kUnknown);
  const uint64_t period = fold.period_ns();
  const uint64_t covered = std::min(fold.covered_ns, period);
  auto set = [&](Value value, uint64_t ns) { sample[static_cast<size_t>(value)] = Milliseconds(ns); };
  if (period > 0) {
    set(Value::kPeriod, period);
    set(Value::kOwnTime, period - covered);
    if (!fold.ops.empty() || covered > 0) set(Value::kCommunication, covered);
  }
  if (fold.dataloaders > 0) set(Value::kDataloader, fold.dataloader_ns);
  if (fold.checkpoints > 0) sample[kValues] = Milliseconds(fold.checkpoint_ns);

  std::lock_guard lock(mutex_);
  ranks_ = std::max(ranks_, index + 1);
  now_ns_ = std::max(now_ns_, now_ns);
  const Progress::Position at = progress_.Add(rank, fold.process_id, fold.step, now_ns_);
  if (progress_.IsFarAhead(at)) return;
  const StepId id = {static_cast<uint32_t>(at.life), at.step};
  const bool is_found = found_.step != nullptr && found_.id == id && found_.reached == progress_.reached();
  Step* step = is_found ? found_.step : Find(id);
  if (step == nullptr) return;
  if (step->reported.size() <= index) step->reported.resize(index + 1);
  if (step->reported[index]) return;
  step->reported[index] = true;
  if (step->ranks++ == 0) step->first_ns = now_ns_;
  if (period > 0) {
    const StepPhasesNs phases = PhasesOf(fold);
    AddToTotals(period, phases);
    ++step->periods;
    for (size_t phase = 0; phase < phases.size(); ++phase) step->sums_ms[phase] += Milliseconds(phases[phase]);
  }
  const bool settled = step->samples.empty() && step->ranks > 1;
  if (settled) {
    for (size_t value = 0; value < kValues; ++value) {
      if (sample[value] < 0 || step->medians_ms[value] <= 0) continue;
      std::vector<uint8_t>& bytes = step->bytes[value];
      if (bytes.size() <= index) bytes.resize(index + 1, kNoData);
      bytes[index] = Quantize(sample[value], step->medians_ms[value]);
    }
  } else {
    if (step->samples.size() <= index) {
      Sample none;
      none.fill(kUnknown);
      step->samples.reserve(ranks_);
      step->samples.resize(index + 1, none);
    }
    step->samples[index] = sample;
    step->stale = true;
  }
  Count(*step);
  if (!is_found) {
    CountProductive();
    found_ = {step, id, progress_.reached()};
  }
  MakeRoom();
}

History::Heatmap History::Draw(Value value, int64_t first, int64_t last, size_t most, int rows) const {
  Heatmap map;
  std::vector<StepId> ids;
  {
    std::lock_guard lock(mutex_);
    map.ranks = static_cast<int>(ranks_);
    auto end = Beyond();
    for (size_t i = 0; i < kRecentSteps && end != steps_.end(); ++i) ++end;
    for (auto at = steps_.begin(); at != end; ++at) {
      const StepId& id = at->first;
      if (id.step >= first && id.step <= last) ids.push_back(id);
    }
  }
  if (ids.size() > most) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(most));
  rows = std::clamp(rows, 1, kMaxRows);
  map.ranks_per_row = std::max(1, (map.ranks + rows - 1) / rows);
  const auto per_row = static_cast<size_t>(map.ranks_per_row);
  const size_t used = (static_cast<size_t>(map.ranks) + per_row - 1) / per_row;
  // Step after step first: that is how they are kept.
  std::vector<uint8_t> columns;
  columns.reserve(ids.size() * used);
  for (const StepId& id : ids) {
    std::lock_guard lock(mutex_);
    auto found = steps_.find(id);
    if (found == steps_.end()) continue;
    Step& step = found->second;
    Refresh(step);
    Count(step);
    StepSummary& summary = map.steps.emplace_back();
    summary.id = id;
    summary.ranks = step.ranks;
    summary.median_ms = step.medians_ms[static_cast<size_t>(value)];
    auto mean = [&step](double sum) { return step.periods == 0 ? 0.f : static_cast<float>(sum / step.periods); };
    summary.dataloader_ms = mean(step.sums_ms[0]);
    summary.compute_ms = mean(step.sums_ms[1]);
    summary.communication_ms = mean(step.sums_ms[2]);
    summary.checkpoint_ms = mean(step.sums_ms[3]);
    const std::vector<uint8_t>& bytes = step.bytes[static_cast<size_t>(value)];
    for (size_t row = 0; row < used; ++row) {
      uint8_t largest = 0;  // of byte + 1: then a gap is the smallest
      const size_t end = std::min((row + 1) * per_row, bytes.size());
      for (size_t rank = row * per_row; rank < end; ++rank) {
        largest = std::max(largest, static_cast<uint8_t>(bytes[rank] + 1));
      }
      columns.push_back(static_cast<uint8_t>(largest - 1));
    }
  }
  const size_t width = map.steps.size();
  map.cells.resize(width * used);
  for (size_t column = 0; column < width; ++column) {
    for (size_t row = 0; row < used; ++row) {
      map.cells[row * width + column] = static_cast<char>(columns[column * used + row]);
    }
  }
  return map;
}

std::vector<History::RankStep> History::RecentSteps(int rank) const {
  std::vector<RankStep> result;
  std::lock_guard lock(mutex_);
  if (rank < 0) return result;
  const auto index = static_cast<size_t>(rank);
  for (auto at = Recent(); at != steps_.end(); ++at) {
    if (at->second.samples.size() <= index) continue;
    const Sample& sample = at->second.samples[index];
    if (std::all_of(sample.begin(), sample.end(), [](float ms) { return ms < 0; })) continue;
    result.push_back({at->first, sample[0], sample[1], sample[2], sample[3], sample[4]});
  }
  if (result.size() > kRecentSteps) result.erase(result.begin(), result.end() - kRecentSteps);
  return result;
}

std::optional<History::StepId> History::newest() const {
  std::lock_guard lock(mutex_);
  if (steps_.empty()) return std::nullopt;
  const auto beyond = Beyond();
  return beyond == steps_.begin() ? beyond->first : std::prev(beyond)->first;
}

uint64_t History::newest_at_ns() const {
  std::lock_guard lock(mutex_);
  if (steps_.empty()) return 0;
  const auto beyond = Beyond();
  return beyond == steps_.begin() ? beyond->second.first_ns : std::prev(beyond)->second.first_ns;
}

History::Totals History::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

std::optional<double> History::slowest_ratio() const {
  std::lock_guard lock(mutex_);
  const Step* whole = nullptr;
  for (auto at = Recent(); at != steps_.end(); ++at) {
    if (!at->second.samples.empty() && (whole == nullptr || at->second.ranks >= whole->ranks)) whole = &at->second;
  }
  if (whole == nullptr) return std::nullopt;
  constexpr auto kOwn = static_cast<size_t>(Value::kOwnTime);
  std::vector<float> known;
  for (const Sample& sample : whole->samples) {
    if (sample[kOwn] >= 0) known.push_back(sample[kOwn]);
  }
  if (known.empty()) return std::nullopt;
  const float slowest = *std::max_element(known.begin(), known.end());
  const float median = UpperMedian(known);
  if (median <= 0) return std::nullopt;
  return slowest / median;
}

size_t History::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace taskd::view
