#include "agent/simulate/plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace taskd::simulate {
namespace {

constexpr double kOptimizerShare = 0.04;  // of a rank's computation
constexpr double kWorldMs = 0.15;         // a few bytes, through the whole job or among replicas
constexpr double kNormMs = 0.3;           // statistics of normalisation layers
constexpr double kBytesPerMs = 40e6;      // 40 GB/s

constexpr uint32_t kComputeStream = 2;
constexpr std::array<uint32_t, kGroupTypes> kStreams = {11, 12, 13, 14, 15, 16};
constexpr std::array<const char*, kGroupTypes> kLabels = {"tp", "cp", "exp", "pp", "dp", "default_group"};

}  // namespace

std::string GroupName(const Plan& plan, GroupType type, int group) {
  if (type == GroupType::kWorld) return "hccl_world_group";
  int number = group;
  for (int before = 0; before < static_cast<int>(type); ++before) {
    const GroupType other = static_cast<GroupType>(before);
    if (plan.has(other)) number += plan.group_count(other);
  }
  return absl::StrCat("group_name_", number);
}

Plan::Plan(const Job& job, const Layout& layout) : layout_(layout), block_(layout.tp * layout.cp * layout.dp) {
  MakeSets();
  MakeCosts(job);
  MakePrograms(job);
  MakeGroups();
}

void Plan::MakeSets() {
  const int tp = layout_.tp, cp = layout_.cp, dp = layout_.dp, ep = layout_.ep;
  auto set = [&](GroupType type) -> GroupSet& { return sets_[static_cast<int>(type)]; };
  set(GroupType::kTp) = {1, tp, {}};
  set(GroupType::kCp) = {tp, cp, {}};
  set(GroupType::kEp) = {tp, ep, {}};
  set(GroupType::kPp) = {block_, layout_.pp, {}};
  set(GroupType::kDp) = {tp, cp * dp, {}};
  set(GroupType::kWorld) = {1, ranks(), {0}};
  for (int q = 0; q < cp * dp; ++q) set(GroupType::kTp).bases.push_back(q * tp);
  for (int d = 0; d < dp; ++d) {
    for (int t = 0; t < tp; ++t) set(GroupType::kCp).bases.push_back(d * cp * tp + t);
  }
  for (int run = 0; run < cp * dp / ep; ++run) {
    for (int t = 0; t < tp; ++t) set(GroupType::kEp).bases.push_back(run * ep * tp + t);
  }
  for (int t = 0; t < tp; ++t) set(GroupType::kDp).bases.push_back(t);
  for (int i = 0; i < block_; ++i) set(GroupType::kPp).bases.push_back(i);
  for (int i = 0; i < kGroupTypes; ++i) {
    const GroupType type = static_cast<GroupType>(i);
    for (int group = 0; group < group_count(type); ++group) {
      bool spans = false;
      int first = -1;
      for (int rank : members(type, group)) {
        if (first < 0) first = node(rank);
        spans = spans || node(rank) != first;
      }
      spans_[static_cast<size_t>(i)].push_back(spans);
    }
  }
}

int Plan::group_count(GroupType type) const {
  const int bases = static_cast<int>(set(type).bases.size());
  return type == GroupType::kPp || type == GroupType::kWorld ? bases : bases * layout_.pp;
}

int Plan::group(GroupType type, int rank) const {
  const int tp = layout_.tp, cp = layout_.cp, ep = layout_.ep;
  const int in_block = rank % block_;
  const int base = stage(rank) * static_cast<int>(set(type).bases.size());
  const int t = in_block % tp;
  switch (type) {
    case GroupType::kTp:
      return base + in_block / tp;
    case GroupType::kCp:
      return base + in_block / (tp * cp) * tp + t;
    case GroupType::kEp:
      return base + in_block / (tp * ep) * tp + t;
    case GroupType::kDp:
      return base + t;
    case GroupType::kPp:
      return in_block;
    case GroupType::kWorld:
      return 0;
  }
  return 0;
}

