// Replays one step of a plan: the times of every rank, and of every operation where somebody wants them.
//
// Per rank there are three times, in ms since the job's start: of its computation stream, of the stream of its
// gradients and of its host, which enqueues work ahead of the device. A piece of computation ends when its time has
// passed and the host has enqueued all of it; an operation starts when its rank has come to it and ends on all members
// at about the latest start plus the transfer.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/simulate/faults.h"
#include "agent/simulate/job.h"
#include "agent/simulate/plan.h"
#include "agent/simulate/random.h"

namespace taskd::simulate {

// Constant in a life.
struct Heterogeneity {
  std::vector<float> speed;  // by rank: factor on its computation
};

// The state between steps.
struct Times {
  std::vector<double> compute;  // by rank: computation stream
  std::vector<double> gradients;
  std::vector<double> host;
  std::vector<double> own;     // of the last step: what the rank spent by itself
  std::vector<double> wander;  // by rank: standard normal, correlated from step to step; empty: not drawn yet
  double begin = 0, end = 0;   // of the last step: earliest begin, latest end
};

// Times of the marked ranges of a step: [event * ranks + rank].
struct Ranges {
  std::vector<double> start, end;  // on the device
  std::vector<double> host_start, host_end;
  std::vector<uint8_t> level;  // by rank: tokens of its expert, Plan::kMeanLevel is the mean
};

class Replayer {
 public:
  explicit Replayer(const Job& job);

  // A life begins, at `time_ms`.
  void Begin(const Plan& plan, double time_ms, Times& times) const;
  // The next step. `first_of_life`: it compiles. `effects` may be changed. `ranges`: filled where not null.
  void Step(const Plan& plan, const Heterogeneity& ranks, int step, bool first_of_life, Effects& effects, Times& times,
            Ranges* ranges) const;
  bool SavesCheckpoint(int step) const { return job_.checkpoint_every > 0 && (step + 1) % job_.checkpoint_every == 0; }

 private:
  struct Present;
  std::vector<double> DrawLeads(int step, const Effects& effects) const;
  void AddPauses(const Plan& plan, int step, Effects& effects) const;
  void AddStretches(const Plan& plan, int step, Effects& effects) const;
  void AddGusts(const Plan& plan, int step, Effects& effects) const;
  void Wander(int step, Effects& effects, Times& times) const;
  void SetFactors(Present& now) const;
  void BeginStep(const Present& now, bool first_of_life) const;
  void Execute(const Present& now, const Instruction& instruction) const;
  void EndStep(const Present& now) const;
  void Piece(const Present& now, const Instruction& instruction) const;
  void Collective(const Present& now, const Instruction& instruction) const;
  void Bucket(const Present& now, const Instruction& instruction) const;
  void Exchange(const Present& now, const Instruction& instruction) const;
  void MarkForward(const Present& now, const Instruction& instruction) const;
  void JoinBuckets(const Present& now, const Instruction& instruction) const;
  void All(const Present& now, const Instruction& instruction) const;
  // Starts and ends of one operation among `count` ranks from `first`, `stride` apart, which start at `start[rank]`.
  void EndTogether(const Present& now, int event, int first, int stride, int count, const double* start, double ms,
                   uint64_t key, double* end) const;
  // The earliest that the device can take it up.
  double Enqueue(const Present& now, const Instruction& instruction, int event, int rank) const;
  void HotExpert(const Plan& plan, int step, std::vector<uint8_t>& level) const;

  const Job& job_;
  const Quantiles op_noise_, unsteady_noise_, transfer_noise_, end_spread_, loader_noise_;
  const double lead_ms_;  // by which a host may run ahead, about
};

}  // namespace taskd::simulate
