#include "diagnosis/judge.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "diagnosis/cost.h"

namespace taskd::diagnosis {
namespace {

constexpr double kNodeShare = 0.7;
// How long a rank's accusation waits for the other ranks of its node.
constexpr int kNodeSettleSteps = 3;
// Issue latency below this share of what it was: the device waits for the host.
constexpr double kIssueCollapse = 0.2;
constexpr double kIssueFallen = 0.6;
constexpr double kTailFactor = 1.15;
constexpr double kTailShare = 0.2;
// A pause of the interpreter lies in forward; backward runs without it.
constexpr double kForwardShare = 0.65;
constexpr double kSpread = 0.25;  // and its length varies

double Confidence(const Stream& stream) {
  // How far beyond chance, softened: what the evaluation found for these sums.
  const double z = std::abs(stream.z());
  return std::clamp(1 - std::exp(-0.6 * z - 1), 0.6, 0.99);
}

class Accuser {
 public:
  explicit Accuser(const JudgeInput& input) : in_(input) {
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (!Present(rank)) continue;
      ++present_;
      fallen_ += in_.own.rank(rank).issue_ratio < kIssueFallen ? 1 : 0;
    }
  }

  std::vector<Accusation> Run() {
    OwnTimes();
    if (accusations_.empty()) Forwards();
    Classes();
    DataLoaders();
    Checkpoints();
    TransferTimes();
    return std::move(accusations_);
  }

 private:
  // Ranks by node, of those whose stream is raised; ranks of unknown node one by one.
  struct Suspects {
    std::vector<std::vector<int>> nodes;  // whole nodes
    std::vector<int> node_ids;
    std::vector<int> ranks;
  };

  using StreamOf = std::function<const Stream&(int rank)>;

  Suspects Gather(const StreamOf& stream, bool by_host) const {
    Suspects suspects;
    const std::map<int, std::vector<int>>& nodes = in_.layout.nodes();
    for (const auto& [node, ranks] : nodes) {
      std::vector<int> raised;
      size_t alike = 0;  // of them: that deviate as much as the others
      size_t rising = 0;
      size_t present = 0;
      for (int rank : ranks) {
        if (!Present(rank)) continue;
        ++present;
        if (stream(rank).raised()) raised.push_back(rank);
      }
      if (raised.empty()) continue;
      double strongest = 0;
      int64_t youngest = 0;
      for (int rank : raised) {
        strongest = std::max(strongest, stream(rank).mean());
        youngest = std::max(youngest, stream(rank).raised_step());
      }
      for (int rank : raised) alike += stream(rank).mean() > strongest / 3 ? 1 : 0;
      for (int rank : ranks) {
        if (!Present(rank) || stream(rank).raised()) continue;
        rising += stream(rank).Rising(0.3) && stream(rank).mean() > strongest / 2 ? 1 : 0;
      }
      const auto needed = static_cast<size_t>(std::ceil(kNodeShare * static_cast<double>(present)));
      if (present >= 2 && nodes.size() >= 2 &&
          (alike >= std::max<size_t>(2, needed) || (by_host && HeldUpByHost(ranks)))) {
        suspects.nodes.push_back(raised);
        suspects.node_ids.push_back(node);
        continue;
      }
      // The others of the node are on the way: the answer may be the node.
      if (in_.step - youngest < kNodeSettleSteps && present >= 2 && nodes.size() >= 2 &&
          raised.size() + rising >= std::max<size_t>(2, needed)) {
        continue;
      }
      suspects.ranks.insert(suspects.ranks.end(), raised.begin(), raised.end());
    }
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (in_.layout.known(rank) && in_.layout.node(rank) < 0 && stream(rank).raised()) suspects.ranks.push_back(rank);
    }
    return suspects;
  }

  bool Present(int rank) const { return rank < in_.own.size() && in_.own.rank(rank).last_step >= in_.step - 5; }

  // Issue latency has fallen on most ranks of the node. Whoever of them is slowest holds the others up, so not all of
  // them need to be slow themselves. Where it has fallen in most of the job it is no node's matter.
  bool HeldUpByHost(const std::vector<int>& ranks) const {
    size_t present = 0;
    size_t fallen = 0;
    for (int rank : ranks) {
      if (!Present(rank)) continue;
      ++present;
      fallen += in_.own.rank(rank).issue_ratio < kIssueFallen ? 1 : 0;
    }
    return fallen >= 2 && static_cast<double>(fallen) >= kNodeShare * static_cast<double>(present) &&
           2 * fallen_ < present_;
  }

