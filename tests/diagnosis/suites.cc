#include "tests/diagnosis/suites.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/simulate/faults.h"
#include "agent/simulate/random.h"
#include "tests/diagnosis/ragged.h"

namespace taskd::evaluation {
namespace {

using simulate::Fault;
using simulate::FaultKind;
using simulate::FaultShape;
using simulate::Job;
using simulate::Layout;
using simulate::Mix;
using simulate::Uniform;

// Draws of one case.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  double Between(double low, double high) { return Uniform(Next(), low, high); }
  int Below(int limit) { return static_cast<int>(Next() % static_cast<uint64_t>(std::max(limit, 1))); }
  bool Chance(double p) { return Uniform(Next()) < p; }
  template <typename T, size_t n>
  T Of(const std::array<T, n>& values) {
    return values[static_cast<size_t>(Below(static_cast<int>(n)))];
  }

 private:
  uint64_t Next() { return Mix(seed_, ++count_); }
  const uint64_t seed_;
  uint64_t count_ = 0;
};

// The layouts of the matrix. `scale` doubles the data parallel dimension; 0 is the smallest.
enum Shape { kDpOnly, kTpDp, kPpDp, kTpPpDp, kEpDp, kCpDp, kShapes };

Layout MakeLayout(int shape, int scale) {
  const int times = 1 << scale;
  Layout layout;
  switch (shape) {
    case kDpOnly:
      layout.dp = 16 * times;
      layout.microbatches = 1;
      break;
    case kTpDp:
      layout.tp = 8;
      layout.dp = 2 * times;
      layout.microbatches = 2;
      layout.layers = 4;
      break;
    case kPpDp:
      layout.pp = 4;
      layout.dp = 4 * times;
      layout.ranks_per_node = 4;
      layout.microbatches = 12;
      break;
    case kTpPpDp:
      layout.tp = 8;
      layout.pp = 8;
      layout.dp = times;
      layout.microbatches = 16;
      layout.layers = 1;
      break;
    case kEpDp:
      layout.tp = 2;
      layout.ep = 8;
      layout.dp = 8 * times;
      layout.microbatches = 2;
      layout.layers = 2;
      break;
    default:
      layout.tp = 2;
      layout.cp = 4;
      layout.dp = 2 * times;
      layout.microbatches = 2;
      layout.layers = 4;
      break;
  }
  return layout;
}

Job BaseJob(uint64_t seed, Draw& draw) {
  Job job;
  job.seed = seed;
  job.steps = 120 + 20 * draw.Below(3);
  job.step_ms = draw.Between(300, 1500);
  job.compute_share = draw.Between(0.65, 0.8);
  job.noise.op_sigma = draw.Between(0.02, 0.03);
  job.noise.end_spread_ms = draw.Of(std::array{0.02, 0.1, 0.5});
  return job;
}

int Begin(Draw& draw) { return 30 + draw.Below(51); }

Fault MakeFault(FaultKind kind, double severity, const Layout& layout, Draw& draw) {
  Fault fault;
  fault.kind = kind;
  fault.severity = severity;
  fault.first_step = Begin(draw);
  const int block = layout.tp * layout.cp * layout.dp;
  switch (kind) {
    case FaultKind::kHost:
    case FaultKind::kNodeNic:
    case FaultKind::kIntraNodeLink:
      fault.targets = {draw.Below(layout.nodes())};
      break;
    case FaultKind::kPpLink: {
      const int a = draw.Below(block * (layout.pp - 1));
      fault.targets = {a, a + block};
      break;
    }
    case FaultKind::kConfig:
      fault.first_step = 0;
      break;
    case FaultKind::kFabric:
      break;
    case FaultKind::kDataloader:  // later stages load while they wait anyway
      fault.targets = {draw.Below(block)};
      break;
    default:
      fault.targets = {draw.Below(layout.ranks())};
  }
  return fault;
}

Fault& AddFault(Job& job, FaultKind kind, double severity, Draw& draw) {
  PrepareJob(job, kind);
  job.faults.push_back(MakeFault(kind, severity, job.layout, draw));
  return job.faults.back();
}

constexpr std::array<FaultKind, 6> kRankFaults = {FaultKind::kCompute,    FaultKind::kMemory, FaultKind::kDataloader,
                                                  FaultKind::kContention, FaultKind::kGc,     FaultKind::kCompute};

void Matrix(int index, Draw& draw, Case& made) {
  constexpr int kKinds = 14;
  constexpr std::array kSeverities = {1.5, 1.2, 2.0, 1.1, 3.0, 1.05};
  const int kind_index = index % kKinds, round = index / kKinds;
  const FaultKind kind = static_cast<FaultKind>(kind_index);
  // Every kind meets every severity in 6 rounds, every shape in 5, every layout in 6, in different orders.
  const double severity = kSeverities[static_cast<size_t>((round + kind_index) % 6)];
  const int time_shape = (round + kind_index / 2) % 6;
  int shape = (5 * round + kind_index + round / 6) % kShapes;
  if (kind == FaultKind::kPpLink && shape != kPpDp) shape = kTpPpDp;
  if (kind == FaultKind::kIntraNodeLink && (shape == kDpOnly || shape == kPpDp)) shape = kTpDp;
  const int scale = round % 24 == 23 ? 3 : draw.Below(shape == kTpPpDp ? 2 : 3);
  Job& job = made.job;
  job.layout = MakeLayout(shape, scale);
  if (shape == kPpDp && kind >= FaultKind::kNic && draw.Chance(0.5)) job.layout.overlap_dp = false;
  Fault& fault = AddFault(job, kind, severity, draw);
  switch (time_shape) {
    case 1:
      fault.shape = FaultShape::kTransient;
      fault.last_step = fault.first_step + 19;
      if (kind == FaultKind::kConfig) fault = MakeFault(kind, severity, job.layout, draw);  // has no end
      break;
    case 2:
      fault.shape = FaultShape::kIntermittent;
      fault.duty = 0.3;
      break;
    case 3:
      fault.shape = FaultShape::kRamp;
      fault.ramp_steps = 100;
      job.steps = 200;
      break;
    case 4:
      fault.first_step = 0;
      break;
    case 5:
      fault.shape = FaultShape::kIntermittent;
      fault.duty = 0.1;
      job.steps = 200;
      break;
    default:
      break;
  }
  if (kind == FaultKind::kConfig) fault.shape = FaultShape::kPersistent;
}

void Healthy(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  made.honesty = true;
  job.layout = MakeLayout(index % kShapes, draw.Below(3));
  job.layout.overlap_dp = draw.Chance(0.7);
  job.steps = 200;
  job.noise.op_sigma = draw.Of(std::array{0.01, 0.025, 0.05});
  job.noise.transfer_sigma = draw.Of(std::array{0.03, 0.05, 0.1});
  job.noise.end_spread_ms = draw.Of(std::array{0.02, 0.2, 1.0});
  job.noise.slow_machine_share = 0.02;
  job.noise.diurnal = draw.Of(std::array{0.0, 0.0, 0.015});
  if (draw.Chance(0.3)) job.noise.gc_every_steps = draw.Between(100, 600);
  if (draw.Chance(0.3)) job.checkpoint_every = 25;
}

using Maker = std::function<void(int index, Draw& draw, Case& made)>;

void H1(int index, Draw& draw, Case& made) {
  made.honesty = true;
  made.job.layout =
      MakeLayout(std::array{int{kTpDp}, int{kPpDp}, int{kTpPpDp}, int{kDpOnly}}[index % 4], 1 + draw.Below(2));
  Fault& fault = AddFault(made.job, FaultKind::kFabric, draw.Between(1.2, 2.5), draw);
  if (index % 3 == 1) fault.last_step = fault.first_step + 40;
}

// 0.1 % in 10 steps.
void H2(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % 2 == 0 ? kDpOnly : kTpDp, 0);
  job.layout.layers = 2;
  job.steps = 1600;
  Fault& fault = AddFault(job, FaultKind::kCompute, 1.15, draw);
  fault.shape = FaultShape::kRamp;
  fault.ramp_steps = 1500;
}

