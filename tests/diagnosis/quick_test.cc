// A small, fixed part of the evaluation (evaluate.cc) with what must always hold: nobody is named where nobody is slow,
// every loud fault is found, and the reports are the stored ones (golden/).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "diagnosis/verdict.h"
#include "tests/diagnosis/replay.h"
#include "tests/diagnosis/suites.h"
#include "tests/diagnosis/summary.h"

namespace taskd::evaluation {
namespace {

constexpr uint64_t kSeed = 1;

const ReplayOptions kEngineOnly = {.seed = kSeed, .engine_only = true, .tapes = ""};

CaseResult ReplayCase(const std::string& suite, int index, const ReplayOptions& options = kEngineOnly) {
  CaseResult result = Replay(MakeCase(suite, kSeed, index), index, options);
  EXPECT_EQ(result.error, "") << suite << ':' << index;
  return result;
}

// Compares with the stored text, and keeps the present one in a file whose path it says.
void ExpectGolden(const std::string& name, const std::string& text) {
  std::ostringstream stored;
  stored << std::ifstream(std::string(TASKD_GOLDEN_FOLDER) + "/" + name).rdbuf();
  if (stored.str() == text) return;
  const std::string now = ::testing::TempDir() + "/" + name;
  std::ofstream(now) << text;
  EXPECT_EQ(stored.str(), text) << "if the change is wanted: cp " << now << " " << TASKD_GOLDEN_FOLDER;
}

// All that the diagnosis reported of the case: each verdict with the steps in which it opened and cleared, and the last report.
std::string ReportsOf(const CaseResult& result) {
  std::ostringstream text;
  text << "==== " << result.suite << ':' << result.index << ", " << result.ranks << " ranks, " << result.steps
       << " steps\n";
  for (const Claim& claim : result.detectors.front().claims) {
    text << "verdict in steps " << claim.opened << " to " << claim.closed << ": " << claim.verdict.text << '\n';
  }
  text << result.report;
  return text.str();
}

class EachSuite : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Diagnosis, EachSuite, ::testing::ValuesIn(SuiteNames()),
                         [](const auto& info) { return info.param; });

TEST_P(EachSuite, NamesWhoIsSlowAndNobodyElse) {
  int cases = GetParam() == "matrix" ? 28 : 1;
  std::string reports;
  for (int index = 0; index < cases; ++index) {
    CaseResult result = ReplayCase(GetParam(), index);
    if (!result.error.empty()) continue;
    reports += ReportsOf(result);
    std::string failures = absl::StrJoin(Failures(result), "\n");
    const DetectorResult& engine = result.detectors.front();
    if (result.honesty) {
      for (const Claim& claim : engine.claims) EXPECT_EQ(claim.verdict.scope, diagnosis::Scope::kJob) << failures;
    }
    for (size_t i = 0; i < result.labels.size(); ++i) {
      const simulate::Label& label = result.labels[i];
      bool loud = label.severity >= 1.495 && label.effect >= kVisibleEffect && result.shapes[i] == "persistent";
      if (loud && label.scope != "job") {
        EXPECT_TRUE(engine.score.outcomes[i].found) << failures;
      }
    }
  }
  ExpectGolden(GetParam() + ".txt", reports);
}

std::vector<std::string> Story(const CaseResult& result) {
  std::vector<std::string> lines;
  for (const Claim& claim : result.detectors.front().claims) {
    lines.push_back(Entity(claim.verdict) + " " + std::to_string(claim.opened) + "-" + std::to_string(claim.closed) +
                    " " + std::to_string(claim.verdict.cost_ms_per_step) + " " + claim.verdict.text);
  }
  return lines;
}

// A data-parallel job of 16 ranks: all is marked, a barrier before the gradients is not, or no communication is.
TEST(Diagnosis, CallsAJobHealthyOnlyWhereItsWaitsAreMarked) {
  Case healthy = MakeCase("healthy", kSeed, 0);
  healthy.job.layout = simulate::Layout();
  healthy.job.layout.dp = 16;
  healthy.job.layout.microbatches = 1;
  Case hidden = healthy;
  hidden.job.hidden_sync = true;
  Case unmarked = healthy;
  unmarked.job.marks.communication = false;
  EXPECT_EQ(Replay(healthy, 0, kEngineOnly).state, diagnosis::JobState::kOk);
  EXPECT_EQ(Replay(hidden, 0, kEngineOnly).state, diagnosis::JobState::kUnknown);
  EXPECT_EQ(Replay(unmarked, 0, kEngineOnly).state, diagnosis::JobState::kUnknown);
}

TEST(Diagnosis, SaysTheSameOfTheSameJob) {
  std::vector<std::string> story = Story(ReplayCase("matrix", 0));
  EXPECT_FALSE(story.empty());
  EXPECT_EQ(story, Story(ReplayCase("matrix", 0, {.seed = kSeed, .engine_only = false, .tapes = ""})));
  const ReplayOptions with_tape = {.seed = kSeed, .engine_only = true, .tapes = ::testing::TempDir()};
  const std::string tape = ::testing::TempDir() + "/matrix-0-1.tape";
  std::remove(tape.c_str());
  EXPECT_EQ(story, Story(ReplayCase("matrix", 0, with_tape))) << "while it is written";
  EXPECT_EQ(story, Story(ReplayCase("matrix", 0, with_tape))) << "as it is read";
  EXPECT_EQ(std::remove(tape.c_str()), 0);
}

}  // namespace
}  // namespace taskd::evaluation
