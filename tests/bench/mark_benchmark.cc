// What a mark costs, against the measures of its budgets taken in the same run: an empty call into another library
// (mark off), the bare time stamp (mark on) and, in mark_benchmark_lttng, an LTTng-UST event with the same string.
//
// Prints Google Benchmark's table and then the ratios of the fastest repetitions. Runs are interleaved: on a virtual
// machine the clock rate of one second is not that of the next.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmark_setup.h"
#include "clock.h"
#include "empty.h"
#include "mstx_api.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/segment_view.h"
#if defined(TASKD_BENCH_LTTNG)
#include "lttng_event.h"
#endif

namespace {

constexpr char kShortName[] = "step 17";
constexpr char kLongName[] =
    "{\\\"count\\\": \\\"1024\\\",\\\"streamId\\\": \\\"2\\\",\\\"dataType\\\": \\\"bfp16\\\",\\\"opName\\\": "
    "\\\"HcclAllreduce\\\"}";

taskd::testing::SegmentView& Segment() {
  static taskd::testing::SegmentView* segment = [] {
    taskd_mark("first");
    return new taskd::testing::SegmentView;
  }();
  return *segment;
}

void EmptyCall(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) bench_empty_mark(kShortName, nullptr);
}
BENCHMARK(EmptyCall);

void MarkOff(benchmark::State& state) {
  Segment().SetGate(0);
  for ([[maybe_unused]] auto _ : state) mstxMarkA(kShortName, nullptr);
}
BENCHMARK(MarkOff);

// The gate is open, but not for this kind.
void MarkKindOff(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateCommunication);
  for ([[maybe_unused]] auto _ : state) mstxMarkA(kShortName, nullptr);
}
BENCHMARK(MarkKindOff);

template <bool kCounter>
void ReadTimeStamps(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(kCounter ? taskd::worker::ReadCounter() : taskd::worker::ReadClockNs(CLOCK_MONOTONIC));
  }
}

void BareTimeStamp(benchmark::State& state) {
  if (Segment().header().clock == taskd::ring::kClockCounter) {
    ReadTimeStamps<true>(state);
  } else {
    ReadTimeStamps<false>(state);
  }
}
BENCHMARK(BareTimeStamp);

void MarkOn(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  for ([[maybe_unused]] auto _ : state) mstxMarkA(kShortName, nullptr);
}
BENCHMARK(MarkOn);

// Every name differs from the one before: nothing is known about it.
void MarkOnChangingName(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  const char* names[] = {"step 17", "step 18"};
  unsigned i = 0;
  for ([[maybe_unused]] auto _ : state) mstxMarkA(names[i++ & 1], nullptr);
}
BENCHMARK(MarkOnChangingName);

void RangeOn(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  for ([[maybe_unused]] auto _ : state) taskd_range_end(taskd_range_start(kShortName));
}
BENCHMARK(RangeOn);

void MarkOnLongName(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  taskd_domain* communication = taskd_domain_create("communication");
  for ([[maybe_unused]] auto _ : state) taskd_domain_mark(communication, kLongName);
}
BENCHMARK(MarkOnLongName);

#if defined(TASKD_BENCH_LTTNG)
void LttngEvent(benchmark::State& state) {
  if (!lttng_ust_tracepoint_enabled(taskd_bench, mark)) {
    state.SkipWithError("no LTTng session records taskd_bench:mark; run tests/bench/mark_vs_lttng.sh");
    return;
  }
  for ([[maybe_unused]] auto _ : state) lttng_ust_tracepoint(taskd_bench, mark, kShortName);
}
BENCHMARK(LttngEvent);

void LttngEventLongName(benchmark::State& state) {
  if (!lttng_ust_tracepoint_enabled(taskd_bench, mark)) {
    state.SkipWithError("no LTTng session records taskd_bench:mark; run tests/bench/mark_vs_lttng.sh");
    return;
  }
  for ([[maybe_unused]] auto _ : state) lttng_ust_tracepoint(taskd_bench, mark, kLongName);
}
BENCHMARK(LttngEventLongName);
#endif

// Shows the aggregates and keeps the times of the single repetitions for the ratios.
class RatioReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> shown;
    for (const Run& run : runs) {
      if (taskd::WasSkipped(run) || run.run_type != Run::RT_Iteration) {
        shown.push_back(run);
      } else {
        times_ns_[run.run_name.function_name].push_back(run.GetAdjustedCPUTime());
      }
    }
    ConsoleReporter::ReportRuns(shown);
  }

  void PrintRatios() {
    printf("\nfastest of the repetitions, CPU time\n");
    for (auto& [name, times] : times_ns_) printf("  %-20s %7.2f ns\n", name.c_str(), Best(name));
    Difference("MarkOff", "EmptyCall", 1.0);
    Ratio("MarkOn", "BareTimeStamp", 1, 1.3);
    Ratio("RangeOn", "BareTimeStamp", 2, 1.3);
    Ratio("MarkOnChangingName", "BareTimeStamp", 1, 0);
    Ratio("MarkOn", "LttngEvent", 1, 0.25);
    Ratio("RangeOn", "LttngEvent", 2, 0.25);
    Ratio("MarkOnLongName", "LttngEventLongName", 1, 0.25);
  }

 private:
  bool Has(const std::string& name) const { return times_ns_.count(name) != 0; }
  double Best(const std::string& name) const {
    const std::vector<double>& times = times_ns_.at(name);
    return *std::min_element(times.begin(), times.end());
  }
  static const char* Verdict(double value, double budget) { return value <= budget ? "met" : "MISSED"; }

  void Difference(const char* what, const char* base, double budget_ns) const {
    if (!Has(what) || !Has(base)) return;
    double difference_ns = Best(what) - Best(base);
    printf("%s - %s = %.2f ns (budget %.2f ns: %s)\n", what, base, difference_ns, budget_ns,
           Verdict(difference_ns, budget_ns));
  }
  // Budget 0: none.
  void Ratio(const char* what, const char* base, int count, double budget) const {
    if (!Has(what) || !Has(base)) return;
    double ratio = Best(what) / (Best(base) * count);
    if (budget == 0) {
      printf("%s / %d %s = %.3f\n", what, count, base, ratio);
      return;
    }
    printf("%s / %d %s = %.3f (budget %.2f: %s)\n", what, count, base, ratio, budget, Verdict(ratio, budget));
  }

  std::map<std::string, std::vector<double>> times_ns_;
};

}  // namespace

int main(int argc, char** argv) {
  if (!taskd::SetUpBenchmarks(
          argc, argv,
          {"--benchmark_repetitions=15", "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.1"})) {
    return 2;
  }
  taskd::RemoveSegmentName(Segment().fd());
  RatioReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.PrintRatios();
  return 0;
}
