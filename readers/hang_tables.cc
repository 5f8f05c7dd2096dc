#include "readers/hang_tables.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace taskd::readers {

using diagnosis::HangCall;
using diagnosis::HangFacts;
using diagnosis::HangGroup;
using diagnosis::HangOp;
using diagnosis::HangRank;

namespace {

constexpr std::string_view kGroupOfAll = "default_pg,";  // followed by a name, in PyTorch's description

}  // namespace

std::optional<uint32_t> HangTables::AddGroup(const std::string& name, const std::vector<int>& members) {
  std::pair<std::string, std::vector<int>> key(name, members);
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(key);
  if (found != groups_.end()) return found->second;
  const size_t size = members.size() + 64;  // with the name
  if (members_ + size > kMaxMembers) return std::nullopt;
  members_ += size;
  return groups_.emplace(std::move(key), static_cast<uint32_t>(groups_.size())).first->second;
}

std::optional<uint32_t> HangTables::AddCall(HangCall call) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(call);
  if (found != calls_.end()) return found->second;
  const size_t size = sizeof(HangCall) + call.name.size() + call.type.size() + call.amount.size() + call.sizes.size() +
                      call.frames.size();
  if (call_bytes_ + size > kMaxCallBytes) return std::nullopt;
  call_bytes_ += size;
  return calls_.emplace(std::move(call), static_cast<uint32_t>(calls_.size())).first->second;
}

HangFacts HangTables::Copy(std::map<int, HangRank> ranks) {
  HangFacts facts;
  facts.ranks = std::move(ranks);
  const std::lock_guard lock(mutex_);
  facts.groups.resize(groups_.size());
  for (const auto& [key, index] : groups_) facts.groups[index] = {.name = key.first, .members = key.second};
  facts.calls.resize(calls_.size());
  for (const auto& [call, index] : calls_) facts.calls[index] = call;
  return facts;
}

HangFacts HangTables::Take(std::map<int, HangRank> ranks) {
  HangFacts facts;
  facts.ranks = std::move(ranks);
  facts.groups.resize(groups_.size());
  for (const auto& [key, index] : groups_) facts.groups[index] = {.name = key.first, .members = key.second};
  groups_.clear();
  facts.calls.resize(calls_.size());
  while (!calls_.empty()) {
    auto call = calls_.extract(calls_.begin());
    facts.calls[call.mapped()] = std::move(call.key());
  }
  return ResolveGroups(std::move(facts));
}

HangFacts ResolveGroups(HangFacts facts) {
  std::map<std::string, std::vector<uint32_t>> with_members;
  for (size_t i = 0; i < facts.groups.size(); ++i) {
    if (!facts.groups[i].members.empty()) with_members[facts.groups[i].name].push_back(static_cast<uint32_t>(i));
  }
  std::map<uint32_t, std::set<int>> users;  // for groups whose members no dump lists
  // Returns the group itself if no better one is known.
  const auto resolve = [&](int rank, uint32_t group) {
    if (!facts.groups[group].members.empty()) return group;
    const auto alike = with_members.find(facts.groups[group].name);
    if (alike == with_members.end()) return group;
    const auto found = std::find_if(alike->second.begin(), alike->second.end(), [&](uint32_t index) {
      const std::vector<int>& members = facts.groups[index].members;
      return std::find(members.begin(), members.end(), rank) != members.end();
    });
    return found == alike->second.end() ? group : *found;
  };
  for (auto& [rank, known] : facts.ranks) {
    for (HangOp& op : known.ops) {
      op.group = resolve(rank, op.group);
      if (facts.groups[op.group].members.empty()) users[op.group].insert(rank);
    }
    std::map<uint32_t, uint64_t> called;
    for (const auto& [group, number] : known.called) called.emplace(resolve(rank, group), number);
    known.called = std::move(called);
  }
  for (auto& [group, of] : users) {
    if (facts.groups[group].name.starts_with(kGroupOfAll)) {
      for (const auto& [rank, known] : facts.ranks) of.insert(rank);
    }
    facts.groups[group].members.assign(of.begin(), of.end());
  }
  return facts;
}

}  // namespace taskd::readers
