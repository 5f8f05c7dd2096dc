#include "diagnosis/judge.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "diagnosis/bar.h"
#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

constexpr double kNinetyFive = 1.96;  // standard errors

double ConfidenceOf(const Stream& stream) {
  // How far beyond chance, softened: what the evaluation found for these sums.
  const double z = std::abs(stream.z());
  return std::clamp(1 - std::exp(-0.6 * z - 1), 0.6, 0.99);
}

// Standard error of what a stream's rise costs, as a share of it.
double ErrorOf(const Stream& stream) { return stream.mean() > 0 ? stream.error() / stream.mean() : 0; }

// What one pass over all ranks tells.
struct Survey {
  explicit Survey(const JudgeInput& in) {
    for (int rank = 0; rank < in.own.size(); ++rank) {
      if (!in.is_present(rank)) continue;
      const OwnTime::Rank& state = in.own.rank(rank);
      ++present;
      fallen += state.issue_ratio < parameters.issue_fallen ? 1 : 0;
      has_device = has_device || state.has_device;
      raised.own = raised.own || state.slow().raised();
      raised.forward = raised.forward || state.forward->raised();
      raised.data = raised.data || state.data.raised();
      raised.checkpoint = raised.checkpoint || state.checkpoint->raised();
    }
  }

  size_t present = 0;
  size_t fallen = 0;  // ranks whose issue latency has fallen
  bool has_device = false;
  // Whether any present rank has such a stream: as a rule none has, and nobody needs to look for it.
  struct {
    bool own = false, forward = false, data = false, checkpoint = false;
  } raised;
};

class Accuser {
 public:
  Accuser(const JudgeInput& input, CostMeans& costs)
      : in_(input),
        costs_(costs),
        all_(input),
        bar_(input.period_ns, input.min_cost_share, all_.has_device, input.is_over) {}

  Judgement Run() {
    if (all_.raised.own) AccuseByOwnTime();
    if (all_.raised.forward) AccuseByForward();
    AccuseByOwnPast();
    if (all_.raised.data) AccuseByDataLoading();
    AccuseWholeJob(in_.own.common_data(), Cause::kDataloader);
    if (all_.raised.checkpoint) AccuseBySaving();
    AccuseWholeJob(in_.own.common_checkpoint(), Cause::kCheckpoint);
    AccuseByTransfers();
    return {std::move(accusations_), std::move(decisions_)};
  }

 private:
  // A node or a rank, and those of its ranks whose stream is raised.
  struct Suspect {
    Scope scope;
    int id;
    std::vector<int> ranks;
  };

  // Of a step, with the interval that holds it with 95 %.
  struct Cost {
    double ns = 0, low_ns = 0, high_ns = 0;
  };

  using StreamOf = std::function<const Stream&(int rank)>;

