// A message of folds, serialized once and sent again and again: of each fold only the step, the end and the number are
// others each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "taskd/v1/fold.pb.h"

namespace taskd::simulate {

class FoldsAgain {
 public:
  // Of `folds` only the steps, of which there is one at least.
  explicit FoldsAgain(v1::FoldSet folds);

  // All steps from now on are that much later.
  void MoveOn(int64_t steps, uint64_t ns);
  // A serialized v1::NodeMessage, until the next call; its folds have the numbers from `first` on.
  const std::string& Message(uint64_t first);

  size_t size() const { return folds_.size(); }
  // Of the first fold.
  int64_t step() const { return folds_.front().step; }
  uint64_t end_ns() const { return folds_.front().end_ns; }
  uint64_t period_ns() const { return period_ns_; }

 private:
  struct Fold {
    size_t at;  // in message_, of the fields that change
    int64_t step;
    uint64_t end_ns;
  };

  std::string message_;
  std::vector<Fold> folds_;
  uint64_t period_ns_ = 0;
};

}  // namespace taskd::simulate
