#include "agent/run/rendezvous.h"

#include <signal.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "agent/process/signals.h"
#include "common/address.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerS = 1000 * kNsPerMs;
constexpr int64_t kWaitingIntervalNs = 5 * kNsPerS;
constexpr int64_t kLookNs = kNsPerS / 2;
// Of silence, where the job waits for a node only to say why it ends or to let it go, and for whoever has not joined.
constexpr int64_t kHurryNs = 8 * kNsPerS;
constexpr size_t kMaxListed = 16;

std::string List(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + words[i];
  if (words.size() > kMaxListed) text += fmt::format(" and {} more", words.size() - kMaxListed);
  return text;
}

std::string Seconds(int64_t ns) { return fmt::format("{:g} s", static_cast<double>(ns) / kNsPerS); }

}  // namespace

Rendezvous::Rendezvous(Options options, int64_t now_ns)
    : options_(std::move(options)),
      manager_(options_.manager),
      awaits_manager_(options_.awaits_manager),
      clock_(kLookNs),
      now_ns_(clock_.Look(now_ns)),
      gather_deadline_ns_(now_ns_ + options_.join_timeout_ns),
      next_ping_ns_(now_ns_ + options_.ping_interval_ns),
      next_waiting_ns_(now_ns_ + kWaitingIntervalNs) {}

std::string Rendezvous::NodeName(const Node& node) const {
  const int rank = fixed_ranks() ? node.info.node_rank : node.group_rank;
  if (rank < 0) return fmt::format("a node ({})", node.info.host);
  return fmt::format("{} {} ({})", options_.tasks ? "rank" : "node", rank, node.info.host);
}

std::string Rendezvous::Plan() const {
  return elastic() ? fmt::format("{}:{}", options_.min_nodes, options_.max_nodes)
                   : fmt::format("{}", options_.max_nodes);
}

template <typename Message>
void Rendezvous::Send(uint64_t peer, Message message) {
  outputs_.push_back({peer, RootMessage(std::move(message))});
}

// Answers and closes the connection. If it stayed open, a peer that asks again and reads nothing would fill our memory
// with answers.
void Rendezvous::Refuse(uint64_t peer, RefusedMessage message) {
  Send(peer, std::move(message));
  outputs_.push_back({peer, std::nullopt});
}

Rendezvous::Outputs Rendezvous::TakeOutputs() { return std::exchange(outputs_, {}); }

Rendezvous::Outputs Rendezvous::Opened(uint64_t peer, int64_t now_ns, bool is_known) {
  now_ns_ = clock_.Look(now_ns);
  Connection& connection = connections_[peer];
  connection.heard_ns = now_ns_;
  connection.is_known = is_known;
  return TakeOutputs();
}

Rendezvous::Outputs Rendezvous::Received(uint64_t peer, const NodeMessage& message, int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  auto found = connections_.find(peer);
  if (found == connections_.end()) return {};
  found->second.heard_ns = now_ns_;
  if (found->second.node || std::holds_alternative<JoinMessage>(message)) {
    std::visit([&](const auto& one) { On(peer, one); }, message);
  }
  return TakeOutputs();
}

Rendezvous::Outputs Rendezvous::Lost(uint64_t peer, int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  Drop(peer, "the connection to its launcher is gone");
  return TakeOutputs();
}

std::vector<uint64_t> Rendezvous::running_peers() const {
  std::vector<uint64_t> peers;
  for (const auto& [peer, connection] : connections_) {
    if (connection.node && connection.node->state == State::kRunning) peers.push_back(peer);
  }
  return peers;
}

bool Rendezvous::joined(uint64_t peer) const {
  auto found = connections_.find(peer);
  return found != connections_.end() && found->second.node.has_value();
}

// ---- Joining