std::vector<int> Plan::members(GroupType type, int group) const {
  const GroupSet& groups = set(type);
  const int bases = static_cast<int>(groups.bases.size());
  const int first = group / bases * block_ + groups.bases[static_cast<size_t>(group % bases)];
  std::vector<int> ranks;
  for (int k = 0; k < groups.count; ++k) ranks.push_back(first + k * groups.stride);
  return ranks;
}

// Splits the step that the job asks for into computation and transfers. About: waits that the noise makes come on top.
void Plan::MakeCosts(const Job& job) {
  const double microbatches = layout_.microbatches;
  const double slots = microbatches + layout_.pp - 1;  // of the pipeline's critical path
  work_ms_ = job.compute_share * job.step_ms * microbatches / slots;
  optimizer_ms_ = kOptimizerShare * work_ms_;
  costs_.forward = (work_ms_ - optimizer_ms_) / microbatches / 3;
  costs_.backward = 2 * costs_.forward;

  double budget = std::max((1 - job.compute_share) * job.step_ms - job.dataloader_ms, 0.02 * job.step_ms);
  const std::array<double, 5> weights = {has(GroupType::kTp) ? 0.5 : 0, has(GroupType::kCp) ? 0.2 : 0,
                                         has(GroupType::kEp) ? 0.4 : 0, has(GroupType::kPp) ? 0.35 : 0,
                                         has(GroupType::kDp) ? 0.35 : 0};
  double sum = 0;
  for (double weight : weights) sum += weight;
  if (sum == 0) return;
  budget /= sum;
  costs_.tp = budget * weights[0] / (2 * slots * layout_.layers);
  costs_.cp = budget * weights[1] / (2 * slots * layout_.layers);
  costs_.ep = budget * weights[2] / (4 * slots * layout_.layers);
  costs_.pp = budget * weights[3] / (2 * slots + 2 * (layout_.pp - 1));
  const bool gathers = has(GroupType::kTp) || has(GroupType::kPp) || has(GroupType::kCp) || has(GroupType::kEp);
  costs_.gather = gathers ? 0.3 * budget * weights[4] : 0;
  costs_.bucket = (budget * weights[4] - costs_.gather) / layout_.dp_buckets;
  costs_.world = kWorldMs;
  costs_.norm = kNormMs;
}

// Puts one stage's program together.
class Plan::StageProgram {
 public:
  StageProgram(Plan& plan, const Job& job, int stage)
      : plan_(plan), job_(job), layout_(plan.layout_), costs_(plan.costs_), stage_(stage) {
    const Noise& noise = job.noise;
    forward_factor_ = backward_factor_ =
        stage < static_cast<int>(noise.stage_factor.size()) ? noise.stage_factor[stage] : 1;
    if (stage == layout_.pp - 1) {
      forward_factor_ *= noise.last_stage_forward;
      backward_factor_ *= noise.last_stage_backward;
    }
    plan.AddEvent(stage, {Event::Kind::kStep, GroupType::kTp, kComputeStream});
    plan.AddEvent(stage, {Event::Kind::kDataloader});
    plan.AddEvent(stage, {Event::Kind::kCheckpoint});
    bucket_name_ = Name(GroupType::kDp, gathers() ? "HcclReduceScatter" : "HcclAllreduce", costs_.bucket);
  }

  std::vector<Instruction> Make() {
    const int count = layout_.microbatches;
    const int warmup = std::min(layout_.pp - 1 - stage_, count);
    const int steady = count - warmup;
    if (job_.metrics_ms > 0) Metrics();
    for (int i = 0; i < warmup; ++i) {
      BeginForward();
      Exchange(-1, Recv("HcclRecv"));
      Forward(i);
      Exchange(+1, Send("HcclSend"));
    }
    if (steady > 0) {
      BeginForward();
      Exchange(-1, Recv("HcclRecv"));
    }
    for (int i = 0; i < steady; ++i) {
      Forward(warmup + i);
      Exchange(+1, Send("HcclBatchSendRecv"));
      Backward(i);
      Exchange(-1, i + 1 == steady ? Send("HcclSend") : Recv("HcclBatchSendRecv"));
    }
    for (int i = steady; i < count; ++i) {
      Exchange(+1, Recv("HcclRecv"));
      Backward(i);
      Exchange(-1, Send("HcclSend"));
    }
    Finish();
    return std::move(program_);
  }

