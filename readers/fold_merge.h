// Merges the step summaries of several ranks and feeds them to the diagnosis as a manager would.
//
// The engine gets summaries in the order of their ends. The next one is only known if every rank has one. So ranks are
// read in rounds: all threads first refill the ranks that run low, then one thread feeds summaries to the engine until
// a rank has none left. The engine's clock is the time in the summaries.
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

// Called on the calling thread for each step of each rank before it is judged.
using StepSeen = std::function<void(int rank, const StepFold& fold)>;

class FoldMerge {
 public:
  // Fills in the known place of each stream's rank, in the order of the streams. Returns false if nothing has changed.
  using Places = std::function<bool(std::vector<diagnosis::RankPlace>& places)>;

  // `buffer_bytes`: size of each thread's buffer.
  FoldMerge(const std::vector<FoldStream*>& streams, int threads, size_t buffer_bytes, const StepSeen& on_step);

  // Feeds all summaries to the engine. `after_round` is called from time to time on the calling thread.
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
  std::vector<std::vector<char>> buffers_;  // one per thread
  std::vector<diagnosis::RankPlace> places_;
  std::vector<uint64_t> groups_sent_;  // FoldStream::groups_version that the engine has
  bool first_ = true;

  // Streams with a summary, by the end of the first one, and streams that have to read their next one.
  using Head = std::pair<uint64_t, size_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  std::vector<size_t> waiting_;

  diagnosis::Engine engine_;
  uint64_t now_ns_ = 0;
  uint64_t added_ = 0;
  uint64_t advance_at_ = 0;

  // A rank whose files have ended. Files of a running job end at about the same time, but not at the same step. So a
  // rank counts as gone only after two more steps of the others and some time.
  struct Ended {
    int rank;
    uint64_t time_ns;
    uint64_t gone_at;  // value of added_ at which the rank may count as gone
  };
  std::vector<Ended> ended_;
};

}  // namespace taskd::readers
