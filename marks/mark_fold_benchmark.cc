// Measures MarkFold on one rank's marks and one core. The input is either records, as the proxy reads them from the
// ring (budget: 2,000,000 records/s), or the text of mark files, as `taskd diagnose --from` reads it (budget: 200
// MB/s). A step is Megatron-like: 8 micro-batches of 32 tensor-parallel operations each, pipeline sends and receives,
// and overlapped gradient buckets.
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "marks/mark_file_reader.h"
#include "marks/mark_fold.h"
#include "marks/mark_line.h"

namespace taskd {
namespace {

constexpr int kSteps = 8;

std::string Name(const char* group, const char* op, int count, int peer = -1) {
  std::string name = R"({"count": ")" + std::to_string(count) +
                     R"(","streamId": "17","dataType": "bfp16","groupName": "10.10.1.12%enp189s0f0_60000_0_17)" +
                     group + R"(","opName": ")" + op + '"';
  if (peer >= 0) {
    name += R"(,"srcRank": ")" + std::to_string(1 - peer) + R"(","destRank": ")" + std::to_string(peer) + '"';
  }
  return name + "}";
}

struct Marks {
  std::vector<std::string> names;  // declared before the records, whose views point here
  std::vector<MarkRecord> records;
  std::string text;
  uint64_t now_ns = 1'700'000'000'000'000'000;
  uint64_t id = 0;

  void Add(MarkRecord::Phase phase, uint64_t range, uint64_t at_ns, bool device, std::string_view name,
           std::string_view domain) {
    const bool start = phase == MarkRecord::Phase::kStart;
    records.push_back({phase, device, at_ns, range, device ? 3u : 100u, 7, name, domain});
    AppendMarkLine({.flag = start ? kMarkStartStream : kMarkEndStream,
                    .timestamp_ns = at_ns,
                    .id = range,
                    .process_id = device ? 3u : 100u,
                    .thread_id = 7,
                    .name = name,
                    .domain = domain,
                    .device = device},
                   text);
  }
  uint64_t Start(std::string_view name, std::string_view domain) {
    Add(MarkRecord::Phase::kStart, ++id, now_ns, false, name, domain);
    now_ns += 20'000;
    return id;
  }
  void End(uint64_t range) {
    Add(MarkRecord::Phase::kEnd, range, now_ns, false, {}, {});
    now_ns += 30'000;
  }
  void Op(const std::string& name, bool device) {
    const uint64_t range = Start(name, "communication");
    End(range);
    if (!device) return;
    Add(MarkRecord::Phase::kStart, range, now_ns, true, {}, {});
    Add(MarkRecord::Phase::kEnd, range, now_ns + 15'000, true, {}, {});
  }
};

Marks Megatron(bool device) {
  Marks marks;
  marks.names = {Name("_tp", "HcclAllGather", 33554432), Name("_tp", "HcclReduceScatter", 33554432),
                 Name("_pp", "HcclRecv", 16777216, 0), Name("_pp", "HcclSend", 16777216, 1),
                 Name("_dp", "HcclReduceScatter", 67108864)};
  for (int step = 0; step < kSteps; ++step) marks.names.push_back("step " + std::to_string(step));
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t range = marks.Start(marks.names[5 + step], "default");
    if (device) marks.Add(MarkRecord::Phase::kStart, range, marks.now_ns, true, {}, {});
    uint64_t bucket = 0;
    for (int batch = 0; batch < 16; ++batch) {
      marks.Op(marks.names[2], device);
      const uint64_t forward = marks.Start("forward", "default");
      for (int op = 0; op < 16; ++op) {
        marks.Op(marks.names[0], device);
        marks.Op(marks.names[1], device);
      }
      marks.End(forward);
      marks.Op(marks.names[3], device);
      if (device) {
        marks.Op(marks.names[4], device);
        continue;
      }
      if (bucket != 0) marks.End(bucket);
      bucket = marks.Start(marks.names[4], "communication");
    }
    if (bucket != 0) marks.End(bucket);
    marks.End(range);
    if (device) marks.Add(MarkRecord::Phase::kEnd, range, marks.now_ns, true, {}, {});
  }
  return marks;
}

void BM_FoldRecords(benchmark::State& state) {
  const Marks marks = Megatron(state.range(0) != 0);
  size_t folds = 0;
  MarkFold fold([&](StepFold&& step) {
    benchmark::DoNotOptimize(step);
    ++folds;
  });
  uint64_t shift_ns = 0;
  for ([[maybe_unused]] auto _ : state) {
    for (MarkRecord record : marks.records) {
      record.time_ns += shift_ns;
      fold.Add(record);
    }
    shift_ns += 10'000'000'000;
  }
  if (folds + 4 < kSteps * static_cast<size_t>(state.iterations())) state.SkipWithError("steps are missing");
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(marks.records.size()));
}
BENCHMARK(BM_FoldRecords)->ArgName("device")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void BM_ParseAndFoldText(benchmark::State& state) {
  const Marks marks = Megatron(state.range(0) != 0);
  std::string storage;
  for ([[maybe_unused]] auto _ : state) {
    size_t folds = 0;
    MarkFold fold([&](StepFold&&) { ++folds; });
    std::string_view rest = marks.text;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (std::optional<MarkRecord> record = ParseMarkRecord(rest.substr(0, end), storage)) fold.Add(*record);
      rest.remove_prefix(end + 1);
    }
    fold.Finish();
    if (folds + 2 < kSteps) state.SkipWithError("steps are missing");
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(marks.text.size()));
}
BENCHMARK(BM_ParseAndFoldText)->ArgName("device")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace taskd