  void Push(Verdict verdict, std::set<int> concerns, bool confirmed) {
    if (verdict.cost_ms_per_step > 0) {
      const double step_ms = in_.period_ns / 1e6;
      verdict.slowdown = step_ms / std::max(0.05 * step_ms, step_ms - verdict.cost_ms_per_step);
    }
    std::string key = KeyOf(verdict);
    accusations_.push_back({std::move(key), std::move(verdict), std::move(concerns), confirmed});
  }

  Cause OwnCause(const std::vector<int>& ranks, bool node) const {
    double issue = 0;
    double tail = 0;
    double tail_share = 0;
    double longest = 0;
    double forward = 0;
    double spread = 0;
    double ratio = 0;
    int intermittent = 0;
    for (int r : ranks) {
      const OwnTime::Rank& rank = in_.own.rank(r);
      issue += rank.issue_ratio;
      tail += rank.tail_ratio;
      tail_share += rank.tail_share;
      longest += rank.longest_gap_share;
      forward += rank.forward_share;
      spread += rank.own.mean() > 0 ? rank.own.spread() / rank.own.mean() : 0;
      ratio += rank.own_reference_ns > 0 ? std::exp(rank.own.mean()) : 1;
      intermittent += rank.own.intermittent() ? 1 : 0;
    }
    const auto n = static_cast<double>(ranks.size());
    issue /= n;
    tail /= n;
    tail_share /= n;
    longest /= n;
    forward /= n;
    spread /= n;
    ratio /= n;
    if (in_.own.mode() == OwnTime::Mode::kForward) return Cause::kUnknown;
    if (node && issue < kIssueFallen) return Cause::kHost;
    const bool comes_and_goes = 2 * intermittent > static_cast<int>(ranks.size());
    if (comes_and_goes ? longest > 0.5 || forward > kForwardShare : forward > kForwardShare && spread > kSpread) {
      return Cause::kGc;
    }
    if (issue < kIssueCollapse) return Cause::kHost;
    if (tail > ratio * kTailFactor && tail_share > kTailShare && !comes_and_goes) return Cause::kMemory;
    return Cause::kCompute;
  }

  Evidence OwnEvidence(int r) const {
    const OwnTime::Rank& rank = in_.own.rank(r);
    Evidence evidence;
    evidence.feature = in_.own.mode() == OwnTime::Mode::kForward ? "forward" : "own_time";
    evidence.reference = rank.own_reference_ns / 1e6;
    evidence.value = evidence.reference * std::exp(rank.own.mean());
    evidence.peers = in_.own.classes()[static_cast<size_t>(in_.layout.rank(r).peer_class)].present - 1;
    evidence.z = rank.own.z();
    evidence.first_step = rank.own.onset();
    evidence.last_step = in_.step;
    return evidence;
  }

  // Only when somebody is suspected: it looks at every rank.
  CostModel& Model() {
    if (!model_) model_.emplace(in_.layout, in_.own, in_.microbatches);
    return *model_;
  }

  // A modelled cost against what steps have really become longer by: never more than that, but the whole job may have
  // become faster for other reasons.
  double Seen(double modelled, int64_t since_step) const {
    modelled = std::max(0.0, modelled);
    return std::clamp(in_.lost_since(since_step), 0.4 * modelled, modelled);
  }

  int64_t Onset(const Stream& stream) const { return stream.from_start() ? in_.first_step : stream.onset(); }

