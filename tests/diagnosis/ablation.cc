#include "tests/diagnosis/ablation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "diagnosis/veto.h"
#include "tests/diagnosis/metrics.h"
#include "tests/diagnosis/summary.h"

namespace taskd::evaluation {
namespace {

using diagnosis::Parameters;
using diagnosis::Veto;

struct Parameter {
  std::string name;
  double value;
  bool is_whole;
  void (*set)(Parameters& parameters, double value);
};

const std::vector<Parameter>& All() {
  static const std::vector<Parameter> all = {
#define TASKD_PARAMETER(type, name, value, unit, reason)        \
  {#name, static_cast<double>(value), std::is_integral_v<type>, \
   [](Parameters& parameters, double v) { parameters.name = static_cast<type>(v); }},
#include "diagnosis/parameters.inc"
#undef TASKD_PARAMETER
  };
  return all;
}

Change WithValue(const Parameter& parameter, double value) {
  Change change = {absl::StrFormat("%s %.3g", parameter.name, value), Parameters()};
  parameter.set(change.parameters, value);
  return change;
}

// The median, and the values that hold it with 95 %.
struct Median {
  double value = NAN;
  Interval interval = {0, INFINITY};
};
Median MedianOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double place) {
    return values[static_cast<size_t>(std::clamp(place, 0.0, static_cast<double>(values.size() - 1)))];
  };
  const auto n = static_cast<double>(values.size());
  return {at(n / 2), {at(n / 2 - 0.98 * std::sqrt(n)), at(n / 2 + 0.98 * std::sqrt(n))}};
}

// Which figures lie outside of the interval of the default's.
std::string Moved(const Figures& usual, const Figures& now) {
  std::vector<std::string> moved;
  const auto compare = [&](const char* name, const Rate& before, const Rate& after) {
    const Interval interval = ClopperPearson(before.hits, before.trials);
    if (after.value() < interval.low || after.value() > interval.high) moved.emplace_back(name);
  };
  compare("precision", usual.precision, now.precision);
  compare("recall", usual.recall, now.recall);
  compare("small faults", usual.small, now.small);
  compare("false alarms", usual.named, now.named);
  const Interval delay = MedianOf(usual.delays).interval;
  const double median = MedianOf(now.delays).value;
  if (median < delay.low || median > delay.high) moved.emplace_back("delay");
  return moved.empty() ? "–" : absl::StrJoin(moved, ", ");
}

// All that a user sees of a case.
std::string Story(const CaseResult& result) {
  std::string story = result.report;
  for (const Claim& claim : result.detectors[0].claims) {
    absl::StrAppend(&story, claim.opened, " ", claim.closed, " ", claim.verdict.text, "\n");
  }
  return story;
}

}  // namespace

std::vector<std::string> VetoNames() {
  std::vector<std::string> names;
  for (auto veto = static_cast<int>(Veto::kWarmUp); veto <= static_cast<int>(Veto::kAttribution); ++veto) {
    names.emplace_back(diagnosis::Name(static_cast<Veto>(veto)));
  }
  return names;
}

std::vector<std::string> ParameterNames() {
  std::vector<std::string> names;
  for (const Parameter& parameter : All()) names.push_back(parameter.name);
  return names;
}

