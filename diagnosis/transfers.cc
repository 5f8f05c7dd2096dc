#include "diagnosis/transfers.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace taskd::diagnosis {
namespace {

constexpr int kLearn = 12;
constexpr double kForget = 1.0 / 720;
constexpr double kMinSigma = 0.03;
// Against the own past: transfers of one channel differ little from step to step.
constexpr double kPastDead = 0.03;
// Against siblings: cables, switches and places differ for ever.
constexpr double kSiblingDead = 0.15;
constexpr double kJump = 0.3;
constexpr double kBig = 0.6;
// Smaller operations take as long as the latency, whatever the bandwidth is: they contradict nothing.
constexpr uint8_t kBandwidthBound = 16;  // log2 of bytes
constexpr double kMaxSupport = 4.6;      // ln(p / (1 - p)) of p = 0.99
constexpr int kSettleSteps = 3;
constexpr double kTie = 0.5;  // log likelihood
constexpr size_t kMaxChannels = 400'000;

}  // namespace

int Transfers::Find(const Layout& layout, int rank, const OpFold& op) {
  const int group = layout.GroupOf(rank, op.group);
  if (group < 0 || op.count == 0 || op.min_duration_ns == 0) return -1;
  int a = -1;
  int b = -1;
  CommOp kind = op.op;
  if (IsPointToPoint(op.op)) {
    const int peer = layout.MemberOf(group, op.peer);
    if (peer < 0 || peer == rank) return -1;
    a = rank;
    b = peer;
    if (op.op == CommOp::kRecv || (op.op == CommOp::kSendRecv && b < a)) std::swap(a, b);
    if (op.op == CommOp::kRecv) kind = CommOp::kSend;
  } else if (!EndsTogether(op.op) || op.op == CommOp::kBarrier || layout.group(group).members.size() < 2) {
    return -1;
  }
  // Sizes of an all-to-all change with the routing of tokens.
  const uint8_t size = op.op == CommOp::kAllToAll ? 0 : op.size_log2;
  const uint64_t key = (static_cast<uint64_t>(group) << 42) ^ (static_cast<uint64_t>(a + 1) << 26) ^
                       (static_cast<uint64_t>(b + 1) << 10) ^ (static_cast<uint64_t>(kind) << 6) ^ size;
  auto [found, added] = ids_.emplace(key, static_cast<int>(channels_.size()));
  if (!added) return found->second;
  if (channels_.size() >= kMaxChannels) {
    ids_.erase(found);
    return -1;
  }
  Channel& channel = channels_.emplace_back();
  channel.group = group;
  channel.a = a;
  channel.b = b;
  channel.op = kind;
  channel.size_log2 = size;
  const Group& info = layout.group(group);
  const bool inter = a >= 0 ? layout.node(a) != layout.node(b) : info.nodes != 1;
  std::vector<int> siblings = {static_cast<int>(kind),
                               size,
                               a >= 0 ? 2 : static_cast<int>(info.members.size()),
                               inter ? 1 : 0,
                               a >= 0 ? (a < b ? 1 : 0) : 2,
                               info.blocking ? 1 : 0};
  auto [sibling, new_class] = sibling_ids_.emplace(siblings, static_cast<int>(noise_.size()));
  if (new_class) noise_.emplace_back();
  channel.sibling_class = sibling->second;
  return found->second;
}

uint64_t Transfers::KeyOf(const OpFold& op) {
  return static_cast<uint64_t>(op.group) << 48 | static_cast<uint64_t>(op.op) << 40 |
         static_cast<uint64_t>(op.size_log2) << 32 | static_cast<uint32_t>(op.peer);
}

int Transfers::FindAgain(const Layout& layout, int rank, size_t index, const OpFold& op) {
  if (op.count == 0 || op.min_duration_ns == 0) return -1;
  if (static_cast<size_t>(rank) >= found_.size()) found_.resize(static_cast<size_t>(rank) + 1);
  std::vector<Found>& found = found_[static_cast<size_t>(rank)];
  if (index >= found.size()) found.resize(index + 1);
  const uint64_t key = KeyOf(op);
  if (found[index].key != key) found[index] = {key, Find(layout, rank, op)};
  return found[index].id;
}