  void OwnTimes() {
    Suspects suspects = Gather([this](int rank) -> const Stream& { return in_.own.rank(rank).own; }, true);
    // Without communication marks a forward holds waits: several slow ones may be one culprit and its victims.
    if (in_.own.mode() == OwnTime::Mode::kForward && suspects.ranks.size() + suspects.nodes.size() > 1) return;
    struct Entity {
      bool node;
      int id;
      std::vector<int> ranks;
      double excess;
    };
    std::vector<Entity> entities;
    for (size_t i = 0; i < suspects.nodes.size(); ++i) {
      entities.push_back({true, suspects.node_ids[i], suspects.nodes[i], 0});
    }
    for (int rank : suspects.ranks) entities.push_back({false, rank, {rank}, 0});
    if (entities.empty()) return;
    for (Entity& entity : entities) {
      for (int rank : entity.ranks) entity.excess = std::max(entity.excess, in_.own.rank(rank).own.mean_excess());
    }
    std::stable_sort(entities.begin(), entities.end(),
                     [](const Entity& a, const Entity& b) { return a.excess > b.excess; });
    // Each one's cost is what it would cost alone: of two equally slow ranks either one is worth mending only with the
    // other, and both have to be named.
    for (const Entity& entity : entities) {
      for (int rank : entity.ranks) Model().Set(rank, in_.own.rank(rank).own_reference_ns);
    }
    const double without = Model().StepNs();
    for (const Entity& entity : entities) {
      for (int rank : entity.ranks) {
        Model().Set(rank, in_.own.rank(rank).own_reference_ns + in_.own.rank(rank).own.mean_excess());
      }
      const double modelled = std::max(0.0, Model().StepNs() - without);
      for (int rank : entity.ranks) Model().Set(rank, in_.own.rank(rank).own_reference_ns);
      Verdict verdict;
      verdict.scope = entity.node ? Scope::kNode : Scope::kRank;
      verdict.ids = {entity.id};
      verdict.cause = OwnCause(entity.ranks, entity.node);
      std::vector<int64_t> onsets;
      int worst = entity.ranks.front();
      for (int rank : entity.ranks) {
        onsets.push_back(Onset(in_.own.rank(rank).own));
        if (in_.own.rank(rank).own.mean_excess() > in_.own.rank(worst).own.mean_excess()) worst = rank;
      }
      std::sort(onsets.begin(), onsets.end());
      verdict.since_step = onsets[(onsets.size() - 1) / 2];
      const bool fading = std::all_of(entity.ranks.begin(), entity.ranks.end(),
                                      [this](int rank) { return in_.own.rank(rank).own.Fading(); });
      // The median of the steps does not see what comes and goes.
      const double cost = in_.own.rank(worst).own.intermittent() ? modelled : Seen(modelled, verdict.since_step);
      verdict.cost_ms_per_step = cost / 1e6;
      verdict.confidence = Confidence(in_.own.rank(worst).own);
      verdict.evidence.push_back(OwnEvidence(worst));
      Push(std::move(verdict), {entity.ranks.begin(), entity.ranks.end()},
           !fading && cost >= in_.min_cost_share * in_.period_ns);
    }
  }

  // Only one whose forward alone is longer, while steps are: several may be one culprit and its victims.
  void Forwards() {
    int suspect = -1;
    for (int rank = 0; rank < in_.own.size(); ++rank) {
      if (!in_.own.rank(rank).forward.raised()) continue;
      if (suspect >= 0) return;
      suspect = rank;
    }
    if (suspect < 0 || in_.own.mode() != OwnTime::Mode::kAll) return;
    const OwnTime::Rank& rank = in_.own.rank(suspect);
    Verdict verdict;
    verdict.scope = Scope::kRank;
    verdict.ids = {suspect};
    verdict.cause = rank.forward.intermittent() ? Cause::kUnknown : Cause::kCompute;
    verdict.since_step = rank.forward.onset();
    // Backward is about twice forward; what steps became longer by is the bound.
    const double lost = in_.lost_since(verdict.since_step);
    const double cost = std::clamp(lost, 0.0, 3 * rank.forward.mean_excess());
    verdict.cost_ms_per_step = cost / 1e6;
    verdict.confidence = 0.9 * Confidence(rank.forward);
    Evidence evidence;
    evidence.feature = "forward";
    evidence.reference = rank.forward_reference_ns / 1e6;
    evidence.value = evidence.reference * std::exp(rank.forward.mean());
    evidence.peers = in_.own.classes()[static_cast<size_t>(in_.layout.rank(suspect).peer_class)].present - 1;
    evidence.z = rank.forward.z();
    evidence.first_step = verdict.since_step;
    evidence.last_step = in_.step;
    verdict.evidence.push_back(evidence);
    Push(std::move(verdict), {suspect}, cost >= in_.min_cost_share * in_.period_ns);
  }

