#include "diagnosis/weather.h"

#include <algorithm>
#include <iterator>

#include "diagnosis/parameters.h"
#include "diagnosis/stats.h"

namespace taskd::diagnosis {
namespace {

// So many of `all` may be one rank's, of so many `peers`.
bool IsChance(size_t all, size_t of_rank, int peers) {
  return LogBinomialTail(static_cast<int>(all), static_cast<int>(of_rank), 1.0 / peers) >= parameters.chosen_ln_p;
}

}  // namespace

void Weather::Add(int rank, int64_t onset, int64_t end, double step_ns, double excess_ns) {
  const int64_t steps = end - onset;
  if (steps <= 0 || static_cast<double>(steps) * step_ns > parameters.longest_burst_ns) return;
  rises_.push_back({rank, onset, steps, step_ns, excess_ns});
  ++by_rank_[rank];
  while (rises_.size() > kMost) Drop();
}

void Weather::Forget(int64_t step) {
  while (!rises_.empty() && rises_.front().onset < step - parameters.burst_memory) Drop();
}

void Weather::Drop() {
  const auto found = by_rank_.find(rises_.front().rank);
  if (--found->second == 0) by_rank_.erase(found);
  rises_.pop_front();
}

double Weather::ExplainsUntilNs(int rank, int peers) const {
  const auto own = by_rank_.find(rank);
  const size_t of_rank = own == by_rank_.end() ? 0 : own->second;
  if (rises_.empty() || !IsChance(rises_.size(), of_rank, peers)) return 0;
  double until_ns = parameters.short_burst_ns;
  for (const Rise& rise : rises_) until_ns = std::max(until_ns, 2 * static_cast<double>(rise.steps) * rise.step_ns);
  return until_ns;
}

double Weather::mean_steps() const {
  double sum = 0;
  for (const Rise& rise : rises_) sum += static_cast<double>(rise.steps);
  return rises_.empty() ? 0 : sum / static_cast<double>(rises_.size());
}

double Weather::cost_ns(int64_t step) const {
  double sum = 0;
  for (const Rise& rise : rises_) sum += static_cast<double>(rise.steps) * rise.excess_ns;
  return rises_.empty() ? 0 : sum / static_cast<double>(std::max<int64_t>(1, step - first_step() + 1));
}

void Gusts::Add(int rank, int64_t step) {
  Gust& gust = open_.try_emplace(rank, Gust{rank, step, step, 0}).first->second;
  gust.last = step;
  ++gust.hits;
}

void Gusts::Forget(int64_t step) {
  for (auto open = open_.begin(); open != open_.end();) {
    const Gust& gust = open->second;
    const bool ended = step - gust.last > parameters.event_gap;
    if (ended && gust.hits >= parameters.burst_steps) ended_.push_back(gust);
    open = ended ? open_.erase(open) : std::next(open);
  }
  while (!ended_.empty() && (ended_.front().last < step - parameters.burst_memory || ended_.size() > Weather::kMost)) {
    ended_.pop_front();
  }
}

bool Gusts::Explain(int rank, int peers, int64_t since, int spikes) const {
  int of_rank = 0;
  int hits = 0;
  int64_t longest = 0;
  for (const Gust& gust : ended_) {
    longest = std::max(longest, gust.steps());
    if (gust.rank != rank) continue;
    ++of_rank;
    if (gust.last >= since) hits += gust.hits;
  }
  if (const auto open = open_.find(rank); open != open_.end() && open->second.steps() <= 2 * longest) {
    hits += open->second.hits;
  }
  return hits >= parameters.burst_share * spikes && IsChance(ended_.size(), static_cast<size_t>(of_rank), peers);
}

}  // namespace taskd::diagnosis