void Transfers::Observe(const Layout& layout, const std::vector<std::pair<int, StepFold>>& folds, int64_t step,
                        double arl_factor) {
  std::vector<int> touched;
  for (const auto& [rank, fold] : folds) {
    for (size_t i = 0; i < fold.ops.size(); ++i) {
      const OpFold& op = fold.ops[i];
      const int id = FindAgain(layout, rank, i, op);
      if (id < 0) continue;
      Channel& channel = channels_[static_cast<size_t>(id)];
      if (channel.step != step) {
        channel.step = step;
        channel.reporters = 0;
        channel.count = 0;
        channel.min_ns = op.min_duration_ns;
        channel.bytes = 0;
        touched.push_back(id);
      }
      ++channel.reporters;
      channel.count = std::max(channel.count, op.count);
      channel.min_ns = std::min(channel.min_ns, op.min_duration_ns);
      channel.bytes = std::max(channel.bytes, static_cast<double>(op.bytes) / op.count);
    }
  }
  Judge(layout, touched, step, arl_factor);
}

// An all-to-all moves as much as the routing of tokens says: its time counts by byte.
double Transfers::LogTime(const Channel& channel) {
  const double time = std::log(static_cast<double>(channel.min_ns));
  return channel.op == CommOp::kAllToAll && channel.bytes > 0 ? time - std::log(channel.bytes) : time;
}

void Transfers::Judge(const Layout& layout, const std::vector<int>& touched, int64_t step, double arl_factor) {
  // Only channels all of whose members were heard: without the last arriver a wait would look like a transfer.
  std::vector<std::vector<double>> by_class(noise_.size());
  std::vector<int> judged;
  for (int id : touched) {
    Channel& channel = channels_[static_cast<size_t>(id)];
    const int expected = channel.a >= 0 ? 2 : static_cast<int>(layout.group(channel.group).members.size());
    if (channel.reporters < expected) continue;
    judged.push_back(id);
    by_class[static_cast<size_t>(channel.sibling_class)].push_back(LogTime(channel));
  }
  std::vector<double> reference(noise_.size(), 0);
  std::vector<size_t> class_size(noise_.size(), 0);
  for (size_t i = 0; i < by_class.size(); ++i) {
    class_size[i] = by_class[i].size();
    reference[i] = LowerMedian(by_class[i]);
    noise_[i].Update();
  }
  const double h = CusumThreshold(arl_factor * static_cast<double>(std::max<size_t>(1, 2 * channels_.size())), 1.0);
  std::vector<StreamTails> past_tails(noise_.size());
  std::vector<StreamTails> sibling_tails(noise_.size());
  for (int id : judged) {
    const Channel& channel = channels_[static_cast<size_t>(id)];
    past_tails[static_cast<size_t>(channel.sibling_class)].Count(channel.past);
    sibling_tails[static_cast<size_t>(channel.sibling_class)].Count(channel.siblings);
  }
  for (int id : judged) {
    Channel& channel = channels_[static_cast<size_t>(id)];
    const auto kind = static_cast<size_t>(channel.sibling_class);
    const double y = LogTime(channel);
    if (channel.has_last) noise_[kind].Add(id, std::abs(y - channel.last));
    channel.last = y;
    channel.has_last = true;
    ++channel.seen;
    if (channel.seen <= kLearn) channel.level += (y - channel.level) / channel.seen;
    if (!noise_[kind].ready() || channel.seen <= 2) continue;
    const double sigma = std::max(kMinSigma, noise_[kind].sigma());
    const auto slot = static_cast<size_t>(channel.seen) % kRecent;
    channel.recent[slot] = 0;
    if (channel.seen > kLearn) {
      const double d = y - channel.level;
      channel.recent[slot] = static_cast<float>(d);
      const double excess = static_cast<double>(channel.min_ns) * (1 - std::exp(-d)) * channel.count;
      Stream::Limits limits = {
          .sigma = sigma, .dead = kPastDead, .most = kPastDead, .h = h, .jump = kJump, .big = kBig};
      past_tails[kind].Apply(limits, channel.past, class_size[kind] > 1);
      channel.past.Observe(step, d, excess, limits);
      if (!channel.past.raised() && !channel.past.Rising(0.3)) channel.level += kForget * d;
    }
    channel.recent_siblings[slot] = 0;
    if (class_size[kind] >= 3) {
      const double d = y - reference[kind];
      channel.recent_siblings[slot] = static_cast<float>(d);
      const double excess = static_cast<double>(channel.min_ns) * (1 - std::exp(-d)) * channel.count;
      Stream::Limits limits = {
          .sigma = sigma, .dead = kSiblingDead, .most = kSiblingDead, .h = h, .jump = kJump, .big = kBig};
      sibling_tails[kind].Apply(limits, channel.siblings, class_size[kind] > 1);
      channel.siblings.Observe(step, d, excess, limits);
    }
    channel.typical_ns += (static_cast<double>(channel.min_ns) - channel.typical_ns) / std::min(channel.seen, 10);
  }
}