// Two culprits: of one kind, of two, or in one peer class of four.
void H3(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout =
      MakeLayout(index % 3 == 2 ? kPpDp : std::array{int{kDpOnly}, int{kTpDp}}[index / 3 % 2], index % 3 == 2 ? 0 : 1);
  const double severity = draw.Of(std::array{1.2, 1.5, 2.0});
  AddFault(job, FaultKind::kCompute, severity, draw);
  const int first = job.faults[0].targets[0];
  if (index % 3 == 1) {
    AddFault(job, draw.Chance(0.5) ? FaultKind::kDataloader : FaultKind::kMemory, 1 + 2 * (severity - 1), draw);
  } else {
    AddFault(job, FaultKind::kCompute, severity, draw);
  }
  int& second = job.faults[1].targets[0];
  const int block = job.layout.tp * job.layout.cp * job.layout.dp;
  if (index % 3 == 2) second = first / block * block + (first + 1 + draw.Below(block - 1)) % block;
  if (second == first) second = (first + 1) % job.layout.ranks();
}

void H4(int index, Draw& draw, Case& made) {
  made.honesty = true;
  made.job.layout = MakeLayout(index % 2 == 0 ? kPpDp : kTpPpDp, draw.Below(2));
  made.job.noise.last_stage_forward = draw.Of(std::array{2.07, 1.55});
  made.job.noise.last_stage_backward = 1.41;
}

