// What NVTX ranges and NCCL's profiler plugin cost, against bare time stamps taken in the same run. With NVIDIA's NVTX
// header where that was found at build time. NVTX loads a tool once in a process, so the program starts itself again
// without one for the cost that NVTX has alone.
//
// Prints Google Benchmark's table and then what the fastest repetitions cost beyond their time stamps.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmark_setup.h"
#include "clock.h"
#include "nccl_profiler.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "testing/nvtx_client.h"
#include "testing/segment_view.h"

namespace {

namespace client = taskd::testing::nvtx_client;
namespace nccl = taskd::nccl;

constexpr char kAlone[] = "TASKD_BENCH_NVTX_ALONE";
constexpr double kBudgetNs = 5;

taskd::testing::SegmentView& Segment() {
  static taskd::testing::SegmentView* segment = [] {
    taskd_mark("first");
    return new taskd::testing::SegmentView;
  }();
  return *segment;
}

void SetGate(uint32_t gate) {
  if (getenv(kAlone) == nullptr) Segment().SetGate(gate);
}

void TwoTimeStamps(benchmark::State& state) {
  const bool counter = getenv(kAlone) != nullptr || Segment().header().clock == taskd::ring::kClockCounter;
  for ([[maybe_unused]] auto _ : state) {
    for (int i = 0; i < 2; ++i) {
      benchmark::DoNotOptimize(counter ? taskd::worker::ReadCounter() : taskd::worker::ReadClockNs(CLOCK_MONOTONIC));
    }
  }
}

void PushPop(benchmark::State& state, uint32_t gate, const char* name) {
  SetGate(gate);
  // From where a program has it: not a constant that the compiler knows.
  benchmark::DoNotOptimize(name);
  for ([[maybe_unused]] auto _ : state) {
    client::Push(name);
    client::Pop();
  }
}

// As training makes them: the same few names in turn. A time is that of one pair.
void PushPopInTurn(benchmark::State& state, uint32_t gate) {
  SetGate(gate);
  const char* names[] = {"step 12345", "dataloader", "forward", "save_checkpoint"};
  unsigned i = 0;
  for ([[maybe_unused]] auto _ : state) {
    client::Push(names[i++ & 3]);
    client::Pop();
  }
}

// A name in a buffer of its own each time, as torch.cuda.nvtx hands over.
void PushPopNewBuffer(benchmark::State& state, uint32_t gate, const char* name) {
  SetGate(gate);
  static char buffers[16][64];
  for (auto& buffer : buffers) snprintf(buffer, sizeof(buffer), "%s", name);
  unsigned i = 0;
  for ([[maybe_unused]] auto _ : state) {
    client::Push(buffers[i++ & 15]);
    client::Pop();
  }
}

void StartEnd(benchmark::State& state, uint32_t gate, const char* name) {
  SetGate(gate);
  for ([[maybe_unused]] auto _ : state) client::End(client::Start(name));
}

void DomainPushPop(benchmark::State& state, uint32_t gate) {
  SetGate(gate);
  static const client::Domain domain = client::CreateDomain("bench");
  static const client::String name = client::Register(domain, "registered name");
  for ([[maybe_unused]] auto _ : state) {
    client::DomainPush(domain, name);
    client::DomainPop(domain);
  }
}

// ---- NCCL's profiler plugin, called as NCCL calls it

struct Nccl {
  const nccl::ProfilerV5* profiler = nullptr;
  void* context = nullptr;
  int mask = 0;
};

const Nccl& Plugin() {
  static Nccl plugin = [] {
    Nccl loaded;
    void* library = dlopen(TASKD_NCCL_PLUGIN_PATH, RTLD_NOW);
    if (library == nullptr) return loaded;
    loaded.profiler = static_cast<const nccl::ProfilerV5*>(dlsym(library, "ncclProfiler_v7"));
    return loaded;
  }();
  if (plugin.profiler != nullptr && plugin.context == nullptr) {
    plugin.profiler->init(&plugin.context, 0xabc, &plugin.mask, "bench", 1, 8, 1, nullptr);
  }
  return plugin;
}

void NcclOperation(benchmark::State& state, uint32_t gate, bool kernel) {
  SetGate(gate);
  const Nccl& nccl = Plugin();
  if (nccl.context == nullptr) return state.SkipWithError("no libnccl-profiler-taskd.so");
  nccl::Descriptor operation = {};
  operation.type64 = nccl::kEventCollective;
  operation.rank = 1;
  operation.collective = {17, "AllReduce", nullptr, nullptr, 1 << 20, 0, "ncclBfloat16", 1};
  nccl::Descriptor channel = {};
  channel.type64 = nccl::kEventKernelChannel;
  for ([[maybe_unused]] auto _ : state) {
    void* handle;
    nccl.profiler->start_event(nccl.context, &handle, &operation);
    nccl.profiler->stop_event(handle);
    if (!kernel) continue;
    void* channel_handle;
    channel.parent = handle;
    nccl.profiler->start_event(nccl.context, &channel_handle, &channel);
    nccl.profiler->stop_event(channel_handle);
  }
}

constexpr uint32_t kAll = taskd::ring::kGateAllKinds;

void Register(bool alone) {
  const auto add = [](const char* name, auto function, auto... arguments) {
    benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { function(state, arguments...); });
  };
  add("TwoTimeStamps", TwoTimeStamps);
  add("NoTool", PushPop, 0u, "forward");
  if (alone) return;
  add("Off", PushPop, 0u, "forward");
  add("OffInDomain", DomainPushPop, 0u);
  add("OnForward", PushPop, kAll, "forward");
  add("OnStep", PushPop, kAll, "step 12345");
  add("OnDataloader", PushPop, kAll, "dataloader");
  add("OnSaveCheckpoint", PushPop, kAll, "save_checkpoint");
  add("OnInTurn", PushPopInTurn, kAll);
  add("OnForwardNewBuffer", PushPopNewBuffer, kAll, "forward");
  add("OnSaveCheckpointNewBuffer", PushPopNewBuffer, kAll, "save_checkpoint");
  add("OnLongName", PushPop, kAll, "a range of the user's own, with a name of some 60 characters");
  add("OnStartEnd", StartEnd, kAll, "forward");
  add("OnRegisteredInDomain", DomainPushPop, kAll);
  add("NcclOff", NcclOperation, 0u, false);
  add("NcclOn", NcclOperation, kAll, true);
}