std::string Rendezvous::WhyRefused(const NodeInfo& info, bool is_known) const {
  if (info.run_id != options_.run_id) {
    return fmt::format("--rdzv-id is '{}' here and {} at the launcher that hosts the store", info.run_id,
                       is_known ? fmt::format("'{}'", options_.run_id) : "another one");
  }
  if (info.version != options_.version) {
    return fmt::format("taskd is version {} here and {} at the launcher that hosts the store", info.version,
                       options_.version);
  }
  if (info.min_nodes != options_.min_nodes || info.max_nodes != options_.max_nodes) {
    return fmt::format("--nnodes is {}:{} here and {}:{} at the launcher that hosts the store", info.min_nodes,
                       info.max_nodes, options_.min_nodes, options_.max_nodes);
  }
  if (!fixed_ranks()) return Complete() ? CompleteText(is_known) : "";
  if (info.node_rank < 0 || info.node_rank >= options_.max_nodes) {
    return fmt::format("--node-rank is {} and has to be 0 to {}", info.node_rank, options_.max_nodes - 1);
  }
  for (const auto& [peer, connection] : connections_) {
    if (!connection.node || connection.node->info.node_rank != info.node_rank) continue;
    const NodeInfo& other = connection.node->info;
    return fmt::format("--node-rank {} is taken by {}; this is {} (pid {})", info.node_rank,
                       is_known ? fmt::format("{} (pid {})", other.host, other.pid) : "another launcher", info.host,
                       info.pid);
  }
  if (info.node_rank == 0 && !HostsStore(info)) {
    return fmt::format("--node-rank 0 is the launcher's that hosts the store; this is {} (pid {})", info.host,
                       info.pid);
  }
  return "";
}

// Whether the job runs with all the nodes that it will ever have. An elastic one keeps further nodes as spares.
bool Rendezvous::Complete() const {
  if (elastic() || (phase_ != Phase::kRunning && phase_ != Phase::kSettling)) return false;
  const auto in_round = std::count_if(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second.node && entry.second.node->state != State::kWaiting;
  });
  return in_round >= options_.max_nodes;
}

std::string Rendezvous::CompleteText(bool is_known) const {
  std::vector<std::string> names;
  for (const auto& [peer, connection] : connections_) {
    if (connection.node && connection.node->state != State::kWaiting) names.push_back(connection.node->info.host);
  }
  return fmt::format("the job is complete: it runs on {} of {} nodes{}", names.size(), Plan(),
                     is_known ? fmt::format(" ({})", List(names)) : "");
}

void Rendezvous::On(uint64_t peer, const JoinMessage& message) {
  Connection& connection = connections_[peer];
  if (connection.node) return;
  if (phase_ == Phase::kEnded) {
    // Its own job's launcher may need this port in a moment; until then it tries again.
    Send(peer, WaitingMessage{"the job before this one is ending"});
    outputs_.push_back({peer, std::nullopt});
    return;
  }
  if (std::string why = WhyRefused(message.info, connection.is_known); !why.empty()) {
    Refuse(peer, {std::move(why), message.info.run_id != options_.run_id});
    return;
  }
  connection.node = Node{.info = message.info, .hosts_store = HostsStore(message.info), .arrival = arrivals_++};
  ++joined_;
  if (phase_ == Phase::kRunning && elastic()) {
    int in_round = 0;
    bool succeeded = false;
    for (const auto& [other, each] : connections_) {
      if (!each.node || each.node->state == State::kWaiting) continue;
      ++in_round;
      succeeded |= each.node->state == State::kSucceeded;
    }
    if (in_round < options_.max_nodes && !succeeded) {
      BeginStop(StopCause::kNodeJoined, fmt::format("a node joins ({})", message.info.host), /*costs_restart=*/false);
    }
  }
  StartIfComplete();
  if (auto found = connections_.find(peer);
      found != connections_.end() && found->second.node && found->second.node->state == State::kWaiting) {
    SendWaiting(peer);
  }
}