void Sequences(int index, Draw& draw, Case& made) {
  made.job.layout = MakeLayout(std::array{int{kDpOnly}, int{kPpDp}, int{kTpDp}}[index % 3], 1 + draw.Below(2));
  made.job.layout.microbatches = std::max(made.job.layout.microbatches, 4);
  made.job.noise.sequence_sigma_forward = 0.18;
  made.job.noise.sequence_sigma_backward = 0.28;
  made.job.steps = 200;
}

void H5(int index, Draw& draw, Case& made) {
  made.honesty = true;
  Sequences(index, draw, made);
}

void H5b(int index, Draw& draw, Case& made) {
  Sequences(index, draw, made);
  AddFault(made.job, FaultKind::kCompute, 1.5, draw);
}

// Marks of a rank or a node are missing, or 5 % of all; every other case has a culprit, elsewhere.
void H6(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(std::array{int{kDpOnly}, int{kTpDp}, int{kPpDp}}[index / 2 % 3], 1);
  const int ranks = job.layout.ranks(), size = job.layout.ranks_per_node;
  made.honesty = index % 2 == 0;
  int culprit = -1;
  if (!made.honesty) culprit = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5}), draw).targets[0];
  switch (index / 6 % 3) {
    case 0:
      job.marks.silent_ranks = {draw.Below(ranks)};
      if (job.marks.silent_ranks[0] == culprit) job.marks.silent_ranks[0] = (culprit + 1) % ranks;
      break;
    case 1: {
      int node = draw.Below(job.layout.nodes());
      if (culprit >= 0 && node == culprit / size) node = (node + 1) % job.layout.nodes();
      for (int i = 0; i < size; ++i) job.marks.silent_ranks.push_back(node * size + i);
      break;
    }
    default:
      job.marks.loss = 0.05;
  }
  if (draw.Chance(0.5)) job.marks.silent_from_step = 40;
}

void H7(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout =
      MakeLayout(std::array{int{kPpDp}, int{kTpDp}, int{kTpPpDp}}[index % 3], draw.Below(2) + (index % 3 == 2 ? 0 : 1));
  job.clocks.offset_sigma_ms = draw.Between(30, 80);
  job.clocks.drift_ppm = 50;
  made.honesty = index % 4 == 0;
  if (made.honesty) return;
  const FaultKind kind = index % 4 == 3 && job.layout.pp > 1 ? FaultKind::kPpLink : FaultKind::kCompute;
  AddFault(job, kind, kind == FaultKind::kPpLink ? 3 : draw.Of(std::array{1.2, 1.5}), draw);
}

// A restart: as before, with another number of replicas, or with the nodes in other places.
void H8(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(std::array{int{kTpDp}, int{kDpOnly}, int{kPpDp}}[index % 3], 1);
  job.steps = 200;
  job.restart_step = 70 + draw.Below(20);
  if (index / 3 % 3 == 1) job.restart_dp = draw.Chance(0.5) ? job.layout.dp / 2 : job.layout.dp * 2;
  if (index / 3 % 3 == 2) job.restart_renumber = true;
  made.honesty = index % 4 == 1;
  if (made.honesty) return;
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5}), draw);
  // In both lives, or in the second only; in what is left of the job.
  fault.targets[0] = draw.Below(job.layout.ranks() / 2);
  if (index % 4 == 2) fault.first_step = job.restart_step + 15 + draw.Below(30);
}

