#include "readers/kineto_trace.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "readers/byte_source.h"
#include "readers/trace_fold.h"

namespace taskd::readers {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kUs = 1000;
constexpr int kSteps = 20;
constexpr uint64_t kStepUs = 20'000;

std::string Event(const std::string& category, const std::string& name, uint64_t start_us, uint64_t length_us) {
  return absl::StrCat(R"({"ph":"X","cat":")", category, R"(","name":")", name, R"(","pid":0,"tid":7,"ts":)", start_us,
                      R"(,"dur":)", length_us, "},");
}

// Steps of 20 ms from the stamp 1 s on. Each has a kernel of 8 ms and one of communication of 11 ms, which end 0.8 ms
// before the step. The device's step begins and ends at the given times within the step.
std::string Trace(uint64_t device_begin_us, uint64_t device_end_us) {
  std::string events;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const uint64_t begin_us = 1'000'000 + i * kStepUs;
    const std::string name = absl::StrCat("ProfilerStep#", i);
    absl::StrAppend(&events, Event("user_annotation", name, begin_us, kStepUs - 100),
                    Event("kernel", "gemm", begin_us + 100, 8'000),
                    Event("kernel", "ncclDevKernel_AllReduce_Sum_f32", begin_us + 8'200, 11'000));
    if (device_end_us > 0) {
      absl::StrAppend(&events,
                      Event("gpu_user_annotation", name, begin_us + device_begin_us, device_end_us - device_begin_us));
    }
  }
  events.pop_back();
  return absl::StrCat(R"({"traceEvents":[)", events, "]}");
}

FoldedTrace Fold(const std::string& trace) {
  ByteSource source = ByteSource::Of(trace);
  return FoldTrace(ReadKinetoTrace(source, 1000));
}

uint64_t LengthOf(const StepFold& fold) { return fold.end_ns - fold.start_ns; }

TEST(KinetoTraceTest, ADevicesStepsReachFromTheFirstKernelToTheLast) {
  const FoldedTrace folded = Fold(Trace(100, 19'200));
  ASSERT_EQ(folded.folds.size(), kSteps);
  EXPECT_EQ(LengthOf(folded.folds[5]), 19'100 * kUs);
}

TEST(KinetoTraceTest, AStubOfADevicesStepIsNone) {
  for (const auto& [begin_us, end_us] : {std::pair(19'500, 19'518), std::pair(19'190, 19'218), std::pair(90, 110)}) {
    const FoldedTrace folded = Fold(Trace(begin_us, end_us));
    ASSERT_EQ(folded.folds.size(), kSteps);
    EXPECT_EQ(folded.steps, StepSource::kNumbered);
    EXPECT_EQ(LengthOf(folded.folds[5]), (kStepUs - 100) * kUs) << begin_us;
  }
}

// A trace that consists only of steps, as a small gzip may contain.
TEST(KinetoTraceTest, HasALimitedNumberOfSteps) {
  constexpr int kMany = 140'000;
  std::string events;
  for (int i = 0; i < kMany; ++i) {
    const uint64_t begin_us = 1'000'000 + 10 * static_cast<uint64_t>(i);
    events += Event("user_annotation", "ProfilerStep#" + std::to_string(i), begin_us, 9);
  }
  events.pop_back();
  ByteSource source = ByteSource::Of(absl::StrCat(R"({"traceEvents":[)", events, "]}"));
  const TraceRank trace = ReadKinetoTrace(source, size_t{1} << 20);
  EXPECT_EQ(trace.events.size(), size_t{1} << 17);
  EXPECT_THAT(trace.note, HasSubstr("were left out"));
}

TEST(KinetoTraceTest, NoticesSeveralRanksInOneFile) {
  const auto read = [](const std::string& process, const std::string& category) {
    std::string other = Event(category, "ProfilerStep#3", 1'000, 20'000);
    other.replace(other.find(R"("pid":0)"), 7, absl::StrCat(R"("pid":)", process));
    other.pop_back();
    const std::string own = Event("user_annotation", "ProfilerStep#3", 1'000, 20'000);
    ByteSource source = ByteSource::Of(absl::StrCat(R"({"traceEvents":[)", own, other, "]}"));
    return ReadKinetoTrace(source, 1000).has_several_ranks;
  };
  EXPECT_TRUE(read("1", "user_annotation"));
  EXPECT_TRUE(read("\"[TP01] 77\"", "user_annotation"));
  EXPECT_FALSE(read("0", "user_annotation"));
  EXPECT_FALSE(read("1", "gpu_user_annotation"));
}

TEST(KinetoTraceTest, WhatIsTooMuchIsSaid) {
  ByteSource source = ByteSource::Of(Trace(0, 0));
  EXPECT_EQ(ReadKinetoTrace(source, 1000).note, "");
  source = ByteSource::Of(Trace(0, 0));
  const TraceRank trace = ReadKinetoTrace(source, kSteps - 1);
  EXPECT_TRUE(trace.kernels.empty());
  EXPECT_THAT(trace.note, HasSubstr("it has more than 19 kernels: what the device computed is left out"));
  std::string events = Event("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 1, 1);
  source = ByteSource::Of(absl::StrCat(R"({"traceEvents":[)", events, events.substr(0, events.size() - 1), "]}"));
  EXPECT_THAT(ReadKinetoTrace(source, 1).note, HasSubstr("it has more than 1 computations of gradients"));
}

}  // namespace
}  // namespace taskd::readers
