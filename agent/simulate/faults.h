// What the faults of a job do in a step, and the truth about them.
#pragma once

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "agent/simulate/job.h"
#include "agent/simulate/plan.h"

namespace taskd::simulate {

// As `taskd simulate` takes them.
const char* Name(FaultKind kind);    // "compute", "pp_link", ...
const char* Name(FaultShape shape);  // "persistent", ...

// The factors of one step. 1: as healthy.
struct Effects {
  std::vector<float> compute;                            // by rank
  std::vector<float> memory;                             // by rank, of what is bound by memory
  std::vector<float> unsteady;                           // by rank: 1 where each operation varies by itself, else 0
  std::vector<float> host;                               // by rank; 0: as healthy
  std::vector<float> loader, saver;                      // by rank
  std::vector<float> stall_ms;                           // by rank, of the host
  std::vector<int> stall_piece;                          // by rank: before which piece of computation
  std::array<std::vector<float>, kGroupTypes> transfer;  // by group; of kPp by the rank of the earlier stage

  void Reset(const Plan& plan);
};

// Which rank and node a fault's target is in the present life: nodes may have changed places.
struct Placement {
  std::vector<int> node_of;  // by machine: its node rank now
  int ranks_per_node = 8;

  int rank(int original) const {
    return node_of[static_cast<size_t>(original / ranks_per_node)] * ranks_per_node + original % ranks_per_node;
  }
  int node(int original) const { return node_of[static_cast<size_t>(original)]; }
};

// INVALID_ARGUMENT: a target does not exist or cannot have the fault, a number is out of range.
absl::Status CheckFault(const Job& job, const Plan& plan, const Fault& fault);

// Gives a job what a fault of this kind needs to be felt at all: a loader or a checkpoint that takes time, traffic.
void PrepareJob(Job& job, FaultKind kind);

bool InRange(const Fault& fault, int step);

// Adds what `fault` does in `step`. The numbers come from `job.seed`, `index` and `step`.
void AddEffects(const Job& job, const Plan& plan, const Placement& placement, const Fault& fault, int index, int step,
                Effects& effects);

// Labels of a fault in one life; none if it has no target there. `effect` is not filled.
std::vector<Label> LabelsOf(const Job& job, const Plan& plan, const Placement& placement, const Fault& fault);

}  // namespace taskd::simulate