std::vector<Rendezvous::Member> Rendezvous::Candidates() {
  std::vector<Member> candidates;
  for (auto& [peer, connection] : connections_) {
    if (connection.node && !connection.node->leaving) candidates.emplace_back(peer, &*connection.node);
  }
  const int last = std::numeric_limits<int>::max();
  auto place = [&](const Node& node) {
    if (fixed_ranks()) return std::make_tuple(0, node.info.node_rank, 0, int64_t{0});
    return std::make_tuple(node.hosts_store ? 0 : 1, node.group_rank < 0 ? last : node.group_rank,
                           node.info.node_rank < 0 ? last : node.info.node_rank, node.arrival);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&](const auto& a, const auto& b) { return place(*a.second) < place(*b.second); });
  return candidates;
}

void Rendezvous::StartIfComplete() {
  if (phase_ != Phase::kGathering || awaits_manager_) return;
  auto candidates = Candidates();
  const int count = static_cast<int>(candidates.size());
  if (count < options_.min_nodes) {
    last_call_ends_ns_.reset();
    return;
  }
  // Others may have been faster than the store's own launcher.
  if (!fixed_ranks() && !candidates.front().second->hosts_store) return;
  if (elastic()) {
    if (!last_call_ends_ns_) last_call_ends_ns_ = now_ns_ + (gathered_before_ ? 0 : options_.last_call_ns);
    if (count < options_.max_nodes && now_ns_ < *last_call_ends_ns_) return;
  }
  if (count > options_.max_nodes) candidates.resize(options_.max_nodes);
  Start(candidates);
}

// By group rank.
std::vector<Rendezvous::Member> Rendezvous::InOrder(const std::vector<Member>& chosen) const {
  const int size = static_cast<int>(chosen.size());
  std::vector<Member> order(size, {0, nullptr});
  if (fixed_ranks()) {
    for (auto& one : chosen) order[one.second->info.node_rank] = one;
    return order;
  }
  // Who had a rank that still exists keeps it; the others fill the gaps.
  std::vector<Member> others;
  for (auto& one : chosen) {
    const int before = one.second->group_rank;
    if (before >= 0 && before < size && order[before].second == nullptr) {
      order[before] = one;
    } else {
      others.push_back(one);
    }
  }
  auto next = others.begin();
  for (auto& slot : order) {
    if (slot.second == nullptr) slot = *next++;
  }
  return order;
}

// What is the same for all.
Assignment Rendezvous::OfRound(const std::vector<Member>& order) const {
  Assignment common;
  common.round = round_;
  common.restart_count = restart_count_;
  common.group_world_size = static_cast<int>(order.size());
  common.manager = manager_;
  common.mark_folder = options_.mark_folder;
  common.secret = options_.secret;
  common.node_timeout_ms = options_.silence_ns / kNsPerMs;
  for (const auto& [peer, node] : order) {
    common.world_size += node->info.local_world_size;
    common.hosts.push_back(node->info.host);
  }
  return common;
}

// A tree: the first fan_out nodes ask the root, the next fan_out the first node, and so on.
std::string Rendezvous::TierAbove(const std::vector<Member>& order, int group_rank) const {
  if (options_.fan_out <= 0 || group_rank < options_.fan_out) return "";
  const NodeInfo& above = order[group_rank / options_.fan_out - 1].second->info;
  return above.tier_port > 0 ? FormatHostPort({above.address, above.tier_port}) : "";
}