void H9(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(kTpDp, 0);
  const FaultKind kind = kRankFaults[static_cast<size_t>(index) % kRankFaults.size()];
  made.honesty = index % 7 == 6;
  if (!made.honesty) AddFault(job, kind, draw.Of(std::array{1.2, 1.5, 2.0}), draw);
}

void H10(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % kShapes, draw.Below(2));
  const FaultKind kind = kRankFaults[static_cast<size_t>(index / kShapes) % kRankFaults.size()];
  AddFault(job, kind, draw.Of(std::array{1.2, 1.5, 2.0}), draw).first_step = 0;
}

// Those who wait overlap more, and overlapping slows them.
void H11(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % 2 == 0 ? kDpOnly : kTpDp, draw.Below(3));
  job.layout.microbatches = 1;
  job.layout.dp_buckets = 8;
  job.leader_overlap = 0.19;
  AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.35, 1.5}), draw);
}

void H11b(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % 2 == 0 ? kPpDp : kDpOnly, draw.Below(2));
  job.hidden_sync = true;
  made.honesty = index % 4 == 3;
  if (!made.honesty) AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5, 2.35}), draw);
}

void H12(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(kDpOnly, draw.Below(2));
  job.layout.microbatches = 1 + index % 2;
  job.forward_holds_waits = true;
  AddFault(job, std::array{FaultKind::kCompute, FaultKind::kDataloader}[index / 2 % 2],
           draw.Of(std::array{1.3, 1.5, 2.0}), draw);
}

// The first stage is sick, the last to come is a healthy rank of a later stage.
void H13(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(kPpDp, index % 2);
  job.layout.dp = std::array{2, 4, 8}[index % 3];
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.5, 2.0, 2.35}), draw);
  fault.targets = {draw.Below(job.layout.dp)};
}

void H14(int index, Draw& draw, Case& made) {
  made.honesty = true;
  Job& job = made.job;
  job.layout = MakeLayout(index % kShapes, draw.Below(2));
  job.steps = 200;
  job.noise.gc_every_steps = draw.Of(std::array{30.0, 60.0, 120.0});
}

void H15(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(kTpDp, 1 + index % 2);
  AddFault(job, FaultKind::kNic, draw.Of(std::array{1.5, 2.0, 3.0}), draw);
}

void H16(int index, Draw& draw, Case& made) {
  made.honesty = true;
  Job& job = made.job;
  job.layout = MakeLayout(kEpDp, index % 2);
  job.noise.hot_expert = draw.Between(0.3, 1.5);
  job.steps = 200;
}

void H17(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(std::array{int{kTpDp}, int{kDpOnly}, int{kPpDp}}[index / 2 % 3], 1);
  job.shared_storage = index % 2 == 0;
  made.honesty = job.shared_storage;
  job.steps = 200;
  AddFault(job, FaultKind::kCheckpoint, draw.Of(std::array{1.5, 2.0, 3.0}), draw);
}

void H18(int index, Draw& draw, Case& made) {
  made.honesty = true;
  Job& job = made.job;
  job.layout = MakeLayout(index % kShapes, draw.Below(2));
  job.change_step = 50 + draw.Below(30);
  job.change_factor = draw.Of(std::array{0.6, 1.3, 2.0});
}

void H19(int index, Draw& draw, Case& made) {
  made.honesty = true;
  Job& job = made.job;
  job.layout = MakeLayout(index % kShapes, draw.Below(2));
  job.first_step_ms = draw.Between(5'000, 60'000);
  job.evaluate_every = 25 + draw.Below(20);
}

void H20(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % kShapes, draw.Below(2));
  job.steps = 200;
  Fault& fault = AddFault(job, index / kShapes % 2 == 0 ? FaultKind::kCompute : FaultKind::kDataloader,
                          index / kShapes % 2 == 0 ? draw.Of(std::array{1.2, 1.5, 2.0}) : 3, draw);
  fault.shape = FaultShape::kTransient;
  fault.last_step = fault.first_step + 30 + draw.Below(20);
}

// Two to four ranks on machines where other processes take a core for seconds, as real_faults.py found them.
void H21(int index, Draw& draw, Case& made) {
  made.honesty = index % 2 == 0;
  Job& job = made.job;
  job.layout.dp = 2 + index / 2 % 3;
  job.layout.microbatches = 1;
  job.step_ms = draw.Between(60, 150);
  job.steps = 500;
  job.noise.op_sigma = draw.Between(0.03, 0.06);
  job.noise.stretch_every_s = draw.Between(15, 40);
  job.noise.stretch_transfers = 0.5;
  job.marks.device = false;
  if (made.honesty) return;
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.3, 1.6, 2.0}), draw);
  fault.first_step = 100 + draw.Below(50);
}

