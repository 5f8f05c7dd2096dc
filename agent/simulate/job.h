// A synthetic training job: its layout, its noise, its clocks, and what is wrong with it. Pure data.
//
// The job is replayed from dependencies (agent/simulate/simulator.h); nothing here is a distribution of results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taskd::simulate {

// Global rank = ((pp_index * dp + dp_index) * cp + cp_index) * tp + tp_index, as Megatron orders them; ep groups are
// runs of `ep` neighbours in the dp x cp dimension (ep divides dp). Nodes hold `ranks_per_node` neighbours.
struct Layout {
  int tp = 1, cp = 1, dp = 1, pp = 1, ep = 1;
  int ranks_per_node = 8;
  int microbatches = 8;    // of one step and one data-parallel replica
  int layers = 4;          // of one stage; each has its tensor (context, expert) parallel operations
  bool overlap_dp = true;  // gradient buckets are reduced while backward computes
  int dp_buckets = 4;      // of a rank

  int ranks() const { return tp * cp * dp * pp; }
  int nodes() const { return (ranks() + ranks_per_node - 1) / ranks_per_node; }
};

enum class FaultKind : uint8_t {
  kCompute,        // clock, thermal, power: every kernel slower by the same factor
  kMemory,         // memory-bound parts slower: some gaps, most of all the optimizer
  kContention,     // as kCompute with high variance
  kRecompile,      // rare spikes of single gaps
  kDataloader,     // the rank's loader is slower
  kHost,           // node: enqueueing is slow on all its ranks, issue latency collapses
  kGc,             // pauses of one rank, in forward only, far more often than on others
  kCheckpoint,     // saving is slow on one rank
  kNic,            // the rank's traffic between nodes is slower
  kNodeNic,        // node: all its traffic between nodes is slower
  kIntraNodeLink,  // node: tensor-parallel transfers are slower
  kPpLink,         // the pair (a, b) of neighbouring stages
  kFabric,         // all traffic between nodes
  kConfig,         // all transfers, from step 0
};

enum class FaultShape : uint8_t { kPersistent, kTransient, kIntermittent, kRamp };

struct Fault {
  FaultKind kind = FaultKind::kCompute;
  std::vector<int> targets;  // ranks; node ranks of a node's fault; a, b of kPpLink; empty for kFabric, kConfig
  double severity = 1.5;     // factor on the component (compute time, transfer time, loader time, ...)
  FaultShape shape = FaultShape::kPersistent;
  int first_step = 0;
  int last_step = -1;    // -1: to the end
  double duty = 1;       // kIntermittent: share of steps in which it acts
  int ramp_steps = 500;  // kRamp: full severity after so many
};

struct Noise {
  double op_sigma = 0.025;             // lognormal, each computation
  double tail_share = 0.001;           // of computations that take 1.5 to 3 times as long
  double rank_sigma = 0.005;           // lognormal, constant of a rank
  double slow_machine_share = 0.005;   // of nodes that are 1 to 3 % slow from the start
  double sequence_sigma_forward = 0;   // per step, microbatch and replica (0.18: long-tailed data)
  double sequence_sigma_backward = 0;  // correlated 0.99 with forward
  double work_sigma = 0;               // lognormal: tokens, per step, microbatch and replica (agent/simulate/work.h)
  std::vector<double> replica_work;    // factor on the tokens that a replica gets, by replica; empty: all 1
  int replica_work_step = 0;           // from this step on
  double last_stage_forward = 1, last_stage_backward = 1;  // by design (2.07, 1.41: loss layer not balanced)
  std::vector<double> stage_factor;                        // by design, by stage; empty: all 1
  double gc_every_steps = 0;                               // mean, on every rank with its own phase; 0: none
  double gc_min_ms = 100, gc_max_ms = 500;
  // Now and then another process takes a part of a rank's core for seconds: each rank by itself, one such stretch in so
  // many seconds (0: none), in which its computations take up to so much longer, and its gradients up to so much more where
  // hosts move them.
  double stretch_every_s = 0;
  double stretch_min_s = 1, stretch_max_s = 8;
  double stretch_most = 0.25;
  double stretch_transfers = 0;
  // Computation of a rank in a step, beside what each operation varies by: lognormal, and so much of it stays from step
  // to step (0: white).
  double wander_sigma = 0;
  double wander_correlation = 0;
  // Weather: in each node neighbours take the machine for `gust_s` in so many seconds (0: never). Computations take up
  // to so much longer meanwhile: half as much on all its ranks, all of it on one, which changes every `gust_spell_s`.
  double gust_every_s = 0;
  double gust_s = 0.8;
  double gust_most = 1;
  double gust_spell_s = 6;
  double end_spread_ms = 0.02;  // exponential mean of a collective's ends
  double transfer_sigma = 0.05;
  double diurnal = 0;     // sinus of the whole job, share
  double hot_expert = 0;  // factor of the tokens that the hottest expert gets above the mean; drifts
};

