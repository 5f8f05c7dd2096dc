#include "diagnosis/layout.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "diagnosis/union_find.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kMaxPeersOfRank = 64;

}  // namespace

void Layout::MarkDirty() {
  dirty_ = true;
  ++version_;
  ++changes_;
}

Layout::Rank& Layout::Touch(int rank) {
  if (rank >= size()) ranks_.resize(static_cast<size_t>(rank) + 1);
  Rank& touched = ranks_[static_cast<size_t>(rank)];
  if (!touched.known) {
    touched.known = true;
    ++known_ranks_;
    MarkDirty();
  }
  return touched;
}

void Layout::SetPlace(int rank, const RankPlace& place) {
  Rank& touched = Touch(rank);
  if (touched.place == place) return;
  touched.place = place;
  MarkDirty();
}

std::string Layout::KeyOf(const std::string& name, const std::vector<MemberRun>& members) {
  std::string key = name;
  for (const MemberRun& run : members) {
    key.push_back('\0');
    key.append(reinterpret_cast<const char*>(&run), sizeof(run));
  }
  return key;
}

int Layout::Intern(int node, const std::string& name, const std::vector<MemberRun>& members) {
  std::string key = KeyOf(name, members);
  if (auto found = group_ids_.find(key); found != group_ids_.end()) {
    budget_.Share(node, &At(found->second).charge);
    return found->second;
  }
  Group group;
  group.name = name;
  group.declared = !members.empty();
  group.members = Members(members);
  const GroupBudget::Cost cost = GroupBudget::CostOf({name, "", members}, static_cast<size_t>(group.members.size()));
  if (!budget_.Take(node, cost, &group.charge)) return -1;
  int id = static_cast<int>(groups_.size());
  if (free_.empty()) {
    groups_.push_back(std::move(group));
  } else {
    id = free_.back();
    free_.pop_back();
    At(id) = std::move(group);
  }
  group_ids_.emplace(std::move(key), id);
  return id;
}

// What is left of a group that is gone: nothing but its number, and what it became.
void Layout::Bury(int id) {
  Group& group = At(id);
  group_ids_.erase(KeyOf(group.name, group.declared ? group.members.runs() : std::vector<MemberRun>()));
  budget_.Release(group.charge);
  const int became = group.became;
  group = Group();
  group.became = became;
  buried_.push_back(id);
}

void Layout::Refer(Rank& rank, size_t index, int id) {
  const int before = rank.groups[index];
  if (id >= 0) {
    ++At(id).users;
    if (At(id).declared) rank.members += static_cast<size_t>(At(id).members.size());
  }
  rank.groups[index] = id;
  if (before < 0) return;
  if (At(before).declared) rank.members -= static_cast<size_t>(At(before).members.size());
  // An inferred one that had members may have become another: Rebuild looks.
  if (--At(before).users == 0 && (At(before).declared || At(before).members.empty())) Bury(before);
}

bool Layout::SetGroup(int rank, uint32_t index, const GroupInfo& info) {
  if (index >= kMaxGroupsOfRank) return false;
  Rank& touched = Touch(rank);
  if (index >= touched.groups.size()) touched.groups.resize(index + 1, -1);
  const int before = touched.groups[index];
  size_t members = 0;
  bool usable = Members::IsUsable(info.members);
  if (usable) {
    members = touched.members;
    if (before >= 0 && At(before).declared) members -= static_cast<size_t>(At(before).members.size());
    for (const MemberRun& run : info.members) members += static_cast<size_t>(run.count);
    usable = members <= kMaxMembersOfRank;
  }
  int id = usable ? Intern(touched.place.node, info.name, info.members) : -1;
  usable = id >= 0;
  if (!usable && !info.members.empty()) id = Intern(touched.place.node, info.name, {});
  const bool news = touched.groups[index] != id || touched.unused->test(index) == usable;
  if (!usable || touched.unused.begun()) touched.unused.Begin().set(index, !usable);
  if (touched.groups[index] != id) Refer(touched, index, id);
  if (id >= 0 && At(id).label.empty() && budget_.Grow(&At(id).charge, info.label.size())) {
    At(id).label = info.label;
    At(id).labelled_blocking = IsBlocking(CommOp::kAllReduce, info);
    if (!info.label.empty()) MarkDirty();
  }
  if (news) MarkDirty();
  return usable;
}

