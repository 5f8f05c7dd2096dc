// What a manager does with each message of a proxy before anything is made of it: the folds of a step of 8 ranks, and
// the report that comes every second.
#include <random>
#include <string>

#include "benchmark/benchmark.h"
#include "manager/nodes/node_input.h"
#include "proto/fold_messages.h"
#include "proto/node_messages.h"

namespace taskd::manager {
namespace {

constexpr int kRanks = 8;

std::string Folds() {
  std::mt19937_64 random(1);
  const auto ns = [&random](uint64_t most) { return random() % most; };
  v1::NodeMessage message;
  for (int rank = 0; rank < kRanks; ++rank) {
    StepFold fold;
    fold.step = 1234;
    fold.process_id = 4711;
    fold.end_ns = 1'700'000'000'000'000'000 + ns(1'000'000'000);
    fold.start_ns = fold.end_ns - ns(1'000'000'000);
    fold.previous_end_ns = fold.end_ns - 1'000'000'000;
    fold.covered_ns = ns(500'000'000);
    fold.blocking_covered_ns = ns(400'000'000);
    fold.covered_before_last_ns = ns(400'000'000);
    fold.head_ns = ns(50'000'000);
    fold.lead_ns = ns(50'000'000);
    fold.tail_ns = ns(50'000'000);
    for (uint32_t i = 0; i < 8; ++i) {
      OpFold& op = fold.ops.emplace_back();
      op.group = i % 4;
      op.op = static_cast<CommOp>(i % 4 + 1);
      op.size_log2 = 25;
      op.count = 1 + i * 16;
      op.bytes = uint64_t{op.count} << op.size_log2;
      op.duration_ns = ns(100'000'000);
      op.min_duration_ns = ns(1'000'000);
      op.first_start_ns = fold.end_ns - ns(1'000'000'000);
      op.last_end_ns = fold.end_ns - ns(1'000'000);
      op.gaps = op.count - 1;
      op.gap_ns = ns(100'000'000);
      op.max_gap_ns = ns(1'000'000);
      if (i % 2 == 0) {
        op.blocking_gaps = op.gaps;
        op.blocking_gap_ns = op.gap_ns;
      }
    }
    for (uint32_t i = 0; i < 8; ++i) {
      OpSample& sample = fold.samples.emplace_back();
      sample.group = static_cast<uint16_t>(i % 4);
      sample.op = CommOp::kAllReduce;
      sample.number = i;
      sample.start_ns = fold.end_ns - ns(1'000'000'000);
      sample.end_ns = sample.start_ns + ns(1'000'000);
    }
    proto::FillFold(rank, fold, message.mutable_folds()->add_steps());
  }
  return message.SerializeAsString();
}

std::string Reports() {
  v1::NodeMessage message;
  for (int rank = 0; rank < kRanks; ++rank) {
    RankReport report;
    report.rank = 4096 + rank;
    report.pid = 4711;
    report.local_rank = rank;
    report.attached = true;
    report.applied_revision = 3;
    report.applied = kAllKindsMask;
    report.step = 1234;
    report.step_ms = 1000.5;
    for (uint64_t& marks : report.marks) marks = 100'000;
    proto::FillRankReport(report, message.mutable_ranks()->add_ranks());
  }
  return message.SerializeAsString();
}

void Read(benchmark::State& state, const std::string& wire) {
  NodeInput input;
  for (auto _ : state) {
    ReadNodeInput(wire, &input);
    benchmark::DoNotOptimize(input);
  }
  if (!input.folds && !input.ranks) state.SkipWithError("it cannot be read");
  state.SetItemsProcessed(state.iterations() * kRanks);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(wire.size()));
}

void ReadFolds(benchmark::State& state) { Read(state, Folds()); }
void ReadReports(benchmark::State& state) { Read(state, Reports()); }
BENCHMARK(ReadFolds);
BENCHMARK(ReadReports);

}  // namespace
}  // namespace taskd::manager
