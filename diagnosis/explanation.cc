#include "diagnosis/explanation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

constexpr int kMaxExplanations = 8;
constexpr size_t kMaxAlternatives = 8;
// In a larger group only ranks that have other lines, too, are suspected one by one.
constexpr size_t kLargeGroup = 64;

// What can be at fault.
enum class Part : uint8_t { kLink, kNodeInside, kGroup, kNetworkCard, kNode };
struct PartTraits {
  Scope scope;
  int preference;  // of parts that explain as much, the least: the smaller ones, and what can be mended
};
constexpr std::array<PartTraits, 5> kParts = {{
    {Scope::kLink, 0},
    {Scope::kNode, 0},  // the links inside it: before the one group that uses them
    {Scope::kGroup, 1},
    {Scope::kRank, 2},
    {Scope::kNode, 3},
}};

struct Suspect {
  Part part;
  std::vector<int> ids;
  const std::vector<int>* lines;  // that it covers: all of them should be slower
  double score = 0;               // log likelihood

  Scope scope() const { return kParts[static_cast<size_t>(part)].scope; }
  int preference() const { return kParts[static_cast<size_t>(part)].preference; }
};

class Explainer {
 public:
  Explainer(const Layout& layout, const std::vector<Line>& lines) : layout_(layout), lines_(lines) {
    for (const auto& peers : layout.classes()) known_ranks_ += peers.size();
    single_.reserve(lines.size());
    inter_of_rank_.resize(static_cast<size_t>(layout.size()));
    for (size_t i = 0; i < lines.size(); ++i) {
      single_.push_back({static_cast<int>(i)});
      unexplained_.push_back(lines[i].support > 0 && lines[i].raised);
      AddToParts(static_cast<int>(i));
    }
  }

  std::vector<Explanation> Explain(bool changed) {
    std::vector<Explanation> explanations;
    const double fabric = changed ? FabricConfidence() : 0;
    if (fabric > 0) Accept(ExplainByFabric(fabric), explanations);
    for (int i = 0; i < kMaxExplanations; ++i) {
      const std::vector<Suspect> suspects = SortSuspects();
      if (suspects.empty()) break;
      Accept(ExplainByFirst(suspects), explanations);
    }
    return explanations;
  }

 private:
  const Line& line(int i) const { return lines_[static_cast<size_t>(i)]; }
  // A member may be a rank that nobody has heard of.
  std::vector<int>& InterOf(int rank) {
    if (static_cast<size_t>(rank) >= inter_of_rank_.size()) inter_of_rank_.resize(static_cast<size_t>(rank) + 1);
    return inter_of_rank_[static_cast<size_t>(rank)];
  }
  bool Slower(int i) const { return line(i).support > 0; }

  void AddToParts(int i) {
    std::vector<int> nodes;
    for (int member : line(i).members) {
      const int node = layout_.node(member);
      if (node >= 0 && (nodes.empty() || nodes.back() != node)) nodes.push_back(node);
      if (line(i).inter_node) InterOf(member).push_back(i);
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    for (int node : nodes) (line(i).inter_node ? inter_of_node_ : intra_of_node_)[node].push_back(i);
    if (!line(i).inter_node) return;
    inter_node_.push_back(i);
    connected_nodes_.insert(nodes.begin(), nodes.end());
  }

  void Accept(Explanation explanation, std::vector<Explanation>& explanations) {
    for (int i : explanation.lines) unexplained_[static_cast<size_t>(i)] = false;
    explanations.push_back(std::move(explanation));
  }

  // How sure it is that most of the lines between nodes are slower and no single node holds all that are; 0: they are
  // not.
  double FabricConfidence() const {
    if (inter_node_.size() < 2) return 0;
    const auto slower =
        static_cast<size_t>(std::count_if(inter_node_.begin(), inter_node_.end(), [this](int i) { return Slower(i); }));
    if (OneNodeHolds(slower)) return 0;
    if (connected_nodes_.size() == 2 && slower == inter_node_.size()) return 0.7;
    std::set<int> nodes;
    for (int i : inter_node_) {
      if (!Slower(i)) continue;
      for (int member : line(i).members) nodes.insert(layout_.node(member));
    }
    return nodes.size() >= 3 && 2 * slower > inter_node_.size() ? 0.95 : 0;
  }

  // A node has all `slower` lines that are slower, while others have lines that it has no part in.
  bool OneNodeHolds(size_t slower) const {
    return std::any_of(inter_of_node_.begin(), inter_of_node_.end(), [&](const auto& entry) {
      const std::vector<int>& covered = entry.second;
      const auto held = std::count_if(covered.begin(), covered.end(), [this](int i) { return Slower(i); });
      return static_cast<size_t>(held) == slower && covered.size() < inter_node_.size();
    });
  }

  Explanation ExplainByFabric(double confidence) const {
    Explanation fabric;
    fabric.scope = Scope::kJob;
    fabric.cause = Cause::kFabric;
    fabric.confidence = confidence;
    fabric.lines = inter_node_;
    return fabric;
  }

  // Everybody who covers a line that nobody explains yet, the best explanation first; empty: all lines are explained.
  std::vector<Suspect> SortSuspects() const {
    std::vector<Suspect> suspects;
    std::set<std::tuple<Part, std::vector<int>>> seen;
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (!unexplained_[i]) continue;
      for (Suspect& suspect : SuspectsOf(static_cast<int>(i))) {
        if (!seen.emplace(suspect.part, suspect.ids).second) continue;
        suspect.score = Score(*suspect.lines);
        suspects.push_back(std::move(suspect));
      }
    }
    std::stable_sort(suspects.begin(), suspects.end(), [](const Suspect& x, const Suspect& y) {
      if (std::abs(x.score - y.score) > parameters.tie) return x.score > y.score;
      return x.preference() < y.preference();
    });
    return suspects;
  }