  // Ranks without peers, and stages that live on one node: against their own past and the other stages'.
  void Classes() {
    const auto& classes = in_.layout.classes();
    if (classes.size() < 2 || in_.own.mode() == OwnTime::Mode::kForward) return;
    for (size_t c = 0; c < classes.size(); ++c) {
      const OwnTime::Class& peers = in_.own.classes()[c];
      if (!peers.drift.raised()) continue;
      std::set<int> nodes;
      for (int rank : classes[c]) nodes.insert(in_.layout.node(rank));
      const bool node = classes[c].size() > 1 && nodes.size() == 1 && *nodes.begin() >= 0 &&
                        in_.layout.nodes().size() > 1 &&
                        in_.layout.nodes().at(*nodes.begin()).size() == classes[c].size();
      if (classes[c].size() > 1 && !node) continue;
      CostModel model = Model();
      const double with = model.StepNs();
      for (int rank : classes[c]) model.Set(rank, model.own_ns(rank) * std::exp(-peers.drift.mean()));
      const double cost = Seen(std::max(0.0, with - model.StepNs()), peers.drift.onset());
      Verdict verdict;
      verdict.scope = node ? Scope::kNode : Scope::kRank;
      verdict.ids = {node ? *nodes.begin() : classes[c].front()};
      verdict.cause = Cause::kCompute;
      if (in_.own.rank(classes[c].front()).issue_ratio < kIssueCollapse) verdict.cause = Cause::kHost;
      verdict.since_step = peers.drift.onset();
      verdict.cost_ms_per_step = cost / 1e6;
      verdict.confidence = 0.9 * Confidence(peers.drift);
      Evidence evidence;
      evidence.feature = "own_time";
      evidence.reference = std::exp(peers.level) / 1e6;
      evidence.value = evidence.reference * std::exp(peers.drift.mean());
      evidence.z = peers.drift.z();
      evidence.first_step = verdict.since_step;
      evidence.last_step = in_.step;
      verdict.evidence.push_back(evidence);
      Push(std::move(verdict), {classes[c].begin(), classes[c].end()},
           cost >= in_.min_cost_share * in_.period_ns && !in_.planned_change);
    }
  }

  void DataLoaders() {
    Suspects suspects = Gather([this](int rank) -> const Stream& { return in_.own.rank(rank).data; }, false);
    auto accuse = [&](Scope scope, int id, const std::vector<int>& ranks) {
      int worst = ranks.front();
      for (int rank : ranks) {
        if (in_.own.rank(rank).data.mean_excess() > in_.own.rank(worst).data.mean_excess()) worst = rank;
      }
      const OwnTime::Rank& rank = in_.own.rank(worst);
      Verdict verdict;
      verdict.scope = scope;
      verdict.ids = {id};
      verdict.cause = Cause::kDataloader;
      verdict.since_step = Onset(rank.data);
      const double cost = Seen(rank.data.mean_excess(), rank.data.onset());
      verdict.cost_ms_per_step = cost / 1e6;
      verdict.confidence = Confidence(rank.data);
      Evidence evidence;
      evidence.feature = "dataloader";
      evidence.reference = rank.data_reference_ns / 1e6;
      evidence.value = evidence.reference + cost / 1e6;
      evidence.peers =
          static_cast<int>(in_.layout.classes()[static_cast<size_t>(in_.layout.rank(worst).peer_class)].size()) - 1;
      evidence.z = rank.data.z();
      evidence.first_step = verdict.since_step;
      evidence.last_step = in_.step;
      verdict.evidence.push_back(evidence);
      Push(std::move(verdict), {ranks.begin(), ranks.end()}, cost >= in_.min_cost_share * in_.period_ns);
    };
    for (size_t i = 0; i < suspects.nodes.size(); ++i) accuse(Scope::kNode, suspects.node_ids[i], suspects.nodes[i]);
    for (int rank : suspects.ranks) accuse(Scope::kRank, rank, {rank});
    CommonRise(in_.own.common_data(), Cause::kDataloader, "dataloader");
  }

