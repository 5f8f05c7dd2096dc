#include "tests/diagnosis/summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "agent/simulate/faults.h"

namespace taskd::evaluation {
std::string Show(const Rate& rate) {
  if (rate.trials == 0) return "–";
  Interval interval = ClopperPearson(rate.hits, rate.trials);
  return absl::StrFormat("%.1f %% (%d/%d; %.1f–%.1f)", 100 * rate.value(), rate.hits, rate.trials, 100 * interval.low,
                         100 * interval.high);
}

namespace {

using simulate::Label;

std::string Short(const Rate& rate) {
  return rate.trials == 0 ? "–" : absl::StrFormat("%d/%d", rate.hits, rate.trials);
}

std::string Steps(const std::vector<double>& values) {
  if (values.empty()) return "–";
  return absl::StrFormat("%.0f / %.0f", Quantile(values, 0.5), Quantile(values, 0.95));
}
std::string Percent(const std::vector<double>& values) {
  if (values.empty()) return "–";
  return absl::StrFormat("%.1f / %.1f", 100 * Quantile(values, 0.5), 100 * Quantile(values, 0.95));
}

// A table row of cells.
std::string Row(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}
std::string Header(const std::string& title, const std::vector<std::string>& cells) {
  std::string line = "|";
  for (size_t i = 0; i < cells.size(); ++i) line += "---|";
  return absl::StrCat("\n### ", title, "\n\n", Row(cells), line, "\n");
}

bool Job(const Label& label) { return label.scope == "job"; }
// Counted in the recall: somebody can be named, and the fault is felt.
bool Counted(const Label& label, const Outcome& outcome) {
  return outcome.visible && !Job(label) && label.severity >= 1.095;
}
bool Small(const Label& label, const Outcome& outcome) {
  return outcome.visible && !Job(label) && label.severity < 1.095;
}
// Delays are told of faults that act from one step to the next at full strength.
bool Sudden(const std::string& shape) { return shape == "persistent" || shape == "transient"; }
// And in every step: pauses and checkpoints come now and then.
bool Steady(const Label& label, const std::string& shape) {
  using simulate::FaultKind;
  return Sudden(shape) && label.kind != FaultKind::kGc && label.kind != FaultKind::kRecompile &&
         label.kind != FaultKind::kCheckpoint;
}

// One label with what a detector made of it.
struct Item {
  const CaseResult* result;
  const DetectorResult* detector;
  const Label* label;
  const std::string* shape;
  const Outcome* outcome;
};
std::vector<Item> Items(const std::vector<CaseResult>& results, size_t detector) {
  std::vector<Item> items;
  for (const CaseResult& result : results) {
    const DetectorResult& of = result.detectors[detector];
    for (size_t i = 0; i < result.labels.size(); ++i) {
      items.push_back({&result, &of, &result.labels[i], &result.shapes[i], &of.score.outcomes[i]});
    }
  }
  return items;
}

struct Totals {
  Rate recall, small, exact, cause, job, cleared, within;
  int right = 0, imprecise = 0, wrong = 0;
  std::vector<double> detect, detect_12, detect_15, clear, cost;  // detect: of steady faults, and
  std::vector<double> detect_rare;                                // of those that act now and then
  double set_size = 0;
  int claims = 0;