struct Clocks {
  double offset_sigma_ms = 30;  // of a node
  double drift_ppm = 20;        // uniform within +-
  bool ntp_slew = true;         // one of +-5 ms in the run
};

struct Marks {
  bool communication = true;
  bool step = true, forward = true, dataloader = true, checkpoint = true;
  bool work = false;              // how many tokens the rank gets in the step
  bool device = true;             // host and device records, as MSPTI gives; false: host records only
  double loss = 0;                // share of records that are missing
  std::vector<int> silent_ranks;  // that leave no marks at all
  int silent_from_step = 0;
  int on_steps = 0, off_steps = 0;  // marks are switched on for so many steps and off for so many (0: never)
  int jump_step = -1, jump = 0;     // from here steps have numbers that are so much higher
  int repeat_every = 0;             // every so many steps the number before comes again (0: never)
};

struct Job {
  std::string name = "simulated";
  Layout layout;
  int steps = 120;
  uint64_t seed = 1;
  uint64_t start_ns = 1'767'225'600'000'000'000;
  double step_ms = 500;        // about; sets the scale of computation
  double compute_share = 0.7;  // of a step without faults that is computation, about
  double dataloader_ms = 5;
  int checkpoint_every = 0;  // steps; 0: never
  double checkpoint_ms = 800;
  double first_step_ms = 5000;  // compilation in the first step, on all ranks
  int evaluate_every = 0;       // steps; a pause of 20 steps' time between steps, on all ranks
  int change_step = -1;         // planned: from here computation and transfers have `change_factor`, on all ranks
  double change_factor = 1;
  bool hidden_sync = false;          // a barrier without marks before the gradients are reduced
  bool forward_holds_waits = false;  // the forward mark contains the waits of its operations (DDP)
  double metrics_ms = 0;      // of the step before, on each rank, and then all replicas reduce a few bytes; 0: neither
  double leader_overlap = 0;  // Lit Silicon: computation of those who wait grows by this share of the overlapped wait
  bool shared_storage = false;    // slow checkpoints hit all ranks
  int restart_step = -1;          // the job restarts here: new processes, from this step again
  int restart_dp = 0;             // and with so many replicas (elastic); 0: as before
  bool restart_renumber = false;  // and the nodes change places
  Noise noise;
  Clocks clocks;
  Marks marks;
  std::vector<Fault> faults;
};

// The truth about one fault, for whoever scores a diagnosis.
struct Label {
  FaultKind kind = FaultKind::kCompute;
  std::string scope;                // as in a verdict: rank, node, link, group, job
  std::vector<int> ids;             // a, b of a link
  std::vector<std::string> causes;  // right answers, the best first
  int first_step = 0, last_step = 0;
  double severity = 1;
  // Share by which it, alone, lengthens the mean of the steps from first_step to last_step: by replay without it.
  double effect = 0;
};

}  // namespace taskd::simulate
