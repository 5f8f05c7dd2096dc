// The folds of a simulated job, step by step, as the diagnosis gets them: made once, played as often as the diagnosis
// changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/simulate/job.h"
#include "marks/step_fold.h"

namespace taskd::evaluation {

struct TapeStep {
  struct Place {
    int node = 0, local_rank = 0;
  };
  struct Group {
    int rank = 0;
    uint32_t index = 0;
    GroupInfo info;
  };

  int step = 0;        // of the job
  double step_ms = 0;  // its true length; 0: no step, only what was left to fold of a life
  bool ends_life = false;
  std::vector<Place> places;                    // by rank; only where a life begins
  std::vector<Group> groups;                    // new ones and changed ones
  std::vector<std::pair<int, StepFold>> folds;  // by rank
  std::vector<double> own_ms;                   // true ones by rank, as asked for
};

struct TapeEnd {
  std::vector<simulate::Label> labels;
  double simulate_s = 0, fold_s = 0;  // CPU time of making it
};

// Simulates a job and folds its marks. INVALID_ARGUMENT as the simulator.
absl::StatusOr<TapeEnd> Record(const simulate::Job& job, bool own_times, const std::function<void(TapeStep&)>& play);

// The same from a file that an earlier call wrote, or by recording and writing it: for work on the diagnosis alone.
// Nobody notices that the simulator or the fold has changed since: then the file must be removed.
absl::StatusOr<TapeEnd> RecordOrRead(const std::string& path, const simulate::Job& job,
                                     const std::function<void(TapeStep&)>& play);

}  // namespace taskd::evaluation
