#include "agent/simulate/replay.h"

#include <algorithm>
#include <cmath>

#include "agent/simulate/work.h"

namespace taskd::simulate {
namespace {

constexpr double kHostShare = 0.35;  // of the computation: what enqueueing it takes
constexpr double kHostOpMs = 0.02;   // to enqueue an operation
constexpr double kBetweenStepsMs = 0.02;
constexpr double kTailMs = 0.05;  // of the last kernel, where the host is what the device waits for
constexpr double kDiurnalSteps = 400;
constexpr int kEvaluationSteps = 20;
constexpr double kHotExpertSteps = 25;  // until the hottest expert is another one

enum Key : uint64_t {
  kPieces = 1,
  kOperations,
  kEnds,
  kLoads,
  kSaves,
  kSequence,
  kPauses,
  kCompile,
  kBegins,
  kQueues,
  kStretches,
  kGusts,
  kWander
};

}  // namespace

struct Replayer::Present {
  const Plan& plan;
  const Heterogeneity& ranks;
  const Effects& effects;
  Times& times;
  Ranges* ranges;
  int step;
  size_t index = 0;  // of the instruction: a key of its random numbers
  double work = 1;   // factor on all computation of the step
  double transfers = 1;
  const std::vector<uint8_t>& level;
  std::vector<double>& sequence;    // factors of this piece, by replica
  std::vector<double>& overlapped;  // by rank: wait that the next piece overlaps
  std::vector<double>& starts;      // scratch, by rank
  const std::vector<double>& lead;  // by rank: ms that its host may run ahead
  uint64_t key(Key kind) const {
    return Mix(static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(step) << 24 | index);
  }
};

Replayer::Replayer(const Job& job)
    : job_(job),
      op_noise_(Quantiles::Lognormal(job.noise.op_sigma)),
      unsteady_noise_(Quantiles::Lognormal(0.25)),
      transfer_noise_(Quantiles::Lognormal(job.noise.transfer_sigma)),
      end_spread_(Quantiles::Exponential(job.noise.end_spread_ms)),
      loader_noise_(Quantiles::Lognormal(0.1)),
      lead_ms_(std::min(60.0, 0.2 * job.step_ms)) {}

void Replayer::Begin(const Plan& plan, double time_ms, Times& times) const {
  for (auto* values : {&times.compute, &times.gradients, &times.host}) {
    values->assign(static_cast<size_t>(plan.ranks()), time_ms);
  }
  times.own.assign(static_cast<size_t>(plan.ranks()), 0);
  times.wander.clear();
  times.end = time_ms;
}

// The host comes to the operation and enqueues it. It never runs further ahead than the device's queue is long.
double Replayer::Enqueue(const Present& now, const Instruction& instruction, int event, int rank) const {
  const size_t r = static_cast<size_t>(rank);
  double& host = now.times.host[r];
  host = std::max(host, now.times.compute[r] - now.lead[r]);
  if (now.ranges != nullptr) {
    const size_t at = static_cast<size_t>(event) * static_cast<size_t>(now.plan.ranks()) + r;
    now.ranges->host_start[at] = host;
    now.ranges->host_end[at] = host + kHostOpMs / 2;
  }
  const double from = host + kHostOpMs / 2;
  // A slow host takes as long for what the device waits for; gradients on a stream of their own it only enqueues.
  host += kHostOpMs + (instruction.code == Code::kBucket ? 0 : now.effects.host[r] * instruction.ms);
  return from;
}

void Replayer::Piece(const Present& now, const Instruction& instruction) const {
  const Plan& plan = now.plan;
  const Effects& effects = now.effects;
  const uint64_t key = Mix(job_.seed, now.key(kPieces));
  const uint64_t tail = static_cast<uint64_t>(job_.noise.tail_share * 0x1p32);
  const int first = instruction.stage * plan.block();
  const bool by_sequence = instruction.sequence && job_.noise.sequence_sigma_forward > 0;
  if (by_sequence) {
    const double sigma = instruction.forward ? job_.noise.sequence_sigma_forward : job_.noise.sequence_sigma_backward;
    for (int d = 0; d < plan.layout().dp; ++d) {
      // One draw a microbatch and replica, on all its stages; backward adds a little of its own.
      const uint64_t draw = Mix(Mix(job_.seed, kSequence, static_cast<uint64_t>(now.step)),
                                static_cast<uint64_t>(instruction.microbatch), static_cast<uint64_t>(d));
      const double z = instruction.forward ? Normal(draw) : 0.99 * Normal(draw) + 0.141 * Normal(Mix(draw, 3));
      now.sequence[static_cast<size_t>(d)] = std::exp(sigma * z);
    }
  }
  const bool by_work = instruction.sequence && HasRaggedWork(job_);
  for (int d = 0; by_work && d < plan.layout().dp; ++d) {
    const double time = TimeOfWork(WorkOf(job_, now.step, instruction.microbatch, d));
    double& factor = now.sequence[static_cast<size_t>(d)];
    factor = by_sequence ? factor * time : time;
  }
  const int replica_ranks = plan.layout().cp * plan.layout().tp;
  const double nominal = instruction.ms * now.work;
  for (int i = 0; i < plan.block(); ++i) {
    const size_t r = static_cast<size_t>(first) + static_cast<size_t>(i);
    const uint64_t bits = Mix(key + r * 0x9E3779B97F4A7C15u);
    double expected = nominal;
    if (by_sequence || by_work) expected *= now.sequence[static_cast<size_t>(i / replica_ranks)];
    if (instruction.expert) expected *= now.level[r] / static_cast<double>(Plan::kMeanLevel);
    double ms = expected * now.ranks.speed[r] * op_noise_[bits];
    if (!instruction.outside) ms *= effects.compute[r];
    ms *= 1 + (effects.memory[r] - 1) * instruction.memory;
    if (effects.unsteady[r] != 0) ms *= unsteady_noise_[bits >> 12];
    if ((bits >> 32) < tail) ms *= Uniform(Mix(bits), 1.5, 3);
    if (job_.leader_overlap > 0) {
      ms += job_.leader_overlap * std::min(now.overlapped[r], ms);
      now.overlapped[r] = 0;
    }
    double& compute = now.times.compute[r];
    double& host = now.times.host[r];
    host = std::max(host, compute - now.lead[r]);
    host += effects.host[r] > 0 ? expected * effects.host[r] : expected * kHostShare;
    if (effects.stall_ms[r] > 0 && effects.stall_piece[r] == instruction.ordinal) host += effects.stall_ms[r];
    const double end = std::max(compute + ms, host + kTailMs);
    now.times.own[r] += end - compute;
    compute = end;
  }
}

void Replayer::EndTogether(const Present& now, int event, int first, int stride, int count, const double* start,
                           double ms, uint64_t key, double* end) const {
  double latest = 0;
  for (int k = 0, r = first; k < count; ++k, r += stride) latest = std::max(latest, start[r]);
  const size_t row = static_cast<size_t>(event) * static_cast<size_t>(now.plan.ranks());
  for (int k = 0, r = first; k < count; ++k, r += stride) {
    const double until = latest + ms + end_spread_[Mix(key + static_cast<uint64_t>(r))];
    if (now.ranges != nullptr) {
      now.ranges->start[row + static_cast<size_t>(r)] = start[r];
      now.ranges->end[row + static_cast<size_t>(r)] = until;
    }
    end[r] = until;
  }
}

void Replayer::Collective(const Present& now, const Instruction& instruction) const {
  const Plan& plan = now.plan;
  const GroupSet& set = plan.set(instruction.group);
  const auto& factors = now.effects.transfer[static_cast<size_t>(instruction.group)];
  const uint64_t key = Mix(job_.seed, now.key(kOperations));
  const int first = instruction.stage * plan.block();
  double* compute = now.times.compute.data();
  for (int i = 0; i < plan.block(); ++i) {
    compute[first + i] = std::max(compute[first + i], Enqueue(now, instruction, instruction.event, first + i));
  }
  size_t group = static_cast<size_t>(instruction.stage) * set.bases.size();
  for (int base : set.bases) {
    const uint64_t bits = Mix(key, group);
    double ms = instruction.ms * now.transfers * factors[group] * transfer_noise_[bits];
    if (instruction.expert) {
      // As long as the fullest expert takes.
      int most = 1;
      for (int k = 0; k < set.count; ++k) {
        const int member = first + base + k * set.stride;
        most = std::max<int>(most, now.level[static_cast<size_t>(member)]);
      }
      ms *= most / static_cast<double>(Plan::kMeanLevel);
    }
    EndTogether(now, instruction.event, first + base, set.stride, set.count, compute, ms, bits, compute);
    ++group;
  }
}

// The gradients' stream takes it up when the piece before it is done; computation goes on.
void Replayer::Bucket(const Present& now, const Instruction& instruction) const {
  const Plan& plan = now.plan;
  const GroupSet& set = plan.set(GroupType::kDp);
  const auto& factors = now.effects.transfer[static_cast<size_t>(GroupType::kDp)];
  const uint64_t key = Mix(job_.seed, now.key(kOperations));
  const int first = instruction.stage * plan.block();
  double* starts = now.starts.data();
  for (int i = 0; i < plan.block(); ++i) {
    const size_t r = static_cast<size_t>(first) + static_cast<size_t>(i);
    starts[r] = std::max(
        {now.times.compute[r], now.times.gradients[r], Enqueue(now, instruction, instruction.event, first + i)});
  }
  size_t group = static_cast<size_t>(instruction.stage) * set.bases.size();
  for (int base : set.bases) {
    const uint64_t bits = Mix(key, group);
    const double ms = instruction.ms * now.transfers * factors[group] * transfer_noise_[bits];
    EndTogether(now, instruction.event, first + base, set.stride, set.count, starts, ms, bits,
                now.times.gradients.data());
    ++group;
  }
  if (job_.leader_overlap <= 0) return;
  for (int i = 0; i < plan.block(); ++i) {
    const size_t r = static_cast<size_t>(first) + static_cast<size_t>(i);
    now.overlapped[r] = now.times.gradients[r] - starts[r];
  }
}

void Replayer::Exchange(const Present& now, const Instruction& instruction) const {
  const Plan& plan = now.plan;
  const auto& factors = now.effects.transfer[static_cast<size_t>(GroupType::kPp)];
  const uint64_t key = Mix(job_.seed, now.key(kOperations));
  const size_t ranks = static_cast<size_t>(plan.ranks());
  double* compute = now.times.compute.data();
  for (int i = 0; i < plan.block(); ++i) {
    const int a = instruction.stage * plan.block() + i, b = a + plan.block();
    compute[a] = std::max(compute[a], Enqueue(now, instruction, instruction.event, a));
    compute[b] = std::max(compute[b], Enqueue(now, instruction, instruction.next_event, b));
    const uint64_t bits = Mix(key, static_cast<uint64_t>(a));
    double ms = instruction.ms * now.transfers * factors[static_cast<size_t>(a)] * transfer_noise_[bits];
    if (!plan.link_spans(a)) ms /= 2;
    const double latest = std::max(compute[a], compute[b]) + ms;
    const double end_a = latest + end_spread_[bits >> 12], end_b = latest + end_spread_[bits >> 24];
    if (now.ranges != nullptr) {
      const size_t at_a = static_cast<size_t>(instruction.event) * ranks + static_cast<size_t>(a);
      const size_t at_b = static_cast<size_t>(instruction.next_event) * ranks + static_cast<size_t>(b);
      now.ranges->start[at_a] = compute[a];
      now.ranges->start[at_b] = compute[b];
      now.ranges->end[at_a] = end_a;
      now.ranges->end[at_b] = end_b;
    }
    compute[a] = end_a;
    compute[b] = end_b;
  }
}

// Every stage has an instruction of its own, for its own mark; they come one after another, the first is stage 0's.
void Replayer::All(const Present& now, const Instruction& instruction) const {
  const Plan& plan = now.plan;
  double* compute = now.times.compute.data();
  const int first = instruction.stage * plan.block();
  if (instruction.code == Code::kHiddenSync) {
    if (instruction.stage != 0) return;
    const double latest = *std::max_element(now.times.compute.begin(), now.times.compute.end());
    std::fill(now.times.compute.begin(), now.times.compute.end(), latest);
    return;
  }
  // Each stage's mark has its own place in the stage's order, but all of them are one operation.
  if (instruction.stage == 0) {
    double latest = 0;
    for (int r = 0; r < plan.ranks(); ++r) {
      const size_t at = static_cast<size_t>(r);
      compute[r] = std::max(compute[r], std::max(now.times.host[at], compute[r] - now.lead[at]) + kHostOpMs / 2);
      latest = std::max(latest, compute[r]);
    }
    now.starts[0] = latest;
  }
  const uint64_t bits = Mix(job_.seed, now.key(kOperations));
  const double factor = now.effects.transfer[static_cast<size_t>(GroupType::kWorld)][0];
  const double until = now.starts[0] + instruction.ms * now.transfers * factor;
  const size_t row = static_cast<size_t>(instruction.event) * static_cast<size_t>(plan.ranks());
  for (int r = first; r < first + plan.block(); ++r) {
    Enqueue(now, instruction, instruction.event, r);
    const double end = until + end_spread_[Mix(bits + static_cast<uint64_t>(r))];
    if (now.ranges != nullptr) {
      now.ranges->start[row + static_cast<size_t>(r)] = compute[r];
      now.ranges->end[row + static_cast<size_t>(r)] = end;
    }
    compute[r] = end;
  }
}

// The hottest expert gets (1 + hot_expert) times the mean, its neighbours some of the rest; it wanders.
void Replayer::HotExpert(const Plan& plan, int step, std::vector<uint8_t>& level) const {
  level.assign(static_cast<size_t>(plan.ranks()), Plan::kMeanLevel);
  const int experts = plan.layout().ep;
  if (job_.noise.hot_expert <= 0 || experts < 2) return;
  const double hot = Uniform(Mix(job_.seed, kBegins)) * experts + step / kHotExpertSteps;
  const double excess = std::min(job_.noise.hot_expert, experts - 1.0);
  std::vector<double> share(static_cast<size_t>(experts));
  double sum = 0;
  for (int e = 0; e < experts; ++e) {
    double distance = std::fmod(std::abs(e - hot), experts);
    distance = std::min(distance, experts - distance);
    // Tokens fluctuate by some percent from step to step beside the drift.
    const uint64_t bits = Mix(Mix(job_.seed, kBegins, static_cast<uint64_t>(step)), static_cast<uint64_t>(e));
    share[static_cast<size_t>(e)] = (1 + excess * std::max(0.0, 1 - distance)) * Uniform(bits, 0.95, 1.05);
    sum += share[static_cast<size_t>(e)];
  }
  for (int r = 0; r < plan.ranks(); ++r) {
    const double tokens = share[static_cast<size_t>(plan.expert(r))] * experts / sum;
    level[static_cast<size_t>(r)] =
        static_cast<uint8_t>(std::clamp<long>(std::lround(tokens * Plan::kMeanLevel), 1, Plan::kTokenLevels - 1));
  }
}

// Jobs become slower and faster by the time of day, and by plan.
void Replayer::SetFactors(Present& now) const {
  if (job_.noise.diurnal > 0) {
    now.work = now.transfers = 1 + job_.noise.diurnal * std::sin(2 * M_PI * now.step / kDiurnalSteps);
  }
  if (job_.change_step >= 0 && now.step >= job_.change_step) {
    now.work *= job_.change_factor;
    now.transfers *= job_.change_factor;
  }
}

// A queue holds so many kernels: the time that they are ahead grows with what they take.
std::vector<double> Replayer::DrawLeads(int step, const Effects& effects) const {
  std::vector<double> lead(effects.compute.size());
  for (size_t r = 0; r < lead.size(); ++r) {
    const uint64_t bits = Mix(job_.seed ^ static_cast<uint64_t>(step), kQueues, r);
    lead[r] = lead_ms_ * effects.compute[r] * unsteady_noise_[bits];
  }
  return lead;
}

// Garbage collection of healthy ranks, each in a rhythm of its own.
void Replayer::AddPauses(const Plan& plan, int step, Effects& effects) const {
  for (size_t r = 0; r < effects.stall_ms.size(); ++r) {
    const uint64_t bits = Mix(job_.seed, kPauses, r);
    const uint64_t every = static_cast<uint64_t>(std::max(1.0, job_.noise.gc_every_steps * Uniform(bits, 0.7, 1.3)));
    if ((static_cast<uint64_t>(step) + Mix(bits, 1) % every) % every != 0 || effects.stall_ms[r] > 0) continue;
    const uint64_t pause = Mix(bits, static_cast<uint64_t>(step));
    const std::vector<int>& pieces = plan.forward_pieces(plan.stage(static_cast<int>(r)));
    effects.stall_ms[r] = static_cast<float>(Uniform(pause, job_.noise.gc_min_ms, job_.noise.gc_max_ms));
    effects.stall_piece[r] = pieces[Mix(pause, 1) % pieces.size()];
  }
}

// By the time that the job would have run for in even steps.
void Replayer::AddStretches(const Plan& plan, int step, Effects& effects) const {
  const Noise& noise = job_.noise;
  for (size_t r = 0; r < effects.compute.size(); ++r) {
    const uint64_t bits = Mix(job_.seed, kStretches, r);
    const double time_s = step * job_.step_ms * 1e-3 + noise.stretch_every_s * Uniform(bits);
    const double window = std::floor(time_s / noise.stretch_every_s);
    const uint64_t stretch = Mix(bits, static_cast<uint64_t>(window));
    const double length_s = Uniform(Mix(stretch, 1), noise.stretch_min_s, noise.stretch_max_s);
    const double begin_s = Uniform(Mix(stretch, 2), 0, std::max(0.0, noise.stretch_every_s - length_s));
    const double within_s = time_s - window * noise.stretch_every_s;
    if (within_s < begin_s || within_s >= begin_s + length_s) continue;
    effects.compute[r] *= static_cast<float>(1 + Uniform(Mix(stretch, 3), 0, noise.stretch_most));
    std::vector<float>& transfers = effects.transfer[static_cast<size_t>(GroupType::kDp)];
    float& transfer = transfers[static_cast<size_t>(plan.group(GroupType::kDp, static_cast<int>(r)))];
    transfer = std::max(transfer, static_cast<float>(1 + Uniform(Mix(stretch, 4), 0, noise.stretch_transfers)));
  }
}

void Replayer::AddGusts(const Plan& plan, int step, Effects& effects) const {
  const Noise& noise = job_.noise;
  const int size = plan.layout().ranks_per_node;
  for (size_t r = 0; r < effects.compute.size(); ++r) {
    const int node = plan.node(static_cast<int>(r));
    const uint64_t bits = Mix(job_.seed, kGusts, static_cast<uint64_t>(node));
    const double time_s = step * job_.step_ms * 1e-3 + noise.gust_every_s * Uniform(bits);
    if (std::fmod(time_s, noise.gust_every_s) >= noise.gust_s) continue;
    const uint64_t spell = Mix(bits, 1, static_cast<uint64_t>(time_s / noise.gust_spell_s));
    const int ranks = std::min(size, plan.ranks() - node * size);
    const bool chosen = static_cast<int>(spell % static_cast<uint64_t>(ranks)) == static_cast<int>(r) % size;
    const double most = noise.gust_most * (chosen ? 1 : 0.5);
    const uint64_t now = Mix(Mix(bits, 2, static_cast<uint64_t>(step)), r);
    effects.compute[r] *= static_cast<float>(1 + most * Uniform(now, 0.5, 1));
  }
}

void Replayer::Wander(int step, Effects& effects, Times& times) const {
  const Noise& noise = job_.noise;
  const bool first = times.wander.empty();
  times.wander.resize(effects.compute.size());
  const double kept = noise.wander_correlation, fresh = std::sqrt(1 - kept * kept);
  for (size_t r = 0; r < times.wander.size(); ++r) {
    const double draw = Normal(Mix(Mix(job_.seed, kWander, static_cast<uint64_t>(step)), r));
    times.wander[r] = first ? draw : kept * times.wander[r] + fresh * draw;
    effects.compute[r] *= static_cast<float>(std::exp(noise.wander_sigma * times.wander[r]));
  }
}

// The host has waited for the device at the end of the step before. It loads, then enqueues.
void Replayer::BeginStep(const Present& now, bool first_of_life) const {
  Times& times = now.times;
  const size_t n = static_cast<size_t>(now.plan.ranks());
  if (job_.evaluate_every > 0 && now.step > 0 && now.step % job_.evaluate_every == 0) {
    for (double& time : times.compute) time += kEvaluationSteps * job_.step_ms;
  }
  times.begin = times.end;
  for (size_t r = 0; r < n; ++r) {
    const double begin = times.compute[r] + kBetweenStepsMs;
    times.begin = r == 0 ? begin : std::min(times.begin, begin);
    const uint64_t bits = Mix(job_.seed, now.key(kLoads), r);
    const double load = job_.dataloader_ms * now.effects.loader[r] * loader_noise_[bits];
    if (now.ranges != nullptr) {
      now.ranges->host_start[r] = begin;
      now.ranges->start[r] = begin + kHostOpMs / 2;
      const size_t loads = Plan::kDataloaderEvent * n + r;
      now.ranges->host_start[loads] = begin + kHostOpMs;
      now.ranges->host_end[loads] = begin + kHostOpMs + load;
    }
    times.host[r] = begin + kHostOpMs + load;
    // Compiled before anything is enqueued, on all ranks at once.
    if (first_of_life) times.host[r] += job_.first_step_ms * Uniform(Mix(bits, kCompile), 0.95, 1.05);
    times.own[r] = times.host[r] - begin;
    times.compute[r] = times.gradients[r] = times.host[r];
  }
}

void Replayer::Execute(const Present& now, const Instruction& instruction) const {
  switch (instruction.code) {
    case Code::kPiece:
      return Piece(now, instruction);
    case Code::kForwardBegin:
    case Code::kForwardEnd:
      return MarkForward(now, instruction);
    case Code::kCollective:
      return Collective(now, instruction);
    case Code::kExchange:
      return Exchange(now, instruction);
    case Code::kBucket:
      return Bucket(now, instruction);
    case Code::kJoinBuckets:
      return JoinBuckets(now, instruction);
    case Code::kHiddenSync:
    case Code::kWorld:
      return All(now, instruction);
  }
}

void Replayer::MarkForward(const Present& now, const Instruction& instruction) const {
  if (now.ranges == nullptr) return;
  Ranges& ranges = *now.ranges;
  const bool begins = instruction.code == Code::kForwardBegin;
  const int first = instruction.stage * now.plan.block();
  for (int i = first; i < first + now.plan.block(); ++i) {
    const size_t r = static_cast<size_t>(i);
    const size_t at = static_cast<size_t>(instruction.event) * static_cast<size_t>(now.plan.ranks()) + r;
    (begins ? ranges.host_start : ranges.host_end)[at] = now.times.host[r];
    (begins ? ranges.start : ranges.end)[at] = std::max(now.times.compute[r], now.times.host[r]);
  }
}

void Replayer::JoinBuckets(const Present& now, const Instruction& instruction) const {
  const int first = instruction.stage * now.plan.block();
  for (int i = first; i < first + now.plan.block(); ++i) {
    const size_t r = static_cast<size_t>(i);
    now.times.compute[r] = std::max(now.times.compute[r], now.times.gradients[r]);
  }
}

// The host waits for the device, saves, and the step ends.
void Replayer::EndStep(const Present& now) const {
  Times& times = now.times;
  const bool saves = SavesCheckpoint(now.step);
  const size_t n = static_cast<size_t>(now.plan.ranks());
  times.end = 0;
  for (size_t r = 0; r < n; ++r) {
    double end = std::max(times.compute[r], times.host[r]);
    if (saves) {
      const uint64_t bits = Mix(job_.seed, now.key(kSaves), r);
      const double save = job_.checkpoint_ms * now.effects.saver[r] * loader_noise_[bits];
      if (now.ranges != nullptr) {
        const size_t at = Plan::kCheckpointEvent * n + r;
        now.ranges->host_start[at] = end + kHostOpMs;
        now.ranges->host_end[at] = end + kHostOpMs + save;
      }
      times.own[r] += save;
      end += kHostOpMs + save;
    }
    end += kHostOpMs;
    if (now.ranges != nullptr) {
      now.ranges->end[r] = end;
      now.ranges->host_end[r] = end + kHostOpMs / 2;
    }
    times.compute[r] = times.host[r] = end + kHostOpMs / 2;
    times.end = std::max(times.end, times.compute[r]);
  }
}

void Replayer::Step(const Plan& plan, const Heterogeneity& ranks, int step, bool first_of_life, Effects& effects,
                    Times& times, Ranges* ranges) const {
  const size_t n = static_cast<size_t>(plan.ranks());
  std::vector<uint8_t> own_level;
  std::vector<uint8_t>& level = ranges != nullptr ? ranges->level : own_level;
  HotExpert(plan, step, level);
  std::vector<double> sequence(static_cast<size_t>(plan.layout().dp), 1), overlapped, starts(n);
  if (job_.leader_overlap > 0) overlapped.assign(n, 0);
  const std::vector<double> lead = DrawLeads(step, effects);
  if (job_.noise.gc_every_steps > 0 && !first_of_life) AddPauses(plan, step, effects);
  if (job_.noise.stretch_every_s > 0) AddStretches(plan, step, effects);
  if (job_.noise.gust_every_s > 0) AddGusts(plan, step, effects);
  if (job_.noise.wander_sigma > 0) Wander(step, effects, times);
  Present now{plan, ranks, effects, times, ranges, step, 0, 1, 1, level, sequence, overlapped, starts, lead};
  SetFactors(now);
  BeginStep(now, first_of_life);
  for (const Instruction& instruction : plan.program()) {
    ++now.index;
    Execute(now, instruction);
  }
  EndStep(now);
}

}  // namespace taskd::simulate
