#include "agent/simulate/simulator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "agent/simulate/faults.h"
#include "agent/simulate/plan.h"
#include "agent/simulate/random.h"
#include "agent/simulate/replay.h"
#include "agent/simulate/work.h"

namespace taskd::simulate {
namespace {

constexpr uint64_t kFirstWorkId = uint64_t{1} << 48;
constexpr int kMaxRanks = 1 << 17;
constexpr double kRestartMs = 30'000;
constexpr double kShortestSlewMs = 2'000, kLongestSlewMs = 10'000;  // that a correction of the clock takes
constexpr double kMaxCorrectionMs = 5;
constexpr const char* kDefaultDomain = "default";
constexpr const char* kCommunicationDomain = "communication";

enum Key : uint64_t { kRankSpeed = 101, kMachine, kClock, kLoss, kPlaces };

absl::Status CheckRange(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", value, " is not ", low, " to ", high));
}

absl::Status CheckLayout(const Layout& layout) {
  for (absl::Status status : {CheckRange("tp", layout.tp, 1, kMaxRanks), CheckRange("cp", layout.cp, 1, kMaxRanks),
                              CheckRange("dp", layout.dp, 1, kMaxRanks), CheckRange("pp", layout.pp, 1, kMaxRanks),
                              CheckRange("ep", layout.ep, 1, kMaxRanks)}) {
    if (!status.ok()) return status;
  }
  const double ranks = static_cast<double>(layout.tp) * layout.cp * layout.dp * layout.pp;
  if (ranks > kMaxRanks) return absl::InvalidArgumentError(absl::StrCat(ranks, " ranks are more than ", kMaxRanks));
  if (layout.dp % layout.ep != 0) {
    return absl::InvalidArgumentError(absl::StrCat("ep ", layout.ep, " does not divide dp ", layout.dp));
  }
  for (absl::Status status :
       {CheckRange("ranks-per-node", layout.ranks_per_node, 1, 1024),
        CheckRange("microbatches", layout.microbatches, 1, 4096), CheckRange("layers", layout.layers, 1, 256),
        CheckRange("dp-buckets", layout.dp_buckets, 1, 256)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const Job& job) {
  absl::Status status = CheckLayout(job.layout);
  if (!status.ok()) return status;
  const Noise& noise = job.noise;
  for (absl::Status range : {CheckRange("steps", job.steps, 1, 1e7),
                             CheckRange("step-ms", job.step_ms, 1, 1e6),
                             CheckRange("compute share", job.compute_share, 0.05, 1),
                             CheckRange("dataloader ms", job.dataloader_ms, 0, 1e6),
                             CheckRange("checkpoint ms", job.checkpoint_ms, 0, 1e7),
                             CheckRange("first step ms", job.first_step_ms, 0, 1e7),
                             CheckRange("change factor", job.change_factor, 0.01, 100),
                             CheckRange("leader overlap", job.leader_overlap, 0, 10),
                             CheckRange("op sigma", noise.op_sigma, 0, 2),
                             CheckRange("tail share", noise.tail_share, 0, 0.5),
                             CheckRange("diurnal", noise.diurnal, 0, 0.9),
                             CheckRange("hot expert", noise.hot_expert, 0, 100),
                             CheckRange("gc ms", noise.gc_min_ms, 0, noise.gc_max_ms),
                             CheckRange("stretch every s", noise.stretch_every_s, 0, 1e6),
                             CheckRange("stretch s", noise.stretch_min_s, 0, noise.stretch_max_s),
                             CheckRange("stretch most", noise.stretch_most, 0, 100),
                             CheckRange("stretch transfers", noise.stretch_transfers, 0, 100),
                             CheckRange("wander sigma", noise.wander_sigma, 0, 2),
                             CheckRange("wander correlation", noise.wander_correlation, 0, 0.999999),
                             CheckRange("gust every s", noise.gust_every_s, 0, 1e6),
                             CheckRange("gust s", noise.gust_s, 0, 1e6),
                             CheckRange("gust most", noise.gust_most, 0, 100),
                             CheckRange("gust spell s", noise.gust_spell_s, 0.01, 1e6),
                             CheckRange("on steps", job.marks.on_steps, 0, 1e7),
                             CheckRange("off steps", job.marks.off_steps, 0, 1e7),
                             CheckRange("jump", job.marks.jump, 0, 1e9),
                             CheckRange("repeat every", job.marks.repeat_every, 0, 1e7),
                             CheckRange("loss", job.marks.loss, 0, 1),
                             CheckRange("restart dp", job.restart_dp, 0, kMaxRanks)}) {
    if (!range.ok()) return range;
  }
  if (job.restart_step >= job.steps) {
    return absl::InvalidArgumentError(absl::StrCat("restart step ", job.restart_step, " is not below ", job.steps));
  }
  if (job.restart_step >= 0 && job.restart_dp > 0) {
    Layout resized = job.layout;
    resized.dp = job.restart_dp;
    status = CheckLayout(resized);
  }
  return status;
}

}  // namespace

class Simulator::Impl {
 public:
  explicit Impl(const Job& job) : job_(job), replayer_(job_) {
    StartLife(0, job_.layout);
    for (size_t i = 0; i < job_.faults.size(); ++i) RememberLabels(i, 0);
  }

  bool Next() {
    restarted_ = false;
    int step = step_ + 1;
    if (lives_ == 1 && job_.restart_step >= 0 && step_ == job_.restart_step) {
      Restart();
      step = job_.restart_step;
    }
    if (step >= job_.steps) return false;
    step_ = step;
    const double before = times_.end;
    Measure();
    effects_.Reset(*plan_);
    for (size_t i = 0; i < job_.faults.size(); ++i) Add(i, effects_);
    replayer_.Step(*plan_, heterogeneity_, step_, life_step_ == 0, effects_, times_, &ranges_);
    step_ms_ = times_.end - (life_step_ == 0 ? times_.begin : before);
    ++life_step_;
    return true;
  }

  const std::vector<MarkRecord>& Marks(int rank);
  std::vector<Label> labels() const;

  const Job& job() const { return job_; }
  const Plan& plan() const { return *plan_; }
  int step() const { return step_; }
  double step_ms() const { return step_ms_; }
  bool restarted() const { return restarted_; }
  double own_ms(int rank) const { return times_.own[static_cast<size_t>(rank)]; }

 private:
  // A replay beside the real one, without faults or with a single one: what a fault costs is their difference.
  struct Shadow {
    int fault = -1;  // -1: none acts
    Times times;
    std::vector<double> step_ms;  // from the step of its start
  };
  struct Truth {
    size_t fault = 0;
    int life = 0;
    Label label;
  };

  void StartLife(double time_ms, const Layout& layout);
  void Restart();
  void RememberLabels(size_t fault, int life);
  void Add(size_t fault, Effects& effects) const {
    AddEffects(job_, *plan_, placement_, job_.faults[fault], static_cast<int>(fault), step_, effects);
  }
  void Measure();
  bool AnyActs() const;
  bool ActsNow(size_t fault) const;
  bool IsMarked(Event::Kind kind) const;
  bool IsSilent(int rank) const;
  // What the marks call a step.
  int64_t NumberOf(int step) const {
    const simulate::Marks& marks = job_.marks;
    const int64_t repeated = marks.repeat_every > 0 ? step / marks.repeat_every : 0;
    return step - repeated + (marks.jump_step >= 0 && step >= marks.jump_step ? marks.jump : 0);
  }
  void CollectStamps(int rank);
  void NameMark(const Event& event, int rank, MarkRecord& mark) const;

  struct NodeClock {
    double offset_ms = 0, rate = 1;
    double slew_from_ms = 0, slew_for_ms = 1, slew_ms = 0;
    double Shown(double ms) const {
      return ms * rate + offset_ms + slew_ms * std::clamp((ms - slew_from_ms) / slew_for_ms, 0.0, 1.0);
    }
  };
  NodeClock ClockOf(int machine) const;

  const Job job_;
  const Replayer replayer_;
  std::unique_ptr<Plan> plan_;
  Placement placement_;
  std::vector<int> machine_of_;  // by node rank
  Heterogeneity heterogeneity_;
  int lives_ = 0;
  int life_step_ = 0;
  int step_ = -1;
  double step_ms_ = 0;
  bool restarted_ = false;
  Effects effects_;
  Times times_;
  Ranges ranges_;

  std::vector<Truth> truths_;
  bool measuring_ = false;
  Effects shadow_effects_;
  std::vector<Shadow> shadows_;
  // By fault: sums over the steps in which it acts, of step lengths with it alone and without any.
  std::vector<double> with_ms_, without_ms_;

  struct Stamp {
    uint64_t time_ns;
    uint32_t event;
    uint32_t which;  // 0 host start, 1 host end, 2 device start, 3 device end
  };
  std::vector<Stamp> stamps_;
  std::vector<MarkRecord> marks_;
  std::string step_name_, work_name_;
};

void Simulator::Impl::StartLife(double time_ms, const Layout& layout) {
  plan_ = std::make_unique<Plan>(job_, layout);
  const int nodes = plan_->nodes();
  placement_.ranks_per_node = layout.ranks_per_node;
  const int machines = std::max(nodes, job_.layout.nodes());
  placement_.node_of.resize(static_cast<size_t>(machines));
  machine_of_.assign(static_cast<size_t>(machines), 0);
  int shift = 0;
  if (lives_ > 0 && job_.restart_renumber && machines > 1) {
    shift = 1 + static_cast<int>(Mix(job_.seed, kPlaces) % static_cast<uint64_t>(machines - 1));
  }
  for (int machine = 0; machine < machines; ++machine) {
    const int node = (machine + shift) % machines;
    placement_.node_of[static_cast<size_t>(machine)] = node;
    machine_of_[static_cast<size_t>(node)] = machine;
  }
  heterogeneity_.speed.resize(static_cast<size_t>(plan_->ranks()));
  for (int rank = 0; rank < plan_->ranks(); ++rank) {
    const uint64_t machine = static_cast<uint64_t>(machine_of_[static_cast<size_t>(plan_->node(rank))]);
    const uint64_t device = machine << 16 | static_cast<uint64_t>(rank % layout.ranks_per_node);
    double speed = std::exp(job_.noise.rank_sigma * Normal(Mix(job_.seed, kRankSpeed, device)));
    const uint64_t bits = Mix(job_.seed, kMachine, machine);
    if (Uniform(bits) < job_.noise.slow_machine_share) speed *= Uniform(Mix(bits), 1.01, 1.03);
    heterogeneity_.speed[static_cast<size_t>(rank)] = static_cast<float>(speed);
  }
  const size_t cells = static_cast<size_t>(plan_->max_events()) * static_cast<size_t>(plan_->ranks());
  for (auto* values : {&ranges_.start, &ranges_.end, &ranges_.host_start, &ranges_.host_end}) values->assign(cells, 0);
  replayer_.Begin(*plan_, time_ms, times_);
  ++lives_;
  life_step_ = 0;
}

void Simulator::Impl::Restart() {
  Layout layout = job_.layout;
  if (job_.restart_dp > 0) layout.dp = job_.restart_dp;
  const double time_ms = times_.end + kRestartMs;
  StartLife(time_ms, layout);
  for (Shadow& shadow : shadows_) replayer_.Begin(*plan_, shadow.times.end + kRestartMs, shadow.times);
  for (size_t i = 0; i < job_.faults.size(); ++i) RememberLabels(i, 1);
  restarted_ = true;
}

void Simulator::Impl::RememberLabels(size_t fault, int life) {
  for (Label& label : LabelsOf(job_, *plan_, placement_, job_.faults[fault])) {
    if (life > 0) {
      label.first_step = std::max(label.first_step, job_.restart_step);
      if (label.first_step > label.last_step) continue;
    }
    truths_.push_back({fault, life, std::move(label)});
  }
}

bool Simulator::Impl::AnyActs() const {
  return std::any_of(job_.faults.begin(), job_.faults.end(), [&](const Fault& fault) { return InRange(fault, step_); });
}

// Whom it hits may not be part of the job any more.
bool Simulator::Impl::ActsNow(size_t fault) const {
  return InRange(job_.faults[fault], step_) && std::any_of(truths_.begin(), truths_.end(), [&](const Truth& truth) {
           return truth.fault == fault && truth.life == lives_ - 1;
         });
}

// From the first step of any fault on, the job is replayed without faults, too, and where it has several, with each
// alone.
void Simulator::Impl::Measure() {
  if (!measuring_) {
    if (!AnyActs()) return;
    measuring_ = true;
    with_ms_.assign(job_.faults.size(), 0);
    without_ms_.assign(job_.faults.size(), 0);
    shadows_.push_back({-1, times_, {}});
    const int single = job_.faults.size() > 1 ? static_cast<int>(job_.faults.size()) : 0;
    for (int fault = 0; fault < single; ++fault) shadows_.push_back({fault, times_, {}});
    // The only fault there is: the real run is the one with it.
    if (single == 0) shadows_.push_back({0, times_, {}});
  }
  double without = 0;
  for (Shadow& shadow : shadows_) {
    shadow_effects_.Reset(*plan_);
    if (shadow.fault >= 0) Add(static_cast<size_t>(shadow.fault), shadow_effects_);
    const double before = shadow.times.end;
    replayer_.Step(*plan_, heterogeneity_, step_, life_step_ == 0, shadow_effects_, shadow.times, nullptr);
    const double ms = shadow.times.end - before;
    if (shadow.fault < 0) without = ms;
    if (shadow.fault < 0 || !ActsNow(static_cast<size_t>(shadow.fault))) continue;
    with_ms_[static_cast<size_t>(shadow.fault)] += ms;
    without_ms_[static_cast<size_t>(shadow.fault)] += without;
  }
}

std::vector<Label> Simulator::Impl::labels() const {
  std::vector<Label> labels;
  for (const Truth& truth : truths_) {
    Label label = truth.label;
    if (measuring_ && without_ms_[truth.fault] > 0) label.effect = with_ms_[truth.fault] / without_ms_[truth.fault] - 1;
    if (truth.life > 0) {
      // The same entity goes on in the new life: one label.
      auto same = std::find_if(labels.begin(), labels.end(), [&](const Label& before) {
        return before.kind == label.kind && before.scope == label.scope && before.ids == label.ids;
      });
      if (same != labels.end()) continue;
    }
    if (truth.life == 0 && lives_ > 1) {
      const bool goes_on = std::any_of(truths_.begin(), truths_.end(), [&](const Truth& other) {
        return other.life == 1 && other.fault == truth.fault && other.label.scope == label.scope &&
               other.label.ids == label.ids;
      });
      if (!goes_on) label.last_step = std::min(label.last_step, job_.restart_step);
      if (label.first_step > label.last_step) continue;
    }
    labels.push_back(std::move(label));
  }
  return labels;
}

Simulator::Impl::NodeClock Simulator::Impl::ClockOf(int machine) const {
  const Clocks& clocks = job_.clocks;
  const uint64_t bits = Mix(job_.seed, kClock, static_cast<uint64_t>(machine));
  NodeClock clock;
  clock.offset_ms = clocks.offset_sigma_ms * Normal(bits);
  clock.rate = 1 + 1e-6 * Uniform(Mix(bits, 1), -clocks.drift_ppm, clocks.drift_ppm);
  if (clocks.ntp_slew) {
    const double run_ms = job_.steps * job_.step_ms;
    clock.slew_from_ms = Uniform(Mix(bits, 2), 0, run_ms);
    clock.slew_ms = Uniform(Mix(bits, 3), -kMaxCorrectionMs, kMaxCorrectionMs);
    // At most 5 ms in 2 s, so that no clock goes back.
    clock.slew_for_ms = std::clamp(run_ms / 10, kShortestSlewMs, kLongestSlewMs);
  }
  return clock;
}

bool Simulator::Impl::IsMarked(Event::Kind kind) const {
  switch (kind) {
    case Event::Kind::kStep:
      return job_.marks.step;
    case Event::Kind::kDataloader:
      return job_.marks.dataloader;
    case Event::Kind::kCheckpoint:
      return job_.marks.checkpoint && replayer_.SavesCheckpoint(step_);
    case Event::Kind::kForward:
      return job_.marks.forward;
    case Event::Kind::kCommunication:
      return job_.marks.communication;
  }
  return false;
}

bool Simulator::Impl::IsSilent(int rank) const {
  const simulate::Marks& marks = job_.marks;
  if (marks.off_steps > 0 && step_ % (marks.on_steps + marks.off_steps) >= marks.on_steps) return true;
  const std::vector<int>& silent = marks.silent_ranks;
  return step_ >= marks.silent_from_step && std::find(silent.begin(), silent.end(), rank) != silent.end();
}

// The stamps of the rank's marked ranges, by its node's clock and in its order.
void Simulator::Impl::CollectStamps(int rank) {
  const std::vector<Event>& events = plan_->events(plan_->stage(rank));
  const NodeClock clock = ClockOf(machine_of_[static_cast<size_t>(plan_->node(rank))]);
  auto ns = [&](double ms) {
    return job_.start_ns + static_cast<uint64_t>(static_cast<int64_t>(std::llround(clock.Shown(ms) * 1e6)));
  };
  stamps_.clear();
  for (size_t e = 0; e < events.size(); ++e) {
    const Event::Kind kind = events[e].kind;
    if (!IsMarked(kind)) continue;
    const size_t at = e * static_cast<size_t>(plan_->ranks()) + static_cast<size_t>(rank);
    const uint32_t event = static_cast<uint32_t>(e);
    const bool host_only = kind == Event::Kind::kDataloader || kind == Event::Kind::kCheckpoint;
    const bool device = job_.marks.device && !host_only;
    if (device || host_only) {
      stamps_.push_back({ns(ranges_.host_start[at]), event, 0});
      stamps_.push_back({ns(ranges_.host_end[at]), event, 1});
    }
    if (host_only) continue;
    // Without device stamps the host's range is as long as the operation: it blocks.
    stamps_.push_back({ns(ranges_.start[at]), event, device ? 2u : 0u});
    stamps_.push_back({ns(ranges_.end[at]), event, device ? 3u : 1u});
  }
  std::sort(stamps_.begin(), stamps_.end(), [](const Stamp& a, const Stamp& b) {
    if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
    // An end before a start that follows it at the same moment, but after its own start.
    return a.event != b.event ? a.event < b.event : a.which < b.which;
  });
}

void Simulator::Impl::NameMark(const Event& event, int rank, MarkRecord& mark) const {
  mark.domain = kDefaultDomain;
  switch (event.kind) {
    case Event::Kind::kStep:
      mark.name = step_name_;
      break;
    case Event::Kind::kDataloader:
      mark.name = "dataloader";
      break;
    case Event::Kind::kCheckpoint:
      mark.name = "save_checkpoint";
      break;
    case Event::Kind::kForward:
      mark.name = "forward";
      break;
    case Event::Kind::kCommunication:
      mark.domain = kCommunicationDomain;
      mark.name = plan_->name(event, rank, ranges_.level[static_cast<size_t>(rank)]);
      break;
  }
}

const std::vector<MarkRecord>& Simulator::Impl::Marks(int rank) {
  marks_.clear();
  if (IsSilent(rank)) return marks_;
  CollectStamps(rank);
  const Plan& plan = *plan_;
  const std::vector<Event>& events = plan.events(plan.stage(rank));
  step_name_ = absl::StrCat("step ", NumberOf(step_));
  const uint32_t process = static_cast<uint32_t>(1000 + lives_ * 1'000'000 + rank);
  const uint32_t device_id = static_cast<uint32_t>(rank % plan.layout().ranks_per_node);
  const uint64_t first_id = static_cast<uint64_t>(life_step_ - 1) * static_cast<uint64_t>(plan.max_events()) + 1;
  const uint64_t loss_key = Mix(Mix(job_.seed, kLoss), static_cast<uint64_t>(rank), static_cast<uint64_t>(step_));
  size_t number = 0;
  for (const Stamp& stamp : stamps_) {
    if (job_.marks.loss > 0 && Uniform(Mix(loss_key, number++)) < job_.marks.loss) continue;
    const Event& event = events[stamp.event];
    MarkRecord& mark = marks_.emplace_back();
    mark.time_ns = stamp.time_ns;
    mark.id = first_id + stamp.event;
    mark.phase = stamp.which % 2 == 0 ? MarkRecord::Phase::kStart : MarkRecord::Phase::kEnd;
    mark.device = stamp.which >= 2;
    mark.process_id = mark.device ? device_id : process;
    mark.thread_id = mark.device ? event.stream : process;
    if (stamp.which == 0) NameMark(event, rank, mark);
    if (job_.marks.work && stamp.which == 0 && event.kind == Event::Kind::kStep) {
      work_name_ =
          absl::StrCat("{\"work\": ", TokensOf(job_, step_, plan.replica(rank), plan.layout().microbatches), "}");
      MarkRecord work = mark;
      work.phase = MarkRecord::Phase::kInstant;
      work.id = kFirstWorkId + static_cast<uint64_t>(life_step_);
      work.name = work_name_;
      marks_.push_back(work);
    }
  }
  return marks_;
}

Simulator::~Simulator() = default;

absl::StatusOr<std::unique_ptr<Simulator>> Simulator::Create(const Job& job) {
  absl::Status status = CheckJob(job);
  if (!status.ok()) return status;
  std::unique_ptr<Simulator> simulator(new Simulator());
  // Faults are checked against the groups, which the first life makes.
  Job healthy = job;
  healthy.faults.clear();
  const Plan plan(healthy, job.layout);
  for (const Fault& fault : job.faults) {
    status = CheckFault(job, plan, fault);
    if (!status.ok()) return status;
  }
  simulator->impl_ = std::make_unique<Impl>(job);
  return simulator;
}

const Job& Simulator::job() const { return impl_->job(); }
int Simulator::ranks() const { return impl_->plan().ranks(); }
int Simulator::node(int rank) const { return impl_->plan().node(rank); }
int Simulator::local_rank(int rank) const { return rank % impl_->plan().layout().ranks_per_node; }
int Simulator::stage(int rank) const { return impl_->plan().stage(rank); }
const std::vector<GroupInfo>& Simulator::groups(int rank) const { return impl_->plan().groups(rank); }
std::vector<Label> Simulator::labels() const { return impl_->labels(); }
bool Simulator::Next() { return impl_->Next(); }
int Simulator::step() const { return impl_->step(); }
double Simulator::step_ms() const { return impl_->step_ms(); }
bool Simulator::restarted() const { return impl_->restarted(); }
const std::vector<MarkRecord>& Simulator::Marks(int rank) { return impl_->Marks(rank); }
double Simulator::OwnMs(int rank) const { return impl_->own_ms(rank); }

}  // namespace taskd::simulate
