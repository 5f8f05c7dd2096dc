// Streams of folds, beside each other into the diagnosis, as they would come to a manager.
//
// Folds go to the engine in the order of their ends. The next one is only known once every rank has one, so ranks are
// read in rounds: first everybody who runs low, on all threads; then one thread hands folds over until a rank has none
// left. The engine's clock is the time in the folds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "diagnosis/engine.h"
#include "diagnosis/rank_place.h"
#include "readers/fold_stream.h"

namespace taskd::readers {

// Called for each step of each rank before it is judged, from the calling thread.
using StepSeen = std::function<void(int rank, const StepFold& fold)>;

class FoldMerge {
 public:
  // What is known of where each stream's rank runs, in the order of the streams. False: as last time.
  using Places = std::function<bool(std::vector<diagnosis::RankPlace>& places)>;

  // `buffer_bytes`: of each thread's buffer.
  FoldMerge(const std::vector<FoldStream*>& streams, int threads, size_t buffer_bytes, const StepSeen& on_step);

  // Hands all folds over. `after_round` is called now and then, from the calling thread.
  void Run(const Places& places, const std::function<void()>& after_round);

  diagnosis::Engine& engine() { return engine_; }

 private:
  void Refill(const std::vector<size_t>& low);
  void Enqueue(size_t i);
  void SendPlaces(const Places& places);
  void FeedEngine();
  void AdvanceEngine();

  const std::vector<FoldStream*>& streams_;
  const StepSeen& on_step_;
  std::vector<std::vector<char>> buffers_;  // one a thread
  std::vector<diagnosis::RankPlace> places_;
  std::vector<uint64_t> groups_sent_;  // FoldStream::groups_version of what the engine knows
  bool first_ = true;

  // Streams with a fold, by the end of their first one; and those whose next fold has to be read.
  using Head = std::pair<uint64_t, size_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  std::vector<size_t> waiting_;

  diagnosis::Engine engine_;
  uint64_t now_ns_ = 0;
  uint64_t added_ = 0;
  uint64_t advance_at_ = 0;

  // A rank whose files end. Files of a job in progress end at about the same time, but not at the same step: only whom
  // the others outlive by two steps and some time is gone.
  struct Ended {
    int rank;
    uint64_t time_ns;
    uint64_t gone_at;  // value of added_
  };
  std::vector<Ended> ended_;
};

}  // namespace taskd::readers
