#include "view/rank_groups.h"

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

void RankGroups::Set(int rank, const std::vector<GroupInfo>& groups) {
  std::lock_guard lock(mutex_);
  Forget(rank);
  for (const GroupInfo& group : groups) {
    std::string key = KeyOf(group);
    auto found = groups_.find(key);
    const size_t size = sizeof(Groups::pointer) + (found == groups_.end() ? SizeOf(key, group) : 0);
    if (bytes_ + size > max_bytes_) continue;
    if (found == groups_.end()) found = groups_.emplace(std::move(key), Shared{group}).first;
    ++found->second.users;
    bytes_ += size;
    ranks_[rank].push_back(&*found);
  }
}

std::vector<GroupInfo> RankGroups::Of(int rank) const {
  std::lock_guard lock(mutex_);
  std::vector<GroupInfo> groups;
  auto found = ranks_.find(rank);
  if (found == ranks_.end()) return groups;
  for (const Groups::pointer& group : found->second) groups.push_back(group->second.group);
  return groups;
}

size_t RankGroups::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

void RankGroups::Forget(int rank) {
  auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  for (Groups::pointer group : found->second) {
    bytes_ -= sizeof(Groups::pointer);
    if (--group->second.users > 0) continue;
    bytes_ -= SizeOf(group->first, group->second.group);
    groups_.erase(groups_.find(group->first));
  }
  ranks_.erase(found);
}

}  // namespace taskd::view
