// Replays a Job from its dependencies, a step at a time: per rank one stream of computation, blocking operations that
// end together, point-to-point operations in 1F1B order, gradient buckets on a stream of their own. A slow rank is felt
// by the others as in a real job: through what they wait for.
//
// Deterministic by Job::seed. Memory grows with ranks, not with steps. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/simulate/job.h"
#include "marks/mark_record.h"
#include "marks/step_fold.h"

namespace taskd::simulate {

class Simulator {
 public:
  // INVALID_ARGUMENT: the layout or a fault does not fit (what, value, rule).
  static absl::StatusOr<std::unique_ptr<Simulator>> Create(const Job& job);
  ~Simulator();

  const Job& job() const;
  int ranks() const;  // of the present life of the job
  int node(int rank) const;
  int local_rank(int rank) const;
  int stage(int rank) const;
  // As in parallel_group.json; the order is that of first use in the marks.
  const std::vector<GroupInfo>& groups(int rank) const;
  std::vector<Label> labels() const;  // `effect` is filled once the run is over

  // Replays the next step. False: the job is over.
  bool Next();
  int step() const;        // of the last Next
  double step_ms() const;  // its true length
  // What happened between this Next and the one before: the job restarted (processes, ranks and groups are new).
  bool restarted() const;
  // The marks of the last step in the order of the file; views are valid until the next call. Empty for silent ranks.
  const std::vector<MarkRecord>& Marks(int rank);
  // True own time of the last step, for tests: what the rank computed, without waits and transfers.
  double OwnMs(int rank) const;

 private:
  Simulator() = default;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::simulate