 private:
  struct PeerName {
    const char* op;
    const char* key;
  };
  static PeerName Send(const char* op) { return {op, "destRank"}; }
  static PeerName Recv(const char* op) { return {op, "srcRank"}; }

  // A sharded optimizer: gradients are scattered, parameters gathered.
  bool gathers() const { return costs_.gather > 0; }
  bool overlaps() const { return layout_.overlap_dp && !job_.hidden_sync; }

  int Name(GroupType type, std::string_view op, double ms, bool levels = false) {
    return plan_.AddNames(type, op, ms, "", -1, levels);
  }
  int Mark(GroupType type, int name, bool levels = false) {
    return plan_.AddEvent(stage_,
                          {Event::Kind::kCommunication, type, kStreams[static_cast<size_t>(type)], name, levels});
  }
  Instruction& Add(Code code) {
    program_.emplace_back();
    program_.back().code = code;
    program_.back().stage = stage_;
    program_.back().microbatch = microbatch_;
    return program_.back();
  }
  void Piece(double ms, bool forward, double memory) {
    if (ms <= 0) return;
    Instruction& piece = Add(Code::kPiece);
    piece.ms = ms;
    piece.forward = forward;
    piece.sequence = true;
    piece.memory = memory;
    piece.ordinal = plan_.pieces_[static_cast<size_t>(stage_)]++;
    if (forward) plan_.forward_pieces_[static_cast<size_t>(stage_)].push_back(piece.ordinal);
  }
  void Collective(GroupType type, const char* op, double ms, bool levels = false) {
    if (!plan_.has(type)) return;
    const int event = Mark(type, Name(type, op, ms, levels), levels);
    Instruction& collective = Add(Code::kCollective);
    collective.group = type;
    collective.ms = ms;
    collective.event = event;
    collective.expert = levels;
  }
  void Exchange(int direction, PeerName name) {
    const int peer = stage_ + direction;
    if (peer < 0 || peer >= layout_.pp) return;
    const int event = Mark(GroupType::kPp, plan_.AddNames(GroupType::kPp, name.op, costs_.pp, name.key, peer, false));
    Instruction& exchange = Add(Code::kExchange);
    exchange.group = GroupType::kPp;
    exchange.stage = direction > 0 ? stage_ : peer;  // Interleave joins the two halves
    (direction > 0 ? exchange.event : exchange.next_event) = event;
    exchange.ms = costs_.pp;
  }

  void BeginForward() {
    if (job_.forward_holds_waits) MarkForward();
  }
  void MarkForward() {
    forward_event_ = plan_.AddEvent(stage_, {Event::Kind::kForward, GroupType::kTp, kComputeStream});
    Add(Code::kForwardBegin).event = forward_event_;
  }

  // One layer's work between its blocking operations. Attention is bound by computation, the rest more by memory.
  void Layer(double ms, bool forward) {
    const bool inner = plan_.has(GroupType::kCp) || plan_.has(GroupType::kEp);
    Piece(inner ? ms / 2 : ms, forward, layer_++ % 2 == 0 ? 0.2 : 1.0);
    Collective(GroupType::kCp, forward ? "HcclAllGather" : "HcclReduceScatter", costs_.cp);
    const bool unequal = job_.noise.hot_expert > 0;
    Collective(GroupType::kEp, unequal ? "HcclAlltoAllV" : "HcclAlltoAll", costs_.ep, unequal);
    if (inner) Piece(ms / 2, forward, 1.0);
    if (plan_.has(GroupType::kEp)) program_.back().expert = unequal;
    Collective(GroupType::kEp, unequal ? "HcclAlltoAllV" : "HcclAlltoAll", costs_.ep, unequal);
    Collective(GroupType::kTp, "HcclAllreduce", costs_.tp);
  }
  bool layered() const { return plan_.has(GroupType::kTp) || plan_.has(GroupType::kCp) || plan_.has(GroupType::kEp); }

