#include "tests/diagnosis/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"

namespace taskd::evaluation {
namespace {

using diagnosis::Scope;
using simulate::FaultKind;
using simulate::Label;

// The x in [low, high] at which an increasing function crosses zero.
double Bisect(double low, double high, const std::function<double(double)>& function) {
  for (int i = 0; i < 200 && high - low > 1e-12 * std::max(1.0, high); ++i) {
    double middle = (low + high) / 2;
    (function(middle) < 0 ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::vector<int> Sorted(std::vector<int> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<int> RanksOfNodes(const std::vector<int>& nodes, const std::vector<int>& node_of_rank) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    if (std::find(nodes.begin(), nodes.end(), node_of_rank[rank]) != nodes.end())
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> CoveredRanks(const diagnosis::Verdict& verdict, const std::vector<int>& node_of_rank) {
  switch (verdict.scope) {
    case Scope::kNode:
      return RanksOfNodes(verdict.ids, node_of_rank);
    case Scope::kLink: {
      std::vector<int> ranks;
      for (const auto& link : verdict.links) ranks.insert(ranks.end(), {link.a, link.b});
      return Sorted(ranks);
    }
    case Scope::kJob:
      return {};
    default:
      return Sorted(verdict.ids);
  }
}

std::vector<int> LabelRanks(const Label& label, const std::vector<int>& node_of_rank) {
  return label.scope == "node" ? RanksOfNodes(label.ids, node_of_rank) : Sorted(label.ids);
}

bool Includes(const std::vector<int>& all, const std::vector<int>& part) {
  return std::includes(all.begin(), all.end(), part.begin(), part.end());
}

bool InWindow(const Claim& claim, const Label& label) {
  return claim.opened >= label.first_step && claim.opened <= label.last_step + kGraceSteps;
}

// `culprits`: the ranks of all faults that act then.
bool NamesIt(const Claim& claim, const Label& label, const std::vector<int>& ranks, const std::vector<int>& culprits) {
  const diagnosis::Verdict& verdict = claim.verdict;
  if (label.scope == "job") return verdict.scope == Scope::kJob;
  if (ranks.empty() || verdict.scope == Scope::kJob) return false;
  // Nodes of one rank: the same entity under two names.
  if (claim.ranks == ranks && verdict.scope != Scope::kLink && label.scope != "link") return true;
  bool network = label.kind == FaultKind::kNic || label.kind == FaultKind::kNodeNic;
  switch (verdict.scope) {
    case Scope::kRank:
      if (label.scope == "node") return false;
      return Includes(claim.ranks, ranks) && (claim.ranks.size() <= 2 || Includes(culprits, claim.ranks));
    case Scope::kNode:
      return label.scope == "node" && Includes(claim.ranks, ranks) &&
             (verdict.ids.size() <= 2 || Includes(culprits, claim.ranks));
    case Scope::kLink: {
      bool few = verdict.links.size() <= 2;
      for (const auto& link : verdict.links) {
        std::vector<int> ends = Sorted({link.a, link.b});
        if (few && label.scope == "link" && ends == ranks) return true;
        if (few && label.kind == FaultKind::kNic && Includes(ends, ranks)) return true;
      }
      return false;
    }
    case Scope::kGroup:
      // Marks cannot tell its members apart.
      return network && std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
               return std::binary_search(claim.ranks.begin(), claim.ranks.end(), rank);
             });
    case Scope::kJob:
      return false;
  }
  return false;
}

// The chance of at most `events` where the mean is `mean`.
double PoissonAtMost(int64_t events, double mean) {
  double sum = 0;
  for (int64_t k = 0; k <= events; ++k) {
    sum += std::exp(static_cast<double>(k) * std::log(mean) - mean - std::lgamma(static_cast<double>(k) + 1));
  }
  return sum;
}

}  // namespace

double RegularizedBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - RegularizedBeta(b, a, 1 - x);
  // Lentz's method on the continued fraction (Abramowitz and Stegun 26.5.8).
  constexpr double kTiny = 1e-300;
  double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x)) / a;
  double fraction = 1, c = 1, d = 0;
  for (int i = 0; i <= 500; ++i) {
    int m = i / 2;
    double numerator = 1;
    if (i > 0 && i % 2 == 0) numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    if (i % 2 == 1) numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 + numerator * d;
    d = 1 / (std::abs(d) < kTiny ? kTiny : d);
    c = 1 + numerator / c;
    if (std::abs(c) < kTiny) c = kTiny;
    fraction *= c * d;
    if (std::abs(1 - c * d) < 1e-15) break;
  }
  return front * (fraction - 1);
}

