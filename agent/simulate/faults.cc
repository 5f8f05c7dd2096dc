#include "agent/simulate/faults.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "agent/simulate/random.h"

namespace taskd::simulate {
namespace {

enum class Target : uint8_t { kRank, kNode, kLink, kJob };

Target TargetOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kHost:
    case FaultKind::kNodeNic:
    case FaultKind::kIntraNodeLink:
      return Target::kNode;
    case FaultKind::kPpLink:
      return Target::kLink;
    case FaultKind::kFabric:
    case FaultKind::kConfig:
      return Target::kJob;
    default:
      return Target::kRank;
  }
}

// Operations of a rank that leave its node: (type, group), links by the rank of the earlier stage.
using Traffic = std::set<std::pair<int, int>>;

void AddTraffic(const Plan& plan, int rank, Traffic& traffic) {
  for (GroupType type : {GroupType::kTp, GroupType::kCp, GroupType::kEp, GroupType::kDp}) {
    const int group = plan.group(type, rank);
    if (plan.has(type) && plan.spans(type, group)) traffic.insert({static_cast<int>(type), group});
  }
  for (int earlier : {rank - plan.block(), rank}) {
    if (earlier >= 0 && earlier + plan.block() < plan.ranks() && plan.link_spans(earlier)) {
      traffic.insert({static_cast<int>(GroupType::kPp), earlier});
    }
  }
}

std::vector<int> RanksOf(const Plan& plan, int node) {
  std::vector<int> ranks;
  const int size = plan.layout().ranks_per_node;
  for (int rank = node * size; rank < std::min((node + 1) * size, plan.ranks()); ++rank) ranks.push_back(rank);
  return ranks;
}

Traffic NodeTraffic(const Plan& plan, int node) {
  Traffic traffic;
  for (int rank : RanksOf(plan, node)) AddTraffic(plan, rank, traffic);
  return traffic;
}

// Ranks of the job whose traffic is the same: no transfer time tells them apart.
std::vector<int> SameTraffic(const Plan& plan, int rank) {
  Traffic own;
  AddTraffic(plan, rank, own);
  std::vector<int> same;
  // They are members of each of its groups, so of its data parallel one.
  for (int other : plan.members(GroupType::kDp, plan.group(GroupType::kDp, rank))) {
    Traffic traffic;
    AddTraffic(plan, other, traffic);
    if (traffic == own) same.push_back(other);
  }
  return same;
}

std::vector<int> SameNodeTraffic(const Plan& plan, int node) {
  const Traffic own = NodeTraffic(plan, node);
  std::vector<int> same;
  for (int other = 0; other < plan.nodes(); ++other) {
    if (other == node || NodeTraffic(plan, other) == own) same.push_back(other);
  }
  return same;
}

void Raise(float& factor, double to) { factor = std::max(factor, static_cast<float>(to)); }

void RaiseTraffic(const Traffic& traffic, double to, Effects& effects) {
  for (const auto& [type, group] : traffic) {
    Raise(effects.transfer[static_cast<size_t>(type)][static_cast<size_t>(group)], to);
  }
  if (!traffic.empty()) Raise(effects.transfer[static_cast<size_t>(GroupType::kWorld)][0], to);
}

// Share of the full severity in `step`, 0 to 1.
double Strength(const Job& job, const Fault& fault, int index, int step) {
  if (!InRange(fault, step)) return 0;
  switch (fault.shape) {
    case FaultShape::kIntermittent:
      return Uniform(Mix(job.seed, 7001 + static_cast<uint64_t>(index), static_cast<uint64_t>(step))) < fault.duty;
    case FaultShape::kRamp:
      return std::min(1.0, (step - fault.first_step + 1.0) / std::max(1, fault.ramp_steps));
    default:
      return 1;
  }
}

absl::Status Wrong(const Fault& fault, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("fault ", Name(fault.kind), ": ", what));
}

// The ranks or nodes that the fault is on in the present life; those that are gone (the job shrank) are not among them.
std::vector<int> TargetsOf(const Plan& plan, const Placement& placement, const Fault& fault) {
  const bool is_node = TargetOf(fault.kind) == Target::kNode;
  std::vector<int> ids;
  for (int original : fault.targets) {
    const int id = is_node ? placement.node(original) : placement.rank(original);
    if (id < (is_node ? plan.nodes() : plan.ranks())) ids.push_back(id);
  }
  return ids;
}

// All groups, or those that span nodes.
void SlowGroups(const Plan& plan, bool all, double severity, Effects& effects) {
  for (int i = 0; i < kGroupTypes; ++i) {
    const GroupType type = static_cast<GroupType>(i);
    std::vector<float>& factors = effects.transfer[static_cast<size_t>(i)];
    for (size_t g = 0; g < factors.size(); ++g) {
      const int id = static_cast<int>(g);
      bool spans = all;
      if (!all && type == GroupType::kPp) {
        spans = id + plan.block() < plan.ranks() && plan.link_spans(id);
      } else if (!all) {
        spans = plan.spans(type, id);
      }
      if (spans) Raise(factors[g], severity);
    }
  }
}

