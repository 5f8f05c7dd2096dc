// Who works with whom: process groups, peers, cells and pipelines of a job, from its ranks' groups and operations.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/step_fold.h"
#include "diagnosis/rank_place.h"

namespace taskd::diagnosis {

struct Group {
  std::string name, label;
  std::vector<int> members;        // global ranks, in the order of ranks within the group
  bool declared = false;           // the members are known, not only inferred from who uses the name
  int nodes = 0;                   // that its members are on; 0: unknown
  bool labelled_blocking = false;  // by its label: tensor, context, expert parallel
  bool blocking = false;           // computation waits for its collectives
  bool collective = false;         // has had collectives, not only point-to-point operations
  int became = -1;                 // the declared group that an inferred one turned out to be
};

// Ranks that wait for each other all the time (tensor, context, expert parallel): one slow one slows the cell.
struct Pipeline {
  std::vector<std::vector<int>> cells;  // ranks, by stage
};

class Layout {
 public:
  struct Rank {
    RankPlace place;
    bool known = false;                      // heard of
    std::vector<int> groups;                 // global group, by the rank's own index
    std::vector<std::pair<int, int>> peers;  // (global rank, group) of its point-to-point operations
    int stage = 0;
    int peer_class = 0;
  };

  // These mark the layout dirty if anything is new.
  void SetPlace(int rank, const RankPlace& place);
  void SetGroup(int rank, uint32_t index, const GroupInfo& info);
  // Learns point-to-point neighbours and what groups are used for.
  void Learn(int rank, const StepFold& fold);

  bool dirty() const { return dirty_; }
  // Works out stages, classes, cells and pipelines.
  void Rebuild();

  int size() const { return static_cast<int>(ranks_.size()); }
  const Rank& rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  bool known(int rank) const { return rank >= 0 && rank < size() && ranks_[static_cast<size_t>(rank)].known; }
  int node(int rank) const { return known(rank) ? ranks_[static_cast<size_t>(rank)].place.node : -1; }
  const std::vector<Group>& groups() const { return groups_; }
  const Group& group(int id) const { return groups_[static_cast<size_t>(id)]; }
  // -1: not known.
  int GroupOf(int rank, uint32_t index) const;
  // Global rank of member `peer` of a group; -1: unknown.
  int MemberOf(int group, int peer) const;

  const std::vector<std::vector<int>>& classes() const { return classes_; }
  const std::vector<Pipeline>& pipelines() const { return pipelines_; }
  const std::map<int, std::vector<int>>& nodes() const { return nodes_; }  // ranks by node, of known nodes
  int stages() const { return stages_; }

 private:
  Rank& Touch(int rank);
  void FindMembers();
  void FindBlocking();
  void FindStages();
  void FindPeers();
  void FindCells();
  int Intern(const std::string& name, const std::vector<MemberRun>& members);

  std::vector<Rank> ranks_;
  std::vector<Group> groups_;
  std::map<std::string, int> group_ids_;  // by name and members
  std::vector<std::vector<int>> chains_;  // ranks that point-to-point operations connect, sorted
  std::vector<std::vector<int>> classes_;
  std::vector<Pipeline> pipelines_;
  std::map<int, std::vector<int>> nodes_;
  int stages_ = 1;
  bool dirty_ = false;
};

}  // namespace taskd::diagnosis
