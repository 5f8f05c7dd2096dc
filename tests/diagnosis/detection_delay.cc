// How many steps the diagnosis takes to name a rank that became slower, by how much slower it is against the noise, and
// how often it names somebody who is not: docs/benchmarks.md, "Diagnosis".
//
// Design: a data-parallel job with one all-reduce a step, written down as folds: the own times of all ranks come from a
// noise model directly, so that nothing but the engine costs time. The rows of the curve are measured against Lorden's
// bound: no test whose mean time between false alarms is gamma observations finds a rise of delta in independent noise
// of sigma faster than ln(gamma) / (delta^2 / 2 sigma^2) on average. Rows do not depend on the number of threads.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "diagnosis/engine.h"
#include "tests/diagnosis/metrics.h"

namespace {

using taskd::StepFold;
using taskd::diagnosis::Engine;
using taskd::diagnosis::Resolution;
using taskd::diagnosis::Scope;
using taskd::diagnosis::Verdict;
using taskd::evaluation::Quantile;

constexpr char kUsage[] =
    R"(detection_delay [--rows curve,cases,healthy,resolution] [--noise white,ar1:0.9,1/f] [--sigma 0.02,0.1,0.3]
                [--peers 2,3,8,64,2048] [--delta 0.1,0.2,...] [--steps N] [--runs N] [--budget N] [--healthy N]
                [--gamma G] [--onset N] [--step-ms MS] [--min-cost SHARE] [--device] [--no-waits] [--seed S]
                [--threads T] [--json] [--verbose]

  --rows     curve: noise x sigma x peers x delta; cases: known ones; healthy: nobody is slow; resolution: how often a
             rank is named that is as slow as a healthy job's report says would be named, and one half as slow
  --noise    of the logarithm of own time: white; ar1:R, of correlation R from step to step; 1/f, up to 1,024 steps.
             Unless it is given, healthy rows are also of some other noises
  --sigma    its standard deviation (curve: 0.3 up to delta 1, 0.1 up to delta 3, 0.05 above)
  --delta    of the curve: how much slower the rank becomes, in sigmas (of the logarithm): 0.1 to 8; from 1,000 peers on
             0.5 to 8
  --steps    with the fault, until it counts as missed (four times the bound + 100, of correlated noise up to 2,000; healthy
             jobs: 2,000)
  --runs     jobs a row, at most (40)
  --budget   ranks x steps that a row may cost: there are as many runs as that allows, but at least 2 (400,000)
  --healthy  ranks x steps of a healthy row (400,000)
  --gamma    mean observations between false alarms (3 streams x ranks x steps of 1,000 hours, as the engine has it)
  --onset    the step in which the rank becomes slow (100)
  --step-ms  own time + transfer of a usual rank (64)
  --device   marks have a device's times, too
  --no-waits the kernel says that no rank waits for a CPU: what they differ by is their own
  --min-cost share of the step below which the engine names nobody (its own)
  --json     a line of JSON a row instead of tables
  --verbose  who was named though healthy, a line each, on stderr
)";

constexpr double kTransferShare = 0.05;  // of the step
constexpr int kRanksPerNode = 8;
constexpr int kOctaves = 11;  // of 1/f noise
constexpr int kMany = 1000;
constexpr double kLeastOfMany = 0.5;  // sigmas

struct Options {
  std::set<std::string> rows = {"curve", "cases", "healthy"};
  std::vector<std::string> noise = {"white", "ar1:0.9", "1/f"};
  std::vector<double> sigma, delta = {0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8};
  std::vector<int> peers = {2, 3, 8, 64, 2048};
  int steps = 0, runs = 40, onset = 100;
  double budget = 4e5, healthy = 4e5, gamma = 0, step_ms = 64, min_cost = Engine::Options().min_cost_share;
  bool device = false, no_waits = false, json = false, verbose = false, delta_given = false, noise_given = false;
  uint64_t seed = 1;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "detection_delay: %s\n", message.c_str());
  std::exit(2);
}

