#include "diagnosis/transfers.h"

#include <algorithm>
#include <cmath>

#include "diagnosis/parameters.h"

namespace taskd::diagnosis {
namespace {

constexpr size_t kMaxChannels = 400'000;
constexpr size_t kMaxChannelsOfRank = 2048;
constexpr size_t kAhead = 8;          // channels, whose memory is on its way while others are looked at
constexpr int64_t kIdleSteps = 1024;  // that a channel is kept without a transfer, once the layout changes

}  // namespace

int Transfers::FindChannel(const Layout& layout, int rank, const OpFold& op) {
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
  Channel channel;
  channel.group = group;
  channel.a = a;
  channel.b = b;
  channel.op = kind;
  // Sizes of an all-to-all change with the routing of tokens.
  channel.size_log2 = op.op == CommOp::kAllToAll ? 0 : op.size_log2;
  const auto found = ids_.find(KeyOf(channel));
  if (found != ids_.end()) return found->second;
  if (static_cast<size_t>(rank) >= brought_.size()) brought_.resize(static_cast<size_t>(rank) + 1);
  size_t& brought = brought_[static_cast<size_t>(rank)];
  if (channels_.size() >= kMaxChannels || brought >= kMaxChannelsOfRank) return -1;
  ++brought;
  channel.brought_by = rank;
  channel.sibling_class = SiblingClass(layout, channel);
  now_.push_back({.members = MembersOf(layout, channel)});
  channels_.push_back(std::move(channel));
  return ids_[KeyOf(channels_.back())] = static_cast<int>(channels_.size()) - 1;
}

// 20 bits of group, twice 17 of rank, 4 of kind, which says whether the ranks are any, and 6 of size.
uint64_t Transfers::KeyOf(const Channel& channel) {
  static_assert(kMaxRanks <= 1 << 17 && kCommOps <= 1 << 4);
  return static_cast<uint64_t>(channel.group) << 44 | static_cast<uint64_t>(std::max(channel.a, 0)) << 27 |
         static_cast<uint64_t>(std::max(channel.b, 0)) << 10 | static_cast<uint64_t>(channel.op) << 6 |
         channel.size_log2;
}

// A new class begins with the noise of the one that the channel was of.
int Transfers::SiblingClass(const Layout& layout, const Channel& channel) {
  const Group& info = layout.group(channel.group);
  const int a = channel.a;
  const int b = channel.b;
  const bool inter = a >= 0 ? layout.node(a) != layout.node(b) : info.nodes != 1;
  const std::vector<int> siblings = {static_cast<int>(channel.op),     channel.size_log2,
                                     a >= 0 ? 2 : info.members.size(), inter ? 1 : 0,
                                     a >= 0 ? (a < b ? 1 : 0) : 2,     info.blocking ? 1 : 0};
  const auto [sibling, new_class] = sibling_ids_.emplace(siblings, static_cast<int>(noise_.size()));
  if (new_class) {
    noise_.push_back(channel.sibling_class < 0 ? Noise() : noise_[static_cast<size_t>(channel.sibling_class)]);
  }
  return sibling->second;
}

uint64_t Transfers::KeyOf(const OpFold& op) {
  return static_cast<uint64_t>(op.group) << 48 | static_cast<uint64_t>(op.op) << 40 |
         static_cast<uint64_t>(op.size_log2) << 32 | static_cast<uint32_t>(op.peer);
}

int Transfers::FindCached(const Layout& layout, int rank, size_t index, const OpFold& op) {
  if (op.count == 0 || op.min_duration_ns == 0) return -1;
  std::vector<Cached>& found = cache_[static_cast<size_t>(rank)];
  const uint64_t key = KeyOf(op);
  if (found[index].key != key) found[index] = {key, FindChannel(layout, rank, op)};
  return found[index].id;
}

int Transfers::MembersOf(const Layout& layout, const Channel& channel) {
  return channel.a >= 0 ? 2 : layout.group(channel.group).members.size();
}

void Transfers::Take(const Layout& layout, int rank, const StepFold& fold, int64_t step) {
  if (static_cast<size_t>(rank) >= cache_.size()) cache_.resize(static_cast<size_t>(rank) + 1);
  std::vector<Cached>& found = cache_[static_cast<size_t>(rank)];
  if (found.size() < fold.ops.size()) found.resize(fold.ops.size());
  for (size_t i = 0; i < fold.ops.size(); ++i) {
    const int id = FindCached(layout, rank, i, fold.ops[i]);
    if (id >= 0 && AddToStep(now_[static_cast<size_t>(id)], fold.ops[i], step)) touched_.push_back(id);
  }
}

// True: it is the first operation of the step there.
bool Transfers::AddToStep(Now& now, const OpFold& op, int64_t step) {
  const bool first = now.step != step;
  if (first) now = {.step = step, .min_ns = op.min_duration_ns, .members = now.members};
  ++now.reporters;
  now.count = std::max(now.count, op.count);
  now.min_ns = std::min(now.min_ns, op.min_duration_ns);
  if (op.op == CommOp::kAllToAll)
    now.bytes = std::max(now.bytes, static_cast<float>(static_cast<double>(op.bytes) / op.count));
  return first;
}

// An all-to-all moves as much as the routing of tokens demands: its time counts by byte.
double Transfers::LogTime(const Channel& channel, const Now& now) {
  const double time = std::log(static_cast<double>(now.min_ns));
  return channel.op == CommOp::kAllToAll && now.bytes > 0 ? time - std::log(static_cast<double>(now.bytes)) : time;
}

void Transfers::Observe(int64_t step, double arl_factor) {
  std::vector<ClassStep> classes(noise_.size());
  const std::vector<Judged> judged = TakeComplete(classes);
  thresholds_ = ThresholdsFor(arl_factor * static_cast<double>(std::max<size_t>(1, 2 * channels_.size())));
  SetLimits(classes);
  for (const Judged& one : judged) {
    JudgeChannel(one, classes[static_cast<size_t>(channels_[static_cast<size_t>(one.id)].sibling_class)], step);
  }
}

// Those all of whose members were heard: without the last arriver a wait would look like a transfer.
std::vector<Transfers::Judged> Transfers::TakeComplete(std::vector<ClassStep>& classes) {
  std::vector<Judged> complete;
  complete.reserve(touched_.size());
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (i + kAhead < touched_.size()) {
      const Channel& later = channels_[static_cast<size_t>(touched_[i + kAhead])];
      __builtin_prefetch(&later.past);
      __builtin_prefetch(&later.siblings);
    }
    const int id = touched_[i];
    const Now& now = now_[static_cast<size_t>(id)];
    if (now.reporters < now.members) continue;
    const Channel& channel = channels_[static_cast<size_t>(id)];
    const double log_time = LogTime(channel, now);
    complete.push_back({id, log_time});
    ClassStep& siblings = classes[static_cast<size_t>(channel.sibling_class)];
    siblings.times.push_back(log_time);
    siblings.past.Count(channel.past);
    siblings.siblings.Count(channel.siblings);
  }
  touched_.clear();
  return complete;
}

