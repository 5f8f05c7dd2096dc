#include "diagnosis/layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

namespace taskd::diagnosis {
namespace {

constexpr size_t kMaxGroupsOfRank = 256;
constexpr size_t kMaxPeersOfRank = 64;

class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  int Find(int i) {
    while (parent_[static_cast<size_t>(i)] != i) {
      int& parent = parent_[static_cast<size_t>(i)];
      parent = parent_[static_cast<size_t>(parent)];
      i = parent;
    }
    return i;
  }
  // The smaller one stays, so that results do not depend on the order.
  void Join(int a, int b) {
    a = Find(a);
    b = Find(b);
    parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

}  // namespace

Layout::Rank& Layout::Touch(int rank) {
  if (rank >= size()) ranks_.resize(static_cast<size_t>(rank) + 1);
  Rank& touched = ranks_[static_cast<size_t>(rank)];
  if (!touched.known) {
    touched.known = true;
    dirty_ = true;
  }
  return touched;
}

void Layout::SetPlace(int rank, const RankPlace& place) {
  Rank& touched = Touch(rank);
  if (touched.place == place) return;
  touched.place = place;
  dirty_ = true;
}

int Layout::Intern(const std::string& name, const std::vector<MemberRun>& members) {
  std::string key = name;
  for (const MemberRun& run : members) {
    key.push_back('\0');
    key.append(reinterpret_cast<const char*>(&run), sizeof(run));
  }
  auto [found, added] = group_ids_.emplace(key, static_cast<int>(groups_.size()));
  if (added) {
    groups_.emplace_back();
    Group& group = groups_.back();
    group.name = name;
    group.declared = !members.empty();
    group.members = ExpandMembers(members, kMaxRanks);
  }
  return found->second;
}

void Layout::SetGroup(int rank, uint32_t index, const GroupInfo& info) {
  if (index >= kMaxGroupsOfRank) return;
  Rank& touched = Touch(rank);
  int id = Intern(info.name, info.members);
  if (index >= touched.groups.size()) touched.groups.resize(index + 1, -1);
  Group& group = groups_[static_cast<size_t>(id)];
  if (touched.groups[index] == id && group.label == info.label) return;
  touched.groups[index] = id;
  if (group.label.empty() && !info.label.empty()) {
    group.label = info.label;
    group.labelled_blocking = IsBlocking(CommOp::kAllReduce, info);
  }
  dirty_ = true;
}

int Layout::GroupOf(int rank, uint32_t index) const {
  const Rank& known = ranks_[static_cast<size_t>(rank)];
  return index < known.groups.size() ? known.groups[index] : -1;
}

int Layout::MemberOf(int group, int peer) const {
  if (group < 0 || peer < 0) return -1;
  const std::vector<int>& members = groups_[static_cast<size_t>(group)].members;
  return static_cast<size_t>(peer) < members.size() ? members[static_cast<size_t>(peer)] : -1;
}

void Layout::Learn(int rank, const StepFold& fold) {
  Rank& touched = Touch(rank);
  for (const OpFold& op : fold.ops) {
    const int group = GroupOf(rank, op.group);
    if (group < 0) continue;
    if (!IsPointToPoint(op.op)) {
      Group& info = groups_[static_cast<size_t>(group)];
      dirty_ = dirty_ || !info.collective;
      info.collective = true;
      continue;
    }
    if (op.peer < 0) continue;
    int peer = MemberOf(group, op.peer);
    if (peer < 0 || peer == rank || touched.peers.size() >= kMaxPeersOfRank) continue;
    std::pair<int, int> entry(peer, group);
    if (std::find(touched.peers.begin(), touched.peers.end(), entry) != touched.peers.end()) continue;
    touched.peers.push_back(entry);
    dirty_ = true;
  }
}

void Layout::Rebuild() {
  dirty_ = false;
  FindMembers();
  FindStages();
  FindPeers();
  FindBlocking();
  FindCells();
}

// A group whose members were not declared: those who use the name. If another rank declared a group of this name with
// this rank in it, it is that one.
void Layout::FindMembers() {
  std::map<std::string, std::vector<int>> declared;
  std::map<int, std::vector<int>> inferred;  // members so far
  for (size_t id = 0; id < groups_.size(); ++id) {
    if (groups_[id].declared) {
      declared[groups_[id].name].push_back(static_cast<int>(id));
    } else {
      inferred[static_cast<int>(id)].swap(groups_[id].members);
    }
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (int& id : ranks_[r].groups) {
      if (id < 0 || groups_[static_cast<size_t>(id)].declared) continue;
      for (int candidate : declared[groups_[static_cast<size_t>(id)].name]) {
        const std::vector<int>& members = groups_[static_cast<size_t>(candidate)].members;
        if (std::find(members.begin(), members.end(), static_cast<int>(r)) != members.end()) id = candidate;
      }
      Group& group = groups_[static_cast<size_t>(id)];
      if (!group.declared) group.members.push_back(static_cast<int>(r));
    }
  }
  for (auto& [id, before] : inferred) {
    Group& group = groups_[static_cast<size_t>(id)];
    if (!group.members.empty()) group.became = -1;
    if (before.empty() || !group.members.empty()) continue;
    for (int candidate : declared[group.name]) {
      std::vector<int> members = groups_[static_cast<size_t>(candidate)].members;
      std::sort(members.begin(), members.end());
      if (members == before) group.became = candidate;
    }
  }
  for (Group& group : groups_) {
    std::set<int> nodes;
    for (int member : group.members) nodes.insert(node(member));
    group.nodes = nodes.count(-1) > 0 ? 0 : static_cast<int>(nodes.size());
  }
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
      if (group.label == "pp" || group.label == "pipeline") number(group.members);
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
  auto neighbours = [](const Group& group) {
    for (size_t i = 1; i < group.members.size(); ++i) {
      if (group.members[i] != group.members[i - 1] + 1) return false;
    }
    return true;
  };
  for (Group& group : groups_) {
    group.blocking = group.labelled_blocking;
    any_label = any_label || !group.label.empty();
    across = across || (group.collective && !neighbours(group));
  }
  if (any_label || !across) return;
  for (Group& group : groups_) {
    group.blocking =
        group.collective && group.members.size() >= 2 && group.members.size() < known_ranks && neighbours(group);
  }
}

// Cells: ranks of one stage that blocking groups tie together. Pipelines: cells that are tied by chains.
void Layout::FindCells() {
  UnionFind cells(ranks_.size());
  UnionFind pipes(ranks_.size());
  for (const Group& group : groups_) {
    if (!group.blocking) continue;
    int first = -1;
    for (int member : group.members) {
      if (!known(member)) continue;
      if (first >= 0) {
        if (rank(first).stage == rank(member).stage) cells.Join(first, member);
        pipes.Join(first, member);
      }
      first = member;
    }
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
