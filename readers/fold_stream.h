// The folds of one rank, whatever file they are read from.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "marks/step_fold.h"

namespace taskd::readers {

// In the order of their ends. Each stream is used by one thread at a time.
class FoldStream {
 public:
  explicit FoldStream(int rank) : rank_(rank) {}
  virtual ~FoldStream() = default;
  FoldStream(const FoldStream&) = delete;
  FoldStream& operator=(const FoldStream&) = delete;

  // Reads on until two folds are there (so that one is left when the others of its step are handed over), or the end.
  // `buffer` is the thread's, and holds nothing between two calls.
  virtual void Refill(std::vector<char>& buffer) = 0;
  virtual bool runs_low() const = 0;  // false once it has ended
  virtual bool ended() const = 0;     // no more folds come than are there
  // Groups by index (OpFold::group), and what changes with them.
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