// Noise of the logarithm of a rank's own time: mean 0, standard deviation sigma.
class Noise {
 public:
  enum class Kind : uint8_t { kWhite, kAr1, kPink };

  static bool Parse(const std::string& text, Kind& kind, double& correlation) {
    correlation = 0;
    if (text == "white") {
      kind = Kind::kWhite;
    } else if (text == "1/f") {
      kind = Kind::kPink;
    } else {
      kind = Kind::kAr1;
      return text.rfind("ar1:", 0) == 0 && absl::SimpleAtod(text.substr(4), &correlation) && correlation > 0 &&
             correlation < 1;
    }
    return true;
  }

  Noise(const std::string& name, double sigma, int ranks, uint64_t seed)
      : sigma_(sigma), random_(seed), octaves_(static_cast<size_t>(ranks)), last_(static_cast<size_t>(ranks)) {
    if (!Parse(name, kind_, correlation_)) Fail("noise '" + name + "': white, ar1:R with 0 < R < 1, or 1/f");
    for (double& last : last_) last = normal_(random_);
    for (Octaves& octaves : octaves_) {
      octaves.phase = static_cast<uint32_t>(random_());
      for (double& value : octaves.values) octaves.sum += value = normal_(random_);
    }
  }

  double Next(int rank) {
    switch (kind_) {
      case Kind::kWhite:
        return sigma_ * normal_(random_);
      case Kind::kAr1: {
        double& last = last_[static_cast<size_t>(rank)];
        last = correlation_ * last + std::sqrt(1 - correlation_ * correlation_) * normal_(random_);
        return sigma_ * last;
      }
      case Kind::kPink:
        break;
    }
    // Voss and McCartney: one value for each octave, the k-th drawn anew every 2^k steps.
    Octaves& octaves = octaves_[static_cast<size_t>(rank)];
    ++octaves.phase;
    for (int k = 0; k < kOctaves && octaves.phase % (1U << k) == 0; ++k) {
      octaves.sum -= octaves.values[k];
      octaves.sum += octaves.values[k] = normal_(random_);
    }
    return sigma_ * octaves.sum / std::sqrt(kOctaves);
  }

  // How much more a mean over many steps varies than one of white noise: the variance in the long run over that of one.
  static double LongRun(const std::string& name) {
    Kind kind;
    double correlation;
    if (!Parse(name, kind, correlation)) Fail("noise '" + name + "': white, ar1:R with 0 < R < 1, or 1/f");
    if (kind == Kind::kPink) return static_cast<double>((1 << kOctaves) - 1) / kOctaves;
    return (1 + correlation) / (1 - correlation);
  }

 private:
  struct Octaves {
    uint32_t phase = 0;
    double values[kOctaves] = {};
    double sum = 0;
  };

  Kind kind_ = Kind::kWhite;
  double correlation_ = 0;
  const double sigma_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<Octaves> octaves_;
  std::vector<double> last_;
};

// What is measured: `runs` jobs of one kind.
struct Row {
  std::string group, noise;
  double sigma = 0;
  int peers = 0;
  double rise = 0;     // of the logarithm of the culprit's own time; 0: nobody is slow
  int turn_steps = 0;  // so many bad steps of one rank and then of another, of half as long again
  int steps = 0, runs = 0;
};

struct Run {
  int named_after = -1;  // steps of the fault, until the culprit was named
  int others = 0;        // verdicts that name somebody else
  int64_t rank_steps = 0;
  double healthy_ns = 0, slow_ns = 0;  // a step with the fault, without it and with it, in the mean
  std::optional<Resolution> own_time;  // as the last report has it; rows "resolution": that of the healthy job
  bool named_half = false;             // rows "resolution": also if it is half as slow
};