Interval ClopperPearson(int64_t hits, int64_t trials, double level) {
  if (trials <= 0) return {};
  double tail = (1 - level) / 2, k = static_cast<double>(hits), n = static_cast<double>(trials);
  Interval interval;
  if (hits > 0) interval.low = Bisect(0, 1, [&](double p) { return RegularizedBeta(k, n - k + 1, p) - tail; });
  if (hits < trials)
    interval.high = Bisect(0, 1, [&](double p) { return RegularizedBeta(k + 1, n - k, p) - (1 - tail); });
  return interval;
}

Interval PoissonInterval(int64_t events, double level) {
  double tail = (1 - level) / 2, top = 20 + 3 * static_cast<double>(events);
  Interval interval{0, Bisect(0, top, [&](double mean) { return tail - PoissonAtMost(events, mean); })};
  if (events > 0)
    interval.low = Bisect(0, top, [&](double mean) { return 1 - PoissonAtMost(events - 1, mean) - tail; });
  return interval;
}

double Quantile(std::vector<double> values, double p) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  size_t index = static_cast<size_t>(std::max(0.0, std::ceil(p * static_cast<double>(values.size())) - 1));
  index = std::min(index, values.size() - 1);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

const char* Name(Match match) {
  switch (match) {
    case Match::kRight:
      return "right";
    case Match::kImprecise:
      return "imprecise";
    case Match::kWrong:
      return "wrong";
    case Match::kAbstained:
      return "abstained";
  }
  return "?";
}

diagnosis::Verdict WithTies(diagnosis::Verdict verdict) {
  for (const diagnosis::Alternative& other : verdict.alternatives) {
    if (other.scope != verdict.scope || other.probability < 0.9 * verdict.confidence) continue;
    verdict.ids.insert(verdict.ids.end(), other.ids.begin(), other.ids.end());
    verdict.links.insert(verdict.links.end(), other.links.begin(), other.links.end());
  }
  verdict.ids = Sorted(std::move(verdict.ids));
  return verdict;
}

std::string Entity(const diagnosis::Verdict& verdict) {
  std::string text = diagnosis::Name(verdict.scope);
  const char* separator = " ";
  std::vector<std::pair<int, int>> links;
  for (const auto& link : verdict.links) links.emplace_back(std::min(link.a, link.b), std::max(link.a, link.b));
  std::sort(links.begin(), links.end());
  for (auto [a, b] : links) {
    absl::StrAppend(&text, separator, a, "-", b);
    separator = ",";
  }
  for (int id : Sorted(verdict.ids)) {
    absl::StrAppend(&text, separator, id);
    separator = ",";
  }
  return text;
}

void ClaimTracker::Observe(int step, const std::vector<diagnosis::Verdict>& verdicts,
                           const std::vector<int>& node_of_rank) {
  std::map<std::string, size_t> still_open;
  for (const diagnosis::Verdict& reported : verdicts) {
    if (!reported.open) continue;
    const diagnosis::Verdict verdict = WithTies(reported);
    std::string entity = Entity(verdict);
    if (still_open.contains(entity)) continue;  // a second cause of the same entity
    auto known = open_.find(entity);
    size_t index = known != open_.end() ? known->second : claims_.size();
    if (index == claims_.size()) {
      Claim& claim = claims_.emplace_back();
      claim.verdict = verdict;
      claim.ranks = CoveredRanks(verdict, node_of_rank);
      claim.opened = step;
    } else {
      claims_[index].changed += claims_[index].verdict.cause != verdict.cause;
      claims_[index].verdict = verdict;
    }
    auto& costs = claims_[index].costs;
    if (costs.empty() || costs.back().second != verdict.cost_ms_per_step) {
      costs.emplace_back(step, verdict.cost_ms_per_step);
    }
    still_open.emplace(std::move(entity), index);
  }
  for (const auto& [entity, index] : open_) {
    if (!still_open.contains(entity)) claims_[index].closed = step;
  }
  open_ = std::move(still_open);
}

