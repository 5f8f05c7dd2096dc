#include "marks/fold_groups.h"

#include <utility>

namespace taskd {

GroupInfo FoldGroups::Fit(GroupInfo info, size_t before) {
  member_bytes_ -= before * sizeof(MemberRun);
  if (member_bytes_ + info.members.size() * sizeof(MemberRun) > kMaxMemberBytes) info.members = {};
  member_bytes_ += info.members.size() * sizeof(MemberRun);
  return info;
}

void FoldGroups::Announce(const std::vector<GroupInfo>& groups) {
  for (const GroupInfo& group : groups) {
    auto known = index_.find(group.name);
    if (known == index_.end()) {
      if (announced_.size() >= kMaxGroups && !announced_.contains(group.name)) continue;
      GroupInfo& info = announced_[group.name];
      info = Fit(group, info.members.size());
      continue;
    }
    GroupInfo& info = groups_[known->second];
    if (info == group) continue;
    GroupInfo fitted = Fit(group, info.members.size());
    if (info == fitted) continue;
    info = std::move(fitted);
    states_[known->second].blocking = IsBlocking(CommOp::kOther, info);
    ++version_;
  }
}

std::optional<uint32_t> FoldGroups::Find(std::string_view name) {
  if (auto known = index_.find(name); known != index_.end()) return last_ = known->second;
  if (groups_.size() >= kMaxGroups) return std::nullopt;
  last_ = static_cast<uint32_t>(groups_.size());
  GroupInfo info;
  info.name = name;
  if (auto announced = announced_.find(name); announced != announced_.end()) {
    info = std::move(announced->second);
    announced_.erase(announced);
  }
  states_.emplace_back().blocking = IsBlocking(CommOp::kOther, info);
  index_.emplace(info.name, last_);
  groups_.push_back(std::move(info));
  ++version_;
  return last_;
}

void FoldGroups::ForgetDevice() {
  for (State& state : states_) state.on_device = false;
}

bool FoldGroups::HasOneMember(uint32_t group) const {
  int64_t members = 0;
  for (const MemberRun& run : groups_[group].members) members += run.count;
  return members == 1;
}

}  // namespace taskd
