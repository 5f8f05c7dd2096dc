// What it costs that libtaskd.so stands in front of NCCL's functions, against calls that go to NCCL directly. NCCL is one
// that does nothing. Runs are interleaved, and the fastest of each counts (--benchmark_repetitions).
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmark_setup.h"
#include "nccl_calls.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/segment_view.h"

extern "C" {
int ncclCommInitRank(void** comm, int ranks, taskd::nccl::UniqueId id, int rank);
int ncclAllReduce(const void* send, void* receive, size_t count, int type, int sum, void* comm, void* stream);
int ncclSend(const void* send, size_t count, int type, int peer, void* comm, void* stream);
int ncclGroupStart();
int ncclGroupEnd();
}

namespace {

constexpr int kFloat32 = 7;

taskd::testing::SegmentView& Segment() {
  static taskd::testing::SegmentView* segment = [] {
    taskd_mark("first");
    return new taskd::testing::SegmentView;
  }();
  return *segment;
}

void* Communicator() {
  static void* comm = [] {
    void* made = nullptr;
    ncclCommInitRank(&made, 8, {}, 3);
    return made;
  }();
  return comm;
}

// dlsym finds NCCL's own.
void Direct(benchmark::State& state) {
  auto* all_reduce = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(RTLD_DEFAULT, "ncclAllReduce"));
  benchmark::DoNotOptimize(all_reduce);
  void* comm = Communicator();
  for ([[maybe_unused]] auto _ : state) all_reduce(nullptr, nullptr, 1 << 20, kFloat32, 0, comm, nullptr);
}

void AllReduce(benchmark::State& state, uint32_t gate) {
  Segment().SetGate(gate);
  void* comm = Communicator();
  for ([[maybe_unused]] auto _ : state) ncclAllReduce(nullptr, nullptr, 1 << 20, kFloat32, 0, comm, nullptr);
}

// The framework marks the operation.
void AllReduceOfAFramework(benchmark::State& state) {
  Segment().SetGate(taskd::ring::kGateAllKinds);
  void* comm = Communicator();
  for ([[maybe_unused]] auto _ : state) {
    taskd_communication_begin(0);
    ncclAllReduce(nullptr, nullptr, 1 << 20, kFloat32, 0, comm, nullptr);
    taskd_communication_end();
  }
}

void GroupOfTwoSends(benchmark::State& state, uint32_t gate) {
  Segment().SetGate(gate);
  void* comm = Communicator();
  for ([[maybe_unused]] auto _ : state) {
    ncclGroupStart();
    ncclSend(nullptr, 1 << 20, kFloat32, 4, comm, nullptr);
    ncclSend(nullptr, 1 << 20, kFloat32, 5, comm, nullptr);
    ncclGroupEnd();
  }
}

class Reporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (taskd::WasSkipped(run) || run.run_type != Run::RT_Iteration) continue;
      double& best = best_ns_.try_emplace(run.run_name.function_name, 1e9).first->second;
      best = std::min(best, run.GetAdjustedCPUTime());
    }
    ConsoleReporter::ReportRuns(runs);
  }
  void Print() const {
    printf("\nfastest of the repetitions, CPU time\n");
    for (const auto& [name, ns] : best_ns_) printf("  %-24s %7.2f ns\n", name.c_str(), ns);
  }

 private:
  std::map<std::string, double> best_ns_;
};

void Register() {
  using taskd::ring::kGateAllKinds;
  using taskd::ring::kGateCommunication;
  const auto add = [](const char* name, auto function, auto... arguments) {
    benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { function(state, arguments...); });
  };
  add("Direct", Direct);
  add("Off", AllReduce, uint32_t{kGateAllKinds & ~kGateCommunication});
  add("On", AllReduce, uint32_t{kGateAllKinds});
  add("OnFrameworkMarks", AllReduceOfAFramework);
  add("GroupOfTwoSendsOff", GroupOfTwoSends, uint32_t{kGateAllKinds & ~kGateCommunication});
  add("GroupOfTwoSendsOn", GroupOfTwoSends, uint32_t{kGateAllKinds});
}

}  // namespace

int main(int argc, char** argv) {
  if (!taskd::SetUpBenchmarks(
          argc, argv,
          {"--benchmark_repetitions=40", "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.01"})) {
    return 2;
  }
  taskd::RemoveSegmentName(Segment().fd());
  Register();
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.Print();
  return 0;
}
