#include "view/rank_groups.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::view {
namespace {

std::string KeyOf(const GroupInfo& group) {
  // The lengths keep apart what might run together.
  std::string key = absl::StrCat(group.name.size(), " ", group.label.size(), " ", group.name, group.label);
  for (const MemberRun& run : group.members) absl::StrAppend(&key, " ", run.first, " ", run.stride, " ", run.count);
  return key;
}

// Of a group, key and bookkeeping included, roughly.
size_t SizeOf(const std::string& key, const GroupInfo& group) {
  constexpr size_t kNode = 160;
  return kNode + key.size() + group.name.size() + group.label.size() + group.members.size() * sizeof(MemberRun);
}

}  // namespace

void RankGroups::Set(int node, int rank, const std::vector<GroupInfo>& groups) {
  std::lock_guard lock(mutex_);
  Forget(rank);
  std::vector<Groups::pointer> of_rank;
  of_rank.reserve(groups.size());
  for (const GroupInfo& group : groups) {
    std::string key = KeyOf(group);
    auto found = groups_.find(key);
    const size_t size = found == groups_.end() ? SizeOf(key, group) : 0;
    if (BytesLocked() + size + sizeof(Groups::pointer) > max_bytes_) continue;
    if (found == groups_.end()) {
      Shared shared;
      if (!budget_.Take(node, {0, size}, &shared.charge)) continue;
      shared.group = group;
      found = groups_.emplace(std::move(key), std::move(shared)).first;
    } else {
      budget_.Share(node, &found->second.charge);
    }
    ++found->second.users;
    pointer_bytes_ += sizeof(Groups::pointer);
    of_rank.push_back(&*found);
  }
  if (of_rank.empty()) return;
  const auto index = static_cast<size_t>(rank);
  if (ranks_.size() <= index) ranks_.resize(index + 1);
  ranks_[index] = std::move(of_rank);
}

std::vector<GroupInfo> RankGroups::Of(int rank) const {
  std::lock_guard lock(mutex_);
  std::vector<GroupInfo> groups;
  if (rank < 0 || ranks_.size() <= static_cast<size_t>(rank)) return groups;
  for (const Groups::pointer& group : ranks_[static_cast<size_t>(rank)]) groups.push_back(group->second.group);
  return groups;
}

size_t RankGroups::bytes() const {
  std::lock_guard lock(mutex_);
  return BytesLocked();
}

void RankGroups::Forget(int rank) {
  if (ranks_.size() <= static_cast<size_t>(rank)) return;
  for (Groups::pointer group : std::exchange(ranks_[static_cast<size_t>(rank)], {})) {
    pointer_bytes_ -= sizeof(Groups::pointer);
    if (--group->second.users > 0) continue;
    budget_.Release(group->second.charge);
    groups_.erase(groups_.find(group->first));
  }
}

}  // namespace taskd::view