// Own times that differ from step to step by themselves, by 2 to 40 %, each step anew or for some steps: 2 to 2,048 ranks.
void OwnNoise(int index, Draw& draw, Job& job) {
  constexpr std::array kSizes = {2, 3, 4, 8, 16, 64, 256, 2048};
  constexpr std::array kSigmas = {0.02, 0.05, 0.1, 0.2, 0.4};
  const size_t i = static_cast<size_t>(index);
  job.layout.dp = kSizes[i % kSizes.size()];
  job.layout.microbatches = job.layout.layers = 1;
  job.layout.dp_buckets = 2;
  job.layout.overlap_dp = draw.Chance(0.5);
  job.steps = job.layout.dp > 1000 ? 200 : job.layout.dp > 100 ? 800 : 2000;
  job.step_ms = draw.Between(60, 1000);
  job.marks.device = draw.Chance(0.5);
  job.noise.wander_sigma = kSigmas[i / kSizes.size() % kSigmas.size()];
  job.noise.wander_correlation = draw.Of(std::array{0.0, 0.0, 0.8, 0.95});
  // Little is to be said of what lasts in so few steps.
  if (job.layout.dp > 100) job.noise.wander_correlation = std::min(job.noise.wander_correlation, 0.8);
}

void H30(int index, Draw& draw, Case& made) {
  made.honesty = true;
  OwnNoise(index, draw, made.job);
}

// As large a fault as 2.5 times the steps tell in which it can be told at all (Lorden's bound), from 1.1 times on.
void H31(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  OwnNoise(index, draw, job);
  constexpr double kLogFalseAlarm = 25;
  const int first = job.steps / 8 + draw.Below(job.steps / 8);
  const double kept = job.noise.wander_correlation;
  const double variance = job.noise.wander_sigma * job.noise.wander_sigma * (1 + kept) / (1 - kept);
  const double rise = std::sqrt(2 * kLogFalseAlarm * variance * 2.5 / (job.steps - first));
  AddFault(job, FaultKind::kCompute, std::max(draw.Between(1.1, 1.3), std::exp(rise)), draw).first_step = first;
}

// Neighbours take the machine for a part of a second every few, and hit one rank most, and then another.
void H32(int index, Draw& draw, Case& made) {
  made.honesty = index % 2 == 0;
  Job& job = made.job;
  job.layout.dp = std::array{2, 3, 4, 8, 16}[index / 2 % 5];
  job.layout.microbatches = 1;
  job.step_ms = draw.Between(60, 150);
  job.steps = 800;
  job.noise.op_sigma = draw.Between(0.02, 0.06);
  job.noise.gust_every_s = draw.Between(2.5, 4);
  job.noise.gust_s = draw.Between(0.5, 1);
  job.noise.gust_most = draw.Between(0.3, 1.5);
  job.noise.gust_spell_s = draw.Between(2, 10);
  job.marks.device = false;
  if (made.honesty) return;
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.3, 1.6, 2.0}), draw);
  fault.first_step = 200 + draw.Below(100);
}

// A job that goes on with fewer replicas, without its culprit or with it, or with more.
void H33(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(index % 2 == 0 ? kDpOnly : kTpDp, 1);
  job.steps = 300;
  job.restart_step = 100 + draw.Below(40);
  job.restart_dp = index / 2 % 3 == 2 ? 2 * job.layout.dp : job.layout.dp / 2;
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5, 2.0}), draw);
  const int half = job.layout.ranks() / 2;
  fault.targets = {draw.Below(half) + (index / 2 % 3 == 0 ? half : 0)};
}

// Marks are switched on and off every few seconds.
void H34(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(std::array{int{kDpOnly}, int{kTpDp}, int{kPpDp}}[index / 2 % 3], draw.Below(2));
  job.steps = 500;
  job.step_ms = draw.Between(100, 400);
  job.marks.on_steps = 15 + draw.Below(40);
  job.marks.off_steps = 3 + draw.Below(20);
  made.honesty = index % 2 == 0;
  if (!made.honesty) AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5, 2.0}), draw);
}

