// The process groups of each rank, for people: name, what it is for, and who is in it.
//
// Ranks share what is the same, so a large job's groups are some MiB. At most kMaxBytes, of which the ranks of one node
// have a quarter for what they alone have: what is beyond is not kept. Safe from any thread.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "diagnosis/group_budget.h"
#include "marks/step_fold.h"

namespace taskd::view {

class RankGroups {
 public:
  static constexpr size_t kMaxBytes = size_t{16} << 20;

  explicit RankGroups(size_t max_bytes = kMaxBytes)
      : max_bytes_(max_bytes), budget_({.node = {0, max_bytes / 4}, .all = {0, max_bytes}}) {}
  RankGroups(const RankGroups&) = delete;
  RankGroups& operator=(const RankGroups&) = delete;

  // Those that a rank of the node has now, instead of those before. `rank`: from 0, and below diagnosis::kMaxRanks.
  void Set(int node, int rank, const std::vector<GroupInfo>& groups);
  // Empty: none, or nobody knows.
  std::vector<GroupInfo> Of(int rank) const;
  size_t bytes() const;

 private:
  struct Shared {
    GroupInfo group;
    size_t users = 0;
    diagnosis::GroupBudget::Charge charge;
  };
  using Groups = std::unordered_map<std::string, Shared>;  // by all that a group is

  size_t BytesLocked() const { return budget_.used().bytes + pointer_bytes_; }
  void Forget(int rank);

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  Groups groups_;
  std::vector<std::vector<Groups::pointer>> ranks_;  // as long as the highest one that has any
  diagnosis::GroupBudget budget_;
  size_t pointer_bytes_ = 0;
};

}  // namespace taskd::view