// The verdict names this rank and nobody else.
bool Names(const Verdict& verdict, int rank, int peers) {
  if (verdict.scope == Scope::kRank) return verdict.ids == std::vector<int>{rank};
  return verdict.scope == Scope::kNode && verdict.ids == std::vector<int>{rank / kRanksPerNode} &&
         rank / kRanksPerNode * kRanksPerNode == peers - 1;
}

Run Measure(const Row& row, uint64_t seed, const Options& options) {
  const int ranks = row.peers;
  Noise noise(row.noise, row.sigma, ranks, seed);
  std::mt19937_64 random(seed ^ 0x9E3779B97F4A7C15U);
  const int culprit = row.rise > 0 ? static_cast<int>(random() % static_cast<uint64_t>(ranks)) : -1;
  Engine engine({.min_cost_share = options.min_cost});
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = rank / kRanksPerNode;
    engine.SetPlace(rank, {.node = node, .host = absl::StrCat("node-", node), .local_rank = rank % kRanksPerNode});
    engine.SetGroup(rank, 0, {"world", "dp", {{.first = 0, .stride = 1, .count = ranks}}});
  }
  Run run;
  std::vector<double> own(static_cast<size_t>(ranks));
  std::set<uint64_t> seen;
  uint64_t now = 1'700'000'000'000'000'000;
  const double transfer_ns = kTransferShare * options.step_ms * 1e6;
  const int end = culprit >= 0 ? options.onset + row.steps : row.steps;
  int bad = 0, steps = 0;
  for (int step = 0; step < end; ++step) {
    if (row.turn_steps > 0 && step % (4 * row.turn_steps) == 0) {
      bad = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    }
    double slowest = 0, healthy = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const bool is_bad = row.turn_steps > 0 && rank == bad && step % (4 * row.turn_steps) < row.turn_steps;
      double time = (1 - kTransferShare) * options.step_ms * 1e6 * std::exp(noise.Next(rank)) * (is_bad ? 1.5 : 1);
      healthy = std::max(healthy, time);
      if (rank == culprit && step >= options.onset) time *= std::exp(row.rise);
      slowest = std::max(slowest, own[static_cast<size_t>(rank)] = time);
    }
    const uint64_t begin = now;
    now += static_cast<uint64_t>(slowest + transfer_ns);
    if (step >= options.onset) {
      run.healthy_ns += healthy + transfer_ns;
      run.slow_ns += slowest + transfer_ns;
      ++steps;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      StepFold fold;
      fold.step = step;
      fold.process_id = 1000 + static_cast<uint32_t>(rank);
      fold.start_ns = begin;
      fold.end_ns = now;
      fold.previous_end_ns = begin;
      fold.head_ns = static_cast<uint64_t>(own[static_cast<size_t>(rank)]);
      fold.host_only = !options.device;
      fold.cpu_wait_ns = options.no_waits ? 1 : 0;
      taskd::OpFold op;
      op.op = taskd::CommOp::kAllReduce;
      op.size_log2 = 24;
      op.count = 1;
      op.bytes = 1 << 24;
      op.first_start_ns = begin + fold.head_ns;
      op.last_end_ns = now;
      op.duration_ns = op.min_duration_ns = fold.covered_ns = now - op.first_start_ns;
      fold.ops.push_back(op);
      engine.Add(rank, std::move(fold), now);
    }
    run.rank_steps += ranks;
    if (!engine.Advance(now)) continue;
    for (const Verdict& verdict : engine.report().verdicts) {
      if (!verdict.open || verdict.scope == Scope::kJob || !seen.insert(verdict.id).second) continue;
      if (culprit >= 0 && step >= options.onset && Names(verdict, culprit, ranks)) {
        run.named_after = step - options.onset + 1;
      } else {
        ++run.others;
        if (options.verbose) {
          std::fprintf(stderr, "%s, sigma %.3g, step %d: %s\n", row.noise.c_str(), row.sigma, step,
                       verdict.text.c_str());
        }
      }
    }
    if (run.named_after >= 0) break;
  }
  run.healthy_ns /= std::max(1, steps);
  run.slow_ns /= std::max(1, steps);
  run.own_time = engine.report().own_time;
  return run;
}

