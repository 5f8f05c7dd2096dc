#include "tests/diagnosis/suites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "agent/simulate/simulator.h"

namespace taskd::evaluation {
namespace {

using simulate::Fault;
using simulate::FaultKind;
using simulate::Label;
using simulate::Simulator;

class SuiteTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SuiteTest, EachCaseRuns) {
  for (int index = 0; index < 42; ++index) {
    Case made = MakeCase(GetParam(), 3, index);
    EXPECT_EQ(made.suite, GetParam());
    EXPECT_EQ(MakeCase(GetParam(), 3, index).job.seed, made.job.seed);
    EXPECT_NE(MakeCase(GetParam(), 4, index).job.seed, made.job.seed);
    EXPECT_GE(made.job.steps, 80);
    absl::StatusOr<std::unique_ptr<Simulator>> simulator = Simulator::Create(made.job);
    ASSERT_TRUE(simulator.ok()) << index << ": " << simulator.status();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE((*simulator)->Next());
    const size_t records = (*simulator)->Marks(1).size();
    if (made.job.marks.silent_ranks.empty()) {
      EXPECT_GE(records, made.job.marks.device ? 15u : 8u) << index;
    }
    EXPECT_LE(records, 400u) << index;
    // Nobody is named: there is no fault, or it is the whole job's.
    for (const Label& label : (*simulator)->labels()) {
      if (made.honesty) {
        EXPECT_EQ(label.scope, "job") << index;
      }
    }
    if (!made.honesty) {
      EXPECT_FALSE((*simulator)->labels().empty()) << index;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SuiteTest, ::testing::ValuesIn(SuiteNames()),
                         [](const auto& info) { return info.param; });

TEST(SuitesTest, MatrixCoversKindsAndSeverities) {
  std::set<std::pair<FaultKind, double>> seen;
  for (int index = 0; index < 14 * 6; ++index) {
    const Fault fault = MakeCase("matrix", 1, index).job.faults.at(0);
    seen.insert({fault.kind, fault.severity});
  }
  EXPECT_EQ(seen.size(), 14u * 6);
}

TEST(SuitesTest, ScaleIsLarge) {
  EXPECT_EQ(MakeCase("scale", 1, 0).job.layout.ranks(), 2048);
  EXPECT_EQ(MakeCase("scale", 1, 1).job.layout.ranks(), 8192);
  EXPECT_EQ(MakeCase("scale", 1, 2).job.layout.ranks(), 16384);
}

}  // namespace
}  // namespace taskd::evaluation
