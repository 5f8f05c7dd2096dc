// Evaluates the diagnosis on simulated jobs with known faults: docs/benchmarks.md, "Diagnosis".
//
// Results do not depend on the number of threads: each case is a job of its own, and cases are reported in their order.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "agent/simulate/faults.h"
#include "tests/diagnosis/ablation.h"
#include "tests/diagnosis/replay.h"
#include "tests/diagnosis/suites.h"
#include "tests/diagnosis/summary.h"

namespace {

using taskd::evaluation::CaseResult;
using taskd::evaluation::Claim;
using taskd::evaluation::DetectorResult;
using taskd::evaluation::Outcome;

constexpr char kUsage[] =
    R"(diagnosis_evaluation [--suites healthy,matrix,H1|all] [--cases N] [--seed S|random] [--threads T]
                     [--out FILE] [--tapes DIR] [--engine-only] [--verbose]
diagnosis_evaluation --ablate NAME,... [the same]
diagnosis_evaluation --case SUITE:INDEX [--seed S]

  --suites       which suites (all; but "scale", of thousands of ranks, "quiet", healthy jobs of days, and "W2u" and "W3u",
                 in which a load is not known, only by their names)
  --cases        so many of each suite (24)
  --seed         the seed of everything (1)
  --threads      cases at a time (as many as CPUs)
  --out          one line of JSON a case
  --tapes        folder in which the folds of each case are kept and used again, as long as only the diagnosis changes;
                 remove it when the simulator or the fold does
  --engine-only  without the baselines
  --verbose      what went wrong, a line each, on stderr
  --ablate       the engine without each veto, with half and twice of each parameter, or with NAME=VALUE: names of vetoes
                 and parameters (diagnosis/veto.h, parameters.inc), "vetoes", "rules", "parameters"
  --case         one case: verdicts on stdout, features by rank and step as CSV on stderr
)";

struct Options {
  std::vector<std::string> suites;
  int cases = 24;
  uint64_t seed = 1;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::string out;
  std::string single;
  std::string tapes;
  std::vector<taskd::evaluation::Change> changes;
  bool engine_only = false, verbose = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "diagnosis_evaluation: %s\n", message.c_str());
  std::exit(2);
}

template <typename Number>
Number ParseNumber(const std::string& flag, const std::string& value, Number low) {
  Number number;
  if (!absl::SimpleAtoi(value, &number) || number < low) {
    Fail(flag + " '" + value + "': a whole number from " + std::to_string(low) + " on");
  }
  return number;
}

void CheckSuite(const std::string& suite) {
  std::vector<std::string> names = taskd::evaluation::SuiteNames();
  for (const std::string& name : taskd::evaluation::SuitesByNameOnly()) names.push_back(name);
  if (std::find(names.begin(), names.end(), suite) != names.end()) return;
  std::string list;
  for (const std::string& name : names) list += " " + name;
  Fail("suite '" + suite + "' is none of" + list);
}

