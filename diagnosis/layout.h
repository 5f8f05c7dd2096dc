// Who works with whom: process groups, peers, cells and pipelines of a job, from its ranks' groups and operations.
//
// A group is kept once, as runs of members, for as long as a rank has it. What it costs is charged to the rank that has
// it, and to that rank's node (GroupBudget); a group that does not fit, or one of whose members is no rank, is one
// whose members nobody has declared.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/group_budget.h"
#include "diagnosis/late.h"
#include "diagnosis/members.h"
#include "diagnosis/rank_place.h"
#include "marks/step_fold.h"

namespace taskd::diagnosis {

struct Group {
  std::string name, label;
  Members members;                 // global ranks, in the order of ranks within the group
  bool declared = false;           // the members are known, not only inferred from who uses the name
  int nodes = 0;                   // that its members are on; 0: unknown
  bool labelled_blocking = false;  // by its label: tensor, context, expert parallel
  bool blocking = false;           // computation waits for its collectives
  bool collective = false;         // has had collectives, not only point-to-point operations
  int became = -1;                 // the declared group that an inferred one turned out to be
  size_t users = 0;                // ranks that have it; 0: it is gone
  GroupBudget::Charge charge;
};

// Ranks that wait for each other all the time (tensor, context, expert parallel): one slow one slows the cell.
struct Pipeline {
  std::vector<std::vector<int>> cells;  // ranks, by stage
};

class Layout {
 public:
  static constexpr size_t kMaxGroupsOfRank = 256;
  static constexpr size_t kMaxMembersOfRank = size_t{8} * kMaxRanks;  // of all its groups

  struct Rank {
    RankPlace place;
    bool known = false;       // heard of
    std::vector<int> groups;  // global group, by the rank's own index
    // By the same: its members are not used, whatever the rank said.
    Late<std::bitset<kMaxGroupsOfRank>> unused;
    size_t members = 0;                      // declared ones, of all its groups
    std::vector<std::pair<int, int>> peers;  // (global rank, group) of its point-to-point operations
    uint64_t learned_at = 0;                 // what Learn has seen of its operations, and when, by changes_
    uint64_t learned = 0;
    int stage = 0;
    int peer_class = 0;
  };

  // These mark the layout dirty if anything is new.
  void SetPlace(int rank, const RankPlace& place);
  // Instead of what the rank's group `index` was. False: its members are not used. A rank has at most kMaxGroupsOfRank.
  bool SetGroup(int rank, uint32_t index, const GroupInfo& info);
  // The rank has no groups from `first` on.
  void DropGroups(int rank, uint32_t first);
  // Learns point-to-point neighbours and what groups are used for.
  void Learn(int rank, const StepFold& fold);

  bool dirty() const { return dirty_; }
  // Works out stages, classes, cells and pipelines. Whoever keeps numbers of groups has to forget, before anything else
  // is set, those that are gone (Group::users, Group::became): new groups get them.
  void Rebuild();

  int size() const { return static_cast<int>(ranks_.size()); }
  const Rank& rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int known_ranks() const { return known_ranks_; }
  bool known(int rank) const { return rank >= 0 && rank < size() && ranks_[static_cast<size_t>(rank)].known; }
  int node(int rank) const { return known(rank) ? ranks_[static_cast<size_t>(rank)].place.node : -1; }
  const std::vector<Group>& groups() const { return groups_; }
  const Group& group(int id) const { return groups_[static_cast<size_t>(id)]; }
  // -1: not known.
  int GroupOf(int rank, uint32_t index) const {
    const std::vector<int>& groups = ranks_[static_cast<size_t>(rank)].groups;
    return index < groups.size() ? groups[index] : -1;
  }
  // Global rank of member `peer` of a group; -1: unknown.
  int MemberOf(int group, int peer) const;

  const std::vector<std::vector<int>>& classes() const { return classes_; }
  const std::vector<Pipeline>& pipelines() const { return pipelines_; }
  const std::map<int, std::vector<int>>& nodes() const { return nodes_; }  // ranks by node, of known nodes
  int stages() const { return stages_; }
  // Members of declared groups that never were heard of, in order.
  std::vector<int> Unheard() const;
  // The size of the default group, of all the job's ranks, that more than half of the known ranks declare; 0: of none.
  int DeclaredWorldSize() const;
  // Ranks of whose declared groups `rank`, or a later one, is a member; in order.
  std::vector<int> RanksThatName(int rank) const;
  // Ranks with groups whose members are not used, in order.
  std::vector<int> RanksWithUnusedGroups() const;
  // Changes with both.
  uint64_t version() const { return version_; }
  const GroupBudget::Cost& groups_cost() const { return budget_.used(); }

 private:
  Rank& Touch(int rank);
  void MarkDirty();
  void FindMembers();
  std::map<int, std::vector<int>> DeclaredByInferred() const;
  void JoinDeclared(const std::map<int, std::vector<int>>& candidates);
  void FindBecome(int id, const std::vector<int>& before, const std::vector<int>& candidates);
  void CountNodes();
  void FindBlocking();
  void FindStages();
  void FindPeers();
  void FindCells();
  // -1: the budget does not have room for it.
  int Intern(int node, const std::string& name, const std::vector<MemberRun>& members);
  static std::string KeyOf(const std::string& name, const std::vector<MemberRun>& members);
  static uint64_t Digest(const StepFold& fold);
  void Refer(Rank& rank, size_t index, int id);
  void Bury(int id);
  Group& At(int id) { return groups_[static_cast<size_t>(id)]; }

  std::vector<Rank> ranks_;
  int known_ranks_ = 0;
  std::vector<Group> groups_;
  std::map<std::string, int> group_ids_;  // by name and members
  std::vector<int> free_;                 // numbers that can be given again
  std::vector<int> buried_;               // numbers that others may still have
  GroupBudget budget_;
  std::vector<std::vector<int>> chains_;  // ranks that point-to-point operations connect, sorted
  std::vector<std::vector<int>> classes_;
  std::vector<Pipeline> pipelines_;
  std::map<int, std::vector<int>> nodes_;
  int stages_ = 1;
  bool dirty_ = false;
  uint64_t version_ = 0;
  uint64_t changes_ = 1;  // of the layout or of groups' numbers
};

}  // namespace taskd::diagnosis