void Rendezvous::Start(const std::vector<Member>& chosen) {
  const std::vector<Member> order = InOrder(chosen);
  ++round_;
  phase_ = Phase::kRunning;
  failures_.clear();
  lost_.clear();
  lost_group_ranks_.clear();
  const Assignment common = OfRound(order);
  std::map<std::string, int> role_sizes;
  for (const auto& [peer, node] : order) role_sizes[node->info.role] += node->info.local_world_size;
  std::map<std::string, int> role_bases;
  int rank_base = 0;
  for (int i = 0; i < common.group_world_size; ++i) {
    const auto& [peer, node] = order[i];
    node->group_rank = i;
    node->state = State::kRunning;
    Assignment assignment = common;
    assignment.group_rank = i;
    assignment.rank_base = rank_base;
    assignment.role_rank_base = role_bases[node->info.role];
    assignment.role_world_size = role_sizes[node->info.role];
    assignment.tier = TierAbove(order, i);
    rank_base += node->info.local_world_size;
    role_bases[node->info.role] += node->info.local_world_size;
    Send(peer, StartMessage{std::move(assignment)});
  }
  // Those beyond max_nodes stay as spares of an elastic job.
  const bool complete = Complete();
  for (auto& [peer, connection] : connections_) {
    if (!connection.node || connection.node->state != State::kWaiting) continue;
    if (complete) {
      connection.node.reset();
      --joined_;
      Refuse(peer, {CompleteText(connection.is_known)});
    } else {
      SendWaiting(peer);
    }
  }
}

// ---- Running

void Rendezvous::On(uint64_t peer, const SucceededMessage& message) {
  Node& node = *connections_[peer].node;
  if (message.round != round_ || node.state != State::kRunning) return;
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
  node.state = State::kSucceeded;
  EndIfAllSucceeded();
}

void Rendezvous::EndIfAllSucceeded() {
  if (phase_ != Phase::kRunning) return;
  for (const auto& [peer, connection] : connections_) {
    if (connection.node && connection.node->state == State::kRunning) return;
  }
  End(0, StopCause::kNone, "");
}

void Rendezvous::On(uint64_t peer, const FailedMessage& message) {
  Node& node = *connections_[peer].node;
  if (message.round != round_ || node.state != State::kRunning) return;
  if (phase_ != Phase::kRunning && phase_ != Phase::kSettling) return;
  if (failures_.size() < kMaxFailures) {
    failures_.push_back({message.exit, node.info.host, node.group_rank, message.log_folder});
  }
  BeginSettling();
}

void Rendezvous::BeginSettling() {
  if (phase_ == Phase::kRunning) {
    phase_ = Phase::kSettling;
    hurry_since_ns_ = now_ns_;
    int members = 0;
    for (const auto& [peer, connection] : connections_) {
      members += connection.node && connection.node->state != State::kWaiting;
    }
    const bool alone = members <= 1 && lost_.empty();
    settle_ends_ns_ = now_ns_ + (alone ? 0 : options_.settle_ns);
    probe_id_ = 0;
    if (!alone) {
      probe_id_ = ++ping_id_;
      for (const auto& [peer, connection] : connections_) {
        if (connection.node && connection.node->state != State::kWaiting) Send(peer, PingMessage{probe_id_});
      }
    }
  }
  SettleIfDone();
}

void Rendezvous::On(uint64_t peer, const PongMessage& message) {
  Node& node = *connections_[peer].node;
  if (message.id <= ping_id_) node.probe_answered = std::max(node.probe_answered, message.id);
  SettleIfDone();
}