  void Forward(int microbatch) {
    microbatch_ = microbatch;
    if (forward_event_ < 0) MarkForward();
    const double ms = costs_.forward * forward_factor_;
    const int layers = layered() ? layout_.layers : 1;
    layer_ = 0;
    for (int i = 0; i < layers; ++i) Layer(ms / layers, true);
    // Plain data parallel jobs whose forward waits: normalisation over all replicas.
    if (job_.forward_holds_waits && !gathers()) Collective(GroupType::kDp, "HcclAllGather", costs_.norm);
    Add(Code::kForwardEnd).event = forward_event_;
    forward_event_ = -1;
  }

  void Backward(int microbatch) {
    microbatch_ = microbatch;
    const bool reduces = microbatch + 1 == layout_.microbatches && plan_.has(GroupType::kDp) && overlaps();
    const double ms = costs_.backward * backward_factor_;
    const int layers = layered() ? layout_.layers : reduces ? layout_.dp_buckets : 1;
    int buckets = 0;
    layer_ = 0;
    for (int i = 0; i < layers; ++i) {
      Layer(ms / layers, false);
      if (!reduces) continue;
      for (; buckets * layers < (i + 1) * layout_.dp_buckets && buckets < layout_.dp_buckets; ++buckets) Bucket();
    }
  }

  void Bucket() {
    const int event = Mark(GroupType::kDp, bucket_name_);
    Instruction& bucket = Add(Code::kBucket);
    bucket.group = GroupType::kDp;
    bucket.ms = costs_.bucket;
    bucket.event = event;
  }

  void Metrics() {
    Piece(job_.metrics_ms, false, 0);
    program_.back().sequence = false;
    program_.back().outside = true;
    Collective(GroupType::kDp, "HcclAllreduce", kWorldMs);
  }

  void Finish() {
    microbatch_ = 0;
    if (job_.hidden_sync) Add(Code::kHiddenSync);
    if (plan_.has(GroupType::kDp)) {
      if (!overlaps()) {
        for (int i = 0; i < layout_.dp_buckets; ++i) Bucket();
      }
      Add(Code::kJoinBuckets);
    }
    if (gathers() || layout_.pp > 1 || layered()) {
      const int event = Mark(GroupType::kWorld, Name(GroupType::kWorld, "HcclAllreduce", 1 / kBytesPerMs));
      Instruction& world = Add(Code::kWorld);
      world.group = GroupType::kWorld;
      world.ms = costs_.world;
      world.event = event;
    }
    Piece(plan_.optimizer_ms_, false, 2.0);
    program_.back().sequence = false;
    if (gathers()) Collective(GroupType::kDp, "HcclAllGather", costs_.gather);
  }

  Plan& plan_;
  const Job& job_;
  const Layout& layout_;
  const Costs& costs_;
  const int stage_;
  double forward_factor_ = 1, backward_factor_ = 1;
  int bucket_name_ = -1;
  int microbatch_ = 0;
  int layer_ = 0;
  int forward_event_ = -1;
  std::vector<Instruction> program_;
};

void Plan::MakePrograms(const Job& job) {
  const size_t stages = static_cast<size_t>(layout_.pp);
  events_.resize(stages);
  pieces_.resize(stages);
  forward_pieces_.resize(stages);
  std::vector<std::vector<Instruction>> programs;
  for (int stage = 0; stage < layout_.pp; ++stage) programs.push_back(StageProgram(*this, job, stage).Make());
  Interleave(programs);
  for (const auto& events : events_) max_events_ = std::max(max_events_, static_cast<int>(events.size()));
}

