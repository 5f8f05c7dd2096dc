// A source of the step summaries of one rank, independent of the file format.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "marks/step_fold.h"

namespace taskd::readers {

// Delivers step summaries in the order of their ends. At most one thread at a time may use a stream.
class FoldStream {
 public:
  explicit FoldStream(int rank) : rank_(rank) {}
  virtual ~FoldStream() = default;
  FoldStream(const FoldStream&) = delete;
  FoldStream& operator=(const FoldStream&) = delete;

  // Reads until two step summaries are available or the stream has ended. Two, so that one is left after all ranks'
  // summaries of one step are handed over. `buffer` belongs to the thread; its content is lost between two calls.
  virtual void Refill(std::vector<char>& buffer) = 0;
  virtual bool runs_low() const = 0;  // false once it has ended
  virtual bool ended() const = 0;     // no summaries follow those in folds()
  // Groups by index (OpFold::group), and a version that grows when they change.
  virtual const std::vector<GroupInfo>& groups() const = 0;
  virtual uint64_t groups_version() const = 0;

  int rank() const { return rank_; }
  std::deque<StepFold>& folds() { return folds_; }

 protected:
  std::deque<StepFold> folds_;

 private:
  const int rank_;
};

}  // namespace taskd::readers