void Layout::DropGroups(int rank, uint32_t first) {
  if (!known(rank)) return;
  Rank& touched = ranks_[static_cast<size_t>(rank)];
  if (first >= touched.groups.size()) return;
  for (size_t index = first; index < touched.groups.size(); ++index) {
    Refer(touched, index, -1);
    if (touched.unused.begun()) touched.unused.Begin().reset(index);
  }
  touched.groups.resize(first);
  if (first == 0) touched.groups.shrink_to_fit();
  MarkDirty();
}

int Layout::MemberOf(int group, int peer) const {
  if (group < 0 || peer < 0) return -1;
  return groups_[static_cast<size_t>(group)].members.At(peer);
}

// Of what Learn looks at.
uint64_t Layout::Digest(const StepFold& fold) {
  uint64_t digest = fold.ops.size();
  for (const OpFold& op : fold.ops) {
    const uint64_t what = static_cast<uint64_t>(op.group) << 40 ^ static_cast<uint64_t>(op.op) << 32 ^
                          static_cast<uint64_t>(static_cast<uint32_t>(op.peer));
    digest = (digest ^ what) * 0x9E3779B97F4A7C15u;
    digest ^= digest >> 29;
  }
  return digest;
}

void Layout::Learn(int rank, const StepFold& fold) {
  Rank& touched = Touch(rank);
  // A rank does the same in most steps.
  const uint64_t digest = Digest(fold);
  if (touched.learned_at == changes_ && touched.learned == digest) return;
  const uint64_t before = changes_;
  for (const OpFold& op : fold.ops) {
    const int group = GroupOf(rank, op.group);
    if (group < 0) continue;
    if (!IsPointToPoint(op.op)) {
      Group& info = groups_[static_cast<size_t>(group)];
      if (!info.collective) MarkDirty();
      info.collective = true;
      continue;
    }
    if (op.peer < 0) continue;
    int peer = MemberOf(group, op.peer);
    if (peer < 0 || peer == rank || touched.peers.size() >= kMaxPeersOfRank) continue;
    std::pair<int, int> entry(peer, group);
    if (std::find(touched.peers.begin(), touched.peers.end(), entry) != touched.peers.end()) continue;
    touched.peers.push_back(entry);
    MarkDirty();
  }
  touched.learned = digest;
  touched.learned_at = before;
}

void Layout::Rebuild() {
  dirty_ = false;
  ++changes_;
  free_.insert(free_.end(), buried_.begin(), buried_.end());
  for (int id : buried_) At(id).became = -1;
  buried_.clear();
  FindMembers();
  FindStages();
  FindPeers();
  FindBlocking();
  FindCells();
}

// A group whose members were not declared: those who use the name. If another rank declared a group of this name with
// this rank in it, it is that one.
void Layout::FindMembers() {
  const std::map<int, std::vector<int>> candidates = DeclaredByInferred();
  JoinDeclared(candidates);
  std::map<int, std::vector<int>> users;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (int id : ranks_[r].groups) {
      if (id >= 0 && !At(id).declared) users[id].push_back(static_cast<int>(r));
    }
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const int id = static_cast<int>(i);
    Group& group = groups_[i];
    if (group.declared || group.charge.cost.bytes == 0) continue;
    const std::vector<int> before = group.members.Expand();
    const auto now = users.find(id);
    group.members = Members(now == users.end() ? std::vector<MemberRun>() : CompressMembers(now->second));
    if (!group.members.empty()) {
      group.became = -1;
    } else if (const auto declared = candidates.find(id); declared != candidates.end() && !before.empty()) {
      FindBecome(id, before, declared->second);
    }
    if (group.users == 0) Bury(id);
  }
  CountNodes();
}

// Of each inferred group the declared ones of its name.
std::map<int, std::vector<int>> Layout::DeclaredByInferred() const {
  std::map<int, std::vector<int>> candidates;
  if (std::all_of(groups_.begin(), groups_.end(),
                  [](const Group& group) { return group.declared || group.charge.cost.bytes == 0; })) {
    return candidates;
  }
  for (size_t id = 0; id < groups_.size(); ++id) {
    if (!groups_[id].declared) continue;
    const auto inferred = group_ids_.find(KeyOf(groups_[id].name, {}));
    if (inferred != group_ids_.end()) candidates[inferred->second].push_back(static_cast<int>(id));
  }
  return candidates;
}

