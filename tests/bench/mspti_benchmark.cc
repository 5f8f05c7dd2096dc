// What a mark costs where MSPTI takes it, against the fakes of MSPTI and of mstx's own library: the training thread's
// part, and the CPU time of the thread that reads MSPTI's buffers.
//
// The fakes' own cost (a lock, a search for the name, two clocks) is theirs and not the real library's. What is ours is
// the difference between the call through libtaskd.so and the one past it.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "benchmark_setup.h"
#include "mstx_api.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/segment_view.h"

namespace {

using taskd::testing::SegmentView;

constexpr char kName[] = "step 17";

template <typename Condition>
void WaitFor(const char* what, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      fprintf(stderr, "mspti_benchmark: not within 20 s: %s\n", what);
      exit(1);
    }
    std::this_thread::yield();
  }
}

SegmentView& Segment() {
  static SegmentView* segment = [] {
    taskd_mark("first");
    return new SegmentView;
  }();
  return *segment;
}

void SwitchMsptiOn() {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  if (dlopen(TASKD_FAKE_MSPTI, RTLD_NOW | RTLD_GLOBAL) == nullptr || taskd_worker_init(0, 0, 0) != 0) exit(1);
  WaitFor("MSPTI is on", [] { return Segment().header().source_code.load() == 1411; });
}

template <typename Function>
Function* PastUs(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libms_tools_ext.so", RTLD_NOW | RTLD_NOLOAD), name));
}

// Our own, as without MSPTI.
void OwnMark(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) taskd_mark(kName);
}

// A call in which the fake does nothing: an end of no range.
void EmptyPastUs(benchmark::State& state) {
  auto* range_end = PastUs<void(void*, uint64_t)>("mstxDomainRangeEnd");
  for ([[maybe_unused]] auto _ : state) range_end(nullptr, 0);
}

void EmptyThroughUs(benchmark::State& state) {
  taskd_domain* domain = mstxDomainCreateA("mine");
  for ([[maybe_unused]] auto _ : state) mstxDomainRangeEnd(domain, 0);
}

void MarkPastUs(benchmark::State& state) {
  auto* mark = PastUs<void(const char*, const char*, void*)>("mstxDomainMarkA");
  for ([[maybe_unused]] auto _ : state) mark("mine", kName, nullptr);
}

void MarkThroughUs(benchmark::State& state) {
  taskd_domain* domain = mstxDomainCreateA("mine");
  for ([[maybe_unused]] auto _ : state) mstxDomainMarkA(domain, kName, nullptr);
}

// CPU time of MSPTI's thread so far.
uint64_t FeedNs() {
  static const clockid_t clock = [] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(entry.path() / "comm"), name);
      // How the kernel numbers the clocks of threads.
      if (name == "taskd-mspti") return static_cast<clockid_t>(~atoi(entry.path().filename().c_str()) * 8 | 6);
    }
    return static_cast<clockid_t>(-1);
  }();
  timespec time;
  if (clock_gettime(clock, &time) != 0) exit(1);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

uint64_t Recorded() {
  taskd_worker_stats stats;
  taskd_worker_get_stats(&stats);
  return stats.records + stats.dropped;
}

void FeedOneRecord(benchmark::State& state) {
  constexpr uint64_t kMarks = 20000;  // below a buffer: they come with a flush
  for ([[maybe_unused]] auto _ : state) {
    // What other benchmarks made comes with the next flush.
    uint64_t records = 0;
    while (records != Recorded()) {
      records = Recorded();
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
    }
    const uint64_t before_ns = FeedNs();
    for (uint64_t i = 0; i < kMarks; ++i) mstxMarkA(kName, nullptr);
    WaitFor("all records", [&] { return Recorded() >= records + kMarks; });
    state.SetIterationTime(static_cast<double>(FeedNs() - before_ns) / kMarks / 1e9);
  }
}

double Fastest(const std::vector<double>& times) { return *std::min_element(times.begin(), times.end()); }

}  // namespace

int main(int argc, char** argv) {
  if (!taskd::SetUpBenchmarks(argc, argv, {"--benchmark_enable_random_interleaving=true"})) return 2;
  taskd::RemoveSegmentName(Segment().fd());
  SwitchMsptiOn();
  const struct {
    const char* name;
    void (*run)(benchmark::State& state);
  } rows[] = {{"OwnMark", OwnMark},
              {"EmptyPastUs", EmptyPastUs},
              {"EmptyThroughUs", EmptyThroughUs},
              {"MarkPastUs", MarkPastUs},
              {"MarkThroughUs", MarkThroughUs}};
  auto add = [](const char* name, void (*run)(benchmark::State & state)) {
    return benchmark::RegisterBenchmark(name, run)->Repetitions(15)->ReportAggregatesOnly()->ComputeStatistics(
        "fastest", Fastest);
  };
  for (const auto& row : rows) add(row.name, row.run)->MinTime(0.05);
  add("FeedOneRecord", FeedOneRecord)->UseManualTime()->Iterations(1);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