class Reporter : public benchmark::ConsoleReporter {
 public:
  explicit Reporter(bool alone) : alone_(alone) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> shown;
    for (const Run& run : runs) {
      if (taskd::WasSkipped(run) || run.run_type != Run::RT_Iteration) {
        shown.push_back(run);
      } else {
        double& best = best_ns_.try_emplace(run.run_name.function_name, 1e9).first->second;
        best = std::min(best, run.GetAdjustedCPUTime());
      }
    }
    if (!alone_) ConsoleReporter::ReportRuns(shown);
  }
  bool ReportContext(const Context& context) override { return alone_ || ConsoleReporter::ReportContext(context); }

  void Print() const {
    if (alone_) {
      const auto found = best_ns_.find("NoTool");
      if (found != best_ns_.end()) printf("  %-26s %7.2f ns\n", "NoTool", found->second);
      return;
    }
    const auto stamps = best_ns_.find("TwoTimeStamps");
    for (const auto& [name, ns] : best_ns_) {
      if (name == "NoTool") continue;  // measured by the other process
      printf("  %-26s %7.2f ns", name.c_str(), ns);
      if (stamps != best_ns_.end() && name.starts_with("On")) {
        const double beyond = ns - stamps->second;
        printf("  two time stamps + %5.2f ns (budget %.0f ns: %s)", beyond, kBudgetNs,
               beyond <= kBudgetNs ? "met" : "MISSED");
      }
      printf("\n");
    }
  }

 private:
  const bool alone_;
  std::map<std::string, double> best_ns_;
};

int RunAlone(char** argv) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("NVTX_INJECTION64_PATH");
    setenv(kAlone, "1", 1);
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool alone = getenv(kAlone) != nullptr;
  if (!alone) setenv("NVTX_INJECTION64_PATH", TASKD_SDK_PATH, 1);
  if (!taskd::SetUpBenchmarks(
          argc, argv,
          {"--benchmark_repetitions=40", "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.01"})) {
    return 2;
  }
  if (!alone) taskd::RemoveSegmentName(Segment().fd());
  Register(alone);
  Reporter reporter(alone);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  if (!alone) printf("\nNVTX is %s; fastest of the repetitions, CPU time, of a pair of push and pop\n", client::kWhose);
  reporter.Print();
  return alone ? 0 : RunAlone(argv);
}