void Layout::JoinDeclared(const std::map<int, std::vector<int>>& candidates) {
  struct User {
    int rank;
    size_t index;
    int group;  // that it turns out to be in
  };
  std::map<int, std::vector<User>> users;  // of inferred groups, in the order of ranks
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (size_t index = 0; index < ranks_[r].groups.size(); ++index) {
      const int id = ranks_[r].groups[index];
      if (candidates.count(id) > 0) users[id].push_back({static_cast<int>(r), index, -1});
    }
  }
  std::vector<int> first_of(ranks_.size(), -1);  // place of a rank among the users of a group
  for (auto& [inferred, inferred_users] : users) {
    std::vector<User>& of_group = inferred_users;  // Clang 14 captures no structured binding
    for (size_t i = of_group.size(); i-- > 0;) first_of[static_cast<size_t>(of_group[i].rank)] = static_cast<int>(i);
    for (int candidate : candidates.at(inferred)) {
      At(candidate).members.ForEach([&](int member) {
        if (member >= size() || first_of[static_cast<size_t>(member)] < 0) return;
        for (auto i = static_cast<size_t>(first_of[static_cast<size_t>(member)]);
             i < of_group.size() && of_group[i].rank == member; ++i) {
          of_group[i].group = candidate;
        }
      });
    }
    for (const User& user : of_group) {
      first_of[static_cast<size_t>(user.rank)] = -1;
      if (user.group < 0) continue;
      Rank& rank = ranks_[static_cast<size_t>(user.rank)];
      budget_.Share(rank.place.node, &At(user.group).charge);
      Refer(rank, user.index, user.group);
    }
  }
}

void Layout::FindBecome(int id, const std::vector<int>& before, const std::vector<int>& candidates) {
  for (int candidate : candidates) {
    if (static_cast<size_t>(At(candidate).members.size()) != before.size()) continue;
    std::vector<int> members = At(candidate).members.Expand();
    std::sort(members.begin(), members.end());
    if (members == before) At(id).became = candidate;
  }
}

void Layout::CountNodes() {
  std::map<int, size_t> places;  // of nodes, from 0
  std::vector<int> place_of(ranks_.size(), -1);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].known && ranks_[r].place.node >= 0) {
      place_of[r] = static_cast<int>(places.emplace(ranks_[r].place.node, places.size()).first->second);
    }
  }
  std::vector<size_t> last_group(places.size(), groups_.size());  // that the node was counted for
  for (size_t id = 0; id < groups_.size(); ++id) {
    int nodes = 0;
    bool unknown = false;
    groups_[id].members.ForEach([&](int member) {
      const int place = member < size() ? place_of[static_cast<size_t>(member)] : -1;
      if (place < 0) {
        unknown = true;
      } else if (last_group[static_cast<size_t>(place)] != id) {
        last_group[static_cast<size_t>(place)] = id;
        ++nodes;
      }
    });
    groups_[id].nodes = unknown ? 0 : nodes;
  }
}

std::vector<int> Layout::Unheard() const {
  std::vector<bool> seen(static_cast<size_t>(kMaxRanks));
  for (const Group& group : groups_) {
    if (!group.declared) continue;
    group.members.ForEach([&](int member) { seen[static_cast<size_t>(member)] = true; });
  }
  std::vector<int> unheard;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (seen[static_cast<size_t>(rank)] && !known(rank)) unheard.push_back(rank);
  }
  return unheard;
}

int Layout::DeclaredWorldSize() const {
  int size = 0;
  for (const Group& group : groups_) {
    const bool is_world = group.declared && (group.label == "default_group" || group.label == "hccl_world_group");
    const bool is_common = is_world && 2 * group.users > static_cast<size_t>(known_ranks_);
    if (is_common && group.members.AreNeighbours() && group.members.At(0) == 0) {
      size = std::max(size, group.members.size());
    }
  }
  return size;
}

std::vector<int> Layout::RanksThatName(int rank) const {
  std::vector<bool> names(groups_.size());
  for (size_t id = 0; id < groups_.size(); ++id) {
    if (!groups_[id].declared) continue;
    groups_[id].members.ForEach([&](int member) { names[id] = names[id] || member >= rank; });
  }
  std::vector<int> ranks;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::vector<int>& groups = ranks_[r].groups;
    const bool does =
        std::any_of(groups.begin(), groups.end(), [&](int id) { return id >= 0 && names[static_cast<size_t>(id)]; });
    if (does) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

std::vector<int> Layout::RanksWithUnusedGroups() const {
  std::vector<int> ranks;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].unused->any()) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