void Rendezvous::SettleIfDone() {
  if (phase_ != Phase::kSettling || now_ns_ < settle_ends_ns_) return;
  for (const auto& [peer, connection] : connections_) {
    if (!connection.node || connection.node->state == State::kWaiting) continue;
    if (connection.node->probe_answered < probe_id_) return;
  }

  if (lost_.empty()) {
    const RankFailure& first = failures_.front();
    std::string what = first.exit.signal == SIGKILL && !first.exit.killed_by.empty()
                           ? fmt::format("ended: {}", first.exit.killed_by)
                       : first.exit.signal != 0 ? fmt::format("ended by {}", process::SignalName(first.exit.signal))
                                                : fmt::format("exited with code {}", first.exit.code);
    const std::string where = options_.tasks ? first.host : fmt::format("node {} ({})", first.group_rank, first.host);
    std::string reason = fmt::format("rank {} on {} {}", first.exit.rank, where, what);
    if (restart_count_ < options_.max_restarts) {
      BeginStop(StopCause::kRankExit, reason, /*costs_restart=*/true);
    } else {
      End(first.exit.code, StopCause::kRankExit, reason);
    }
    return;
  }

  // What failed on other nodes failed because of the loss.
  std::string reason = fmt::format("{} {} lost: {}", List(lost_), lost_.size() == 1 ? "was" : "were", why_lost_);
  if (elastic()) {
    BeginStop(StopCause::kNodeLost, reason, /*costs_restart=*/false);
  } else if (restart_count_ < options_.max_restarts) {
    BeginStop(StopCause::kNodeLost, reason, /*costs_restart=*/true);
  } else {
    const std::set<int> lost(lost_group_ranks_.begin(), lost_group_ranks_.end());
    auto before = std::find_if(failures_.begin(), failures_.end(),
                               [&](const RankFailure& failure) { return lost.count(failure.group_rank) > 0; });
    End(before == failures_.end() ? 1 : before->exit.code, StopCause::kNodeLost, reason);
  }
}

// Silence is no death: a launcher that is stopped, a VM that is moved and a machine that swaps come back.
void Rendezvous::DropSilent() {
  const bool ends_anyway = phase_ == Phase::kSettling && !elastic() && restart_count_ >= options_.max_restarts;
  const bool hurries = ends_anyway || phase_ == Phase::kEnded;
  std::map<uint64_t, int64_t> silent;  // and for how long
  for (const auto& [peer, connection] : connections_) {
    const bool is_patient = connection.node && !hurries;
    const int64_t limit_ns = is_patient ? options_.silence_ns : std::min(kHurryNs, options_.silence_ns);
    const int64_t since_ns = hurries ? std::max(connection.heard_ns, hurry_since_ns_) : connection.heard_ns;
    if (now_ns_ - since_ns >= limit_ns) silent.emplace(peer, limit_ns);
  }
  for (const auto& [peer, limit_ns] : silent) {
    outputs_.push_back({peer, std::nullopt});
    Drop(peer, fmt::format("its launcher was silent for {}", Seconds(limit_ns)));
  }
}

void Rendezvous::Drop(uint64_t peer, const std::string& why) {
  auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  const std::optional<Node> node = std::move(found->second.node);
  connections_.erase(found);
  if (!node) return;
  --joined_;
  switch (phase_) {
    case Phase::kGathering:
      StartIfComplete();
      break;
    case Phase::kRunning:
    case Phase::kSettling:
      if (node->state == State::kRunning) {
        if (lost_.empty()) why_lost_ = why;
        lost_.push_back(NodeName(*node));
        lost_group_ranks_.push_back(node->group_rank);
        BeginSettling();
      } else if (node->state == State::kSucceeded) {
        SettleIfDone();
      }
      break;
    case Phase::kStopping:
      GatherIfStopped();
      break;
    case Phase::kEnded:
      break;
  }
}

void Rendezvous::On(uint64_t peer, const LeaveMessage& message) {
  Node& node = *connections_[peer].node;
  if (phase_ == Phase::kEnded || node.leaving) return;
  const std::string reason = fmt::format("{} left: {}", NodeName(node), process::SignalName(message.signal));
  const StopCause cause = message.signal == SIGINT ? StopCause::kInterrupted : StopCause::kTerminated;
  if (!elastic() || node.hosts_store) {
    End(128 + message.signal, cause, reason);
    return;
  }
  node.leaving = true;
  const bool in_round = node.state != State::kWaiting;
  if (in_round && (phase_ == Phase::kRunning || phase_ == Phase::kSettling)) {
    // What it still runs is waited for: it must not write into the next round's store.
    BeginStop(cause, reason, /*costs_restart=*/false);
  } else {
    StartIfComplete();
  }
}