  std::vector<Suspect> SuspectsOf(int i) const {
    const Line& line = lines_[static_cast<size_t>(i)];
    const std::vector<int>& itself = single_[static_cast<size_t>(i)];
    std::vector<Suspect> suspects;
    suspects.push_back(line.a >= 0 ? Suspect{Part::kLink, {line.a, line.b}, &itself}
                                   : Suspect{Part::kGroup, line.members, &itself});
    if (!line.inter_node) {
      const int node = layout_.node(line.members.front());
      if (node >= 0) suspects.push_back({Part::kNodeInside, {node}, &intra_of_node_.at(node)});
      return suspects;
    }
    for (int member : line.members) {
      const std::vector<int>& lines = inter_of_rank_[static_cast<size_t>(member)];
      if (line.members.size() > kLargeGroup && lines.size() < 2) continue;
      suspects.push_back({Part::kNetworkCard, {member}, &lines});
      const int node = layout_.node(member);
      if (node >= 0) suspects.push_back({Part::kNode, {node}, &inter_of_node_.at(node)});
    }
    return suspects;
  }

  // What is explained already speaks against a suspect only if it is not slower.
  double Score(const std::vector<int>& covered) const {
    double score = 0;
    for (int i : covered) {
      score += unexplained_[static_cast<size_t>(i)] ? line(i).support : std::min(0.0, line(i).support);
    }
    return score;
  }

  Explanation ExplainByFirst(const std::vector<Suspect>& suspects) const {
    const Suspect& best = suspects.front();
    // All ranks are no answer to who it is.
    const bool everybody = best.part == Part::kGroup && best.ids.size() == known_ranks_;
    Explanation explanation;
    explanation.lines = *best.lines;
    explanation.scope = everybody ? Scope::kJob : best.scope();
    explanation.cause = CauseOf(best, everybody);
    if (best.part == Part::kLink) {
      explanation.links = {{best.ids[0], best.ids[1]}};
    } else if (!everybody) {
      explanation.ids = best.ids;
    }
    AddAlternatives(suspects, explanation);
    NameEquals(suspects, explanation);
    return explanation;
  }

  Cause CauseOf(const Suspect& best, bool everybody) const {
    if (best.part == Part::kLink) return Cause::kPpLink;
    if (!line(best.lines->front()).inter_node) return Cause::kIntraNodeLink;
    return everybody ? Cause::kFabric : Cause::kNetwork;
  }

  // Who would explain nearly as much, by their share of the likelihood.
  static void AddAlternatives(const std::vector<Suspect>& suspects, Explanation& explanation) {
    const double best = suspects.front().score;
    double total = 0;
    for (const Suspect& suspect : suspects) total += std::exp(std::min(0.0, suspect.score - best));
    explanation.confidence = 1 / std::max(1.0, total);
    for (size_t i = 1; i < suspects.size() && explanation.alternatives.size() < kMaxAlternatives; ++i) {
      const Suspect& suspect = suspects[i];
      const double probability = std::exp(std::min(0.0, suspect.score - best)) / total;
      if (probability < parameters.least_probability) continue;
      Alternative alternative;
      alternative.scope = suspect.scope();
      alternative.probability = probability;
      if (suspect.part == Part::kLink) {
        alternative.links = {{suspect.ids[0], suspect.ids[1]}};
      } else {
        alternative.ids = suspect.ids;
      }
      explanation.alternatives.push_back(std::move(alternative));
    }
  }

  // Several that explain as much cannot be told apart: the set of them is the answer.
  void NameEquals(const std::vector<Suspect>& suspects, Explanation& explanation) const {
    const Suspect& best = suspects.front();
    std::vector<int> equals;
    for (const Suspect& suspect : suspects) {
      if (suspect.scope() == best.scope() && std::abs(suspect.score - best.score) <= parameters.tie) {
        equals.push_back(suspect.ids.front());
      }
    }
    const bool ranks = best.scope() == Scope::kRank;
    if (equals.size() > 1 && (ranks || best.scope() == Scope::kNode)) {
      std::sort(equals.begin(), equals.end());
      if (ranks) explanation.scope = Scope::kGroup;
      explanation.ids = equals;
      if (equals.size() == (ranks ? known_ranks_ : connected_nodes_.size())) {
        explanation.scope = Scope::kJob;
        explanation.ids.clear();
        explanation.cause = Cause::kFabric;
      }
      explanation.alternatives.clear();
    }
    const bool one_place = explanation.scope == Scope::kRank || explanation.scope == Scope::kNode;
    if (!one_place || equals.size() > 1) explanation.confidence = std::max(explanation.confidence, 0.9);
  }

  const Layout& layout_;
  const std::vector<Line>& lines_;
  size_t known_ranks_ = 0;
  std::vector<bool> unexplained_;             // by line
  std::vector<std::vector<int>> single_;      // each line by itself
  std::vector<int> inter_node_;               // lines between nodes
  absl::flat_hash_set<int> connected_nodes_;  // by them
  std::vector<std::vector<int>> inter_of_rank_;
  absl::flat_hash_map<int, std::vector<int>> inter_of_node_;
  absl::flat_hash_map<int, std::vector<int>> intra_of_node_;
};

}  // namespace

std::vector<Explanation> ExplainSlowLines(const Layout& layout, const std::vector<Line>& lines, bool changed) {
  return Explainer(layout, lines).Explain(changed);
}

}  // namespace taskd::diagnosis