void Transfers::Forget() { *this = Transfers(); }

std::vector<TransferFinding> Transfers::Findings(const Layout& layout) const {
  bool any = false;
  int64_t newest = -1;
  for (const Channel& channel : channels_) {
    any = any || channel.past.raised() || channel.siblings.raised();
    newest = std::max(newest, channel.step);
  }
  if (!any) return {};

  // The strongest raised channel sets what to expect on the others.
  const Channel* strongest = nullptr;
  bool by_past = false;
  double strongest_mean = 0;
  for (const Channel& channel : channels_) {
    for (bool past : {true, false}) {
      const Stream& stream = past ? channel.past : channel.siblings;
      if (!stream.raised() || stream.mean() <= strongest_mean * 1.0001) continue;
      // What changed says more than what always was different.
      if (strongest != nullptr && by_past && !past) continue;
      strongest = &channel;
      by_past = past;
      strongest_mean = stream.mean();
    }
  }
  if (strongest == nullptr) return {};
  const Stream& lead = by_past ? strongest->past : strongest->siblings;
  const int64_t onset = lead.onset();
  const int64_t lasted = newest - onset + 1;
  if (lasted < kSettleSteps) return {};
  const int window = lead.intermittent() ? kRecent : static_cast<int>(std::min<int64_t>(lasted, kRecent));

  // Lines: the channels of one group or pair together.
  std::map<std::vector<int>, Line> lines;
  for (const Channel& channel : channels_) {
    if (channel.step < newest - kRecent || channel.seen <= 2) continue;
    const int low = std::min(channel.a, channel.b);
    const int high = std::max(channel.a, channel.b);
    Line& line = lines[channel.a >= 0 ? std::vector<int>{low, high} : std::vector<int>{-1, channel.group}];
    const Group& group = layout.group(channel.group);
    if (line.group < 0) {
      line.group = channel.group;
      line.a = low;
      line.b = high;
      line.members = channel.a >= 0 ? std::vector<int>{low, high} : group.members;
      line.inter_node = channel.a >= 0 ? layout.node(low) != layout.node(high) : group.nodes != 1;
      line.blocking = channel.a >= 0 || group.blocking;
    }
    const double sigma = std::max(kMinSigma, noise_[static_cast<size_t>(channel.sibling_class)].sigma());
    const auto& recent = by_past ? channel.recent : channel.recent_siblings;
    double sum = 0;
    for (int i = 0; i < window; ++i) {
      sum += recent[static_cast<size_t>(channel.seen - i + 2 * kRecent) % kRecent];
    }
    const double delta = std::max(strongest_mean / 2, by_past ? kPastDead : kSiblingDead);
    const double mean = sum / window;
    double support =
        std::clamp(window * (delta * mean - delta * delta / 2) / (sigma * sigma), -kMaxSupport, kMaxSupport);
    const bool silent = by_past ? channel.seen <= kLearn : channel.siblings.observations() == 0;
    if (silent || (channel.size_log2 != 0 && channel.size_log2 < kBandwidthBound)) support = std::max(support, 0.0);
    if (silent) support = 0;
    const Stream& stream = by_past ? channel.past : channel.siblings;
    if (stream.raised()) {
      support = kMaxSupport;
      line.excess_ns += stream.mean_excess();
    }
    if (line.worst == nullptr || support > line.support) {
      line.support = support;
      line.worst = &channel;
    }
  }

  // What each entity would explain. Every line that it covers should be slower.
  struct Entity {
    Scope scope;
    std::vector<int> ids;
    int rank_of_preference;  // smaller entities first
    bool nic = false;
    double score = 0;
    std::vector<int> covers;
  };
  std::vector<const Line*> list;
  for (auto& [key, line] : lines) list.push_back(&line);
  std::vector<int> unexplained;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i]->support > 0 && (list[i]->worst->past.raised() || list[i]->worst->siblings.raised())) {
      unexplained.push_back(static_cast<int>(i));
    }
  }
  std::map<int, std::vector<int>> inter_of_rank;
  std::map<int, std::vector<int>> inter_of_node;
  std::map<int, std::vector<int>> intra_of_node;
  std::vector<int> all_inter;
  std::set<int> nodes_seen;
  for (size_t i = 0; i < list.size(); ++i) {
    const Line& line = *list[i];
    std::set<int> nodes;
    for (int member : line.members) {
      const int node = layout.node(member);
      if (node >= 0) nodes.insert(node);
      if (line.inter_node) inter_of_rank[member].push_back(static_cast<int>(i));
    }
    for (int node : nodes) (line.inter_node ? inter_of_node : intra_of_node)[node].push_back(static_cast<int>(i));
    if (line.inter_node) {
      all_inter.push_back(static_cast<int>(i));
      nodes_seen.insert(nodes.begin(), nodes.end());
    }
  }

  size_t known_ranks = 0;
  for (const auto& peers : layout.classes()) known_ranks += peers.size();
  std::vector<TransferFinding> findings;
  auto fill = [&](TransferFinding& finding, const std::vector<int>& covers) {
    const Channel* worst = nullptr;
    double excess = 0;
    for (int i : covers) {
      const Line& line = *list[static_cast<size_t>(i)];
      if (line.support <= 0) continue;
      const Stream& stream = by_past ? line.worst->past : line.worst->siblings;
      if (!stream.raised()) continue;
      finding.blocking = finding.blocking || line.blocking;
      excess = std::max(excess, line.excess_ns);
      if (worst == nullptr || stream.mean() > (by_past ? worst->past : worst->siblings).mean()) worst = line.worst;
    }
    if (worst == nullptr) worst = strongest;
    const Stream& stream = by_past ? worst->past : worst->siblings;
    finding.onset = onset;
    finding.intermittent = stream.intermittent();
    finding.ratio = std::exp(stream.mean());
    finding.value_ms = worst->typical_ns / 1e6;
    finding.reference_ms = finding.value_ms / finding.ratio;
    finding.excess_ns = excess;
    finding.z = stream.z();
    int siblings = 0;
    for (const Channel& channel : channels_) siblings += channel.sibling_class == worst->sibling_class ? 1 : 0;
    finding.peers = by_past ? 0 : siblings - 1;
  };

  // Most of the fabric is nobody's fault in particular.
  if (by_past && all_inter.size() >= 2) {
    size_t slower = 0;
    for (int i : all_inter) slower += list[static_cast<size_t>(i)]->support > 0 ? 1 : 0;
    std::set<int> nodes_of_slower;
    for (int i : all_inter) {
      if (list[static_cast<size_t>(i)]->support <= 0) continue;
      for (int member : list[static_cast<size_t>(i)]->members) nodes_of_slower.insert(layout.node(member));
    }
    const bool many_nodes = nodes_of_slower.size() >= 3;
    bool one_node_holds_all = false;
    for (const auto& [node, covered] : inter_of_node) {
      size_t held = 0;
      for (int i : covered) held += list[static_cast<size_t>(i)]->support > 0 ? 1 : 0;
      // A node whose lines are slower while others' are not.
      if (held == slower && covered.size() < all_inter.size()) one_node_holds_all = true;
    }
    bool two_nodes = nodes_seen.size() == 2 && slower == all_inter.size() && slower >= 2;
    if (((many_nodes && 2 * slower > all_inter.size()) || two_nodes) && !one_node_holds_all) {
      TransferFinding finding;
      finding.scope = Scope::kJob;
      finding.cause = Cause::kFabric;
      fill(finding, all_inter);
      finding.confidence = two_nodes ? 0.7 : 0.95;
      findings.push_back(finding);
      std::set<int> explained(all_inter.begin(), all_inter.end());
      std::erase_if(unexplained, [&](int i) { return explained.count(i) > 0; });
    }
  }

  for (int round = 0; round < 8 && !unexplained.empty(); ++round) {
    std::vector<Entity> entities;
    std::set<std::vector<int>> named;
    auto offer = [&](Scope scope, std::vector<int> ids, int preference, bool nic, std::vector<int> covers) {
      std::vector<int> key = ids;
      key.push_back(-static_cast<int>(scope) - 2);
      key.push_back(preference);
      if (!named.insert(key).second || covers.empty()) return;
      Entity entity{scope, std::move(ids), preference, nic, 0, std::move(covers)};
      for (int i : entity.covers) {
        const bool open = std::find(unexplained.begin(), unexplained.end(), i) != unexplained.end();
        const double support = list[static_cast<size_t>(i)]->support;
        entity.score += open ? support : std::min(0.0, support);
      }
      entities.push_back(std::move(entity));
    };
    for (int i : unexplained) {
      const Line& line = *list[static_cast<size_t>(i)];
      if (line.a >= 0) {
        offer(Scope::kLink, {line.a, line.b}, 0, false, {i});
      } else {
        offer(Scope::kGroup, line.members, 1, false, {i});
      }
      if (line.inter_node) {
        for (int member : line.members) {
          if (line.members.size() > 64 && inter_of_rank[member].size() < 2) continue;
          offer(Scope::kRank, {member}, 2, true, inter_of_rank[member]);
          const int node = layout.node(member);
          if (node >= 0) offer(Scope::kNode, {node}, 3, false, inter_of_node[node]);
        }
      } else {
        const int node = layout.node(line.members.front());
        // The node's own links are what can be mended, so the node goes before the one group on it.
        if (node >= 0) offer(Scope::kNode, {node}, 0, false, intra_of_node[node]);
      }
    }
    std::stable_sort(entities.begin(), entities.end(), [](const Entity& x, const Entity& y) {
      if (std::abs(x.score - y.score) > kTie) return x.score > y.score;
      return x.rank_of_preference < y.rank_of_preference;
    });
    const Entity& best = entities.front();
    TransferFinding finding;
    finding.scope = best.scope;
    finding.ids = best.ids;
    if (best.scope == Scope::kGroup && best.ids.size() == known_ranks) {
      // All ranks are no answer to who it is.
      finding.scope = Scope::kJob;
      finding.ids.clear();
      finding.cause = Cause::kFabric;
    }
    if (best.scope == Scope::kLink) {
      finding.links = {{best.ids[0], best.ids[1]}};
      finding.ids.clear();
    }
    const Line& first_line = *list[static_cast<size_t>(best.covers.front())];
    if (best.scope == Scope::kNode && best.rank_of_preference == 0) {
      finding.cause = Cause::kIntraNodeLink;
    } else if (!first_line.inter_node) {
      finding.cause = best.scope == Scope::kLink ? Cause::kPpLink : Cause::kIntraNodeLink;
    } else if (best.scope == Scope::kLink) {
      finding.cause = Cause::kPpLink;
    }
    fill(finding, best.covers);
    // Who would explain as much: alternatives, by their share of the likelihood.
    double total = 0;
    for (const Entity& entity : entities) total += std::exp(std::min(0.0, entity.score - best.score));
    finding.confidence = 1 / std::max(1.0, total);
    for (const Entity& entity : entities) {
      if (&entity == &best || finding.alternatives.size() >= 8) continue;
      const double probability = std::exp(std::min(0.0, entity.score - best.score)) / total;
      if (probability < 0.05) continue;
      Alternative alternative;
      alternative.scope = entity.scope;
      alternative.probability = probability;
      if (entity.scope == Scope::kLink) {
        alternative.links = {{entity.ids[0], entity.ids[1]}};
      } else {
        alternative.ids = entity.ids;
      }
      finding.alternatives.push_back(std::move(alternative));
    }
    // Several that explain as much cannot be told apart: the set of them is the answer.
    std::vector<int> equals;
    for (const Entity& entity : entities) {
      if (entity.scope == best.scope && std::abs(entity.score - best.score) <= kTie)
        equals.push_back(entity.ids.front());
    }
    if (equals.size() > 1 && (best.scope == Scope::kRank || best.scope == Scope::kNode)) {
      std::sort(equals.begin(), equals.end());
      if (best.scope == Scope::kRank) finding.scope = Scope::kGroup;
      finding.ids = equals;
      if (equals.size() == (best.scope == Scope::kRank ? known_ranks : nodes_seen.size())) {
        finding.scope = Scope::kJob;
        finding.ids.clear();
        finding.cause = Cause::kFabric;
      }
      finding.alternatives.clear();
    }
    if (finding.scope == Scope::kGroup || finding.scope == Scope::kLink || finding.scope == Scope::kJob ||
        equals.size() > 1) {
      finding.confidence = std::max(finding.confidence, 0.9);
    }
    findings.push_back(std::move(finding));
    const std::set<int> explained(best.covers.begin(), best.covers.end());
    std::erase_if(unexplained, [&](int i) { return explained.count(i) > 0; });
  }
  return findings;
}

}  // namespace taskd::diagnosis