void Transfers::SetLimits(std::vector<ClassStep>& classes) {
  for (size_t i = 0; i < classes.size(); ++i) {
    classes[i].size = classes[i].times.size();
    classes[i].reference = LowerMedian(classes[i].times);
    noise_[i].steps.Update();
    noise_[i].past.Update(noise_[i].steps.sigma(), true);
    noise_[i].siblings.Update(noise_[i].steps.sigma(), true);
    classes[i].past_limits = LimitsOf(noise_[i], noise_[i].past, parameters.transfer_dead);
    classes[i].sibling_limits = LimitsOf(noise_[i], noise_[i].siblings, parameters.sibling_dead);
  }
}

Stream::Limits Transfers::LimitsOf(const Noise& noise, const ScaleNoise& blocks, double dead) const {
  Stream::Limits limits = {
      .dead = dead, .most = dead, .h = thresholds_, .jump = parameters.transfer_jump, .big = parameters.big_transfer};
  limits.SetNoise(std::max(parameters.transfer_sigma, noise.steps.sigma()), blocks.sigmas());
  return limits;
}

void Transfers::JudgeChannel(const Judged& judged, ClassStep& siblings, int64_t step) {
  const int id = judged.id;
  const double y = judged.log_time;
  Channel& channel = channels_[static_cast<size_t>(id)];
  Noise& class_noise = noise_[static_cast<size_t>(channel.sibling_class)];
  NoisePool& noise = class_noise.steps;
  const Now& now = now_[static_cast<size_t>(id)];
  if (channel.has_last) noise.Add(id, std::abs(y - channel.last));
  channel.last = y;
  channel.has_last = true;
  ++channel.seen;
  if (channel.seen <= parameters.transfer_learn) channel.level += (y - channel.level) / channel.seen;
  if (!noise.ready() || channel.seen <= 2) return;

  const auto slot = static_cast<size_t>(channel.seen) % kRecent;
  // A deviation, kept for Findings and watched by a stream of its own.
  auto watch = [&](double d, Stream::Limits& limits, const StreamTails& tails, ScaleNoise& blocks,
                   std::array<float, kRecent>& recent, Stream& stream) {
    recent[slot] = static_cast<float>(d);
    const double all_ns = static_cast<double>(now.min_ns) * now.count;
    tails.Apply(limits, stream, siblings.size > 1);
    const Stream::Event event = stream.Observe(step, d, {all_ns * (1 - std::exp(-d)), all_ns * std::exp(-d)}, limits);
    if (event == Stream::Event::kRaised) ++raised_;
    if (event == Stream::Event::kCleared) --raised_;
    blocks.Add(id, d, !stream.StandsOut());
  };
  channel.recent[slot] = channel.recent_siblings[slot] = 0;
  channel.count = now.count;
  if (channel.seen > parameters.transfer_learn) {
    const double d = y - channel.level;
    watch(d, siblings.past_limits, siblings.past, class_noise.past, channel.recent, channel.past);
    if (!channel.past.raised() && !channel.past.IsRising(0.3)) channel.level += parameters.level_forget * d;
  }
  if (siblings.size >= parameters.siblings) {
    watch(y - siblings.reference, siblings.sibling_limits, siblings.siblings, class_noise.siblings,
          channel.recent_siblings, channel.siblings);
  }
}