// The same job with a rank that is as slow as its report says would have been named, for as long; and with half of that.
Run MeasureResolution(const Row& row, uint64_t seed, Options options) {
  const Run healthy = Measure(row, seed, options);
  if (!healthy.own_time) return healthy;
  Row slow = row;
  slow.steps = healthy.own_time->steps;
  options.onset = std::max(0, row.steps - slow.steps);
  const auto measure = [&](double ratio) {
    slow.rise = std::log1p(ratio);
    return Measure(slow, seed, options);
  };
  Run run = measure(healthy.own_time->ratio);
  run.named_half = measure(healthy.own_time->ratio / 2).named_after >= 0;
  run.own_time = healthy.own_time;
  return run;
}

double Bound(double gamma, double sigma, double rise) { return std::log(gamma) * 2 * sigma * sigma / (rise * rise); }

double GammaOf(const Options& options, int ranks) {
  if (options.gamma > 0) return options.gamma;
  return 3.0 * ranks * 1000 * 3.6e6 / options.step_ms / Engine::Options().false_alarms_per_1000_hours;
}

int RunsFor(const Options& options, double rank_steps) {
  return static_cast<int>(std::clamp(options.budget / rank_steps, 1.0 * std::min(options.runs, 2), 1.0 * options.runs));
}

Row Slow(const Options& options, const std::string& group, const std::string& noise, double sigma, int peers,
         double rise, int steps = 0) {
  Row row{.group = group, .noise = noise, .sigma = sigma, .peers = peers, .rise = rise};
  const double bound = Bound(GammaOf(options, peers), sigma, rise);
  row.steps = static_cast<int>(std::min(4 * bound * Noise::LongRun(noise) + 100, std::max(4 * bound + 100, 2000.0)));
  if (steps > 0) row.steps = steps;
  if (options.steps > 0 && group == "curve") row.steps = options.steps;
  row.runs = RunsFor(options, 1.0 * peers * (row.steps + options.onset));
  return row;
}

Row HealthyRow(const Options& options, const std::string& noise, double sigma, int peers, int turn_steps = 0) {
  Row row{.group = "healthy", .noise = noise, .sigma = sigma, .peers = peers, .turn_steps = turn_steps};
  row.steps = options.steps > 0 ? options.steps : 2000;
  row.runs = static_cast<int>(std::max(1.0, options.healthy / row.steps / peers));
  return row;
}

std::vector<Row> MakeRows(const Options& options) {
  std::vector<Row> rows;
  if (options.rows.count("cases") > 0) {
    rows.push_back(Slow(options, "cases", "white", 0.25, 3, std::log(1.27), 340));
    rows.push_back(Slow(options, "cases", "white", 0.15, 2, std::log(1.15), 340));
    rows.push_back(Slow(options, "cases", "white", 0.30, 16, std::log(1.10), 1100));
    rows.push_back(Slow(options, "cases", "white", 0.20, 16, std::log(1.05), 1600));
  }
  for (const std::string& noise : options.noise) {
    for (int peers : options.peers) {
      for (double delta : options.delta) {
        // Little of one rank in a thousand does not make a step longer.
        if (peers >= kMany && delta < kLeastOfMany && !options.delta_given) continue;
        const double usual = delta <= 1 ? 0.3 : delta <= 3 ? 0.1 : 0.05;
        for (double sigma : options.sigma.empty() ? std::vector<double>{usual} : options.sigma) {
          if (options.rows.count("curve") > 0)
            rows.push_back(Slow(options, "curve", noise, sigma, peers, delta * sigma));
        }
      }
    }
  }
  if (options.rows.count("resolution") > 0) {
    for (const std::string& noise : options.noise) {
      for (int peers : options.peers) {
        for (double sigma : options.sigma.empty() ? std::vector<double>{0.02, 0.1, 0.3} : options.sigma) {
          Row row{.group = "resolution", .noise = noise, .sigma = sigma, .peers = peers};
          row.steps = options.steps > 0 ? options.steps : 600;
          row.runs = RunsFor(options, 3.0 * peers * row.steps);
          rows.push_back(row);
        }
      }
    }
  }
  if (options.rows.count("healthy") == 0) return rows;
  for (const std::string& noise : options.noise) {
    for (int peers : options.peers) {
      for (double sigma : options.sigma.empty() ? std::vector<double>{0.02, 0.1, 0.3} : options.sigma) {
        rows.push_back(HealthyRow(options, noise, sigma, peers));
      }
    }
  }
  if (options.noise_given) return rows;
  rows.push_back(HealthyRow(options, "ar1:0.9", 0.2, 8));
  rows.push_back(HealthyRow(options, "ar1:0.95", 0.15, 2));
  rows.push_back(HealthyRow(options, "ar1:0.8", 0.1, 64));
  for (int peers : {3, 8, 64}) rows.push_back(HealthyRow(options, "white", 0.05, peers, 15));
  return rows;
}