  void Add(const Item& item) {
    const Outcome& outcome = *item.outcome;
    if (outcome.visible && Job(*item.label)) job.Add(outcome.found);
    if (Counted(*item.label, outcome)) recall.Add(outcome.found);
    if (Small(*item.label, outcome)) small.Add(outcome.found);
    if (!outcome.found || Job(*item.label)) return;
    const Claim& claim = item.detector->claims[static_cast<size_t>(outcome.claim)];
    exact.Add(outcome.exact);
    cause.Add(outcome.cause_right);
    set_size += static_cast<double>(claim.verdict.scope == diagnosis::Scope::kLink ? claim.verdict.links.size()
                                                                                   : claim.verdict.ids.size());
    ++claims;
    if (outcome.visible && Sudden(*item.shape) && !Steady(*item.label, *item.shape)) {
      detect_rare.push_back(outcome.steps_to_detect);
    }
    if (outcome.visible && Steady(*item.label, *item.shape)) {
      detect.push_back(outcome.steps_to_detect);
      if (item.label->severity >= 1.195) detect_12.push_back(outcome.steps_to_detect);
      if (item.label->severity >= 1.495) detect_15.push_back(outcome.steps_to_detect);
    }
    if (outcome.clearable) {
      cleared.Add(outcome.steps_to_clear >= 0);
      if (outcome.steps_to_clear >= 0) clear.push_back(outcome.steps_to_clear);
    }
    if (outcome.cost_error >= 0 && outcome.visible && Sudden(*item.shape)) {
      cost.push_back(outcome.cost_error);
      within.Add(outcome.cost_within);
    }
  }
  void Add(const Score& score) {
    right += score.right;
    imprecise += score.imprecise;
    wrong += score.wrong;
  }
  Rate precision() const { return {right, right + imprecise + wrong}; }
  double f1() const {
    double p = precision().value(), r = recall.value();
    return p + r > 0 ? 2 * p * r / (p + r) : std::nan("");
  }
};

// Time in which nothing is wrong counts for the rate of false alarms; each claim there is one, also a second of one rank.
bool IsHealthy(const CaseResult& result) { return result.suite == "healthy" || result.suite == "quiet"; }

// Somebody named where nobody should be.
int Named(const Score& score) { return score.right + score.imprecise + score.wrong; }

std::string PerTime(int64_t events, double exposure, double unit) {
  if (exposure <= 0) return "–";
  Interval interval = PoissonInterval(events);
  double scale = unit / exposure;
  return absl::StrFormat("%.3g (%d; %.3g–%.3g)", static_cast<double>(events) * scale, events, interval.low * scale,
                         interval.high * scale);
}

std::string Overall(const std::vector<CaseResult>& results) {
  std::string text =
      Header("All detectors", {"detector", "entity precision", "recall (≥ 1.1×, step +1 %)", "F1", "recall at 1.05×",
                               "exact", "cause", "steps to detect, median / p95", "named in honesty cases",
                               "false alarms per 1,000 healthy h", "CPU ms per case"});
  for (size_t d = 0; d < results.front().detectors.size(); ++d) {
    Totals totals;
    for (const Item& item : Items(results, d)) totals.Add(item);
    Rate honest;
    int64_t alarms = 0;
    double hours = 0, cpu_s = 0;
    for (const CaseResult& result : results) {
      const DetectorResult& detector = result.detectors[d];
      totals.Add(detector.score);
      cpu_s += detector.cpu_s;
      if (result.honesty) honest.Add(Named(detector.score) > 0);
      if (!IsHealthy(result)) continue;
      hours += result.simulated_s / 3600;
      alarms += static_cast<int64_t>(detector.claims.size());
    }
    text += Row({results.front().detectors[d].name, Show(totals.precision()), Show(totals.recall),
                 absl::StrFormat("%.3f", totals.f1()), Show(totals.small), Short(totals.exact), Show(totals.cause),
                 Steps(totals.detect), Show(honest), PerTime(alarms, hours, 1000),
                 absl::StrFormat("%.0f", 1e3 * cpu_s / static_cast<double>(results.size()))});
  }
  return text;
}

std::string Details(const std::vector<CaseResult>& results) {
  Totals totals;
  std::vector<double> seconds;
  int alternatives = 0;
  Rate invisible;
  for (const Item& item : Items(results, 0)) {
    totals.Add(item);
    if (!item.outcome->visible && !Job(*item.label)) invisible.Add(item.outcome->found);
    if (!item.outcome->found || Job(*item.label)) continue;
    alternatives +=
        static_cast<int>(item.detector->claims[static_cast<size_t>(item.outcome->claim)].verdict.alternatives.size());
    if (item.outcome->visible && Steady(*item.label, *item.shape)) {
      seconds.push_back(item.outcome->steps_to_detect * item.result->step_ms * 1e-3);
    }
  }
  int64_t healthy = 0, honest = 0;
  double hours = 0, rank_steps = 0, honest_hours = 0;
  int job_right = 0, job_others = 0;
  for (const CaseResult& result : results) {
    const Score& score = result.detectors[0].score;
    totals.Add(score);
    for (const Claim& claim : result.detectors[0].claims) {
      if (claim.verdict.scope != diagnosis::Scope::kJob) continue;
      ++(claim.match == Match::kRight ? job_right : job_others);
    }
    if (IsHealthy(result)) {
      hours += result.simulated_s / 3600;
      rank_steps += result.rank_steps;
      healthy += static_cast<int64_t>(result.detectors[0].claims.size());
    }
    if (result.honesty) {
      honest_hours += result.simulated_s / 3600;
      honest += Named(score);
    }
  }
  std::string text = Header("TaskD in detail", {"what", "value"});
  text += Row({"entities right / imprecise / wrong",
               absl::StrFormat("%d / %d / %d", totals.right, totals.imprecise, totals.wrong)});
  text += Row({"exact entity by itself, of those found", Show(totals.exact)});
  text += Row({"entities in the set, mean; alternatives, mean",
               totals.claims == 0 ? "–"
                                  : absl::StrFormat("%.2f; %.2f", totals.set_size / totals.claims,
                                                    static_cast<double>(alternatives) / totals.claims)});
  text += Row({"faults of the whole job, found", Show(totals.job)});
  text += Row({"faults below 1 % of the step, named", Show(invisible)});
  text += Row({"verdicts about the whole job: right / others", absl::StrFormat("%d / %d", job_right, job_others)});
  text += Row({"steps to detect, median / p95", Steps(totals.detect)});
  text += Row({"… at ≥ 1.2×", Steps(totals.detect_12)});
  text += Row({"… at ≥ 1.5×", Steps(totals.detect_15)});
  text += Row({"… pauses, recompilation, checkpoints", Steps(totals.detect_rare)});
  text += Row({"simulated seconds to detect, median / p95", Steps(seconds)});
  text += Row({"cleared after the fault's end", Show(totals.cleared)});
  text += Row({"steps to clear, median / p95", Steps(totals.clear)});
  text += Row({"error of the cost, median / p95, %", Percent(totals.cost)});
  text += Row({"cost within its interval of 95 %", Show(totals.within)});
  text += Row({"false alarms per 1,000 healthy hours", PerTime(healthy, hours, 1000)});
  text += Row({"false alarms per 10⁹ healthy rank-steps", PerTime(healthy, rank_steps, 1e9)});
  text += Row({"named in honesty suites per 1,000 hours", PerTime(honest, honest_hours, 1000)});
  return text;
}

using Key = std::function<std::string(const Item&)>;

// Labels by `key`; empty: left out.
std::string Breakdown(const std::vector<CaseResult>& results, const std::string& title, const std::string& what,
                      const Key& key) {
  std::map<std::string, Totals> rows;
  for (const Item& item : Items(results, 0)) {
    if (std::string name = key(item); !name.empty()) rows[name].Add(item);
  }
  std::string text = Header(title, {what, "found ≥ 1.1×", "found 1.05×", "exact", "cause", "detect, median / p95",
                                    "cleared", "clear, median / p95", "cost error %, median / p95"});
  for (const auto& [name, totals] : rows) {
    text +=
        Row({name, Short(totals.job.trials > 0 ? totals.job : totals.recall), Short(totals.small), Short(totals.exact),
             Short(totals.cause), Steps(totals.detect.empty() ? totals.detect_rare : totals.detect),
             Short(totals.cleared), Steps(totals.clear), Percent(totals.cost)});
  }
  return text;
}

std::string BySuite(const std::vector<CaseResult>& results) {
  struct Suite {
    Totals totals;
    int cases = 0, job_claims = 0, named_cases = 0;
    bool honesty = false;
    double wall_s = 0, simulate_s = 0, fold_s = 0, engine_s = 0;
  };
  std::map<std::string, Suite> suites;
  for (const Item& item : Items(results, 0)) suites[item.result->suite].totals.Add(item);
  for (const CaseResult& result : results) {
    Suite& suite = suites[result.suite];
    const DetectorResult& detector = result.detectors[0];
    suite.totals.Add(detector.score);
    ++suite.cases;
    suite.honesty |= result.honesty;
    suite.job_claims += detector.score.job_claims > 0;
    suite.named_cases += Named(detector.score) > 0;
    suite.wall_s += result.wall_s;
    suite.simulate_s += result.simulate_s;
    suite.fold_s += result.fold_s;
    suite.engine_s += detector.cpu_s;
  }
  std::string text = Header("By suite (★: nobody must be named)",
                            {"suite", "cases", "found ≥ 1.1×", "found 1.05×", "job faults found",
                             "right / imprecise / wrong", "cases that name", "cases with a job verdict", "cause",
                             "detect", "cleared", "cost error %", "s per case: all, simulate, fold, engine"});
  for (const auto& [name, suite] : suites) {
    const Totals& totals = suite.totals;
    text += Row({absl::StrCat(name, suite.honesty ? " ★" : ""), absl::StrCat(suite.cases), Short(totals.recall),
                 Short(totals.small), Short(totals.job),
                 absl::StrFormat("%d / %d / %d", totals.right, totals.imprecise, totals.wrong),
                 absl::StrCat(suite.named_cases), absl::StrCat(suite.job_claims), Short(totals.cause),
                 Steps(totals.detect), Short(totals.cleared), Percent(totals.cost),
                 absl::StrFormat("%.1f, %.1f, %.1f, %.2f", suite.wall_s / suite.cases, suite.simulate_s / suite.cases,
                                 suite.fold_s / suite.cases, suite.engine_s / suite.cases)});
  }
  return text;
}

std::string Honesty(const std::vector<CaseResult>& results) {
  // By suite and detector: cases that name somebody.
  std::map<std::string, std::vector<Rate>> suites;
  std::vector<std::string> header = {"suite"};
  for (const DetectorResult& detector : results.front().detectors) header.push_back(detector.name);
  for (const CaseResult& result : results) {
    if (!result.honesty) continue;
    std::vector<Rate>& rates = suites[result.suite];
    rates.resize(result.detectors.size());
    for (size_t d = 0; d < result.detectors.size(); ++d) rates[d].Add(Named(result.detectors[d].score) > 0);
  }
  if (suites.empty()) return "";
  std::string text = Header("Cases that name somebody where nobody must be named", header);
  for (const auto& [suite, rates] : suites) {
    std::vector<std::string> cells = {suite};
    for (const Rate& rate : rates) cells.push_back(Short(rate));
    text += Row(cells);
  }
  return text;
}

std::string Confusion(const std::vector<CaseResult>& results) {
  std::map<std::string, std::array<int, diagnosis::kCauses>> rows;
  for (const Item& item : Items(results, 0)) {
    if (!item.outcome->found) continue;
    const Claim& claim = item.detector->claims[static_cast<size_t>(item.outcome->claim)];
    ++rows[Name(item.label->kind)][static_cast<size_t>(claim.verdict.cause)];
  }
  std::vector<std::string> header = {"fault \\ cause"};
  for (int cause = 0; cause < diagnosis::kCauses; ++cause) {
    header.push_back(diagnosis::Name(static_cast<diagnosis::Cause>(cause)));
  }
  std::string text = Header("Causes given to faults that were found", header);
  for (const auto& [kind, counts] : rows) {
    std::vector<std::string> cells = {kind};
    for (int count : counts) cells.push_back(count == 0 ? "" : absl::StrCat(count));
    text += Row(cells);
  }
  return text;
}

std::string Reliability(const std::vector<CaseResult>& results) {
  static constexpr double kBounds[] = {0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0000001};
  std::array<Rate, std::size(kBounds) - 1> rates;
  std::array<double, std::size(kBounds) - 1> sums{};
  for (const CaseResult& result : results) {
    for (const Claim& claim : result.detectors[0].claims) {
      if (claim.match == Match::kAbstained) continue;
      size_t bin = 0;
      while (bin + 1 < rates.size() && claim.verdict.confidence >= kBounds[bin + 1]) ++bin;
      rates[bin].Add(claim.match == Match::kRight);
      sums[bin] += claim.verdict.confidence;
    }
  }
  std::string text = Header("Is the confidence right?", {"confidence", "mean", "claims that were right"});
  for (size_t i = 0; i < rates.size(); ++i) {
    if (rates[i].trials == 0) continue;
    text += Row({absl::StrFormat("%.2f–%.2f", kBounds[i], std::min(1.0, kBounds[i + 1])),
                 absl::StrFormat("%.3f", sums[i] / static_cast<double>(rates[i].trials)), Show(rates[i])});
  }
  return text;
}

}  // namespace

std::string Tables(const std::vector<CaseResult>& results) {
  if (results.empty()) return "";
  std::string text = Overall(results);
  text += Details(results);
  text += BySuite(results);
  text += Honesty(results);
  // Where nobody is to be named, only the kind of the fault is of interest.
  auto of_entities = [](auto key) {
    return [key](const Item& item) { return Job(*item.label) ? std::string() : std::string(key(item)); };
  };
  text += Breakdown(results, "By kind of fault", "fault", [](const Item& item) {
    return absl::StrCat(Name(item.label->kind), Job(*item.label) ? ", whole job" : "");
  });
  text += Breakdown(results, "By severity", "factor", of_entities([](const Item& item) {
                      double factor = item.label->severity + 0.005;
                      return factor < 1.1   ? "below 1.1"
                             : factor < 1.2 ? "1.1 to 1.2"
                             : factor < 1.5 ? "1.2 to 1.5"
                             : factor < 2   ? "1.5 to 2"
                                            : "from 2";
                    }));
  text += Breakdown(results, "By shape", "shape", of_entities([](const Item& item) { return *item.shape; }));
  text += Breakdown(results, "By layout", "layout", of_entities([](const Item& item) { return item.result->layout; }));
  text += Confusion(results);
  text += Reliability(results);
  return text;
}

Figures FiguresOf(const std::vector<CaseResult>& results) {
  Totals totals;
  Rate named;
  for (const Item& item : Items(results, 0)) totals.Add(item);
  for (const CaseResult& result : results) {
    const Score& score = result.detectors[0].score;
    totals.Add(score);
    if (result.honesty || IsHealthy(result)) named.Add(Named(score) > 0);
  }
  return {totals.precision(), totals.recall, totals.small, named, std::move(totals.detect)};
}

std::vector<std::string> Failures(const CaseResult& result) {
  std::vector<std::string> lines;
  std::string begin = absl::StrFormat("%s:%d [%s, %d steps of %.0f ms]", result.suite, result.index, result.layout,
                                      result.steps, result.step_ms);
  const DetectorResult& detector = result.detectors[0];
  auto describe = [&](size_t i) {
    const Label& label = result.labels[i];
    return absl::StrFormat("%s %s of %s %s x%.2f (step +%.1f %%) steps %d-%d", result.shapes[i], Name(label.kind),
                           label.scope, absl::StrJoin(label.ids, ","), label.severity, 100 * label.effect,
                           label.first_step, label.last_step);
  };
  for (size_t i = 0; i < result.labels.size(); ++i) {
    const Label& label = result.labels[i];
    const Outcome& outcome = detector.score.outcomes[i];
    if (!outcome.found && outcome.visible) lines.push_back(absl::StrCat(begin, " missed: ", describe(i)));
    if (!outcome.found) continue;
    const Claim& claim = detector.claims[static_cast<size_t>(outcome.claim)];
    if (!outcome.cause_right) {
      lines.push_back(absl::StrCat(begin, " cause ", diagnosis::Name(claim.verdict.cause), " instead of ",
                                   absl::StrJoin(label.causes, "|"), ": ", describe(i)));
    }
    if (outcome.clearable && outcome.steps_to_clear < 0)
      lines.push_back(absl::StrCat(begin, " not cleared: ", describe(i)));
    if (outcome.cost_error > 0.5 && outcome.visible && Sudden(result.shapes[i])) {
      lines.push_back(absl::StrFormat("%s cost %.1f instead of %.1f ms: %s", begin, outcome.told_cost_ms,
                                      outcome.true_cost_ms, describe(i)));
    }
  }
  for (const Claim& claim : detector.claims) {
    bool bad = claim.match == Match::kWrong || claim.match == Match::kImprecise;
    if (claim.match == Match::kAbstained && IsHealthy(result)) bad = true;
    if (!bad) continue;
    std::string faults;
    for (size_t i = 0; i < result.labels.size(); ++i) absl::StrAppend(&faults, i == 0 ? "" : "; ", describe(i));
    lines.push_back(absl::StrFormat("%s %s: %s %s steps %d-%d cost %.1f ms confidence %.2f; truth: %s", begin,
                                    Name(claim.match), Entity(claim.verdict), diagnosis::Name(claim.verdict.cause),
                                    claim.opened, claim.closed, claim.verdict.cost_ms_per_step,
                                    claim.verdict.confidence, faults.empty() ? "nothing" : faults));
  }
  return lines;
}

}  // namespace taskd::evaluation