std::vector<std::string> Rules() {
  return {
      "leave_one_out=0",        // a rank of a few is judged by the noise of the others
      "young_noise=1",          // noise of autocorrelated steps is larger while it is not known
      "young_small_noise=1",    // the same in small peer groups
      "growth_blocks=0",        // few blocks count less than how noise has grown so far
      "unmeasured=1",           // a scale without blocks has some more noise than the one before
      "quartile_blocks=1e9",    // large blocks that occur often count
      "quiet_noise=0",          // where steps are even no warm-up is needed
      "small_save=0",           // saves of milliseconds do not matter
      "begins=1e9",             // a sum begins where a step adds much more than all before it
      "jumps=1e6",              // a few large steps in a row are a rise
      "events=1e6",             // events that recur are a rise
      "big=1e9",                // big events count by themselves
      "big_transfer=1e9",       // the same of transfers
      "alone=1e9",              // an event long before the others is none of them
      "lasting_share=2",        // events in most steps are a rise that lasts
      "returns=1000000",        // what comes back soon is intermittent
      "still_significant=6",    // what was significant remains so for longer
      "short_burst_ns=0",       // where bursts occur a short rise may always be one
      "chosen_ln_p=-1e9",       // who has more bursts than the others is slow
      "burst_share=2",          // events in bursts are no rise that recurs
      "small_margin=1",         // in a small group the slow rank is in the noise of the others
      "known_noise_ns=1e18",    // where noise is known small groups wait for less long
      "on_cpu_ns=1e18",         // a rank that is slow while it has a CPU is named sooner
      "large_rise=1e9",         // a large rise of one of a few is named at once
      "large_cost=1e9",         // the same of loading and transfers
      "small_cost=0",           // one of a few has to cost more
      "small_transfer_cost=0",  // the same of transfers
      "gone_share=1e-9",        // what recurs ends when it costs little
      "second_fault_share=0",   // a slow process loads and saves more slowly
      "same_onset=-1",          // its host transfers more slowly
      "settle_steps=0",         // accusations wait for other ranks and channels
      "same_change=0",          // steps may have changed for other reasons
      "model_error=0",          // no model of a cost is exact
      "cost_steps=1",           // the cost of the first steps is taken from means
      "tail_share=0",           // memory: a part of the rise lies behind the last operation
      "wide_spread=1e9",        // a pause may vary by much, instead of lying in forward
      "scatter=2",              // a pause is here or there
      "longest_gap=2",          // a pause may be one gap
      "pause_instead=0",        // where marks cannot tell it is a pause
      "large_excess=1e9",       // parts of large deviations tell pauses
      "tie=0",                  // explanations that are nearly as good are equal
      "bandwidth_bound=0",      // small operations contradict nothing
      "least_ends=0",           // head and tail are the second view only if they are long enough
      "pause_own_factor=0",     // a pause shows in all self times
      "keep_restored=0",        // restored verdicts wait to be found again
      "least_wait_part=0",      // waits have to differ by as much as steps do
      "least_gain=0",           // work has to explain something
      "other_scale=1e9",        // much more or less work is another job
      "some_elasticity=1",      // work that explains nothing is said to
      "unfit_load=1e9",         // large loads have to lie on the line
      "other_units=1e9",        // a rank may count its work in other units
      "maybe_other_units=1e9",  // from the start by less
      "least_full=0",           // the full view is used only if it is long enough
      "steepest=1",             // time may grow faster than work
  };
}

std::optional<std::vector<Change>> ChangesOf(const std::string& what) {
  const std::vector<std::string> vetoes = VetoNames();
  if (const auto veto = std::find(vetoes.begin(), vetoes.end(), what); veto != vetoes.end()) {
    Change change = {absl::StrCat("without ", what), Parameters()};
    change.parameters.vetoes_off = 2U << (veto - vetoes.begin());
    return {{std::move(change)}};
  }
  const size_t equals = std::min(what.size(), what.find('='));
  const auto named = [&](const Parameter& parameter) { return parameter.name == what.substr(0, equals); };
  const auto parameter = std::find_if(All().begin(), All().end(), named);
  if (parameter == All().end()) return std::nullopt;
  if (equals == what.size()) {
    const double half = parameter->is_whole ? std::max(1.0, std::floor(parameter->value / 2)) : parameter->value / 2;
    return {{WithValue(*parameter, half), WithValue(*parameter, 2 * parameter->value)}};
  }
  double value;
  if (!absl::SimpleAtod(what.substr(equals + 1), &value) || !std::isfinite(value)) return std::nullopt;
  return {{WithValue(*parameter, value)}};
}

void Ablate(const std::vector<Change>& changes, const std::function<std::vector<CaseResult>()>& run, std::FILE* out) {
  std::fputs(
      "| change | jobs that differ | precision | recall | faults below 10 % | named where nobody is slow | steps to "
      "detect, "
      "median | beyond the interval |\n|---|---|---|---|---|---|---|---|\n",
      out);
  const auto print = [out](const std::string& title, size_t differ, const Figures& figures, const std::string& moved) {
    const Median delay = MedianOf(figures.delays);
    absl::FPrintF(out, "| %s | %d | %s | %s | %s | %s | %.0f (%.0f–%.0f) | %s |\n", title, differ,
                  Show(figures.precision), Show(figures.recall), Show(figures.small), Show(figures.named), delay.value,
                  delay.interval.low, delay.interval.high, moved);
    std::fflush(out);
  };
  const Parameters before = diagnosis::parameters;
  const std::vector<CaseResult> results = run();
  const Figures usual = FiguresOf(results);
  print("none", 0, usual, "–");
  for (const Change& change : changes) {
    diagnosis::parameters = change.parameters;
    const std::vector<CaseResult> changed = run();
    size_t differ = 0;
    for (size_t i = 0; i < results.size(); ++i) differ += Story(results[i]) != Story(changed[i]) ? 1 : 0;
    const Figures now = FiguresOf(changed);
    print(change.title, differ, now, Moved(usual, now));
  }
  diagnosis::parameters = before;
}

}  // namespace taskd::evaluation