Rendezvous::Outputs Rendezvous::Restart(const std::string& reason, int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  if (phase_ == Phase::kRunning || phase_ == Phase::kSettling) {
    if (restart_count_ < options_.max_restarts) {
      BeginStop(StopCause::kOrdered, reason, /*costs_restart=*/true);
    } else {
      End(1, StopCause::kOrdered, reason);
    }
  }
  return TakeOutputs();
}

Rendezvous::Outputs Rendezvous::EndJob(const std::string& reason, int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  if (phase_ != Phase::kEnded) End(1, StopCause::kOrdered, reason);
  return TakeOutputs();
}

Rendezvous::Outputs Rendezvous::SetManager(const std::string& manager, int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  manager_ = manager;
  awaits_manager_ = false;
  StartIfComplete();
  return TakeOutputs();
}

// ---- Stopping

void Rendezvous::BeginStop(StopCause cause, const std::string& reason, bool costs_restart) {
  if (costs_restart) ++restart_count_;
  last_stop_ = reason;
  phase_ = Phase::kStopping;
  stop_deadline_ns_ = now_ns_ + options_.stop_timeout_ns;
  for (const auto& [peer, connection] : connections_) {
    if (connection.node && connection.node->state != State::kWaiting) Send(peer, StopMessage{round_, reason, cause});
  }
  GatherIfStopped();
}

void Rendezvous::On(uint64_t peer, const StoppedMessage& message) {
  if (phase_ != Phase::kStopping || message.round != round_) return;
  connections_[peer].node->state = State::kWaiting;
  GatherIfStopped();
}

void Rendezvous::GatherIfStopped() {
  if (phase_ != Phase::kStopping) return;
  int waiting = 0;
  for (const auto& [peer, connection] : connections_) {
    if (!connection.node) continue;
    if (connection.node->state != State::kWaiting) return;
    waiting += !connection.node->leaving;
  }
  phase_ = Phase::kGathering;
  gather_deadline_ns_ = now_ns_ + options_.join_timeout_ns;
  gathered_before_ = waiting >= options_.min_nodes;
  last_call_ends_ns_.reset();
  waiting_said_.clear();
  next_waiting_ns_ = now_ns_;  // the next tick reports who is missing now
  StartIfComplete();
}

// ---- Time

Rendezvous::Outputs Rendezvous::Tick(int64_t now_ns) {
  now_ns_ = clock_.Look(now_ns);
  DropSilent();
  if (now_ns_ >= next_ping_ns_) {
    next_ping_ns_ = now_ns_ + options_.ping_interval_ns;
    ++ping_id_;
    for (const auto& [peer, connection] : connections_) {
      if (connection.node) Send(peer, PingMessage{ping_id_});
    }
  }
  SettleIfDone();
  StartIfComplete();
  if (phase_ == Phase::kStopping && now_ns_ >= stop_deadline_ns_) {
    std::vector<std::string> names;
    for (const auto& [peer, connection] : connections_) {
      if (connection.node && connection.node->state != State::kWaiting) names.push_back(NodeName(*connection.node));
    }
    End(1, StopCause::kTimedOut,
        fmt::format("{} did not stop within {}", List(names), Seconds(options_.stop_timeout_ns)));
  }
  if (phase_ == Phase::kGathering && now_ns_ >= gather_deadline_ns_) {
    End(1, StopCause::kTimedOut,
        fmt::format("rendezvous timed out after {}: {}{}", Seconds(options_.join_timeout_ns), WaitingText(),
                    last_stop_.empty() ? "" : "; before, " + last_stop_));
  }
  if (now_ns_ >= next_waiting_ns_) {
    next_waiting_ns_ = now_ns_ + kWaitingIntervalNs;
    if (phase_ == Phase::kGathering && WaitingText() != waiting_said_) {
      waiting_said_ = WaitingText();
      for (const auto& [peer, connection] : connections_) {
        if (connection.node) SendWaiting(peer);
      }
    }
  }
  return TakeOutputs();
}

