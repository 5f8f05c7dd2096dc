#include "diagnosis/members.h"

#include <algorithm>
#include <utility>

namespace taskd::diagnosis {

Members::Members(std::vector<MemberRun> runs) : runs_(std::move(runs)) {
  runs_.shrink_to_fit();
  if (runs_.size() > 1) begins_.reserve(runs_.size());
  for (const MemberRun& run : runs_) {
    if (runs_.size() > 1) begins_.push_back(size_);
    size_ += run.count;
  }
}

bool Members::IsUsable(const std::vector<MemberRun>& runs) {
  int64_t size = 0;
  for (const MemberRun& run : runs) {
    const int64_t last = run.first + (int64_t{run.count} - 1) * run.stride;
    size += run.count;
    if (run.count < 1 || size > kMaxRanks || (run.count > 1 && run.stride == 0)) return false;
    if (run.first < 0 || run.first >= kMaxRanks || last < 0 || last >= kMaxRanks) return false;
  }
  return true;
}

int Members::At(int index) const {
  if (index < 0 || index >= size_) return -1;
  size_t run = 0;
  if (!begins_.empty()) {
    run = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin()) - 1;
    index -= begins_[run];
  }
  return runs_[run].first + index * runs_[run].stride;
}

bool Members::Contains(int rank) const {
  return std::any_of(runs_.begin(), runs_.end(), [rank](const MemberRun& run) {
    const int from_first = rank - run.first;
    if (from_first == 0) return run.count > 0;
    return run.stride != 0 && from_first % run.stride == 0 && from_first / run.stride > 0 &&
           from_first / run.stride < run.count;
  });
}

bool Members::AreNeighbours() const {
  int next = -1;
  for (const MemberRun& run : runs_) {
    if (next >= 0 && run.first != next) return false;
    if (run.count > 1 && run.stride != 1) return false;
    next = run.first + run.count;
  }
  return true;
}

}  // namespace taskd::diagnosis