// Stages: positions in the chain of ranks that send to each other. Without marks of communication parallel_group.json
// still tells.
void Layout::FindStages() {
  UnionFind chains(ranks_.size());
  bool point_to_point = false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (auto [peer, group] : ranks_[r].peers) {
      point_to_point = true;
      if (known(peer)) chains.Join(static_cast<int>(r), peer);
    }
  }
  std::map<int, std::vector<int>> ranks_of_chain;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].known) ranks_of_chain[chains.Find(static_cast<int>(r))].push_back(static_cast<int>(r));
  }
  stages_ = 1;
  chains_.clear();
  auto number = [this](const std::vector<int>& ranks) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (known(ranks[i])) ranks_[static_cast<size_t>(ranks[i])].stage = static_cast<int>(i);
    }
    stages_ = std::max(stages_, static_cast<int>(ranks.size()));
  };
  for (auto& [first, ranks] : ranks_of_chain) {
    number(ranks);
    chains_.push_back(std::move(ranks));
  }
  if (!point_to_point) {
    for (const Group& group : groups_) {
      if (group.label == "pp" || group.label == "pipeline") number(group.members.Expand());
    }
  }
}

// Peers are the ranks of one stage.
void Layout::FindPeers() {
  classes_.clear();
  nodes_.clear();
  std::map<int, std::vector<int>> ranks_of_stage;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].known) continue;
    ranks_of_stage[ranks_[r].stage].push_back(static_cast<int>(r));
    if (ranks_[r].place.node >= 0) nodes_[ranks_[r].place.node].push_back(static_cast<int>(r));
  }
  for (auto& [stage, ranks] : ranks_of_stage) {
    for (int rank : ranks) ranks_[static_cast<size_t>(rank)].peer_class = static_cast<int>(classes_.size());
    classes_.push_back(std::move(ranks));
  }
}

// By label. In a job without any label: neighbours that reduce together while others reduce across them are a
// tensor-parallel group, as every launcher places them.
void Layout::FindBlocking() {
  bool any_label = false;
  bool across = false;
  size_t known_ranks = 0;
  for (const Rank& rank : ranks_) known_ranks += rank.known ? 1 : 0;
  for (Group& group : groups_) {
    group.blocking = group.labelled_blocking;
    any_label = any_label || !group.label.empty();
    across = across || (group.collective && !group.members.AreNeighbours());
  }
  if (any_label || !across) return;
  for (Group& group : groups_) {
    group.blocking = group.collective && group.members.size() >= 2 &&
                     static_cast<size_t>(group.members.size()) < known_ranks && group.members.AreNeighbours();
  }
}

// Cells: ranks of one stage that blocking groups tie together. Pipelines: cells that are tied by chains.
void Layout::FindCells() {
  UnionFind cells(ranks_.size());
  UnionFind pipes(ranks_.size());
  for (const Group& group : groups_) {
    if (!group.blocking) continue;
    int first = -1;
    group.members.ForEach([&](int member) {
      if (!known(member)) return;
      if (first >= 0) {
        if (rank(first).stage == rank(member).stage) cells.Join(first, member);
        pipes.Join(first, member);
      }
      first = member;
    });
  }
  for (const std::vector<int>& chain : chains_) {
    for (int member : chain) pipes.Join(chain.front(), member);
  }
  pipelines_.clear();
  std::map<int, int> ids;                                 // of pipelines, by root
  std::map<std::pair<int, int>, std::vector<int>> ranks;  // by pipeline and root of the cell
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ranks_[r].known) continue;
    auto [found, added] = ids.emplace(pipes.Find(static_cast<int>(r)), static_cast<int>(ids.size()));
    ranks[{found->second, cells.Find(static_cast<int>(r))}].push_back(static_cast<int>(r));
  }
  pipelines_.resize(ids.size());
  for (auto& [key, members] : ranks) pipelines_[static_cast<size_t>(key.first)].cells.push_back(std::move(members));
}

}  // namespace taskd::diagnosis
