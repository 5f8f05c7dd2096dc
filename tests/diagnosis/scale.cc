// What the diagnosis costs at scale, and whether it still names the right rank: a simulated job of thousands of ranks,
// folded and fed to the engine in this process. docs/benchmarks.md, "Diagnosis".
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/simulate/simulator.h"
#include "diagnosis/engine.h"
#include "marks/mark_fold.h"
#include "tests/diagnosis/metrics.h"

namespace {

using taskd::StepFold;
using taskd::evaluation::Quantile;

constexpr char kUsage[] =
    R"(diagnosis_scale [--ranks 2048,8192,16384] [--cases 1] [--seed 1] [--steps 40] [--factor 1.2]

A job of tp 8 x pp 8 x dp, in which one rank, drawn from the seed, computes longer by the factor from its 15th step on.
)";
constexpr int kFaultStep = 15;

struct Options {
  std::vector<int> ranks = {2048, 8192, 16384};
  int cases = 1, steps = 40;
  uint64_t seed = 1;
  double factor = 1.2;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "diagnosis_scale: %s\n", message.c_str());
  std::exit(2);
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i], value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--help" || flag == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    bool good = true;
    if (flag == "--ranks") {
      options.ranks.clear();
      for (absl::string_view number : absl::StrSplit(value, ',')) {
        int ranks = 0;
        good = good && absl::SimpleAtoi(number, &ranks) && ranks >= 128 && ranks % 64 == 0 && ranks <= 65536;
        options.ranks.push_back(ranks);
      }
    } else if (flag == "--cases") {
      good = absl::SimpleAtoi(value, &options.cases) && options.cases > 0;
    } else if (flag == "--steps") {
      good = absl::SimpleAtoi(value, &options.steps) && options.steps > kFaultStep;
    } else if (flag == "--seed") {
      good = absl::SimpleAtoi(value, &options.seed);
    } else if (flag == "--factor") {
      good = absl::SimpleAtod(value, &options.factor) && options.factor >= 1;
    } else {
      Fail("unknown flag '" + flag + "'; --help lists them");
    }
    if (!good) {
      Fail(absl::StrCat(flag, " '", value,
                        "': positive numbers; ranks are multiples of 64 from 128 to 65536, steps more than 15"));
    }
  }
  return options;
}

double CpuMs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