  // Nodes first; ranks of unknown node one by one.
  std::vector<Suspect> FindSuspects(Detector detector, const StreamOf& stream, bool by_host) {
    std::vector<Suspect> nodes;
    std::vector<Suspect> ranks;
    for (const auto& [node, members] : in_.layout.nodes()) {
      std::vector<int> raised;
      for (int rank : members) {
        if (IsPresent(rank) && stream(rank).raised()) raised.push_back(rank);
      }
      if (raised.empty()) continue;
      switch (ChooseBlame(members, raised, stream, by_host)) {
        case Blame::kNode:
          nodes.push_back({Scope::kNode, node, std::move(raised)});
          break;
        case Blame::kRanks:
          for (int rank : raised) ranks.push_back({Scope::kRank, rank, {rank}});
          break;
        case Blame::kNobodyYet:
          Hold(detector, raised, {Veto::kAttribution});
          break;
      }
    }
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (IsPresent(rank) && in_.layout.known(rank) && in_.layout.node(rank) < 0 && stream(rank).raised()) {
        ranks.push_back({Scope::kRank, rank, {rank}});
      }
    }
    nodes.insert(nodes.end(), ranks.begin(), ranks.end());
    return nodes;
  }

  // Ranks that have such a stream.
  int CountRanks(const StreamOf& stream) const {
    int count = 0;
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      count += IsPresent(rank) && stream(rank).observations() > 0 ? 1 : 0;
    }
    return count;
  }
  int CountPresent(const std::vector<int>& ranks) const {
    return static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [this](int rank) { return IsPresent(rank); }));
  }

  enum class Blame : uint8_t { kNode, kRanks, kNobodyYet };

  // `raised` of the `members` of one node deviate: as many, and as much, as if it were the node?
  Blame ChooseBlame(const std::vector<int>& members, const std::vector<int>& raised, const StreamOf& stream,
                    bool by_host) const {
    double strongest = 0;
    int64_t youngest = 0;
    for (int rank : raised) {
      strongest = std::max(strongest, stream(rank).mean());
      youngest = std::max(youngest, stream(rank).raised_step());
    }
    size_t present = 0;
    size_t alike = 0;
    size_t rising = 0;
    for (int rank : members) {
      if (!IsPresent(rank)) continue;
      ++present;
      if (stream(rank).raised()) {
        alike += stream(rank).mean() > strongest / 3 ? 1 : 0;
      } else {
        rising += stream(rank).IsRising(0.3) && stream(rank).mean() > strongest / 2 ? 1 : 0;
      }
    }
    if (present < 2 || in_.layout.nodes().size() < 2) return Blame::kRanks;
    const size_t needed =
        std::max<size_t>(2, static_cast<size_t>(std::ceil(parameters.node_share * static_cast<double>(present))));
    if (alike >= needed || (by_host && IsHeldUpByHost(members))) return Blame::kNode;
    // The others of the node are on the way: the answer may be the node.
    const bool settled = in_.step - youngest >= parameters.settle_steps;
    return !settled && IsOn(Veto::kAttribution) && raised.size() + rising >= needed ? Blame::kNobodyYet : Blame::kRanks;
  }

  bool IsPresent(int rank) const { return rank < in_.own.size() && in_.is_present(rank); }

  // Issue latency has fallen on most ranks of the node. Whoever of them is slowest holds the others up, so not all of
  // them need to be slow themselves. Where it has fallen in most of the job it is no node's matter.
  bool IsHeldUpByHost(const std::vector<int>& ranks) const {
    size_t present = 0;
    size_t fallen = 0;
    for (int rank : ranks) {
      if (!IsPresent(rank)) continue;
      ++present;
      fallen += in_.own.rank(rank).issue_ratio < parameters.issue_fallen ? 1 : 0;
    }
    return fallen >= 2 && static_cast<double>(fallen) >= parameters.node_share * static_cast<double>(present) &&
           2 * all_.fallen < all_.present;
  }

  static Verdict MakeVerdict(Scope scope, std::vector<int> ids, Cause cause, int64_t since_step) {
    Verdict verdict;
    verdict.scope = scope;
    verdict.ids = std::move(ids);
    verdict.cause = cause;
    verdict.since_step = since_step;
    return verdict;
  }

  // `times`: that are measured in a step.
  static Evidence MakeEvidence(const char* feature, const Measured::Means& measured, double z, uint32_t times = 1) {
    Evidence evidence;
    evidence.feature = feature;
    evidence.reference = measured.reference / times / 1e6;
    evidence.value = measured.value() / times / 1e6;
    evidence.z = z;
    evidence.first_step = measured.first_step;
    evidence.last_step = measured.last_step;
    return evidence;
  }

  bool HasGone(bool comes_and_goes, double excess_ns) const {
    return comes_and_goes && !bar_.IsWorthIt(excess_ns / parameters.gone_share);
  }

  // Nobody is accused of it.
  void Hold(Detector detector, std::vector<int> ranks, const Held& held) {
    decisions_.push_back({detector, std::move(ranks), "", held});
  }

  // `step_ns`: mean of the steps that the cost is the mean of.
  void Add(Detector detector, Verdict verdict, std::set<int> concerns, const Held& held, const Cost& cost,
           double step_ns) {
    verdict.cost_ms_per_step = cost.ns / 1e6;
    if (cost.ns > 0) {
      verdict.cost_interval_ms = {cost.low_ns / 1e6, cost.high_ns / 1e6};
      const auto slowdown = [step_ns](double ns) { return ns < step_ns ? step_ns / (step_ns - ns) : INFINITY; };
      if (cost.ns < step_ns) {
        verdict.slowdown = slowdown(cost.ns);
        verdict.slowdown_interval = {slowdown(cost.low_ns), slowdown(cost.high_ns)};
      }
    }
    std::string key = KeyOf(verdict);
    decisions_.push_back({detector, {concerns.begin(), concerns.end()}, key, held});
    accusations_.push_back({std::move(key), std::move(verdict), std::move(concerns), !held.holds()});
  }

  // A rise of one of so many that can be compared: no more than what a busy machine does to them?
  Held OfUnrest(int compared, const Stream& stream, double large, double cost_ns) const {
    if (bar_.IsCrowd(compared)) {
      return stream.intermittent() || stream.StandsOut() ? Held{} : Held{Veto::kSignificance};
    }
    if (stream.IsBeyondWeather() && StepsNs(stream.onset()) >= parameters.known_noise_ns) return {};
    if (stream.IsUsual()) return {Veto::kSignificance};
    const Held held =
        OfUnrest(compared, stream.mean() >= large && stream.z() >= parameters.unusual, stream.onset(), cost_ns);
    // That much sooner, were it to go on as it is.
    if (!held.holds() || !stream.IsBeyondWeather()) return held;
    return {Veto::kDuration, StepsNs(stream.onset()), parameters.known_noise_ns};
  }
  Held OfUnrest(int compared, bool large, int64_t onset, double cost_ns,
                double least_share = parameters.small_cost) const {
    const double lasted_ns = std::max(in_.time_since(onset), StepsNs(onset));
    return bar_.OfUnrest(compared, large, lasted_ns, cost_ns, least_share);
  }
  // It is slow while it has a CPU, and not as ranks of this job are for a while now and then: that is no gust of others.
  bool IsItsOwn(int rank) const {
    const Stream* on_cpu = in_.own.rank(rank).on_cpu_rise();
    return on_cpu != nullptr && on_cpu->IsClear() && !on_cpu->intermittent() && !on_cpu->IsFading() &&
           StepsNs(on_cpu->onset()) >= parameters.on_cpu_ns &&
           !in_.own.on_cpu_weather().Explains(rank, ClassOf(rank).present, StepsNs(on_cpu->returned()));
  }
  // Of steps alone: time that is remembered ends some hundred steps ago.
  double StepsNs(int64_t onset) const { return static_cast<double>(in_.step - onset + 1) * in_.period_ns; }

  // No more than what hits ranks of this job for a while now and then?
  Held OfBurst(int rank, const Stream& stream) const {
    // Between the times that it came back there was nothing.
    const int64_t since = stream.intermittent() ? stream.raised_step() : stream.returned();
    const int peers = ClassOf(rank).present;
    if (stream.intermittent() && in_.own.gusts().Explain(rank, peers, in_.step - kSpikeWindow, stream.spikes())) {
      return {Veto::kNoiseBurst};
    }
    const double lasted_ns = StepsNs(since);
    // Noise bursts have an unknown length during warm-up. Small peer groups need no extra wait: their rises have to be large.
    const bool is_known = all_.has_device || stream.rose_in_quiet() || StepsNs(0) >= parameters.warm_up_ns;
    if (!is_known && bar_.IsCrowd(peers) && lasted_ns < parameters.warm_up_burst_ns) {
      return {Veto::kWarmUp, lasted_ns, parameters.warm_up_burst_ns};
    }
    const double until_ns = std::max(in_.own.weather().ExplainsUntilNs(rank, peers),
                                     in_.own.forward_weather().ExplainsUntilNs(rank, peers));
    return until_ns > 0 && lasted_ns <= until_ns ? Held{Veto::kNoiseBurst, lasted_ns, until_ns} : Held{};
  }

  // The rank's own time may be accused already: a slow process is slow in this, too?
  Held OfSecondFault(int rank, double cost_ns) const {
    const bool follows = std::any_of(accusations_.begin(), accusations_.end(), [&](const Accusation& first) {
      return first.concerns.count(rank) > 0 &&
             cost_ns < parameters.second_fault_share * first.verdict.cost_ms_per_step * 1e6;
    });
    return follows ? Held{Veto::kSecondFault} : Held{};
  }

  static Held OfFading(bool fading) { return fading ? Held{Veto::kFading} : Held{}; }
  Held OfPlan() const { return in_.planned_change ? Held{Veto::kPlannedChange} : Held{}; }

  const OwnTime::Class& ClassOf(int rank) const {
    return in_.own.classes()[static_cast<size_t>(in_.layout.rank(rank).peer_class)];
  }

  // How the deviation of some ranks looks: means over them.
  struct Profile {
    double issue = 0;
    double tail = 0;
    double tail_share = 0;
    double longest = 0;
    double forward = 0;
    double busy = 0;
    double cpu_wait = 0;  // 0: not known, too
    double scatter = 0;
    double spread = 0;
    double z = 0;
    double ratio = 0;
    bool comes_and_goes = false;  // on most of them
    bool knows_forward = false;   // what it usually takes, on one of them
    bool knows_busy = false;      // what the device computed, on each
  };

  Profile ProfileOf(const std::vector<int>& ranks) const {
    Profile mean;
    int intermittent = 0;
    mean.knows_busy = true;
    for (int r : ranks) {
      const OwnTime::Rank& rank = in_.own.rank(r);
      const OwnTime::Look& look = *rank.look;
      mean.knows_busy = mean.knows_busy && look.profiled_busy > 0;
      mean.issue += rank.issue_ratio;
      mean.tail += look.tail_ratio;
      mean.tail_share += look.tail_share;
      mean.longest += look.longest_gap_share;
      mean.forward += look.forward_share;
      mean.busy += look.busy_share;
      mean.cpu_wait += look.cpu_wait.Share().value_or(0);
      mean.scatter += look.scatter();
      const Stream& slow = rank.slow();
      mean.spread += slow.mean() > 0 ? slow.spread() / slow.mean() : 0;
      mean.z += slow.z();
      mean.ratio += rank.own_reference_ns > 0 ? std::exp(RiseOf(rank)) : 1;
      intermittent += slow.intermittent() ? 1 : 0;
      mean.knows_forward = mean.knows_forward || look.deviating > 0;
    }
    const auto n = static_cast<double>(ranks.size());
    for (double* sum : {&mean.issue, &mean.tail, &mean.tail_share, &mean.longest, &mean.forward, &mean.busy,
                        &mean.cpu_wait, &mean.scatter, &mean.spread, &mean.z, &mean.ratio}) {
      *sum /= n;
    }
    mean.comes_and_goes = 2 * intermittent > static_cast<int>(ranks.size());
    return mean;
  }

  struct OwnCause {
    Cause cause = Cause::kUnknown;
    bool or_gc = false;  // it may as well be
  };

  OwnCause ChooseOwnCause(const std::vector<int>& ranks, bool node) const {
    if (in_.own.mode() == OwnTime::Mode::kForward) return {};
    const Profile look = ProfileOf(ranks);
    if (node && look.issue < parameters.issue_fallen) return {Cause::kHost};
    if (look.cpu_wait > parameters.cpu_wait_share) return {Cause::kHost};
    // Of a computation that is slow in each step the excess is as even as the noise lets it be.
    const bool varies = look.spread > parameters.spread && look.spread * look.z > parameters.spread_sigmas;
    const bool jitters = varies && look.spread > parameters.wide_spread;
    const bool in_one_place = look.forward > parameters.pause_forward || look.scatter > parameters.scatter;
    const bool pauses = look.comes_and_goes ? in_one_place || look.longest > parameters.longest_gap
                                            : (varies && look.forward > parameters.lasting_forward) ||
                                                  (jitters && look.scatter > parameters.scatter);
    if (pauses) return {Cause::kGc};
    if (look.issue < parameters.issue_collapse) return {Cause::kHost};
    if (look.knows_busy) return {look.busy < parameters.busy_share ? Cause::kHost : Cause::kCompute};
    const bool in_tail = look.tail > look.ratio * parameters.tail_factor && look.tail_share > parameters.tail_share;
    if (in_tail && !look.comes_and_goes) return {Cause::kMemory};
    const bool may_pause = look.forward > parameters.lasting_forward ||
                           (jitters && (look.forward > parameters.partly_forward || !look.knows_forward));
    return {Cause::kCompute, may_pause && !look.comes_and_goes};
  }

  // Of the own time, the logarithm.
  static double RiseOf(const OwnTime::Rank& rank) {
    return rank.own.raised() ? rank.own.mean() : std::log1p(rank.slow().mean_excess() / rank.own_reference_ns);
  }

  Evidence OwnEvidence(int r) const {
    const Stream& slow = in_.own.rank(r).slow();
    Evidence evidence =
        MakeEvidence(in_.own.mode() == OwnTime::Mode::kForward ? "forward" : "own_time", slow.measured(), slow.z());
    evidence.peers = ClassOf(r).present - 1;
    return evidence;
  }

  // Where that is why.
  void AddCpuWait(int r, Verdict& verdict) const {
    const OwnTime::Rank& rank = in_.own.rank(r);
    if (verdict.cause != Cause::kHost || rank.look->cpu_wait.Share().value_or(0) <= parameters.cpu_wait_share) return;
    Evidence evidence = MakeEvidence("cpu_wait", rank.look->cpu_wait.wait.means(), rank.slow().z());
    evidence.peers = ClassOf(r).present - 1;
    verdict.evidence.push_back(evidence);
  }

  // Only when somebody is suspected: it looks at every rank.
  CostModel& GetModel() {
    if (!model_) model_.emplace(MakeModel([](const OwnTime::Rank& rank) { return rank.average_own_ns; }));
    return *model_;
  }
  // With such own times of those that are there.
  CostModel MakeModel(double (*own_ns)(const OwnTime::Rank& rank)) const {
    CostModel model(in_.layout, in_.microbatches);
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (IsPresent(rank)) model.Set(rank, own_ns(in_.own.rank(rank)));
    }
    return model;
  }

  // What the last step had because this suspect's ranks have risen, were they the only ones. Whoever has to wait for
  // others in that step is slow for nothing: that changes from step to step. `without`: the step with no suspect slow.
  double ReplayStep(CostModel& without, const Suspect& suspect) const {
    const double step = without.StepNs();
    return without.StepNsIf(suspect.ranks, [this](int rank) { return in_.own.rank(rank).actual_own_ns; }) - step;
  }

  // `modelled` from what ranks take longer, with a standard error, as a share of it; and what steps have really become
  // longer by, as far as that is known: never more than that. Where the two differ by much, steps changed for other reasons
  // or were as long before. `may_overlap`: ranks may take longer without any step being longer.
  Cost CostOf(double modelled, double error, const Periods::Lost& lost, bool may_overlap = false) const {
    modelled = std::max(0.0, modelled);
    const double margin = kNinetyFive * error * modelled;
    Cost cost = {modelled, modelled - margin, modelled + margin};
    if (lost.ns < Periods::kCannotTell) {
      const double most = lost.ns + (may_overlap ? 0 : lost.error_ns);
      if (may_overlap || most >= parameters.same_change * modelled) cost.ns = std::clamp(most, 0.0, modelled);
      cost.low_ns = std::min(cost.low_ns, lost.ns - kNinetyFive * lost.error_ns);
      const double high = lost.ns + kNinetyFive * lost.error_ns;
      if (parameters.same_change * high <= modelled) cost.high_ns = std::max(cost.high_ns, high);
    } else {
      cost.low_ns = parameters.same_change * modelled - margin;
    }
    cost.low_ns = std::max(0.0, cost.low_ns - parameters.model_error * cost.ns);
    cost.high_ns += parameters.model_error * cost.ns;
    return cost;
  }

  double MeanStepOf(const Measured::Means& measured) const {
    return in_.mean_step(measured.first_step, measured.last_step);
  }
  // With whatever is between the steps that are judged: a step in which all wait for a checkpoint is none of these.
  double MeanStepWithPauses(const Measured::Means& measured) const {
    const int64_t remembered = in_.step - static_cast<int64_t>(Periods::kHistory) + 1;
    const int64_t first = std::max({measured.first_step, remembered, in_.first_step_of(in_.step)});
    return in_.time_since(first) / static_cast<double>(in_.step - first + 1);
  }

  int64_t FirstStep(const Stream& stream) const {
    return stream.from_start() ? in_.first_step_of(stream.onset()) : stream.onset();
  }

  // Others may have hidden it at first.
  int64_t FirstSlowStep(const OwnTime::Rank& rank) const {
    const int64_t first = FirstStep(rank.slow());
    const Stream* on_cpu = rank.on_cpu_rise();
    return on_cpu != nullptr ? std::min(first, FirstStep(*on_cpu)) : first;
  }

  // The one of `ranks` that loses the most.
  static int FindWorst(const std::vector<int>& ranks, const StreamOf& stream) {
    int worst = ranks.front();
    for (int rank : ranks) {
      if (stream(rank).mean_excess() > stream(worst).mean_excess()) worst = rank;
    }
    return worst;
  }

  void AccuseByOwnTime() {
    const StreamOf own = [this](int rank) -> const Stream& { return in_.own.rank(rank).slow(); };
    std::vector<Suspect> suspects = FindSuspects(Detector::kOwnTime, own, true);
    // Without communication marks a forward holds waits: several slow ones may be one culprit and its victims.
    if (in_.own.mode() == OwnTime::Mode::kForward && suspects.size() > 1 && IsOn(Veto::kAttribution)) {
      for (Suspect& suspect : suspects) {
        Hold(Detector::kOwnTime, std::move(suspect.ranks), {Veto::kAttribution});
      }
      return;
    }
    if (suspects.empty()) return;
    auto excess = [&](const Suspect& suspect) {
      double most = 0;
      for (int rank : suspect.ranks) most = std::max(most, own(rank).mean_excess());
      return most;
    };
    std::stable_sort(suspects.begin(), suspects.end(),
                     [&](const Suspect& a, const Suspect& b) { return excess(a) > excess(b); });
    // Each one's cost is what it would cost alone: of two equally slow ranks either one is worth mending only with the
    // other, and both have to be named.
    CostModel last_step = MakeModel([](const OwnTime::Rank& rank) { return rank.actual_own_ns; });
    for (const Suspect& suspect : suspects) {
      for (int rank : suspect.ranks) {
        GetModel().Set(rank, in_.own.rank(rank).own_reference_ns);
        last_step.Set(rank, last_step.own_ns(rank) * std::exp(-RiseOf(in_.own.rank(rank))));
      }
    }
    const double without = GetModel().StepNs();
    for (const Suspect& suspect : suspects) AccuseOfOwnTime(suspect, own, without, last_step);
  }

  // `without`: the modelled step when no suspect is slow; `last_step`: the last one as it would have been then.
  void AccuseOfOwnTime(const Suspect& suspect, const StreamOf& own, double without, CostModel& last_step) {
    const auto slow = [&](int rank) { return in_.own.rank(rank).own_reference_ns + own(rank).mean_excess(); };
    const double modelled = std::max(0.0, GetModel().StepNsIf(suspect.ranks, slow) - without);
    std::vector<int64_t> onsets;
    for (int rank : suspect.ranks) onsets.push_back(FirstSlowStep(in_.own.rank(rank)));
    std::sort(onsets.begin(), onsets.end());
    const int64_t since_step = onsets[(onsets.size() - 1) / 2];
    const int worst = FindWorst(suspect.ranks, own);
    if (HasGone(own(worst).intermittent(), own(worst).mean_excess())) {
      return Hold(Detector::kOwnTime, suspect.ranks, {Veto::kFading});
    }
    const bool fading =
        std::all_of(suspect.ranks.begin(), suspect.ranks.end(), [&](int rank) { return own(rank).IsFading(); });
    Measured::Means costs = own(worst).measured();
    costs.reference = MeanStepOf(costs) - modelled;
    costs.excess = modelled;
    // The median of the steps does not see what comes and goes.
    Periods::Lost lost;
    if (!own(worst).intermittent()) {
      const double last = ReplayStep(last_step, suspect);
      const double step = in_.mean_step(in_.step, in_.step);
      costs = costs_.Add({CostMeans::What::kOwnTime, suspect.scope, suspect.id}, in_.step, last, step, fading, costs);
      lost = in_.lost_since(since_step);
    }
    const Cost cost = CostOf(costs.excess, ErrorOf(own(worst)), lost);
    const OwnCause found = ChooseOwnCause(suspect.ranks, suspect.scope == Scope::kNode);
    Verdict verdict = MakeVerdict(suspect.scope, {suspect.id}, found.cause, since_step);
    verdict.confidence = ConfidenceOf(own(worst));
    if (found.or_gc) {
      verdict.confidence *= 1 - parameters.pause_instead;
      verdict.alternatives.push_back({.scope = suspect.scope,
                                      .ids = {suspect.id},
                                      .links = {},
                                      .probability = parameters.pause_instead,
                                      .cause = Cause::kGc});
    }
    verdict.evidence.push_back(OwnEvidence(worst));
    AddCpuWait(worst, verdict);
    const bool is_own = IsItsOwn(worst);
    const Held fault = FirstOf({OfFading(fading), is_own ? Held{} : OfBurst(worst, own(worst)), bar_.OfCost(cost.ns)});
    const Held unrest = is_own ? Held{} : OfUnrest(ClassOf(worst).present, own(worst), parameters.large_rise, cost.ns);
    Add(Detector::kOwnTime, std::move(verdict), {suspect.ranks.begin(), suspect.ranks.end()}, FirstOf({fault, unrest}),
        cost, costs.value());
    accusations_.back().is_young = !fault.holds() && unrest.holds() && cost.ns >= parameters.small_cost * in_.period_ns;
  }

  // Only one whose forward alone is longer, while steps are: several may be one culprit and its victims.
  void AccuseByForward() {
    std::vector<int> suspects;
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (IsPresent(rank) && in_.own.rank(rank).forward->raised()) suspects.push_back(rank);
    }
    if (suspects.empty() || in_.own.mode() != OwnTime::Mode::kAll) return;
    if (!accusations_.empty()) return Hold(Detector::kForward, std::move(suspects), {Veto::kSecondFault});
    if (suspects.size() > 1) return Hold(Detector::kForward, std::move(suspects), {Veto::kAttribution});
    const int suspect = suspects.front();
    const OwnTime::Rank& rank = in_.own.rank(suspect);
    const Stream& forward = *rank.forward;
    // What comes and goes in a part of the step, and does not show in the whole, is unrest.
    if (forward.intermittent()) return Hold(Detector::kForward, {suspect}, {Veto::kNoiseBurst});
    const Measured::Means measured = forward.measured();
    const Periods::Lost lost = in_.lost_since(forward.onset());
    // Backward, about twice as long, is slower, too, if steps are. Where that is not known forward alone is measured.
    const double modelled = (lost.ns < Periods::kCannotTell ? 3 : 1) * measured.excess;
    const Cost cost = CostOf(modelled, ErrorOf(forward), lost, true);
    Verdict verdict = MakeVerdict(Scope::kRank, {suspect}, Cause::kCompute, forward.onset());
    verdict.confidence = 0.9 * ConfidenceOf(forward);
    Evidence evidence = MakeEvidence("forward", measured, forward.z());
    evidence.peers = ClassOf(suspect).present - 1;
    verdict.evidence.push_back(evidence);
    const Held noise = forward.StandsOut() ? Held{} : Held{Veto::kSignificance};
    Add(Detector::kForward, std::move(verdict), {suspect},
        FirstOf({OfBurst(suspect, forward), noise, bar_.OfCost(cost.ns)}), cost, MeanStepOf(measured));
  }

  // Ranks without peers, and stages that live on one node: against their own past and the other stages'.
  void AccuseByOwnPast() {
    const auto& classes = in_.layout.classes();
    if (classes.size() < 2 || in_.own.mode() == OwnTime::Mode::kForward) return;
    for (size_t c = 0; c < classes.size(); ++c) {
      const OwnTime::Class& peers = in_.own.classes()[c];
      if (!peers.drift.raised() || CountPresent(classes[c]) == 0) continue;
      if (classes[c].size() == 1) {
        const int rank = classes[c].front();
        AccuseClass(peers, {Scope::kRank, rank, {rank}});
      } else if (const int node = WholeNode(classes[c]); node >= 0) {
        AccuseClass(peers, {Scope::kNode, node, classes[c]});
      }
    }
  }

  // The node that has these ranks, and no others, in a job of several; -1: there is none.
  int WholeNode(const std::vector<int>& ranks) const {
    const int node = in_.layout.node(ranks.front());
    const bool together = std::all_of(ranks.begin(), ranks.end(), [&](int r) { return in_.layout.node(r) == node; });
    if (node < 0 || !together || in_.layout.nodes().size() < 2) return -1;
    return in_.layout.nodes().at(node).size() == ranks.size() ? node : -1;
  }

  void AccuseClass(const OwnTime::Class& peers, const Suspect& suspect) {
    const Stream& drift = peers.drift;
    const Measured::Means measured = drift.measured();
    const double with = GetModel().StepNsIf(suspect.ranks, [&](int) { return measured.value(); });
    const double without = GetModel().StepNsIf(suspect.ranks, [&](int) { return measured.reference; });
    const Cost cost = CostOf(with - without, ErrorOf(drift), in_.lost_since(drift.onset()));
    const bool held_up = in_.own.rank(suspect.ranks.front()).issue_ratio < parameters.issue_collapse;
    Verdict verdict = MakeVerdict(suspect.scope, {suspect.id}, held_up ? Cause::kHost : Cause::kCompute, drift.onset());
    verdict.confidence = 0.9 * ConfidenceOf(drift);
    verdict.evidence.push_back(MakeEvidence("own_time", measured, drift.z()));
    const Held unrest = OfUnrest(static_cast<int>(suspect.ranks.size()), drift, parameters.large_rise, cost.ns);
    Add(Detector::kOwnPast, std::move(verdict), {suspect.ranks.begin(), suspect.ranks.end()},
        FirstOf({OfPlan(), bar_.OfCost(cost.ns), unrest}), cost, MeanStepOf(measured));
  }

  void AccuseByDataLoading() {
    const StreamOf data = [this](int rank) -> const Stream& { return in_.own.rank(rank).data; };
    const std::vector<Suspect> suspects = FindSuspects(Detector::kDataloader, data, false);
    if (suspects.empty()) return;
    // The last step with what each rank loaded in it, and what suspects would have loaded otherwise. Stages of a pipeline
    // wait for one load and many microbatches: that is not replayed.
    const auto own_and_loading = [](const OwnTime::Rank& rank) { return rank.actual_own_ns + rank.data_ns; };
    CostModel last_step = MakeModel(own_and_loading);
    for (const Suspect& suspect : suspects) {
      for (int rank : suspect.ranks) last_step.Set(rank, last_step.own_ns(rank) - data(rank).mean_excess());
    }
    const bool is_pipelined = std::any_of(in_.layout.pipelines().begin(), in_.layout.pipelines().end(),
                                          [](const Pipeline& pipeline) { return pipeline.cells.size() > 1; });
    for (const Suspect& suspect : suspects) {
      const int worst = FindWorst(suspect.ranks, data);
      const Stream& stream = data(worst);
      if (HasGone(stream.intermittent(), stream.mean_excess())) {
        Hold(Detector::kDataloader, suspect.ranks, {Veto::kFading});
        continue;
      }
      const Measured::Means measured = stream.measured();
      Measured::Means costs = measured;
      costs.reference = MeanStepOf(measured) - measured.excess;
      if (!is_pipelined && !stream.intermittent()) {
        const double last =
            last_step.StepNsIf(suspect.ranks, [&](int rank) { return own_and_loading(in_.own.rank(rank)); });
        costs = costs_.Add({CostMeans::What::kLoading, suspect.scope, suspect.id}, in_.step, last - last_step.StepNs(),
                           in_.mean_step(in_.step, in_.step), stream.IsFading(), costs);
      }
      const Cost cost = CostOf(costs.excess, ErrorOf(stream), in_.lost_since(FirstStep(stream)));
      Verdict verdict = MakeVerdict(suspect.scope, {suspect.id}, Cause::kDataloader, FirstStep(stream));
      verdict.confidence = ConfidenceOf(stream);
      Evidence evidence = MakeEvidence("dataloader", measured, stream.z());
      const auto peer_class = static_cast<size_t>(in_.layout.rank(worst).peer_class);
      evidence.peers = CountPresent(in_.layout.classes()[peer_class]) - 1;
      verdict.evidence.push_back(evidence);
      const Held unrest = OfUnrest(CountRanks(data), stream, parameters.large_cost, cost.ns);
      Add(Detector::kDataloader, std::move(verdict), {suspect.ranks.begin(), suspect.ranks.end()},
          FirstOf({OfSecondFault(worst, cost.ns), bar_.OfCost(cost.ns), unrest}), cost, costs.value());
    }
  }

  void AccuseBySaving() {
    const int savers = CountRanks([this](int rank) -> const Stream& { return *in_.own.rank(rank).checkpoint; });
    for (int r = 0; r < in_.own.size(); ++r) {
      const Stream& saving = *in_.own.rank(r).checkpoint;
      if (!IsPresent(r) || !saving.raised()) continue;
      const Measured::Means measured = saving.measured();
      const Cost cost = CostOf(measured.excess / in_.own.checkpoint_interval(), ErrorOf(saving), {});
      Verdict verdict = MakeVerdict(Scope::kRank, {r}, Cause::kCheckpoint, saving.onset());
      verdict.confidence = ConfidenceOf(saving);
      verdict.evidence.push_back(MakeEvidence("save_checkpoint", measured, saving.z()));
      const Held unrest = OfUnrest(savers, false, saving.onset(), cost.ns);
      Add(Detector::kCheckpoint, std::move(verdict), {r},
          FirstOf({OfSecondFault(r, cost.ns), bar_.OfCost(cost.ns), unrest}), cost, MeanStepWithPauses(measured));
    }
  }

  // Loading or saving is slower on everybody: the storage that they share.
  void AccuseWholeJob(const Stream& stream, Cause cause) {
    if (!stream.raised()) return;
    const Measured::Means measured = stream.measured();
    const bool saving = cause == Cause::kCheckpoint;
    const double modelled = measured.excess / (saving ? in_.own.checkpoint_interval() : 1);
    const Cost cost = CostOf(modelled, ErrorOf(stream), {});
    Verdict verdict = MakeVerdict(Scope::kJob, {}, cause, stream.onset());
    verdict.confidence = 0.9 * ConfidenceOf(stream);
    verdict.evidence.push_back(MakeEvidence(saving ? "save_checkpoint" : "dataloader", measured, stream.z()));
    Add(saving ? Detector::kCheckpoint : Detector::kDataloader, std::move(verdict), {}, bar_.OfCost(cost.ns), cost,
        saving ? MeanStepWithPauses(measured) : MeanStepOf(measured));
  }

  // A planned change changes transfers, too: it opens nothing, but does not end what is open.
  void AccuseByTransfers() {
    for (const TransferFinding& finding : in_.transfers.Findings(in_.layout)) {
      if (!AreThere(finding)) continue;
      const bool has_gone = HasGone(finding.intermittent, finding.excess_ns);
      if (const bool second = IsOfStarvedHost(finding); second || has_gone) {
        const std::set<int> ranks = RanksConcerned(finding);
        Hold(Detector::kTransfer, {ranks.begin(), ranks.end()}, {second ? Veto::kSecondFault : Veto::kFading});
        continue;
      }
      // What the step has become longer by, and no more than the transfers have.
      const int64_t since = finding.from_start ? in_.first_step_of(finding.onset) : finding.onset;
      const Periods::Lost lost = finding.intermittent ? Periods::Lost() : in_.lost_since(since);
      const Cost cost = CostOf(finding.excess_ns, finding.error, lost, true);
      Verdict verdict = MakeVerdict(finding.scope, finding.ids, finding.cause, since);
      verdict.links = finding.links;
      verdict.alternatives = finding.alternatives;
      verdict.confidence = std::min(finding.confidence, 0.99);
      Evidence evidence = MakeEvidence("transfer", finding.measured, finding.z, finding.count);
      evidence.peers = finding.peers;
      verdict.evidence.push_back(evidence);
      const bool large = cost.ns >= parameters.large_cost * in_.period_ns;
      const Held unrest = all_.has_device
                              ? Held{}
                              : OfUnrest(finding.lines, large, finding.onset, cost.ns, parameters.small_transfer_cost);
      // What is left of many slower lines while they recover one by one looks like a few.
      Add(Detector::kTransfer, std::move(verdict), RanksConcerned(finding),
          FirstOf({OfPlan(), OfFading(finding.fading), bar_.OfCost(cost.ns), unrest}), cost,
          MeanStepOf(finding.measured));
    }
  }

  // Of a rank whose own time is accused, confirmed or not yet, and that has no device.
  bool IsOfStarvedHost(const TransferFinding& finding) const {
    const std::set<int> concerned = RanksConcerned(finding);
    return std::any_of(accusations_.begin(), accusations_.end(), [&](const Accusation& first) {
      if (first.verdict.evidence[0].feature != "own_time") return false;
      if (std::abs(first.verdict.since_step - finding.onset) > parameters.same_onset) return false;
      return std::any_of(first.concerns.begin(), first.concerns.end(), [&](int rank) {
        return !in_.own.rank(rank).has_device && (finding.scope == Scope::kJob || concerned.count(rank) > 0);
      });
    });
  }

  // Both ends of each line, and somebody of whatever else is accused.
  bool AreThere(const TransferFinding& finding) const {
    if (finding.scope == Scope::kJob) return true;
    if (finding.scope == Scope::kLink) {
      return std::all_of(finding.links.begin(), finding.links.end(),
                         [this](const Link& link) { return IsPresent(link.a) && IsPresent(link.b); });
    }
    const std::set<int> concerned = RanksConcerned(finding);
    return std::any_of(concerned.begin(), concerned.end(), [this](int rank) { return IsPresent(rank); });
  }

  std::set<int> RanksConcerned(const TransferFinding& finding) const {
    if (finding.scope == Scope::kNode) {
      const auto ranks = in_.layout.nodes().find(finding.ids.front());
      if (ranks == in_.layout.nodes().end()) return {};
      return {ranks->second.begin(), ranks->second.end()};
    }
    std::set<int> ranks(finding.ids.begin(), finding.ids.end());
    for (const Link& link : finding.links) ranks.insert({link.a, link.b});
    return ranks;
  }

  const JudgeInput& in_;
  CostMeans& costs_;
  const Survey all_;
  const Bar bar_;
  std::optional<CostModel> model_;
  std::vector<Accusation> accusations_;
  std::vector<Decision> decisions_;
};

}  // namespace

Judgement Accuse(const JudgeInput& input, CostMeans& costs) {
  Judgement judgement = Accuser(input, costs).Run();
  costs.Forget(input.step);
  return judgement;
}

}  // namespace taskd::diagnosis