struct Summary {
  std::vector<double> delays;  // of all runs, missed ones as the steps that there were
  int missed = 0, others = 0;
  int told = 0, named = 0, named_half = 0;  // rows "resolution": reports that have one; and who was named
  double ratio = 0;                         // their mean
  double rank_steps = 0, effect = 0, cpu_s = 0;
  double mean() const {
    double sum = 0;
    for (double delay : delays) sum += delay;
    return delays.empty() ? 0 : sum / static_cast<double>(delays.size());
  }
};

double ThreadCpuS() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::string NameOf(const Row& row) {
  return row.turn_steps > 0 ? absl::StrCat(row.noise, ", ", row.turn_steps, " bad steps by turns") : row.noise;
}

nlohmann::json ToJson(const Row& row, const Summary& sum, const Options& options) {
  nlohmann::json json = {
      {"group", row.group}, {"noise", NameOf(row)}, {"sigma", row.sigma},   {"peers", row.peers},
      {"runs", row.runs},   {"steps", row.steps},   {"others", sum.others}, {"rank_steps", sum.rank_steps},
      {"cpu_s", sum.cpu_s}};
  if (row.rise > 0) {
    const double bound = Bound(GammaOf(options, row.peers), row.sigma, row.rise);
    json["delta"] = row.rise / row.sigma;
    json["slowdown"] = std::exp(row.rise);
    json["step_effect"] = sum.effect;
    json["mean_steps"] = sum.mean();
    json["p95_steps"] = Quantile(sum.delays, 0.95);
    json["missed"] = sum.missed;
    json["gamma"] = GammaOf(options, row.peers);
    json["lorden"] = bound;
    json["limit"] = 2 * bound + 3;
  } else if (row.group == "resolution") {
    json["told"] = sum.told;
    json["ratio"] = sum.ratio / std::max(1, sum.told);
    json["named"] = sum.named;
    json["named_half"] = sum.named_half;
  } else {
    const auto interval = taskd::evaluation::PoissonInterval(sum.others);
    json["false_alarms_per_1e9"] = {sum.others / sum.rank_steps * 1e9, interval.low / sum.rank_steps * 1e9,
                                    interval.high / sum.rank_steps * 1e9};
  }
  return json;
}