Score ScoreCase(std::vector<Claim>& claims, const std::vector<Label>& labels, const std::vector<int>& node_of_rank,
                const std::vector<double>& step_ms) {
  Score score;
  score.outcomes.resize(labels.size());
  int steps = static_cast<int>(step_ms.size());
  std::vector<std::vector<int>> ranks;
  for (const Label& label : labels) ranks.push_back(LabelRanks(label, node_of_rank));

  std::set<std::string> counted[3];
  for (size_t c = 0; c < claims.size(); ++c) {
    Claim& claim = claims[c];
    bool right = false, near = false;
    std::vector<int> culprits;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (InWindow(claim, labels[i])) culprits.insert(culprits.end(), ranks[i].begin(), ranks[i].end());
    }
    culprits = Sorted(culprits);
    for (size_t i = 0; i < labels.size(); ++i) {
      if (!InWindow(claim, labels[i])) continue;
      near |= !ranks[i].empty() && (Includes(claim.ranks, ranks[i]) || Includes(ranks[i], claim.ranks));
      if (!NamesIt(claim, labels[i], ranks[i], culprits)) continue;
      right = true;
      Outcome& outcome = score.outcomes[i];
      if (!outcome.found) {
        outcome.claim = static_cast<int>(c);
        outcome.steps_to_detect = claim.opened - labels[i].first_step + 1;
      }
      outcome.found = true;
      outcome.exact |= claim.ranks == ranks[i] && diagnosis::Name(claim.verdict.scope) == labels[i].scope;
    }
    bool job = claim.verdict.scope == Scope::kJob;
    claim.match = job ? (right ? Match::kRight : Match::kAbstained)
                      : (right  ? Match::kRight
                         : near ? Match::kImprecise
                                : Match::kWrong);
    score.job_claims += job;
    if (!job) counted[static_cast<int>(claim.match)].insert(Entity(claim.verdict));
  }
  score.right = static_cast<int>(counted[0].size());
  score.imprecise = static_cast<int>(counted[1].size());
  score.wrong = static_cast<int>(counted[2].size());

  for (size_t i = 0; i < labels.size(); ++i) {
    const Label& label = labels[i];
    Outcome& outcome = score.outcomes[i];
    outcome.visible = label.effect >= kVisibleEffect;
    outcome.clearable = label.last_step + kGraceSteps < steps;
    if (!outcome.found) continue;
    const Claim& first = claims[static_cast<size_t>(outcome.claim)];
    const std::string cause = diagnosis::Name(first.verdict.cause);
    outcome.cause_right = std::find(label.causes.begin(), label.causes.end(), cause) != label.causes.end();
    // Cleared is what stays cleared: by the last claim of that entity.
    int closed = first.closed;
    for (const Claim& claim : claims) {
      if (InWindow(claim, label) && Entity(claim.verdict) == Entity(first.verdict)) closed = claim.closed;
    }
    if (outcome.clearable && closed >= 0) outcome.steps_to_clear = std::max(0, closed - label.last_step);
    if (labels.size() != 1) continue;
    int end = std::min(label.last_step + 1, steps);
    double sum = 0;
    for (int step = std::max(1, label.first_step); step < end; ++step) sum += step_ms[static_cast<size_t>(step)];
    int count = end - std::max(1, label.first_step);
    if (count <= 0 || label.effect <= 0) continue;
    outcome.true_cost_ms = sum / count * label.effect / (1 + label.effect);
    // As it was told while the fault acted.
    double told = first.costs.front().second;
    for (auto [step, cost] : first.costs) {
      if (step <= label.last_step) told = cost;
    }
    outcome.told_cost_ms = told;
    outcome.cost_error = std::abs(told - outcome.true_cost_ms) / outcome.true_cost_ms;
    const auto& [low, high] = first.verdict.cost_interval_ms;
    outcome.cost_within = low <= outcome.true_cost_ms && outcome.true_cost_ms <= high;
  }
  return score;
}

}  // namespace taskd::evaluation