// Half of all ranks are slow.
void H35(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout.dp = std::array{2, 4, 8, 16}[index % 4];
  job.layout.microbatches = 1;
  job.steps = 200;
  Fault& fault = AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5, 2.0}), draw);
  std::vector<int> ranks(static_cast<size_t>(job.layout.dp));
  for (int rank = 0; rank < job.layout.dp; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  for (size_t i = ranks.size() - 1; i > 0; --i)
    std::swap(ranks[i], ranks[static_cast<size_t>(draw.Below(static_cast<int>(i) + 1))]);
  fault.targets.assign(ranks.begin(), ranks.begin() + job.layout.dp / 2);
  std::sort(fault.targets.begin(), fault.targets.end());
}

// Every rank is slow in turn, for a while.
void H36(int index, Draw& draw, Case& made) {
  constexpr int kTurn = 60;
  Job& job = made.job;
  job.layout.dp = std::array{3, 4, 8}[index % 3];
  job.layout.microbatches = 1;
  job.step_ms = draw.Between(400, 1500);
  const double severity = draw.Of(std::array{1.3, 1.5, 2.0});
  for (int rank = 0; rank < job.layout.dp; ++rank) {
    Fault& fault = AddFault(job, FaultKind::kCompute, severity, draw);
    fault.targets = {rank};
    fault.shape = FaultShape::kTransient;
    fault.first_step = 60 + kTurn * rank;
    fault.last_step = fault.first_step + kTurn - 1;
  }
  job.steps = 60 + kTurn * job.layout.dp + 40;
}

// Numbers of steps that jump, or come twice.
void H37(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout = MakeLayout(std::array{int{kDpOnly}, int{kTpDp}, int{kPpDp}}[index / 4 % 3], draw.Below(2));
  job.steps = 250;
  if (index % 2 == 0) {
    job.marks.jump_step = 60 + draw.Below(60);
    job.marks.jump = draw.Of(std::array{1, 10, 1000, 1'000'000});
  } else {
    job.marks.repeat_every = draw.Of(std::array{5, 20, 100});
  }
  made.honesty = index / 2 % 2 == 0;
  if (!made.honesty) AddFault(job, FaultKind::kCompute, draw.Of(std::array{1.2, 1.5, 2.0}), draw);
}