void AddChanges(const std::string& what, Options& options) {
  std::vector<std::string> names = {what};
  if (what == "vetoes") names = taskd::evaluation::VetoNames();
  if (what == "rules") names = taskd::evaluation::Rules();
  if (what == "parameters") names = taskd::evaluation::ParameterNames();
  for (const std::string& name : names) {
    auto changes = taskd::evaluation::ChangesOf(name);
    if (!changes)
      Fail("--ablate '" + name + "': the name of a veto or a parameter, NAME=VALUE, vetoes, rules or parameters");
    std::move(changes->begin(), changes->end(), std::back_inserter(options.changes));
  }
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i], value;
    if (flag == "--help" || flag == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (flag == "--engine-only" || flag == "--verbose") {
      (flag == "--verbose" ? options.verbose : options.engine_only) = true;
      continue;
    }
    size_t equals = flag.find('=');
    if (equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    } else {
      value = i + 1 < argc ? argv[++i] : "";
    }
    if (value.empty()) Fail(flag + ": a value must follow; --help lists the flags");
    if (flag == "--suites") {
      for (absl::string_view suite : absl::StrSplit(value, ',')) {
        if (suite != "all") {
          options.suites.emplace_back(suite);
          continue;
        }
        for (std::string& name : taskd::evaluation::SuiteNames()) options.suites.push_back(std::move(name));
      }
    } else if (flag == "--cases") {
      options.cases = ParseNumber<int>(flag, value, 1);
    } else if (flag == "--seed") {
      options.seed = value == "random" ? std::random_device{}() : ParseNumber<uint64_t>(flag, value, 0);
    } else if (flag == "--threads") {
      options.threads = ParseNumber<int>(flag, value, 1);
    } else if (flag == "--out") {
      options.out = value;
    } else if (flag == "--tapes") {
      options.tapes = value;
    } else if (flag == "--ablate") {
      for (absl::string_view what : absl::StrSplit(value, ',')) AddChanges(std::string(what), options);
    } else if (flag == "--case") {
      options.single = value;
    } else {
      Fail("unknown flag '" + flag + "'; --help lists them");
    }
  }
  if (options.suites.empty()) options.suites = taskd::evaluation::SuiteNames();
  for (const std::string& suite : options.suites) CheckSuite(suite);
  return options;
}

nlohmann::json ToJson(const DetectorResult& detector) {
  nlohmann::json claims = nlohmann::json::array(), outcomes = nlohmann::json::array();
  for (const Claim& claim : detector.claims) {
    claims.push_back({{"entity", taskd::evaluation::Entity(claim.verdict)},
                      {"cause", taskd::diagnosis::Name(claim.verdict.cause)},
                      {"match", Name(claim.match)},
                      {"opened", claim.opened},
                      {"closed", claim.closed},
                      {"changed", claim.changed},
                      {"since_step", claim.verdict.since_step},
                      {"slowdown", claim.verdict.slowdown},
                      {"cost_ms_per_step", claim.verdict.cost_ms_per_step},
                      {"cost_interval_ms", claim.verdict.cost_interval_ms},
                      {"confidence", claim.verdict.confidence},
                      {"alternatives", claim.verdict.alternatives.size()},
                      {"text", claim.verdict.text}});
  }
  for (const Outcome& outcome : detector.score.outcomes) {
    outcomes.push_back({{"visible", outcome.visible},
                        {"found", outcome.found},
                        {"exact", outcome.exact},
                        {"cause_right", outcome.cause_right},
                        {"steps_to_detect", outcome.steps_to_detect},
                        {"steps_to_clear", outcome.steps_to_clear},
                        {"true_cost_ms", outcome.true_cost_ms},
                        {"told_cost_ms", outcome.told_cost_ms},
                        {"cost_error", outcome.cost_error}});
  }
  return {{"name", detector.name},
          {"right", detector.score.right},
          {"imprecise", detector.score.imprecise},
          {"wrong", detector.score.wrong},
          {"job_claims", detector.score.job_claims},
          {"claims", claims},
          {"outcomes", outcomes},
          {"cpu_s", detector.cpu_s}};
}