int64_t Rendezvous::next_tick_ns() const {
  int64_t next_ns = next_ping_ns_;
  if (phase_ == Phase::kSettling && settle_ends_ns_ > now_ns_) next_ns = std::min(next_ns, settle_ends_ns_);
  if (phase_ == Phase::kStopping) next_ns = std::min(next_ns, stop_deadline_ns_);
  if (phase_ == Phase::kGathering) {
    next_ns = std::min({next_ns, gather_deadline_ns_, next_waiting_ns_});
    if (last_call_ends_ns_) next_ns = std::min(next_ns, *last_call_ends_ns_);
  }
  return clock_.NextLook(next_ns);
}

std::set<int> Rendezvous::PresentRanks(int* count) const {
  std::set<int> ranks;
  *count = 0;
  for (const auto& [peer, connection] : connections_) {
    if (!connection.node || connection.node->leaving) continue;
    ++*count;
    ranks.insert(connection.node->info.node_rank);
  }
  return ranks;
}

std::string Rendezvous::WaitsFor() const {
  if (phase_ != Phase::kGathering) return "";
  int count = 0;
  const std::set<int> present = PresentRanks(&count);
  const auto units = [this](int number) {
    return fmt::format("{}{}", options_.tasks ? "rank" : "node", number == 1 ? "" : "s");
  };
  if (!fixed_ranks()) {
    const int missing = options_.min_nodes - count;
    if (missing > 0) return fmt::format("{} more {} ({} of {} here)", missing, units(missing), count, Plan());
    return last_call_ends_ns_ ? fmt::format("more {}, for a while ({} of {} here)", units(0), count, Plan()) : "";
  }
  std::vector<std::string> runs;
  int missing = 0;
  for (int rank = 0; rank < options_.max_nodes; ++rank) {
    const int first = rank;
    while (rank < options_.max_nodes && !present.contains(rank)) ++rank;
    missing += rank - first;
    if (rank > first) runs.push_back(rank == first + 1 ? std::to_string(first) : fmt::format("{}-{}", first, rank - 1));
  }
  return missing == 0 ? "" : fmt::format("{} {} ({} of {} here)", units(missing), List(runs), count, Plan());
}

std::string Rendezvous::WaitingText() const {
  if (phase_ == Phase::kStopping) return "the nodes stop their ranks";
  if (phase_ != Phase::kGathering) return fmt::format("the job runs with as many nodes as it may have ({})", Plan());
  int count = 0;
  const std::set<int> ranks = PresentRanks(&count);
  if (!fixed_ranks()) {
    std::string text = fmt::format("{} of {} nodes are there", count, Plan());
    if (last_call_ends_ns_) text += fmt::format("; last call of {} for more", Seconds(options_.last_call_ns));
    return text;
  }
  std::vector<std::string> missing;
  for (int rank = 0; rank < options_.max_nodes; ++rank) {
    if (ranks.count(rank) == 0) missing.push_back(std::to_string(rank));
  }
  if (missing.empty()) return "all nodes have joined; waiting for the manager";
  return fmt::format("{} of {} {} are there, missing {}{} {}", count, Plan(), options_.tasks ? "ranks" : "nodes",
                     options_.tasks ? "rank" : "node rank", missing.size() == 1 ? "" : "s", List(missing));
}

void Rendezvous::SendWaiting(uint64_t peer) { Send(peer, WaitingMessage{WaitingText()}); }

void Rendezvous::End(int exit_code, StopCause cause, const std::string& reason) {
  phase_ = Phase::kEnded;
  hurry_since_ns_ = now_ns_;
  end_ = EndMessage{exit_code, failures_, reason, cause};
  if (exit_code == 0) end_.failures.clear();
  for (const auto& [peer, connection] : connections_) {
    if (connection.node) Send(peer, end_);
  }
}

}  // namespace taskd::run