// Days of healthy training, cheap to simulate: how rare false alarms are.
void Quiet(int index, Draw& draw, Case& made) {
  Healthy(index, draw, made);
  Job& job = made.job;
  Layout layout;
  layout.dp = std::array{4, 8, 16}[index % 3];
  layout.microbatches = layout.layers = layout.dp_buckets = 1;
  if (index % 4 == 3) layout = {.dp = 4, .pp = 2, .microbatches = 4, .layers = 1, .dp_buckets = 1};
  job.layout = layout;
  job.steps = 20'000;
  job.step_ms = draw.Between(2000, 10'000);
  job.marks.device = draw.Chance(0.5);
  job.noise.wander_sigma = draw.Of(std::array{0.0, 0.02, 0.05});
  job.noise.wander_correlation = draw.Of(std::array{0.0, 0.8});
}

// Replicas that reduce their metrics after each step, which blocks, and go on together: who is slow from there to its
// gradients spends as long at both ends of the step as all.
void H38(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout.dp = std::array{2, 3, 4, 8, 32}[index / 2 % 5];
  job.layout.microbatches = 1;
  job.layout.dp_buckets = draw.Of(std::array{1, 4, 12});
  job.layout.overlap_dp = draw.Chance(0.7);
  job.step_ms = draw.Between(60, 1000);
  job.metrics_ms = job.step_ms * draw.Between(0.1, 1);
  job.steps = 400;
  job.noise.op_sigma = draw.Between(0.02, 0.1);
  job.marks.device = draw.Chance(0.5);
  made.honesty = index % 2 == 0;
  if (made.honesty) return;
  const FaultKind kind = draw.Of(std::array{FaultKind::kCompute, FaultKind::kMemory});
  AddFault(job, kind, draw.Of(std::array{1.2, 1.5, 2.0}), draw).first_step = 100 + draw.Below(50);
}

// A first try, or a profile of some seconds: two to four hosts and 80 steps; somebody takes 40 % longer from the 20th on.
void H39(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  job.layout.dp = 2 + index / 2 % 3;
  job.layout.microbatches = job.layout.layers = 1;
  job.layout.dp_buckets = draw.Of(std::array{1, 4});
  job.steps = 80;
  job.step_ms = draw.Between(60, 110);
  job.noise.op_sigma = draw.Between(0.01, 0.04);
  job.noise.wander_sigma = draw.Of(std::array{0.0, 0.02, 0.04});
  job.noise.wander_correlation = draw.Of(std::array{0.0, 0.8});
  job.marks.device = false;
  made.honesty = index % 2 == 0;
  if (made.honesty) return;
  AddFault(job, FaultKind::kCompute, 1.4, draw).first_step = 20;
}

// Thousands of ranks: few operations each.
void Scale(int index, Draw& draw, Case& made) {
  Job& job = made.job;
  Layout& layout = job.layout;
  layout.tp = layout.pp = 8;
  layout.dp = std::array{32, 128, 256}[index % 3];
  layout.microbatches = 16;
  layout.layers = 1;
  layout.dp_buckets = 2;
  job.steps = 40;
  Fault& fault = AddFault(job, std::array{FaultKind::kCompute, FaultKind::kNic, FaultKind::kPpLink}[index / 3 % 3],
                          std::array{1.5, 3.0, 3.0}[index / 3 % 3], draw);
  fault.first_step = 15;
}

const std::vector<std::pair<std::string, Maker>>& Makers() {
  static const auto& makers = *new std::vector<std::pair<std::string, Maker>>{
      {"healthy", Healthy}, {"matrix", Matrix}, {"H1", H1},     {"H2", H2},       {"H3", H3},      {"H4", H4},
      {"H5", H5},           {"H5b", H5b},       {"H6", H6},     {"H7", H7},       {"H8", H8},      {"H9", H9},
      {"H10", H10},         {"H11", H11},       {"H11b", H11b}, {"H12", H12},     {"H13", H13},    {"H14", H14},
      {"H15", H15},         {"H16", H16},       {"H17", H17},   {"H18", H18},     {"H19", H19},    {"H20", H20},
      {"H21", H21},         {"H30", H30},       {"H31", H31},   {"H32", H32},     {"H33", H33},    {"H34", H34},
      {"H35", H35},         {"H36", H36},       {"H37", H37},   {"scale", Scale}, {"quiet", Quiet}};
  return makers;
}

// Besides, uneven work; "u": of which the marks say nothing. New ones come last: a case is drawn by its suite's number.
const std::vector<std::pair<std::string, Maker>>& AllMakers() {
  static const auto& all = *new std::vector<std::pair<std::string, Maker>>([] {
    std::vector<std::pair<std::string, Maker>> makers = Makers();
    const auto add = [&makers](const char* name, const Ragged& what) {
      makers.emplace_back(name, [what](int index, Draw&, Case& made) { MakeRagged(what, index, made); });
    };
    add("W1", {.lengths = true, .faults = true});
    add("W1u", {.lengths = true, .faults = true, .known = false});
    add("W2", {.loads = true});
    add("W2u", {.loads = true, .known = false});
    add("W3", {.lengths = true, .loads = true, .faults = true});
    add("W3u", {.lengths = true, .loads = true, .faults = true, .known = false});
    makers.emplace_back("H38", H38);
    makers.emplace_back("H39", H39);
    return makers;
  }());
  return all;
}

// For whoever asks for them: large ones, and work that is lastingly more but not known, which nobody can tell from a slow
// rank.
}  // namespace

std::vector<std::string> SuiteNames() {
  std::vector<std::string> names;
  const std::vector<std::string> others = SuitesByNameOnly();
  for (const auto& [name, maker] : AllMakers()) {
    if (std::find(others.begin(), others.end(), name) == others.end()) names.push_back(name);
  }
  return names;
}

std::vector<std::string> SuitesByNameOnly() { return {"scale", "quiet", "W2u", "W3u"}; }

Case MakeCase(const std::string& suite, uint64_t seed, int index) {
  Case made;
  made.suite = suite;
  const auto& makers = AllMakers();
  for (size_t i = 0; i < makers.size(); ++i) {
    if (makers[i].first != suite) continue;
    const uint64_t own = Mix(Mix(seed, 4242), i, static_cast<uint64_t>(index));
    Draw draw(own);
    made.job = BaseJob(own, draw);
    made.job.name = absl::StrCat(suite, "-", index);
    makers[i].second(index, draw, made);
  }
  return made;
}

}  // namespace taskd::evaluation