  void Checkpoints() {
    for (int r = 0; r < in_.own.size(); ++r) {
      const OwnTime::Rank& rank = in_.own.rank(r);
      if (!rank.checkpoint.raised()) continue;
      Verdict verdict;
      verdict.scope = Scope::kRank;
      verdict.ids = {r};
      verdict.cause = Cause::kCheckpoint;
      verdict.since_step = rank.checkpoint.onset();
      const double cost = rank.checkpoint.mean_excess();
      verdict.cost_ms_per_step = cost / 1e6;
      verdict.confidence = Confidence(rank.checkpoint);
      Evidence evidence;
      evidence.feature = "save_checkpoint";
      evidence.reference = rank.checkpoint_reference_ns / 1e6;
      evidence.value = evidence.reference * std::exp(rank.checkpoint.mean());
      evidence.z = rank.checkpoint.z();
      evidence.first_step = verdict.since_step;
      evidence.last_step = in_.step;
      verdict.evidence.push_back(evidence);
      Push(std::move(verdict), {r}, cost >= in_.min_cost_share * in_.period_ns);
    }
    CommonRise(in_.own.common_checkpoint(), Cause::kCheckpoint, "save_checkpoint");
  }

  // Slower on everybody: the storage that they share.
  void CommonRise(const Stream& stream, Cause cause, const char* feature) {
    if (!stream.raised()) return;
    Verdict verdict;
    verdict.scope = Scope::kJob;
    verdict.cause = cause;
    verdict.since_step = stream.onset();
    verdict.cost_ms_per_step = std::max(0.0, stream.mean_excess() / 1e6);
    verdict.confidence = 0.9 * Confidence(stream);
    Evidence evidence;
    evidence.feature = feature;
    if (cause == Cause::kCheckpoint) {
      // The stream is of logarithms.
      double value = 0;
      for (int r = 0; r < in_.own.size(); ++r) value = std::max(value, in_.own.rank(r).checkpoint_reference_ns);
      evidence.value = value / 1e6;
      evidence.reference = evidence.value * std::exp(-stream.mean());
    } else {
      evidence.reference = in_.own.common_data_level_ns() / 1e6;
      evidence.value = evidence.reference + verdict.cost_ms_per_step;
    }
    evidence.z = stream.z();
    evidence.first_step = verdict.since_step;
    evidence.last_step = in_.step;
    verdict.evidence.push_back(evidence);
    Push(std::move(verdict), {}, verdict.cost_ms_per_step * 1e6 >= in_.min_cost_share * in_.period_ns);
  }

  void TransferTimes() {
    if (in_.planned_change) return;
    for (TransferFinding& finding : in_.transfers.Findings(in_.layout)) {
      Verdict verdict;
      verdict.scope = finding.scope;
      verdict.ids = finding.ids;
      verdict.links = finding.links;
      verdict.alternatives = finding.alternatives;
      verdict.cause = finding.cause;
      verdict.since_step = finding.onset;
      // What the step has become longer by, and no more than the transfers have.
      double cost = finding.excess_ns;
      if (!finding.intermittent) cost = std::max(0.0, std::min(cost, in_.lost_since(finding.onset)));
      verdict.cost_ms_per_step = cost / 1e6;
      verdict.confidence = std::min(finding.confidence, 0.99);
      Evidence evidence;
      evidence.feature = "transfer";
      evidence.value = finding.value_ms;
      evidence.reference = finding.reference_ms;
      evidence.peers = finding.peers;
      evidence.z = finding.z;
      evidence.first_step = finding.onset;
      evidence.last_step = in_.step;
      verdict.evidence.push_back(evidence);
      std::set<int> concerns(finding.ids.begin(), finding.ids.end());
      for (const Link& link : finding.links) concerns.insert({link.a, link.b});
      if (finding.scope == Scope::kNode) {
        concerns.clear();
        auto ranks = in_.layout.nodes().find(finding.ids.front());
        if (ranks != in_.layout.nodes().end()) concerns.insert(ranks->second.begin(), ranks->second.end());
      }
      Push(std::move(verdict), std::move(concerns), cost >= in_.min_cost_share * in_.period_ns);
    }
  }

  const JudgeInput& in_;
  std::optional<CostModel> model_;
  size_t present_ = 0;
  size_t fallen_ = 0;  // ranks whose issue latency has fallen
  std::vector<Accusation> accusations_;
};

}  // namespace

std::vector<Accusation> Accuse(const JudgeInput& input) { return Accuser(input).Run(); }

}  // namespace taskd::diagnosis