void Print(const Row& row, const Summary& sum, const Options& options) {
  if (options.json) {
    std::printf("%s\n", ToJson(row, sum, options).dump().c_str());
    return;
  }
  if (row.rise > 0) {
    const double limit = 2 * Bound(GammaOf(options, row.peers), row.sigma, row.rise) + 3;
    const char* more = sum.missed > 0 ? "> " : "";
    std::printf("| %s | %.3g | %d | %.2f | %+.1f %% | %+.1f %% | %d | %s%.0f | %.0f | %d | %.0f | %s | %d |\n",
                NameOf(row).c_str(), row.sigma, row.peers, row.rise / row.sigma, 100 * std::expm1(row.rise),
                100 * sum.effect, row.runs, more, sum.mean(), Quantile(sum.delays, 0.95), sum.missed, limit,
                sum.missed == 0 && sum.mean() <= limit ? "yes" : "no", sum.others);
  } else if (row.group == "resolution") {
    std::printf("| %s | %.3g | %d | %d | %d of %d | %.1f %% | %d of %d | %d of %d |\n", row.noise.c_str(), row.sigma,
                row.peers, row.steps, sum.told, row.runs, 100 * sum.ratio / std::max(1, sum.told), sum.named, sum.told,
                sum.named_half, sum.told);
  } else {
    const auto interval = taskd::evaluation::PoissonInterval(sum.others);
    const double per = 1e9 / sum.rank_steps, hours = options.step_ms / 3.6e6 * 1000;
    std::printf("| %s | %.3g | %d | %d x %d | %d | %.0f (%.0f-%.0f) | %.3g |\n", NameOf(row).c_str(), row.sigma,
                row.peers, row.runs, row.steps, sum.others, sum.others * per, interval.low * per, interval.high * per,
                hours * 1e6 / row.peers * Engine::Options().false_alarms_per_1000_hours / 1000);
  }
  std::fflush(stdout);
}