std::string ToJsonLine(const CaseResult& result) {
  nlohmann::json labels = nlohmann::json::array(), detectors = nlohmann::json::array();
  for (size_t i = 0; i < result.labels.size(); ++i) {
    const taskd::simulate::Label& label = result.labels[i];
    labels.push_back({{"kind", Name(label.kind)},
                      {"shape", result.shapes[i]},
                      {"scope", label.scope},
                      {"ids", label.ids},
                      {"causes", label.causes},
                      {"severity", label.severity},
                      {"effect", label.effect},
                      {"first_step", label.first_step},
                      {"last_step", label.last_step}});
  }
  for (const DetectorResult& detector : result.detectors) detectors.push_back(ToJson(detector));
  nlohmann::json line = {{"suite", result.suite},
                         {"index", result.index},
                         {"seed", result.seed},
                         {"honesty", result.honesty},
                         {"state", taskd::diagnosis::Name(result.state)},
                         {"report", result.report},
                         {"layout", result.layout},
                         {"ranks", result.ranks},
                         {"steps", result.steps},
                         {"step_ms", result.step_ms},
                         {"labels", labels},
                         {"detectors", detectors},
                         {"wall_s", result.wall_s}};
  if (!result.error.empty()) line["error"] = result.error;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int RunOne(const Options& options) {
  std::vector<std::string> parts = absl::StrSplit(options.single, ':');
  if (parts.size() != 2) Fail("--case '" + options.single + "': SUITE:INDEX");
  CheckSuite(parts[0]);
  int index = ParseNumber<int>("--case", parts[1], 0);
  CaseResult result = taskd::evaluation::Replay(
      taskd::evaluation::MakeCase(parts[0], options.seed, index), index,
      {.seed = options.seed, .engine_only = options.engine_only, .tapes = "", .dump = stderr});
  if (!result.error.empty()) Fail(options.single + ": " + result.error);
  nlohmann::json json = nlohmann::json::parse(ToJsonLine(result));
  std::printf("%s\n", json.dump(2).c_str());
  for (const std::string& line : taskd::evaluation::Failures(result)) std::printf("%s\n", line.c_str());
  return 0;
}

std::vector<CaseResult> RunAll(const Options& options) {
  std::vector<CaseResult> results(options.suites.size() * static_cast<size_t>(options.cases));
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t done = 0;
  bool progress = isatty(STDERR_FILENO) != 0;
  auto work = [&] {
    for (size_t i; (i = next++) < results.size();) {
      // Suites in turns, so that the long ones do not come last.
      const std::string& suite = options.suites[i % options.suites.size()];
      int index = static_cast<int>(i / options.suites.size());
      CaseResult result =
          taskd::evaluation::Replay(taskd::evaluation::MakeCase(suite, options.seed, index), index,
                                    {.seed = options.seed, .engine_only = options.engine_only, .tapes = options.tapes});
      std::lock_guard lock(mutex);
      size_t place = i % options.suites.size() * static_cast<size_t>(options.cases) + static_cast<size_t>(index);
      results[place] = std::move(result);
      ++done;
      if (progress) std::fprintf(stderr, "\r%zu of %zu cases", done, results.size());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (progress) std::fputs("\r\033[K", stderr);
  return results;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends with one that nobody expects
  Options options = Parse(argc, argv);
  if (!options.single.empty()) return RunOne(options);
  std::error_code error;
  if (!options.tapes.empty() && !std::filesystem::create_directories(options.tapes, error) && error) {
    Fail("--tapes '" + options.tapes + "': " + error.message());
  }
  std::ofstream out;
  if (!options.out.empty()) {
    out.open(options.out);
    if (!out) Fail("--out '" + options.out + "': cannot be written");
  }
  if (!options.changes.empty()) {
    options.engine_only = true;
    taskd::evaluation::Ablate(
        options.changes, [&] { return RunAll(options); }, stdout);
    return 0;
  }
  std::vector<CaseResult> results = RunAll(options);
  for (const CaseResult& result : results) {
    if (out.is_open()) out << ToJsonLine(result) << '\n';
    if (!result.error.empty())
      std::fprintf(stderr, "%s:%d failed: %s\n", result.suite.c_str(), result.index, result.error.c_str());
    if (!options.verbose || !result.error.empty()) continue;
    for (const std::string& line : taskd::evaluation::Failures(result)) std::fprintf(stderr, "%s\n", line.c_str());
  }
  size_t all = results.size();
  std::erase_if(results, [](const CaseResult& result) { return !result.error.empty(); });
  std::printf("%zu cases of %zu suites, seed %llu\n", results.size(), options.suites.size(),
              static_cast<unsigned long long>(options.seed));
  std::fputs(taskd::evaluation::Tables(results).c_str(), stdout);
  return results.size() == all ? 0 : 1;
}
