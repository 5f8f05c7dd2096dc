// What does not change within a life of the job: process groups, and the program of a step, in an order in which every
// instruction's dependencies come before it.
//
// A stage's program is Megatron's 1F1B: warm-up forwards, one forward and one backward in turn, the rest of the
// backwards; point-to-point operations are rendezvous, the two directions between neighbours in one batch in the middle
// part. Forward and backward are pieces of computation between blocking operations of the tensor, context and expert
// groups. Gradients go in buckets, on a stream of their own if they overlap.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "agent/simulate/job.h"
#include "marks/step_fold.h"

namespace taskd::simulate {

enum class GroupType : uint8_t { kTp, kCp, kEp, kPp, kDp, kWorld };
inline constexpr int kGroupTypes = 6;

// All groups of a type. But for kPp and kWorld a group lies in one stage; its members are
// stage * block + bases[i] + k * stride, 0 <= k < count.
struct GroupSet {
  int stride = 1;
  int count = 1;
  std::vector<int> bases;
};

enum class Code : uint8_t {
  kPiece,  // computes `ms`
  kForwardBegin,
  kForwardEnd,
  kCollective,   // of a group within the stage; blocks
  kExchange,     // between `stage` and the next; blocks both
  kBucket,       // reduced on the stream of the gradients
  kHiddenSync,   // all ranks wait for each other, without a mark
  kJoinBuckets,  // computation waits for the gradients
  kWorld,        // all ranks; blocks
};

struct Instruction {
  Code code = Code::kPiece;
  bool forward = false;   // kPiece: of a forward pass
  bool expert = false;    // grows with the tokens that the rank's experts get
  bool sequence = false;  // grows with the length of the microbatch
  bool outside = false;   // kPiece: of the processor, which a slow device does not slow down
  GroupType group = GroupType::kTp;
  int stage = 0;
  int microbatch = 0;
  int event = -1;       // of `stage`
  int next_event = -1;  // kExchange: of the next stage
  int ordinal = 0;      // kPiece: its number in the stage's step
  double ms = 0;        // computation, or transfer
  double memory = 0;    // share of the computation that is bound by memory
};

// A range that is marked.
struct Event {
  enum class Kind : uint8_t { kStep, kDataloader, kCheckpoint, kForward, kCommunication };
  Kind kind = Kind::kStep;
  GroupType group = GroupType::kTp;
  uint32_t stream = 0;
  int name = -1;        // of Plan::name()
  bool levels = false;  // the name depends on the tokens
};

class Plan {
 public:
  static constexpr int kStepEvent = 0, kDataloaderEvent = 1, kCheckpointEvent = 2;
  // Tokens of an expert's rank, in units of 1/16 of the mean.
  static constexpr int kTokenLevels = 96;
  static constexpr int kMeanLevel = 16;

  Plan(const Job& job, const Layout& layout);
  Plan(const Plan&) = delete;

  const Layout& layout() const { return layout_; }
  int ranks() const { return layout_.ranks(); }
  int nodes() const { return layout_.nodes(); }
  int block() const { return block_; }  // ranks of a stage
  int node(int rank) const { return rank / layout_.ranks_per_node; }
  int stage(int rank) const { return rank / block_; }
  int replica(int rank) const { return rank % block_ / (layout_.cp * layout_.tp); }
  int expert(int rank) const { return rank % block_ / layout_.tp % layout_.ep; }

  const GroupSet& set(GroupType type) const { return sets_[static_cast<int>(type)]; }
  bool has(GroupType type) const { return set(type).count > 1; }
  // The number of the rank's group among all groups of the type.
  int group(GroupType type, int rank) const;
  int group_count(GroupType type) const;
  std::vector<int> members(GroupType type, int group) const;
  // Has members on several nodes. For kPp of `rank` and its neighbour in the next stage.
  bool spans(GroupType type, int group) const { return spans_[static_cast<int>(type)][static_cast<size_t>(group)]; }
  bool link_spans(int rank) const { return node(rank) != node(rank + block_); }

  const std::vector<Instruction>& program() const { return program_; }
  const std::vector<Event>& events(int stage) const { return events_[static_cast<size_t>(stage)]; }
  int max_events() const { return max_events_; }
  int pieces(int stage) const { return pieces_[static_cast<size_t>(stage)]; }
  // Of those of a forward pass.
  const std::vector<int>& forward_pieces(int stage) const { return forward_pieces_[static_cast<size_t>(stage)]; }
  double optimizer_ms() const { return optimizer_ms_; }
  double work_ms() const { return work_ms_; }  // computation of a rank and step, nominal

  std::string_view name(const Event& event, int rank, int level) const;
  const std::vector<GroupInfo>& groups(int rank) const { return groups_[static_cast<size_t>(rank)]; }

 private:
  struct Costs {
    double forward = 0, backward = 0;  // of a microbatch, all layers
    double tp = 0, cp = 0, ep = 0, pp = 0, bucket = 0, gather = 0, world = 0, norm = 0;
  };
  class StageProgram;

  void MakeSets();
  void MakeCosts(const Job& job);
  void MakePrograms(const Job& job);
  void Interleave(std::vector<std::vector<Instruction>>& stages);
  int AddNames(GroupType type, std::string_view op, double ms, std::string_view peer_key, int peer, bool levels);
  int AddEvent(int stage, Event event);
  void MakeGroups();

  const Layout layout_;
  const int block_;
  std::array<GroupSet, kGroupTypes> sets_;
  std::array<std::vector<char>, kGroupTypes> spans_;
  Costs costs_;
  double optimizer_ms_ = 0, work_ms_ = 0;
  std::vector<Instruction> program_;
  std::vector<std::vector<Event>> events_;
  std::vector<int> pieces_;
  std::vector<std::vector<int>> forward_pieces_;
  int max_events_ = 0;
  std::vector<std::vector<GroupInfo>> groups_;

  struct NameSet {
    std::string key;
    size_t first = 0;  // in names_; by group, and by level where they depend on it
    bool levels = false;
  };
  std::vector<NameSet> name_sets_;
  std::deque<std::string> names_;
};

// "group_name_12"; the world's is "hccl_world_group".
std::string GroupName(const Plan& plan, GroupType type, int group);

}  // namespace taskd::simulate