void Transfers::Regroup(const Layout& layout) {
  const int64_t newest = NewestStep();
  size_t kept = 0;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_[i];
    const int became = layout.group(channel.group).became;
    if (became >= 0) channel.group = became;
    // Groups may come and go by the thousand.
    if (now_[i].step < newest - kIdleSteps || layout.group(channel.group).users == 0) continue;
    if (kept < i) channels_[kept] = std::move(channel);
    now_[kept++] = now_[i];
  }
  channels_.resize(kept);
  now_.resize(kept);
  cache_.clear();
  ids_.clear();
  for (Noise& noise : noise_) {
    noise.past.ForgetSources();
    noise.siblings.ForgetSources();
  }
  std::fill(brought_.begin(), brought_.end(), 0);
  raised_ = 0;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_[i];
    ++brought_[static_cast<size_t>(channel.brought_by)];
    channel.sibling_class = SiblingClass(layout, channel);
    now_[i].members = MembersOf(layout, channel);
    raised_ += (channel.past.raised() ? 1U : 0U) + (channel.siblings.raised() ? 1U : 0U);
    ids_.emplace(KeyOf(channel), static_cast<int>(i));
  }
}

// That any channel was seen in; -1: none was.
int64_t Transfers::NewestStep() const {
  int64_t newest = -1;
  for (const Now& now : now_) newest = std::max(newest, now.step);
  return newest;
}

std::vector<Transfers::Fineness> Transfers::FinenessOf(const Layout& layout, int most_steps) const {
  const int64_t newest = NewestStep();
  std::vector<Stream::Limits> limits;  // by sibling class
  for (const Noise& noise : noise_) limits.push_back(LimitsOf(noise, noise.past, parameters.transfer_dead));
  std::vector<Fineness> result;
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_[i];
    const int steps = std::min(most_steps, channel.past.observations());
    if (now_[i].step < newest - kRecent || steps == 0) continue;
    const Group& group = layout.group(channel.group);
    const int rank = channel.a >= 0 ? channel.a : group.members.At(0);
    result.push_back(
        {rank, channel.past.SmallestRise(limits[static_cast<size_t>(channel.sibling_class)], steps), steps});
  }
  return result;
}