// A stage goes on until it meets an operation that needs other stages; that is placed when all of them have come to it.
// 1F1B with rendezvous never comes to a stop before the end.
void Plan::Interleave(std::vector<std::vector<Instruction>>& stages) {
  std::vector<size_t> next(stages.size(), 0);
  auto at = [&](size_t stage) { return next[stage] < stages[stage].size() ? &stages[stage][next[stage]] : nullptr; };
  auto together = [](const Instruction* i) { return i->code == Code::kWorld || i->code == Code::kHiddenSync; };
  while (true) {
    bool moved = false;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      for (Instruction* i = at(stage); i != nullptr && !together(i); i = at(stage)) {
        if (i->code == Code::kExchange) {
          Instruction* other = i->event >= 0 ? at(stage + 1) : nullptr;  // the earlier stage places it
          if (other == nullptr || other->code != Code::kExchange || other->next_event < 0) break;
          i->next_event = other->next_event;
          ++next[stage + 1];
        }
        program_.push_back(*i);
        ++next[stage];
        moved = true;
      }
    }
    if (moved) continue;
    bool all = true;
    for (size_t stage = 0; stage < stages.size(); ++stage) all = all && at(stage) != nullptr && together(at(stage));
    if (!all) return;
    for (size_t stage = 0; stage < stages.size(); ++stage) program_.push_back(stages[stage][next[stage]++]);
  }
}

int Plan::AddEvent(int stage, Event event) {
  std::vector<Event>& events = events_[static_cast<size_t>(stage)];
  events.push_back(event);
  return static_cast<int>(events.size()) - 1;
}

// The names of an operation for all groups of a type, as torch_npu writes them. The same set serves all stages.
int Plan::AddNames(GroupType type, std::string_view op, double ms, std::string_view peer_key, int peer, bool levels) {
  // bfp16: 2 bytes each.
  const int64_t count = std::max<int64_t>(1, std::llround(ms * kBytesPerMs / 2));
  std::string key = absl::StrCat(static_cast<int>(type), " ", std::string(op), " ", count, " ", std::string(peer_key),
                                 " ", peer, " ", levels);
  for (size_t i = 0; i < name_sets_.size(); ++i) {
    if (name_sets_[i].key == key) return static_cast<int>(i);
  }
  name_sets_.push_back({std::move(key), names_.size(), levels});
  const uint32_t stream = kStreams[static_cast<size_t>(type)];
  const char* type_name = type == GroupType::kWorld ? "fp32" : "bfp16";
  for (int group = 0; group < group_count(type); ++group) {
    const std::string group_name = GroupName(*this, type, group);
    for (int level = 0; level < (levels ? kTokenLevels : 1); ++level) {
      std::string name = absl::StrCat("{\"count\": \"", levels ? count * level / kMeanLevel : count,
                                      "\",\"streamId\": \"", stream, "\",\"dataType\": \"", type_name,
                                      "\",\"groupName\": \"", group_name, "\",\"opName\": \"", std::string(op), "\"");
      if (peer >= 0) absl::StrAppend(&name, ",\"", std::string(peer_key), "\": \"", peer, "\"");
      names_.push_back(name + "}");
    }
  }
  return static_cast<int>(name_sets_.size()) - 1;
}

std::string_view Plan::name(const Event& event, int rank, int level) const {
  if (event.name < 0) return {};
  const NameSet& set = name_sets_[static_cast<size_t>(event.name)];
  size_t index = static_cast<size_t>(group(event.group, rank));
  if (set.levels) index = index * kTokenLevels + static_cast<size_t>(level);
  return names_[set.first + index];
}

// In the order in which the marks of the rank name them first.
void Plan::MakeGroups() {
  groups_.resize(static_cast<size_t>(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    std::array<bool, kGroupTypes> seen{};
    for (const Event& event : events(stage(rank))) {
      if (event.kind != Event::Kind::kCommunication || seen[static_cast<size_t>(event.group)]) continue;
      seen[static_cast<size_t>(event.group)] = true;
      const int number = group(event.group, rank);
      const GroupSet& groups = set(event.group);
      const int bases = static_cast<int>(groups.bases.size());
      GroupInfo info;
      info.name = GroupName(*this, event.group, number);
      info.label = kLabels[static_cast<size_t>(event.group)];
      if (event.group == GroupType::kDp && layout_.cp > 1) info.label = "dp_cp";
      info.members = {
          {number / bases * block_ + groups.bases[static_cast<size_t>(number % bases)], groups.stride, groups.count}};
      groups_[static_cast<size_t>(rank)].push_back(std::move(info));
    }
  }
}

}  // namespace taskd::simulate
