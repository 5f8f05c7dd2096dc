// How good a diagnosis is: what it claimed, online, against the truth of a simulated job.
//
// A claim is a stretch of steps in which a detector named one entity; alternatives that are about as probable belong to
// what it names. It is
//   right      if it was made within the fault's interval and 20 steps after it, and names the entity: the rank; the
//   node
//              (or all its ranks); the pair of the link; a set of at most two that holds it, or one of only culprits;
//              for a fault of the network that marks cannot place better, the link or group that holds it;
//   imprecise  if it was made then and names something that contains the entity, or a part of it;
//   wrong      otherwise; wrong and imprecise ones count against precision;
//   abstained  if its scope is the job: it names nobody, and counts nowhere but where the job is the right answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/simulate/job.h"
#include "diagnosis/verdict.h"

namespace taskd::evaluation {

struct Interval {
  double low = 0, high = 1;
};

// I_x(a, b), for a, b > 0 and 0 <= x <= 1.
double RegularizedBeta(double a, double b, double x);
// The exact interval of a rate of which `hits` of `trials` were seen. Without trials: 0 to 1.
Interval ClopperPearson(int64_t hits, int64_t trials, double level = 0.95);
// The exact interval of the mean of a Poisson count of which `events` were seen.
Interval PoissonInterval(int64_t events, double level = 0.95);
// By the nearest rank, 0 <= p <= 1; NaN of nothing.
double Quantile(std::vector<double> values, double p);

enum class Match : uint8_t { kRight, kImprecise, kWrong, kAbstained };
const char* Name(Match match);

struct Claim {
  diagnosis::Verdict verdict;                 // as it stood last while it was open, with its ties
  std::vector<int> ranks;                     // that it covers, in order; empty of scope job
  int opened = 0;                             // the step after whose marks it was reported first
  int closed = -1;                            // and no longer; -1: open at the end
  int changed = 0;                            // how often its cause changed
  std::vector<std::pair<int, double>> costs;  // cost_ms_per_step by step, where it changed
  Match match = Match::kWrong;
};

// The verdict with the alternatives of its scope that are at least 0.9 times as probable as itself among what it names.
diagnosis::Verdict WithTies(diagnosis::Verdict verdict);
// "rank 3,7", "link 3-11", "node 2": what a verdict names.
std::string Entity(const diagnosis::Verdict& verdict);

// Turns the verdicts of each step into claims.
class ClaimTracker {
 public:
  // Verdicts as reported after `step`; the closed ones among them count as absent. `node_of_rank` is that of this step.
  void Observe(int step, const std::vector<diagnosis::Verdict>& verdicts, const std::vector<int>& node_of_rank);
  // In the order in which they were made.
  const std::vector<Claim>& claims() const { return claims_; }

 private:
  std::vector<Claim> claims_;
  std::map<std::string, size_t> open_;  // by entity
};

// What became of one fault.
struct Outcome {
  bool visible = false;  // lengthens the step by at least 1 %
  bool found = false;
  bool exact = false;        // by itself, in its own scope
  int claim = -1;            // the first right one
  int steps_to_detect = -1;  // of the fault, until it was named
  bool clearable = false;    // it ended early enough before the job's end
  int steps_to_clear = -1;   // -1: not cleared
  bool cause_right = false;
  double true_cost_ms = 0;  // per step; 0: unknown, where several faults act
  double told_cost_ms = 0;
  double cost_error = -1;    // relative; -1: none
  bool cost_within = false;  // the true one is in the verdict's interval
};

struct Score {
  std::vector<Outcome> outcomes;            // one a label
  int right = 0, imprecise = 0, wrong = 0;  // entities, each once
  int job_claims = 0;
};

// A fault must have ended so many steps before the job for its clearance to be asked for, and a claim may come so many
// steps after it.
inline constexpr int kGraceSteps = 20;
inline constexpr double kVisibleEffect = 0.01;

// Sets `match` of the claims. `step_ms` has the true length of each step of the job; its size is the job's length.
Score ScoreCase(std::vector<Claim>& claims, const std::vector<simulate::Label>& labels,
                const std::vector<int>& node_of_rank, const std::vector<double>& step_ms);

}  // namespace taskd::evaluation