void SlowLink(const Plan& plan, int a, int b, double severity, Effects& effects) {
  if (std::abs(a - b) != plan.block() || std::max(a, b) >= plan.ranks()) return;
  Raise(effects.transfer[static_cast<size_t>(GroupType::kPp)][static_cast<size_t>(std::min(a, b))], severity);
}

// As long as the step's computation or twice that, as often as the severity asks for on the mean.
void Recompile(const Plan& plan, int rank, double severity, uint64_t bits, Effects& effects) {
  if (Uniform(Mix(bits, 1)) >= std::min(0.5, (severity - 1) / 1.5)) return;
  const size_t r = static_cast<size_t>(rank);
  effects.stall_ms[r] += static_cast<float>(plan.work_ms() * Uniform(Mix(bits, 2), 1, 2));
  effects.stall_piece[r] = static_cast<int>(Mix(bits, 3) % static_cast<uint64_t>(plan.pieces(plan.stage(rank))));
}

void CollectGarbage(const Job& job, const Plan& plan, int rank, double severity, uint64_t bits, Effects& effects) {
  const double mean = (job.noise.gc_min_ms + job.noise.gc_max_ms) / 2;
  const double pauses = (severity - 1) * plan.work_ms() / std::max(mean, 1.0);
  if (Uniform(Mix(bits, 1)) >= pauses) return;
  const size_t r = static_cast<size_t>(rank);
  const double ms = Uniform(Mix(bits, 2), job.noise.gc_min_ms, job.noise.gc_max_ms) * std::max(1.0, pauses);
  const std::vector<int>& pieces = plan.forward_pieces(plan.stage(rank));
  effects.stall_ms[r] += static_cast<float>(ms);
  effects.stall_piece[r] = pieces[Mix(bits, 3) % pieces.size()];
}

void SlowInsideNode(const Plan& plan, int node, double severity, Effects& effects) {
  for (int rank : RanksOf(plan, node)) {
    const int group = plan.group(GroupType::kTp, rank);
    if (plan.spans(GroupType::kTp, group)) continue;
    Raise(effects.transfer[static_cast<size_t>(GroupType::kTp)][static_cast<size_t>(group)], severity);
  }
}

// `id`: of a rank or a node, as the kind has it.
void SlowTarget(const Job& job, const Plan& plan, FaultKind kind, int id, double severity, uint64_t bits,
                Effects& effects) {
  const size_t r = static_cast<size_t>(id);
  switch (kind) {
    case FaultKind::kCompute:
      effects.compute[r] *= static_cast<float>(severity);
      return;
    case FaultKind::kMemory:
      effects.memory[r] *= static_cast<float>(severity);
      return;
    case FaultKind::kContention:
      effects.compute[r] *= static_cast<float>(1 + (severity - 1) * 2 * Uniform(bits));
      effects.unsteady[r] = 1;
      return;
    case FaultKind::kRecompile:
      return Recompile(plan, id, severity, bits, effects);
    case FaultKind::kGc:
      return CollectGarbage(job, plan, id, severity, bits, effects);
    case FaultKind::kDataloader:
      effects.loader[r] *= static_cast<float>(severity);
      return;
    case FaultKind::kCheckpoint:
      if (!job.shared_storage) {
        effects.saver[r] *= static_cast<float>(severity);
        return;
      }
      for (float& saver : effects.saver) Raise(saver, severity);
      return;
    case FaultKind::kHost:
      for (int rank : RanksOf(plan, id)) Raise(effects.host[static_cast<size_t>(rank)], severity);
      return;
    case FaultKind::kNic: {
      Traffic traffic;
      AddTraffic(plan, id, traffic);
      return RaiseTraffic(traffic, severity, effects);
    }
    case FaultKind::kNodeNic:
      return RaiseTraffic(NodeTraffic(plan, id), severity, effects);
    case FaultKind::kIntraNodeLink:
      return SlowInsideNode(plan, id, severity, effects);
    case FaultKind::kPpLink:
    case FaultKind::kFabric:
    case FaultKind::kConfig:
      return;  // they are not of one target
  }
}

std::vector<Label> LabelEach(const Label& base, const char* scope, const std::vector<int>& ids,
                             const std::vector<std::string>& causes) {
  std::vector<Label> labels;
  for (int id : ids) {
    Label& label = labels.emplace_back(base);
    label.scope = scope;
    label.ids = {id};
    label.causes = causes;
  }
  return labels;
}

