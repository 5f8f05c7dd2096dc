// Mark files: lines per second on one core, from ring records to the file (budget: 1,000,000). One named peer in the
// same run: the line built with snprintf from the same fields, as the reference implementation does, without any file.
#include <cstdio>

#include "benchmark/benchmark.h"
#include "marks/mark_line.h"
#include "proxy/segment_drain.h"
#include "proxy/testing/fake_segment.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

constexpr int kRecords = 8000;  // fits into a small ring

void FillRing(testing::FakeSegment& fake, uint64_t& id) {
  for (int i = 0; i < kRecords / 2; ++i) {
    ++id;
    fake.Append(0, {ring::kRecordRangeStart, 1'000'000'000 + id, id, "step " + std::to_string(id), ring::kKindStep});
    fake.Append(0, {ring::kRecordRangeEnd, 1'000'000'000 + id, id});
  }
}

// Ranges of steps, written to /dev/shm if it is there, so that the disk of the machine is not measured.
void BM_DrainToFile(benchmark::State& state) {
  if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
  testing::TempDir temp;
  ProfilingDir dir(temp / "profiling", "task");
  testing::FakeSegment fake;
  fake.header().undecided_keep = ring::kGateAllKinds | ring::kGateUndecided;
  fake.AddRing();
  SegmentDrain drain(*RingSegment::Open(fake.Fd()), std::make_shared<RankFiles>(dir, 0));
  uint64_t id = 0;
  for ([[maybe_unused]] auto _ : state) {
    state.PauseTiming();
    FillRing(fake, id);
    state.ResumeTiming();
    if (!drain.Flush(ReadMonotonicNs(), true, true).ok()) state.SkipWithError("cannot write");
  }
  if (drain.counters().lost != 0) state.SkipWithError("records were lost");
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kRecords);
}
BENCHMARK(BM_DrainToFile);

void BM_FormatLine(benchmark::State& state) {
  std::string out;
  uint64_t id = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (out.size() > 1 << 20) out.clear();
    ++id;
    AppendMarkLine({.flag = 16,
                    .timestamp_ns = 1'745'567'190'000'000'000 + id,
                    .id = id,
                    .process_id = 12345,
                    .thread_id = 12345,
                    .name = "step 12345",
                    .domain = "default"},
                   out);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}
BENCHMARK(BM_FormatLine);

void BM_FormatLineWithSnprintf(benchmark::State& state) {
  char line[1000];
  uint64_t id = 0;
  for ([[maybe_unused]] auto _ : state) {
    ++id;
    snprintf(line, sizeof(line),
             R"({"Kind":1,"Flag":%u,"SourceKind":0,"Timestamp":%lu,"Id":%lu,"MsptiObjectId":{"Pt":{"ProcessId":%u,)"
             R"("ThreadId":%u},"Ds":{"DeviceId":%u,"StreamId":%u}},"Name":"%s","Domain":"%s"})"
             "\n",
             16u, 1'745'567'190'000'000'000 + id, id, 12345u, 12345u, 12345u, 12345u, "step 12345", "default");
    benchmark::DoNotOptimize(line);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()));
}
BENCHMARK(BM_FormatLineWithSnprintf);

}  // namespace
}  // namespace taskd::proxy
