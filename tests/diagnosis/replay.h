// One case of the evaluation: a job is simulated step by step, its marks are folded rank by rank, and every detector
// sees the same folds at the same time, as it would online.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "agent/simulate/job.h"
#include "tests/diagnosis/metrics.h"
#include "tests/diagnosis/suites.h"

namespace taskd::evaluation {

struct DetectorResult {
  std::string name;  // "TaskD" first, then the baselines
  std::vector<Claim> claims;
  Score score;
  double cpu_s = 0;
};

struct CaseResult {
  std::string suite;
  int index = 0;
  uint64_t seed = 0;
  bool honesty = false;
  std::string layout;  // "tp8 pp4 dp2"
  int ranks = 0;       // of the first life
  int steps = 0;
  double simulated_s = 0;
  double rank_steps = 0;
  double step_ms = 0;  // median
  std::vector<simulate::Label> labels;
  std::vector<std::string> shapes;  // of the faults: "persistent", ...; as labels
  std::vector<DetectorResult> detectors;
  diagnosis::JobState state = diagnosis::JobState::kUnknown;  // as the engine has it at the end
  std::string report;                                         // for people, at the end
  double wall_s = 0, simulate_s = 0, fold_s = 0;              // simulate_s: with the making of marks
  std::string error;                                          // of the simulator; the rest is empty then
};

struct ReplayOptions {
  uint64_t seed = 1;  // that the case was made from, for its name
  bool engine_only = false;
  std::string tapes;          // folder for the folds of each case, used again; empty: none
  std::FILE* dump = nullptr;  // features by rank and step as CSV, with the verdicts' texts as comments
};

CaseResult Replay(const Case& item, int index, const ReplayOptions& options);

std::string LayoutName(const simulate::Layout& layout);

}  // namespace taskd::evaluation