std::optional<Transfers::Nearest> Transfers::NearestOf(const Layout& layout, int rank) const {
  std::optional<Nearest> nearest;
  const auto ratio = [](const Nearest& one) {
    return (one.raised ? 1e9 : 0) + one.trace.statistic / one.trace.threshold;
  };
  for (const Channel& channel : channels_) {
    const bool takes_part =
        channel.a >= 0 ? channel.a == rank || channel.b == rank : layout.group(channel.group).members.Contains(rank);
    if (!takes_part) continue;
    for (const Stream* stream : {&channel.past, &channel.siblings}) {
      if (stream->observations() == 0) continue;
      const Nearest one = {stream->trace(thresholds_), stream->raised(), stream == &channel.siblings};
      if (!nearest || ratio(one) > ratio(*nearest)) nearest = one;
    }
  }
  return nearest;
}

void Transfers::Forget() { *this = Transfers(); }

std::vector<TransferFinding> Transfers::Findings(const Layout& layout) const {
  const std::optional<Lead> lead = FindLead();
  if (!lead) return {};
  const Lines lines = CollectLines(layout, *lead);
  std::vector<TransferFinding> findings;
  for (const Explanation& explanation : ExplainSlowLines(layout, lines.lines, lead->past)) {
    findings.push_back(Measure(explanation, lines, *lead));
  }
  return findings;
}

const Stream& Transfers::StreamOf(const Channel& channel, const Lead& lead) {
  return lead.past ? channel.past : channel.siblings;
}

std::optional<Transfers::Lead> Transfers::FindLead() const {
  if (raised_ == 0) return std::nullopt;
  Lead lead;
  lead.newest = NewestStep();
  for (const Channel& channel : channels_) {
    for (bool past : {true, false}) {
      const Stream& stream = past ? channel.past : channel.siblings;
      if (!stream.raised() || stream.mean() <= lead.mean * 1.0001) continue;
      // What changed weighs more than what always was different.
      if (lead.past && !past) continue;
      lead.channel = &channel;
      lead.past = past;
      lead.mean = stream.mean();
    }
  }
  if (lead.channel == nullptr) return std::nullopt;
  const Stream& stream = StreamOf(*lead.channel, lead);
  lead.onset = stream.onset();
  const int64_t lasted = lead.newest - lead.onset + 1;
  if (lasted < parameters.settle_steps) return std::nullopt;
  lead.window = stream.intermittent() ? kRecent : static_cast<int>(std::min<int64_t>(lasted, kRecent));
  return lead;
}

Transfers::Lines Transfers::CollectLines(const Layout& layout, const Lead& lead) const {
  using Key = std::pair<int, int>;  // -1 and the group, or the pair
  std::vector<std::pair<Key, const Channel*>> by_key;
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_[i];
    if (now_[i].step < lead.newest - kRecent || channel.seen <= 2) continue;
    by_key.emplace_back(
        channel.a >= 0 ? Key(std::min(channel.a, channel.b), std::max(channel.a, channel.b)) : Key(-1, channel.group),
        &channel);
  }
  std::stable_sort(by_key.begin(), by_key.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Lines lines;
  for (size_t i = 0; i < by_key.size(); ++i) {
    const Channel& channel = *by_key[i].second;
    if (i == 0 || by_key[i].first != by_key[i - 1].first) {
      lines.lines.push_back(MakeLine(layout, channel));
      lines.heaviest.emplace_back();
    }
    Line& line = lines.lines.back();
    Heaviest& heaviest = lines.heaviest.back();
    if (StreamOf(channel, lead).raised()) heaviest.excess_ns += StreamOf(channel, lead).mean_excess();
    const double support = Support(channel, lead);
    if (heaviest.channel != nullptr && support <= line.support) continue;
    line.support = support;
    line.raised = channel.past.raised() || channel.siblings.raised();
    heaviest.channel = &channel;
  }
  return lines;
}