size_t HeapBytes() {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

struct Measured {
  std::vector<double> step_cpu_ms, judge_ms;  // of each step: all of the engine's; after the last fold
  double verdict_ms = -1;                     // after the last fold of the step in which the rank was named
  int named_after = -1;                       // steps of the fault
  bool right = false;
  int wrong = 0;
  size_t engine_bytes = 0;
  double marks_per_step = 0;
};

Measured Measure(int ranks, int culprit, uint64_t seed, const Options& options) {
  taskd::simulate::Job job;
  job.layout = {.tp = 8, .dp = ranks / 64, .pp = 8, .microbatches = 8, .layers = 1};
  job.steps = options.steps;
  job.seed = seed;
  job.step_ms = 1000;
  taskd::simulate::Fault fault;
  fault.targets = {culprit};
  fault.severity = options.factor;
  fault.first_step = kFaultStep;
  job.faults = {fault};
  auto simulator = taskd::simulate::Simulator::Create(job);
  if (!simulator.ok()) Fail(std::string(simulator.status().message()));

  auto engine = std::make_unique<taskd::diagnosis::Engine>();
  std::vector<std::pair<int, StepFold>> folds;
  std::vector<std::unique_ptr<taskd::MarkFold>> fold_of;
  std::vector<uint64_t> groups_version(static_cast<size_t>(ranks), ~uint64_t{0});
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    fold_of.push_back(std::make_unique<taskd::MarkFold>(
        [&folds, rank](StepFold&& fold) { folds.emplace_back(rank, std::move(fold)); }));
    fold_of.back()->SetGroups((*simulator)->groups(rank));
    node_of_rank.push_back((*simulator)->node(rank));
    engine->SetPlace(rank, {.node = node_of_rank.back(),
                            .host = absl::StrCat("node-", node_of_rank.back()),
                            .local_rank = (*simulator)->local_rank(rank)});
  }

  Measured measured;
  taskd::evaluation::ClaimTracker tracker;
  uint64_t now_ns = 1'000'000'000;
  double marks = 0;
  int steps = 0;
  while ((*simulator)->Next()) {
    for (int rank = 0; rank < ranks; ++rank) {
      taskd::MarkFold& fold = *fold_of[static_cast<size_t>(rank)];
      const auto& records = (*simulator)->Marks(rank);
      marks += static_cast<double>(records.size());
      for (const taskd::MarkRecord& record : records) fold.Add(record);
      uint64_t& version = groups_version[static_cast<size_t>(rank)];
      if (version == fold.groups_version()) continue;
      version = fold.groups_version();
      for (uint32_t i = 0; i < fold.groups().size(); ++i) engine->SetGroup(rank, i, fold.groups()[i]);
    }
    ++steps;
    now_ns += static_cast<uint64_t>((*simulator)->step_ms() * 1e6);
    double begin = CpuMs();
    for (auto& [rank, fold] : folds) engine->Add(rank, std::move(fold), now_ns);
    double added = CpuMs();
    engine->Advance(now_ns);
    std::vector<taskd::diagnosis::Verdict> verdicts = engine->report().verdicts;
    double judged = CpuMs();
    folds.clear();
    measured.step_cpu_ms.push_back(judged - begin);
    measured.judge_ms.push_back(judged - added);
    size_t before = tracker.claims().size();
    tracker.Observe((*simulator)->step(), verdicts, node_of_rank);
    for (size_t i = before; i < tracker.claims().size(); ++i) {
      const taskd::evaluation::Claim& claim = tracker.claims()[i];
      if (claim.verdict.scope == taskd::diagnosis::Scope::kJob) continue;
      bool right = claim.ranks == std::vector<int>{culprit} && claim.opened >= kFaultStep;
      measured.wrong += !right;
      if (!right || measured.right) continue;
      measured.right = true;
      measured.named_after = claim.opened - kFaultStep + 1;
      measured.verdict_ms = judged - added;
    }
  }
  measured.marks_per_step = marks / steps;
  size_t with = HeapBytes();
  engine.reset();
  measured.engine_bytes = with - HeapBytes();
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  Options options = Parse(argc, argv);
  std::printf(
      "| ranks | marks a step | engine CPU ms a step, median / max | of that after the last fold, median / max | last "
      "fold to "
      "verdict, ms | engine MiB | process MiB | named right | others named | steps to name it |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  for (int ranks : options.ranks) {
    std::mt19937_64 random(options.seed);
    std::vector<double> step_cpu_ms, judge_ms, verdict_ms, named_after, bytes;
    int right = 0, wrong = 0;
    double marks = 0;
    for (int i = 0; i < options.cases; ++i) {
      int culprit = static_cast<int>(random() % static_cast<uint64_t>(ranks));
      Measured one = Measure(ranks, culprit, options.seed + static_cast<uint64_t>(i), options);
      step_cpu_ms.insert(step_cpu_ms.end(), one.step_cpu_ms.begin(), one.step_cpu_ms.end());
      judge_ms.insert(judge_ms.end(), one.judge_ms.begin(), one.judge_ms.end());
      bytes.push_back(static_cast<double>(one.engine_bytes));
      if (one.right) verdict_ms.push_back(one.verdict_ms);
      if (one.right) named_after.push_back(one.named_after);
      right += one.right;
      wrong += one.wrong;
      marks = one.marks_per_step;
    }
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    std::printf("| %d | %.0f | %.1f / %.1f | %.1f / %.1f | %.1f | %.0f | %ld | %d/%d | %d | %.0f |\n", ranks, marks,
                Quantile(step_cpu_ms, 0.5), Quantile(step_cpu_ms, 1), Quantile(judge_ms, 0.5), Quantile(judge_ms, 1),
                Quantile(verdict_ms, 1), Quantile(bytes, 0.5) / (1 << 20), usage.ru_maxrss / 1024, right, options.cases,
                wrong, Quantile(named_after, 0.5));
    std::fflush(stdout);
  }
  return 0;
}
