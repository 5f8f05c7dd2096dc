// Keeps the profiling directory below its limit (TaskD contract §4.7 as the documentation has it): above it the oldest
// fifth of the mark files goes, by modification time; only files named by digits (ten at most) in a rank's folder,
// never one that is open, and no other user's files. What is swapped while it looks costs nothing outside of it.
//
// A rank may ask for less than the operator allows (init_taskd_worker). That limit is about the mark files of the ranks
// of this task that ask for as little or less, and costs no others: where all ranks of a job give the same, that is what
// the job has on the node; where one gives 1 MB, its own files go.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "proxy/file_threads.h"

namespace taskd::proxy {

struct AgingLimits {
  int64_t all_bytes = 0;              // the operator's, of the whole directory; <= 0: none
  std::string task;                   // the folder that the ranks below are in; empty: the directory is the job's own
  std::map<int, int64_t> rank_bytes;  // by rank, of those that ask for one
};

struct AgingResult {
  int64_t bytes = 0;         // in the directory afterwards
  int removed = 0;           // files
  int removed_of_ranks = 0;  // of them, for the limit of their own rank
  bool over = false;         // still above the operator's limit: the rest is open, or not ours
};

// Looks once and removes as often as needed to be under the limits. Without any nothing is looked at. Blocks on the file
// system, which may be slow; gives up soon after `stop` is set, having removed nothing that it should not.
AgingResult AgeProfilingDir(const std::string& path, const AgingLimits& limits, const std::atomic<bool>& stop);

// Ages a directory now and then, on a thread that is left behind if the file system hangs. Used by one thread.
class PeriodicAging {
 public:
  explicit PeriodicAging(std::string path) : path_(std::move(path)) {}
  ~PeriodicAging() { state_->stop = true; }
  PeriodicAging(const PeriodicAging&) = delete;
  PeriodicAging& operator=(const PeriodicAging&) = delete;

  // To be called about once a second: looks every ten, and logs what it did.
  void Tick(uint64_t now_monotonic_ns, AgingLimits limits);

 private:
  struct State {
    std::atomic<bool> stop{false};
    std::atomic<bool> busy{false};
    std::optional<AgingResult> result;  // while not busy
  };

  const std::string path_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  uint64_t next_ns_ = 0;
  int64_t limit_mb_ = 0;  // the operator's, of the result
  bool over_said_ = false;
  FileThreads threads_;
};

}  // namespace taskd::proxy
