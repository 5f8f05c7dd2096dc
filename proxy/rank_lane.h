// The way of one rank's marks to its files: one thing at a time is under way, on a thread that may hang with the
// storage (FileThreads).
//
// While busy(), files, fold and the drains that were given to Start belong to that thread; else to the one that
// schedules. A lane lives as long as its work does, even when no caller waits for it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proxy/file_threads.h"
#include "proxy/profiling_dir.h"
#include "proxy/rank_files.h"
#include "proxy/rank_fold.h"
#include "proxy/segment_drain.h"

namespace taskd::proxy {

class RankLane : public std::enable_shared_from_this<RankLane> {
 public:
  RankLane(ProfilingDir dir, int rank)
      : dir_(dir),
        rank_(rank),
        files_(std::make_shared<RankFiles>(dir, rank)),
        fold_(std::make_shared<RankFold>(std::move(dir), rank)) {}

  struct Work {
    uint64_t now_ns = 0;
    struct Part {
      std::shared_ptr<SegmentDrain> drain;
      bool all;
      bool to_the_end;
    };
    std::vector<Part> parts;
    std::optional<std::string> info;  // for .rank.json
  };
  struct Result {
    absl::Status flushed;  // the first part's that failed
    std::optional<absl::Status> info;
  };

  const std::shared_ptr<RankFiles>& files() const { return files_; }
  const std::shared_ptr<RankFold>& fold() const { return fold_; }

  void Start(FileThreads& threads, Work work);
  bool busy() const { return busy_.load(std::memory_order_acquire); }
  uint64_t busy_since_ns() const { return busy_since_ns_; }  // CLOCK_MONOTONIC; while busy
  // Of the last work, once.
  std::optional<Result> TakeResult() { return std::exchange(result_, std::nullopt); }

 private:
  void Do(const Work& work);

  const ProfilingDir dir_;
  const int rank_;
  const std::shared_ptr<RankFiles> files_;
  const std::shared_ptr<RankFold> fold_;
  std::atomic<bool> busy_{false};
  uint64_t busy_since_ns_ = 0;
  std::optional<Result> result_;
};

}  // namespace taskd::proxy