std::vector<Label> LabelOne(Label label, const char* scope, std::vector<int> members, std::vector<std::string> causes) {
  label.scope = scope;
  label.ids = std::move(members);
  label.causes = std::move(causes);
  return {label};
}

void LabelFabric(Label& label) {
  label.scope = "job";
  label.ids.clear();
  label.causes = {"fabric", "network"};
}

// An adapter all of whose traffic others share cannot be told from theirs.
std::vector<Label> LabelNics(const Plan& plan, std::vector<Label> labels) {
  for (Label& label : labels) {
    std::vector<int> same = SameTraffic(plan, label.ids[0]);
    if (same.size() < 2) continue;
    // All ranks are no answer: nothing tells the adapter from the fabric.
    if (static_cast<int>(same.size()) == plan.ranks()) {
      LabelFabric(label);
      continue;
    }
    label.scope = "group";
    label.ids = std::move(same);
  }
  return labels;
}

std::vector<Label> LabelNodeNics(const Plan& plan, std::vector<Label> labels) {
  for (Label& label : labels) {
    std::vector<int> same = SameNodeTraffic(plan, label.ids[0]);
    // All traffic between nodes meets the node: nothing tells it from the fabric.
    if (static_cast<int>(same.size()) == plan.nodes()) {
      LabelFabric(label);
    } else {
      label.ids = std::move(same);
    }
  }
  return labels;
}

}  // namespace

const char* Name(FaultKind kind) {
  constexpr std::array<const char*, 14> kNames = {
      "compute",    "memory", "contention", "recompile",       "dataloader", "host",   "gc",
      "checkpoint", "nic",    "node_nic",   "intra_node_link", "pp_link",    "fabric", "config"};
  return kNames[static_cast<size_t>(kind)];
}

const char* Name(FaultShape shape) {
  constexpr std::array<const char*, 4> kNames = {"persistent", "transient", "intermittent", "ramp"};
  return kNames[static_cast<size_t>(shape)];
}

void Effects::Reset(const Plan& plan) {
  const size_t ranks = static_cast<size_t>(plan.ranks());
  for (auto* factors : {&compute, &memory, &loader, &saver}) factors->assign(ranks, 1);
  for (auto* amounts : {&unsteady, &host, &stall_ms}) amounts->assign(ranks, 0);
  stall_piece.assign(ranks, 0);
  for (int type = 0; type < kGroupTypes; ++type) {
    const bool links = type == static_cast<int>(GroupType::kPp);
    transfer[static_cast<size_t>(type)].assign(
        links ? ranks : static_cast<size_t>(plan.group_count(static_cast<GroupType>(type))), 1);
  }
}

absl::Status CheckFault(const Job& job, const Plan& plan, const Fault& fault) {
  const Target target = TargetOf(fault.kind);
  if (!(fault.severity >= 0.1 && fault.severity <= 1000)) {
    return Wrong(fault, absl::StrCat("severity ", fault.severity, " is not 0.1 to 1000"));
  }
  if (fault.first_step < 0 || (fault.last_step != -1 && fault.last_step < fault.first_step)) {
    return Wrong(fault, absl::StrCat("steps ", fault.first_step, " to ", fault.last_step, " are no range"));
  }
  if (!(fault.duty >= 0 && fault.duty <= 1)) return Wrong(fault, absl::StrCat("duty ", fault.duty, " is not 0 to 1"));
  if (target == Target::kJob) {
    return fault.targets.empty() ? absl::OkStatus() : Wrong(fault, "it is the whole job's and takes no target");
  }
  if (fault.targets.empty()) return Wrong(fault, target == Target::kNode ? "needs a node" : "needs a rank");
  const int limit = target == Target::kNode ? plan.nodes() : plan.ranks();
  for (int id : fault.targets) {
    if (id < 0 || id >= limit) {
      return Wrong(fault, absl::StrCat(target == Target::kNode ? "node " : "rank ", id, " is not 0 to ", limit - 1));
    }
    if (fault.kind == FaultKind::kNic && SameTraffic(plan, id).empty()) return Wrong(fault, "no traffic");
    Traffic traffic;
    if (fault.kind == FaultKind::kNic) AddTraffic(plan, id, traffic);
    if (fault.kind == FaultKind::kNodeNic) traffic = NodeTraffic(plan, id);
    if ((fault.kind == FaultKind::kNic || fault.kind == FaultKind::kNodeNic) && traffic.empty()) {
      return Wrong(fault, absl::StrCat(id, " has no traffic between nodes"));
    }
    if (fault.kind == FaultKind::kIntraNodeLink) {
      bool inside = false;
      for (int rank : RanksOf(plan, id)) {
        inside = inside || (plan.has(GroupType::kTp) && !plan.spans(GroupType::kTp, plan.group(GroupType::kTp, rank)));
      }
      if (!inside) return Wrong(fault, absl::StrCat("node ", id, " has no tensor parallel group inside it"));
    }
  }
  if (target == Target::kLink) {
    if (fault.targets.size() != 2) return Wrong(fault, "takes two ranks");
    if (std::abs(fault.targets[0] - fault.targets[1]) != plan.block() || plan.layout().pp == 1) {
      return Wrong(fault, absl::StrCat(fault.targets[0], ",", fault.targets[1],
                                       " are not neighbours in a pipeline: those are ", plan.block(), " apart"));
    }
  }
  if (fault.kind == FaultKind::kCheckpoint && job.checkpoint_every <= 0) {
    return Wrong(fault, "the job saves no checkpoints");
  }
  return absl::OkStatus();
}