void PrintHead(const std::string& group, const Options& options) {
  if (options.json) return;
  if (group == "resolution") {
    std::printf(
        "\n| noise | sigma | peers | steps | told | own time, mean | as slow as told: named | half as slow: named |\n"
        "|---|---|---|---|---|---|---|---|\n");
  } else if (group == "healthy") {
    std::printf(
        "\n| noise | sigma | peers | jobs x steps | false verdicts | in 10^9 rank-steps (95 %%) | budget |\n"
        "|---|---|---|---|---|---|---|\n");
  } else {
    std::printf(
        "\n| noise | sigma | peers | delta/sigma | own time | step | runs | steps to name, mean | 95 %% | missed | "
        "limit "
        "| held | others named |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }
}

void RunAll(const Options& options) {
  const std::vector<Row> rows = MakeRows(options);
  std::vector<Summary> summaries(rows.size());
  std::vector<std::vector<Run>> runs(rows.size());
  std::vector<std::pair<size_t, int>> jobs;
  std::vector<int> left;
  for (size_t i = 0; i < rows.size(); ++i) {
    left.push_back(rows[i].runs);
    runs[i].resize(static_cast<size_t>(rows[i].runs));
    for (int run = 0; run < rows[i].runs; ++run) jobs.emplace_back(i, run);
  }
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t printed = 0;
  auto finish = [&](size_t index) {
    const Row& row = rows[index];
    Summary& sum = summaries[index];
    double healthy = 0, slow = 0;
    for (const Run& run : runs[index]) {
      sum.missed += row.rise > 0 && run.named_after < 0 ? 1 : 0;
      sum.delays.push_back(run.named_after < 0 ? row.steps : run.named_after);
      sum.others += run.others;
      sum.told += run.own_time ? 1 : 0;
      sum.ratio += run.own_time ? run.own_time->ratio : 0;
      sum.named += run.own_time && run.named_after >= 0 ? 1 : 0;
      sum.named_half += run.named_half ? 1 : 0;
      sum.rank_steps += static_cast<double>(run.rank_steps);
      healthy += run.healthy_ns;
      slow += run.slow_ns;
    }
    sum.effect = healthy > 0 ? slow / healthy - 1 : 0;
    for (; printed < rows.size() && left[printed] == 0; ++printed) {
      if (printed == 0 || rows[printed].group != rows[printed - 1].group) PrintHead(rows[printed].group, options);
      Print(rows[printed], summaries[printed], options);
    }
  };
  auto work = [&] {
    for (size_t i; (i = next++) < jobs.size();) {
      const auto [row, run] = jobs[i];
      std::seed_seq mix{options.seed, static_cast<uint64_t>(row), static_cast<uint64_t>(run)};
      uint64_t seed[1];
      mix.generate(seed, seed + 1);
      const double begin = ThreadCpuS();
      const uint64_t own = seed[0] << 32 | static_cast<uint64_t>(run);
      const Run measured = rows[row].group == "resolution" ? MeasureResolution(rows[row], own, options)
                                                           : Measure(rows[row], own, options);
      std::lock_guard lock(mutex);
      runs[row][static_cast<size_t>(run)] = measured;
      summaries[row].cpu_s += ThreadCpuS() - begin;
      if (--left[row] == 0) finish(row);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

template <typename Number>
bool ParseList(const std::string& value, std::vector<Number>& list, bool (*parse)(absl::string_view, Number*)) {
  list.clear();
  for (absl::string_view part : absl::StrSplit(value, ',')) {
    if (!parse(part, &list.emplace_back()) || list.back() <= 0) return false;
  }
  return true;
}

bool ParseInt(absl::string_view text, int* value) { return absl::SimpleAtoi(text, value); }

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    bool* const set = flag == "--device"     ? &options.device
                      : flag == "--no-waits" ? &options.no_waits
                      : flag == "--json"     ? &options.json
                      : flag == "--verbose"  ? &options.verbose
                                             : nullptr;
    if (set != nullptr) {
      *set = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    bool good = true;
    if (flag == "--rows") {
      options.rows = absl::StrSplit(value, ',');
      for (const std::string& row : options.rows) {
        good = good && (row == "curve" || row == "cases" || row == "healthy" || row == "resolution");
      }
    } else if (flag == "--noise") {
      options.noise_given = true;
      options.noise = absl::StrSplit(value, ',');
      for (const std::string& noise : options.noise) Noise::LongRun(noise);
    } else if (flag == "--sigma") {
      good = ParseList<double>(value, options.sigma, absl::SimpleAtod);
    } else if (flag == "--delta") {
      good = options.delta_given = ParseList<double>(value, options.delta, absl::SimpleAtod);
    } else if (flag == "--peers") {
      good = ParseList<int>(value, options.peers, ParseInt) &&
             *std::min_element(options.peers.begin(), options.peers.end()) >= 2;
    } else if (flag == "--steps") {
      good = absl::SimpleAtoi(value, &options.steps) && options.steps > 0;
    } else if (flag == "--runs") {
      good = absl::SimpleAtoi(value, &options.runs) && options.runs > 0;
    } else if (flag == "--onset") {
      good = absl::SimpleAtoi(value, &options.onset) && options.onset >= 0;
    } else if (flag == "--threads") {
      good = absl::SimpleAtoi(value, &options.threads) && options.threads > 0;
    } else if (flag == "--seed") {
      good = absl::SimpleAtoi(value, &options.seed);
    } else if (flag == "--budget") {
      good = absl::SimpleAtod(value, &options.budget) && options.budget > 0;
    } else if (flag == "--healthy") {
      good = absl::SimpleAtod(value, &options.healthy) && options.healthy > 0;
    } else if (flag == "--gamma") {
      good = absl::SimpleAtod(value, &options.gamma) && options.gamma > 1;
    } else if (flag == "--min-cost") {
      good = absl::SimpleAtod(value, &options.min_cost) && options.min_cost >= 0;
    } else if (flag == "--step-ms") {
      good = absl::SimpleAtod(value, &options.step_ms) && options.step_ms > 0;
    } else {
      Fail("unknown flag '" + flag + "'; --help lists them");
    }
    if (!good) Fail(absl::StrCat(flag, " '", value, "': --help says what may follow"));
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): it ends with one that nobody expects
  RunAll(Parse(argc, argv));
  return 0;
}