Line Transfers::MakeLine(const Layout& layout, const Channel& channel) {
  const Group& group = layout.group(channel.group);
  Line line;
  line.group = channel.group;
  if (channel.a >= 0) {
    line.a = std::min(channel.a, channel.b);
    line.b = std::max(channel.a, channel.b);
    line.members = {line.a, line.b};
    line.inter_node = layout.node(line.a) != layout.node(line.b);
    line.blocking = true;
  } else {
    line.members = group.members.Expand();
    line.inter_node = group.nodes != 1;
    line.blocking = group.blocking;
  }
  return line;
}

// Log likelihood that the channel is slower by half of what the lead is, against that it is as always.
double Transfers::Support(const Channel& channel, const Lead& lead) const {
  if (StreamOf(channel, lead).raised()) return parameters.most_support;
  const bool silent = lead.past ? channel.seen <= parameters.transfer_learn : channel.siblings.observations() == 0;
  if (silent) return 0;
  const auto& recent = lead.past ? channel.recent : channel.recent_siblings;
  double sum = 0;
  for (int i = 0; i < lead.window; ++i) {
    sum += recent[static_cast<size_t>(channel.seen - i + 2 * kRecent) % kRecent];
  }
  const double mean = sum / lead.window;
  const double sigma =
      std::max(parameters.transfer_sigma, noise_[static_cast<size_t>(channel.sibling_class)].steps.sigma());
  const double delta = std::max(lead.mean / 2, lead.past ? parameters.transfer_dead : parameters.sibling_dead);
  const double support = std::clamp(lead.window * (delta * mean - delta * delta / 2) / (sigma * sigma),
                                    -parameters.most_support, parameters.most_support);
  const bool latency_bound = channel.size_log2 != 0 && channel.size_log2 < parameters.bandwidth_bound;
  return latency_bound ? std::max(support, 0.0) : support;
}

// In numbers: of the slowest channel among the lines that it covers.
TransferFinding Transfers::Measure(const Explanation& explanation, const Lines& lines, const Lead& lead) const {
  TransferFinding finding;
  finding.scope = explanation.scope;
  finding.ids = explanation.ids;
  finding.links = explanation.links;
  finding.alternatives = explanation.alternatives;
  finding.cause = explanation.cause;
  finding.confidence = explanation.confidence;
  finding.lines = static_cast<int>(lines.lines.size());
  finding.fading = true;
  const Channel* worst = nullptr;
  for (int i : explanation.lines) {
    const Line& line = lines.lines[static_cast<size_t>(i)];
    const Heaviest& heaviest = lines.heaviest[static_cast<size_t>(i)];
    const Stream& stream = StreamOf(*heaviest.channel, lead);
    if (line.support <= 0 || !stream.raised()) continue;
    finding.blocking = finding.blocking || line.blocking;
    finding.fading = finding.fading && stream.IsFading();
    finding.excess_ns = std::max(finding.excess_ns, heaviest.excess_ns);
    if (worst == nullptr || stream.mean() > StreamOf(*worst, lead).mean()) worst = heaviest.channel;
  }
  if (worst == nullptr) worst = lead.channel;
  const Stream& stream = StreamOf(*worst, lead);
  finding.fading = finding.fading && stream.IsFading();
  finding.onset = lead.onset;
  finding.from_start = StreamOf(*lead.channel, lead).from_start();
  finding.intermittent = stream.intermittent();
  finding.measured = stream.measured();
  finding.count = std::max(1U, worst->count);
  finding.z = stream.z();
  finding.error = stream.mean() > 0 ? stream.error() / stream.mean() : 0;
  if (!lead.past) {
    finding.peers = static_cast<int>(
        std::count_if(channels_.begin(), channels_.end(),
                      [&](const Channel& channel) { return channel.sibling_class == worst->sibling_class; }) -
        1);
  }
  return finding;
}

}  // namespace taskd::diagnosis