void PrepareJob(Job& job, FaultKind kind) {
  if (kind >= FaultKind::kNic) job.compute_share = std::min(job.compute_share, 0.5);
  if (kind == FaultKind::kDataloader) job.dataloader_ms = 0.08 * job.step_ms;
  if (kind == FaultKind::kCheckpoint) {
    job.checkpoint_every = 10;
    job.checkpoint_ms = 1.5 * job.step_ms;
  }
  if (kind == FaultKind::kGc) job.noise.gc_max_ms = 300;
}

bool InRange(const Fault& fault, int step) {
  return step >= fault.first_step && (fault.last_step < 0 || step <= fault.last_step);
}

void AddEffects(const Job& job, const Plan& plan, const Placement& placement, const Fault& fault, int index, int step,
                Effects& effects) {
  const double strength = Strength(job, fault, index, step);
  if (strength <= 0) return;
  const double severity = 1 + (fault.severity - 1) * strength;
  const uint64_t bits = Mix(job.seed, 8001 + static_cast<uint64_t>(index), static_cast<uint64_t>(step));
  switch (fault.kind) {
    case FaultKind::kFabric:
      return SlowGroups(plan, false, severity, effects);
    case FaultKind::kConfig:
      return SlowGroups(plan, true, severity, effects);
    case FaultKind::kPpLink:
      return SlowLink(plan, placement.rank(fault.targets[0]), placement.rank(fault.targets[1]), severity, effects);
    default:
      for (int id : TargetsOf(plan, placement, fault)) SlowTarget(job, plan, fault.kind, id, severity, bits, effects);
  }
}

std::vector<Label> LabelsOf(const Job& job, const Plan& plan, const Placement& placement, const Fault& fault) {
  Label label;
  label.kind = fault.kind;
  label.severity = fault.severity;
  label.first_step = fault.first_step;
  label.last_step = fault.last_step < 0 ? job.steps - 1 : std::min(fault.last_step, job.steps - 1);
  std::vector<int> ids = TargetsOf(plan, placement, fault);
  switch (fault.kind) {
    case FaultKind::kCompute:
    case FaultKind::kContention:
      // All ranks of a node: the node.
      std::sort(ids.begin(), ids.end());
      if (ids.size() > 1 && ids == RanksOf(plan, plan.node(ids[0]))) {
        return LabelEach(label, "node", {plan.node(ids[0])}, {"compute"});
      }
      return LabelEach(label, "rank", ids, {"compute"});
    case FaultKind::kMemory:
      return LabelEach(label, "rank", ids, {"memory", "compute"});
    case FaultKind::kRecompile:
      return LabelEach(label, "rank", ids, {"compute", "gc", "unknown"});
    case FaultKind::kDataloader:
      return LabelEach(label, "rank", ids, {"dataloader"});
    case FaultKind::kHost:
      return LabelEach(label, "node", ids, {"host"});
    case FaultKind::kGc:
      return LabelEach(label, "rank", ids, {"gc"});
    case FaultKind::kCheckpoint:
      if (job.shared_storage) return LabelOne(label, "job", {}, {"checkpoint"});
      return LabelEach(label, "rank", ids, {"checkpoint"});
    case FaultKind::kNic:
      return LabelNics(plan, LabelEach(label, "rank", ids, {"network"}));
    case FaultKind::kNodeNic:
      return LabelNodeNics(plan, LabelEach(label, "node", ids, {"network"}));
    case FaultKind::kIntraNodeLink:
      return LabelEach(label, "node", ids, {"intra_node_link"});
    case FaultKind::kPpLink:
      if (ids.size() != 2 || std::abs(ids[0] - ids[1]) != plan.block()) return {};
      return LabelOne(label, "link", ids, {"pp_link", "network"});
    case FaultKind::kFabric:
      return LabelOne(label, "job", {}, {"fabric"});
    case FaultKind::kConfig:
      return LabelOne(label, "job", {}, {"config"});
  }
  return {};
}

}  // namespace taskd::simulate
