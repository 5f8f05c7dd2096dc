#include "manager/switch/core.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "manager/switch/node_names.h"

namespace taskd::manager {
namespace {

// A proxy's word on revisions is believed up to here: above it a broken or hostile one could make ours wrap.
constexpr uint64_t kMaxForeignRevision = uint64_t{1} << 62;
constexpr int kMaxNodeRank = 1 << 24;
constexpr size_t kMaxJobNameBytes = 512;

std::string FailureText(std::string reason) {
  if (reason.empty()) return "its proxy does not say why";
  CutUtf8(&reason, kMaxTextBytes);
  return reason;
}

// A rank that a connected node reports as attached, and where it stands in the snapshot.
struct Attached {
  int rank;
  uint64_t attached_as;
  size_t node, index;
  friend auto operator<=>(const Attached&, const Attached&) = default;  // NOLINT(modernize-use-nullptr): it errs
};

void SetRivalsAside(std::vector<Attached>& attached, JobSnapshot& snapshot) {
  // Nodes come by their numbers, and so do ranks as launchers number them.
  if (std::ranges::adjacent_find(attached, std::ranges::greater_equal(), &Attached::rank) == attached.end()) return;
  std::sort(attached.begin(), attached.end());
  for (size_t i = 1, first = 0; i < attached.size(); ++i) {
    if (attached[i].rank != attached[first].rank) {
      first = i;
      continue;
    }
    const JobSnapshot::Node& owner = snapshot.nodes[attached[first].node];
    RankReport& rival = snapshot.nodes[attached[i].node].ranks[attached[i].index];
    rival.attached = false;
    rival.reason = absl::StrCat("the rank is node ", owner.node, "'s (", owner.host, ") already: not counted");
  }
}

}  // namespace

std::string ManagerCore::NotConnected(int node) { return absl::StrCat("node ", node, "'s proxy is not connected"); }

ManagerCore::ManagerCore(JobShape shape, const KeptState& kept, Persist persist)
    : shape_(std::move(shape)), persist_(std::move(persist)), kept_(kept) {}

SwitchState ManagerCore::wanted() const {
  std::lock_guard lock(mutex_);
  return kept_.wanted;
}

SwitchState ManagerCore::Change(const std::function<bool(KeptState&)>& edit, bool tell_subscribers) {
  std::lock_guard change_lock(change_mutex_);
  KeptState next;
  {
    std::lock_guard lock(mutex_);
    next = kept_;
  }
  SwitchState before = next.wanted;
  if (!edit(next)) return before;
  PersistHeldChange(next);
  std::lock_guard lock(mutex_);
  kept_ = next;
  if (next.wanted.revision == before.revision) return next.wanted;
  for (auto& [stream, node] : streams_) node->sink->Wanted(next.wanted);
  if (tell_subscribers) {
    for (ChangeSink* sink : subscribers_) sink->Changed(next.wanted);
  }
  return next.wanted;
}

void ManagerCore::PersistHeldChange(const KeptState& state) {
  if (!persist_) return;
  absl::Status status = persist_(state);
  if (!status.ok() && !persist_failed_) {
    spdlog::error("the wanted state is not kept yet, a manager restarted now would not know it: {}", status.message());
  } else if (status.ok() && persist_failed_) {
    spdlog::info("the wanted state is kept again");
  }
  persist_failed_ = !status.ok();
}

void ManagerCore::RetryPersist() {
  std::lock_guard change_lock(change_mutex_);
  if (!persist_failed_) return;
  KeptState state;
  {
    std::lock_guard lock(mutex_);
    state = kept_;
  }
  PersistHeldChange(state);
}

SwitchState ManagerCore::ChangeDomains(const SwitchChange& change) {
  return Change(
      [&](KeptState& state) {
        state.wanted = ApplyClusterdChange(state.wanted, change);
        return true;
      },
      true);
}

SwitchState ManagerCore::ChangeKinds(const SwitchChange& change) {
  return Change(
      [&](KeptState& state) {
        state.wanted = ApplyKindChange(state.wanted, change);
        return true;
      },
      true);
}

void ManagerCore::ApplySwitchFile(const SwitchChange& change) {
  Change(
      [&](KeptState& state) {
        if (state.last_file == change) return false;
        state.last_file = change;
        state.wanted = ApplyClusterdChange(state.wanted, change);
        return true;
      },
      true);
}

void ManagerCore::ApplyClusterdSwitch(const SwitchChange& change, bool may_be_replay) {
  Change(
      [&](KeptState& state) {
        if (may_be_replay && state.last_clusterd == change) return false;
        state.last_clusterd = change;
        state.wanted = ApplyClusterdChange(state.wanted, change);
        return true;
      },
      true);
}

// A rank holds a revision that we never gave out: an earlier manager's, whose state is lost. Ours must be newer, or
// that rank's old state would pass for the wanted one.
void ManagerCore::GoAbove(uint64_t revision) {
  Change(
      [&](KeptState& state) {
        if (state.wanted.revision > revision) return false;
        spdlog::warn("a rank holds revision {} of an earlier manager; going on at {}", revision, revision + 1);
        state.wanted.revision = revision + 1;
        return true;
      },
      false);
}

ManagerCore::Node* ManagerCore::FindStream(uint64_t stream) {
  auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

// The proxy itself must have heard of it, also one without ranks: a rank that starts now gets from it what it knows.
bool ManagerCore::Settled(const Node& node, uint64_t revision) {
  if (node.stream == 0) return true;
  bool heard = node.answered_revision >= revision;
  for (const Rank& rank : node.ranks) {
    if (!rank.report.attached) continue;
    if (rank.answered_revision < revision) return false;
    heard = true;
  }
  return heard;
}

void ManagerCore::SettleWaiters(const Node& node, Callbacks& callbacks) {
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    Waiter& waiter = it->second;
    if (waiter.pending.count(&node) != 0 && Settled(node, waiter.revision)) waiter.pending.erase(&node);
    if (waiter.pending.empty()) {
      callbacks.push_back(std::move(waiter.done));
      it = waiters_.erase(it);
    } else {
      ++it;
    }
  }
}

uint64_t ManagerCore::Wait(uint64_t revision, std::function<void()> done) {
  {
    std::lock_guard lock(mutex_);
    Waiter waiter{revision, {}, {}};
    if (!closed_) {
      for (const auto& [stream, node] : streams_) {
        if (!Settled(*node, revision)) waiter.pending.insert(node);
      }
    }
    if (!waiter.pending.empty()) {
      waiter.done = std::move(done);
      waiters_.emplace(next_id_, std::move(waiter));
      return next_id_++;
    }
  }
  done();
  return 0;
}

void ManagerCore::Expire(uint64_t waiter) {
  std::function<void()> done;
  {
    std::lock_guard lock(mutex_);
    auto found = waiters_.find(waiter);
    if (found == waiters_.end()) return;
    done = std::move(found->second.done);
    waiters_.erase(found);
  }
  done();
}

std::map<int, ManagerCore::Holder> ManagerCore::Holders() const {
  // A rank may be known by two nodes, when it has moved, when two proxies claim one node rank, or when a process says
  // that it is another node's rank: the better word counts, then the first one.
  std::map<int, Holder> holders;
  for (const auto& [key, node] : nodes_) {
    for (const Rank& rank : node.ranks) {
      int score = (node.stream != 0 ? 2 : 0) + (rank.report.attached ? 1 : 0);
      auto [it, is_new] = holders.try_emplace(rank.number(), Holder{&node, &rank, score});
      const bool is_first = score == it->second.score && rank.attached_as < it->second.rank->attached_as;
      if (!is_new && (score > it->second.score || is_first)) it->second = {&node, &rank, score};
    }
  }
  return holders;
}

RankAnswer ManagerCore::AnswerOf(int number, const Holder& holder, uint64_t revision, SteadyTime since,
                                 double waited_s) {
  RankAnswer answer;
  answer.rank = number;
  answer.node = holder.node->hello.node_rank;
  const Rank& rank = *holder.rank;
  if (holder.node->stream == 0) {
    answer.reason = NotConnected(answer.node);
  } else if (!rank.report.attached) {
    answer.reason = rank.report.reason.empty() ? "its process has ended" : rank.report.reason;
  } else if (rank.answered_revision < revision) {
    answer.reason = absl::StrCat("no answer within ", waited_s, " s");
  } else if (!rank.failure.empty()) {
    answer.state = RankAnswer::State::kFailed;
    answer.reason = rank.failure;
  } else {
    answer.state = RankAnswer::State::kApplied;
    std::chrono::duration<double, std::milli> took = rank.answered_at - since;
    answer.ms = std::max(0.0, took.count());
  }
  return answer;
}

std::vector<RankAnswer> ManagerCore::Answers(uint64_t revision, SteadyTime since, double waited_s) const {
  std::lock_guard lock(mutex_);
  const std::map<int, Holder> holders = Holders();
  std::vector<RankAnswer> answers;
  int expected = shape_.nodes * shape_.procs_per_node;
  answers.reserve(std::max(holders.size(), static_cast<size_t>(expected)));
  int next = 0;
  auto never_attached_below = [&](int limit) {
    for (; next < limit; ++next) {
      answers.push_back(
          {next, next / shape_.procs_per_node, RankAnswer::State::kUnreachable, 0, "never attached", true});
    }
  };
  for (const auto& [number, holder] : holders) {
    never_attached_below(std::min(number, expected));
    next = std::max(next, number + 1);
    answers.push_back(AnswerOf(number, holder, revision, since, waited_s));
  }
  never_attached_below(expected);
  return answers;
}

absl::Status ManagerCore::CheckHello(const NodeHello& hello) {
  if (hello.node_rank < 0 || hello.node_rank > kMaxNodeRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: node_rank ", hello.node_rank, " is not 0 to ", kMaxNodeRank));
  }
  for (const auto& [name, text] :
       {std::pair("host", &hello.host), std::pair("identity", &hello.identity), std::pair("version", &hello.version)}) {
    if (text->size() > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("hello: ", name, " has ", text->size(), " bytes, more than ", kMaxTextBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status ManagerCore::MakeRoomFor(const NodeHello& hello) {
  if (nodes_.size() >= kMaxNodes && !ForgetLongestGone()) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxNodes, " nodes"));
  }
  // Others with this node rank: one that has gone was replaced (a pod that moved); one that is here is a mistake.
  auto other = nodes_.lower_bound({hello.node_rank, ""});
  while (other != nodes_.end() && other->first.first == hello.node_rank) {
    if (other->second.stream == 0) {
      other = Forget(other);
      continue;
    }
    spdlog::warn("two proxies claim node rank {}: {} on {} and {} on {}; check --node-rank", hello.node_rank,
                 Printable(other->second.hello.identity), Printable(other->second.hello.host),
                 Printable(hello.identity), Printable(hello.host));
    ++other;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ManagerCore::Connect(NodeHello hello, NodeSink* sink) {
  if (absl::Status checked = CheckHello(hello); !checked.ok()) return checked;
  Callbacks callbacks;
  uint64_t stream = 0;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return absl::UnavailableError(kManagerIsEnding);
    NodeKey key(hello.node_rank, hello.identity);
    if (nodes_.count(key) == 0) {
      if (absl::Status room = MakeRoomFor(hello); !room.ok()) return room;
    }
    Node& node = nodes_[key];
    if (node.stream != 0) {
      node.sink->Close("the same proxy has connected again");
      DropStream(node, callbacks);
    }
    stream = next_id_++;
    gone_.erase(node.gone);
    node.gone = 0;
    node.gone_since.reset();
    node.hello = std::move(hello);
    node.hello.named.host = node.hello.host;
    names_settled_ = false;
    node.stream = stream;
    node.sink = sink;
    node.heard_ns = clock_.time_ns();
    node.outran = false;
    node.answered_revision = 0;
    streams_[stream] = &node;
    sink->Wanted(kept_.wanted);
  }
  for (auto& callback : callbacks) callback();
  return stream;
}

void ManagerCore::DropStream(Node& node, Callbacks& callbacks) {
  const uint64_t stream = std::exchange(node.stream, 0);
  streams_.erase(stream);
  node.sink = nullptr;
  node.gone = next_id_++;
  gone_.emplace(node.gone, NodeKey(node.hello.node_rank, node.hello.identity));
  SettleWaiters(node, callbacks);
  calls_.StreamGone(stream, NotConnected(node.hello.node_rank), callbacks);
}

ManagerCore::Nodes::iterator ManagerCore::Forget(Nodes::iterator node) {
  known_ranks_ -= node->second.ranks.size();
  names_settled_ = false;
  gone_.erase(node->second.gone);
  return nodes_.erase(node);
}

bool ManagerCore::ForgetLongestGone() {
  if (gone_.empty()) return false;
  Forget(nodes_.find(gone_.begin()->second));
  return true;
}

void ManagerCore::Heard(uint64_t stream) {
  std::lock_guard lock(mutex_);
  if (Node* node = FindStream(stream); node != nullptr) node->heard_ns = clock_.time_ns();
}

std::chrono::seconds ManagerCore::SilenceOf(const Node& node) const {
  if (!node.hello.says_alive) return std::chrono::seconds(0);
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::nanoseconds(clock_.time_ns() - node.heard_ns));
}

void ManagerCore::Look(SteadyTime now) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    clock_.Look(std::chrono::nanoseconds(now.time_since_epoch()).count());
    std::vector<Node*> silent;
    for (const auto& [stream, node] : streams_) {
      if (SilenceOf(*node) >= kSilentTooLong) silent.push_back(node);
    }
    for (Node* node : silent) {
      spdlog::warn("node {}'s proxy was silent for {} s: its stream is closed", node->hello.node_rank,
                   kSilentTooLong.count());
      node->sink->Close(absl::StrCat("silent for ", kSilentTooLong.count(), " s"));
      DropStream(*node, callbacks);
    }
    ForgetGone(now);
  }
  for (auto& callback : callbacks) callback();
}

void ManagerCore::ForgetGone(SteadyTime now) {
  for (auto it = gone_.begin(); it != gone_.end();) {
    auto node = nodes_.find((it++)->second);
    std::optional<SteadyTime>& since = node->second.gone_since;
    if (!since.has_value()) since = now;
    if (node->second.hello.node_rank >= shape_.nodes && now - *since >= kForgetGoneAfter) Forget(node);
  }
}

ManagerCore::Rank* ManagerCore::Find(Ranks& ranks, int number) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), number,
                                      [](const Rank& rank, int wanted) { return rank.number() < wanted; });
  return found != ranks.end() && found->number() == number ? &*found : nullptr;
}

absl::Status ManagerCore::CheckReports(std::vector<RankReport>& reports) {
  if (reports.size() > kMaxRanksPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks: ", reports.size(), " are more than the ", kMaxRanksPerNode, " of one node"));
  }
  for (RankReport& report : reports) {
    CutUtf8(&report.reason, kMaxTextBytes);
    CutUtf8(&report.open.operation, kMaxTextBytes);
  }
  if (!std::ranges::is_sorted(reports, {}, &RankReport::rank)) std::ranges::sort(reports, {}, &RankReport::rank);
  if (!reports.empty() && reports.front().rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: rank ", reports.front().rank, " is negative"));
  }
  if (!reports.empty() && reports.back().rank > kMaxRankNumber) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks: rank ", reports.back().rank, " is above ", kMaxRankNumber, ", the largest one"));
  }
  const auto twice = std::ranges::adjacent_find(reports, {}, &RankReport::rank);
  if (twice != reports.end()) {
    return absl::InvalidArgumentError(absl::StrCat("ranks: rank ", twice->rank, " is listed twice"));
  }
  return absl::OkStatus();
}

void ManagerCore::SetNumbers(const std::vector<RankReport>& reports, Ranks& ranks) {
  if (std::ranges::equal(reports, ranks, {}, &RankReport::rank, &Rank::number)) return;
  Ranks next(reports.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    if (Rank* before = Find(ranks, reports[i].rank); before != nullptr) next[i] = std::move(*before);
  }
  ranks.swap(next);
}

absl::Status ManagerCore::MakeRoomForRanks(const Node& node, size_t ranks) {
  const size_t others = known_ranks_ - node.ranks.size();
  size_t gone_ranks = 0;
  for (auto it = gone_.begin(); it != gone_.end() && others - gone_ranks + ranks > kMaxKnownRanks; ++it) {
    gone_ranks += nodes_.at(it->second).ranks.size();
  }
  if (others - gone_ranks + ranks > kMaxKnownRanks) {
    return absl::ResourceExhaustedError(absl::StrCat("ranks: ", ranks, " and the ", others - gone_ranks,
                                                     " of the other nodes are more than ", kMaxKnownRanks));
  }
  while (known_ranks_ - node.ranks.size() + ranks > kMaxKnownRanks) ForgetLongestGone();
  return absl::OkStatus();
}

uint64_t ManagerCore::TakeReport(Rank& rank, RankReport report, SteadyTime now) {
  if (!report.attached || rank.report.pid != report.pid) {
    rank.answered_revision = 0;
    rank.answered_at = {};
    rank.failure.clear();
  }
  if (report.attached && rank.attached_as == 0) rank.attached_as = next_id_++;
  if (!report.attached) rank.attached_as = 0;
  // Less than before: its proxy has begun anew, and counts on from there.
  const auto rise = [](uint64_t before, uint64_t now) { return now > before ? now - before : 0; };
  for (size_t i = 0; i < marks_total_.size(); ++i) marks_total_[i] += rise(rank.report.marks[i], report.marks[i]);
  lost_total_ += rise(rank.report.lost, report.lost);
  rank.report = std::move(report);
  return rank.report.attached ? TakeAnswer(rank, now) : 0;
}

uint64_t ManagerCore::TakeAnswer(Rank& rank, SteadyTime now) const {
  const RankReport& report = rank.report;
  const SwitchState& wanted = kept_.wanted;
  const uint64_t revision = report.applied_revision;
  const uint64_t failed = report.failed_revision;
  if (failed != 0 && failed >= rank.answered_revision && failed <= wanted.revision && failed > revision) {
    if (failed > rank.answered_revision) rank.answered_at = now;
    rank.answered_revision = failed;
    rank.failure = FailureText(report.reason);
    return 0;
  }
  if (revision == 0) return 0;
  if (revision > wanted.revision || (revision == wanted.revision && report.applied != wanted.effective)) {
    return revision;
  }
  if (revision > rank.answered_revision || (revision == rank.answered_revision && !rank.failure.empty())) {
    rank.answered_revision = revision;
    rank.answered_at = now;
    rank.failure.clear();
  }
  return 0;
}

absl::Status ManagerCore::Report(uint64_t stream, std::vector<RankReport> reports, SteadyTime now) {
  if (absl::Status checked = CheckReports(reports); !checked.ok()) return checked;
  Callbacks callbacks;
  uint64_t foreign_revision = 0;
  {
    std::lock_guard lock(mutex_);
    Node* node = FindStream(stream);
    if (node == nullptr) return absl::OkStatus();
    if (absl::Status room = MakeRoomForRanks(*node, reports.size()); !room.ok()) return room;
    known_ranks_ += reports.size() - node->ranks.size();
    SetNumbers(reports, node->ranks);
    for (size_t i = 0; i < reports.size(); ++i) {
      foreign_revision = std::max(foreign_revision, TakeReport(node->ranks[i], std::move(reports[i]), now));
    }
    SettleWaiters(*node, callbacks);
    // Once a stream: more often only a proxy that does not obey can be ahead.
    if (node->outran || foreign_revision > kMaxForeignRevision) foreign_revision = 0;
    if (foreign_revision != 0) node->outran = true;
  }
  for (auto& callback : callbacks) callback();
  if (foreign_revision != 0) GoAbove(foreign_revision);
  return absl::OkStatus();
}

void ManagerCore::SetMarkFiles(uint64_t stream, MarkFiles files) {
  std::lock_guard lock(mutex_);
  if (Node* node = FindStream(stream); node != nullptr) node->hello.mark_files = std::move(files);
}

void ManagerCore::Applied(uint64_t stream, uint64_t revision, const std::vector<RankAnswer>& ranks, SteadyTime now) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    Node* node = FindStream(stream);
    if (node == nullptr || revision > kept_.wanted.revision) return;
    node->answered_revision = std::max(node->answered_revision, revision);
    for (const RankAnswer& answer : ranks) {
      Rank* found = Find(node->ranks, answer.rank);
      if (found == nullptr) continue;
      Rank& rank = *found;
      if (answer.state == RankAnswer::State::kUnreachable) {
        rank.report.attached = false;
        rank.report.reason = answer.reason;
        CutUtf8(&rank.report.reason, kMaxTextBytes);
      } else if (revision > rank.answered_revision) {
        rank.answered_revision = revision;
        rank.answered_at = now;
        rank.failure.clear();
        if (answer.state == RankAnswer::State::kFailed) {
          rank.failure = FailureText(answer.reason);
        }
      }
    }
    SettleWaiters(*node, callbacks);
  }
  for (auto& callback : callbacks) callback();
}

void ManagerCore::Disconnect(uint64_t stream) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    Node* node = FindStream(stream);
    if (node == nullptr) return;
    DropStream(*node, callbacks);
  }
  for (auto& callback : callbacks) callback();
}

uint64_t ManagerCore::CallAgents(AgentCall call, const std::vector<int>& nodes, AgentCalls::Done done) {
  Callbacks callbacks;
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    id = call.id = next_id_++;
    std::map<uint64_t, int> pending;
    std::vector<NodeAnswer> answers;
    const std::set<int> asked(nodes.begin(), nodes.end());
    std::set<int> missing = asked;
    for (auto& [key, node] : nodes_) {
      int number = node.hello.node_rank;
      if (!asked.empty() && asked.count(number) == 0) continue;
      missing.erase(number);
      if (node.stream == 0) {
        answers.push_back({number, false, NotConnected(number)});
      } else {
        pending.emplace(node.stream, number);
        node.sink->Call(call);
      }
    }
    for (int number : missing) answers.push_back({number, false, NotConnected(number)});
    if (!calls_.Begin(id, std::move(pending), std::move(answers), std::move(done), callbacks)) id = 0;
  }
  for (auto& callback : callbacks) callback();
  return id;
}

void ManagerCore::AgentReplied(uint64_t stream, uint64_t call, bool ok, std::string message) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    calls_.Replied(call, stream, ok, std::move(message), callbacks);
  }
  for (auto& callback : callbacks) callback();
}

void ManagerCore::ExpireCall(uint64_t call) {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    calls_.Expire(call, callbacks);
  }
  for (auto& callback : callbacks) callback();
}

bool ManagerCore::Subscribe(ChangeSink* sink) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  subscribers_.insert(sink);
  sink->Changed(kept_.wanted);
  return true;
}

void ManagerCore::Unsubscribe(ChangeSink* sink) {
  std::lock_guard lock(mutex_);
  subscribers_.erase(sink);
}

JobSnapshot ManagerCore::Snapshot() const {
  JobSnapshot snapshot;
  std::vector<Attached> attached;
  {
    std::lock_guard lock(mutex_);
    snapshot.wanted = kept_.wanted;
    snapshot.marks_total = marks_total_;
    snapshot.lost_total = lost_total_;
    SettleNames();
    snapshot.nodes.reserve(nodes_.size());
    attached.reserve(known_ranks_);
    for (const auto& [key, node] : nodes_) {
      auto& copy = snapshot.nodes.emplace_back();
      copy.node = node.hello.node_rank;
      copy.host = node.hello.host;
      copy.pod = node.hello.named.pod;
      copy.name_refusal = node.name_refusal;
      if (copy.name_refusal.empty()) copy.node_name = node.hello.named.node_name;
      copy.connected = node.stream != 0;
      if (copy.connected && SilenceOf(node) >= kSilent) copy.silent = SilenceOf(node);
      copy.ranks.reserve(node.ranks.size());
      for (const Rank& rank : node.ranks) {
        if (copy.connected && rank.report.attached) {
          attached.push_back({rank.number(), rank.attached_as, snapshot.nodes.size() - 1, copy.ranks.size()});
        }
        copy.ranks.push_back(rank.report);
      }
      copy.mark_files = node.hello.mark_files;
    }
  }
  SetRivalsAside(attached, snapshot);
  return snapshot;
}

void ManagerCore::SettleNames() const {
  if (std::exchange(names_settled_, true)) return;
  std::vector<const NodeIdentity*> identities;
  identities.reserve(nodes_.size());
  for (const auto& [key, node] : nodes_) identities.push_back(&node.hello.named);
  std::vector<std::string> refusals = RefuseNodeNames(identities, shape_.node_names);
  size_t next = 0;
  for (const auto& [key, node] : nodes_) {
    std::string& refusal = refusals[next++];
    // A name that was not given is news only where one is needed.
    if (refusal != node.name_refusal && !refusal.empty() && !node.hello.named.node_name.empty()) {
      spdlog::info("node {} ({}): {}; it is named to no one outside the job", key.first, Printable(node.hello.host),
                   refusal);
    }
    node.name_refusal = std::move(refusal);
  }
}

std::optional<NodeIdentity> ManagerCore::Identify(int node, const std::string& host) const {
  std::lock_guard lock(mutex_);
  const Node* best = nullptr;
  for (auto it = nodes_.lower_bound({node, ""}); it != nodes_.end() && it->first.first == node; ++it) {
    if (it->second.hello.host != host) continue;
    if (best == nullptr || best->stream == 0) best = &it->second;
  }
  if (best == nullptr) return std::nullopt;
  SettleNames();
  NodeIdentity identity = best->hello.named;
  identity.machine.clear();
  if (!best->name_refusal.empty()) identity.node_name.clear();
  return identity;
}

JobPulse ManagerCore::Pulse() const {
  struct Beat {
    const Rank* rank;
    int number;  // here, too: the ranks lie far apart
    bool is_seen;
  };
  JobPulse pulse;
  std::vector<Beat> beats;
  std::lock_guard lock(mutex_);
  pulse.wanted = kept_.wanted;
  beats.reserve(known_ranks_);
  for (const auto& [key, node] : nodes_) {
    if (node.stream == 0) continue;
    const bool is_seen = SilenceOf(node) < kSilent;
    pulse.is_seen = pulse.is_seen || is_seen;
    for (const Rank& rank : node.ranks) {
      if (rank.report.attached) beats.push_back({&rank, rank.number(), is_seen});
    }
  }
  if (std::ranges::adjacent_find(beats, std::ranges::greater_equal(), &Beat::number) != beats.end()) {
    std::ranges::sort(beats, {}, [](const Beat& beat) { return std::pair(beat.number, beat.rank->attached_as); });
    const auto is_same = [](const Beat& a, const Beat& b) { return a.number == b.number; };
    beats.erase(std::unique(beats.begin(), beats.end(), is_same), beats.end());
  }
  pulse.ranks.reserve(beats.size());
  for (const Beat& beat : beats) {
    const RankReport& report = beat.rank->report;
    if (!beat.is_seen) continue;
    const bool steps_on = report.applied_revision == 0 || (report.applied & MaskOf(SwitchKind::kStep)) != 0;
    pulse.ranks.push_back({report.rank, report.pid, report.step, report.step_ms, report.marks, report.stopped_ms,
                           report.recorded, report.cpu_busy_ms, report.io_busy_ms, report.left_loop, steps_on,
                           report.open});
  }
  return pulse;
}

void ManagerCore::Close() {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (ChangeSink* sink : subscribers_) sink->Close();
    subscribers_.clear();
    while (!streams_.empty()) {
      Node& node = *streams_.begin()->second;
      node.sink->Close(kManagerIsEnding);
      DropStream(node, callbacks);
    }
  }
  for (auto& callback : callbacks) callback();
}

absl::Status CheckJobName(const std::string& job) {
  size_t slash = job.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == job.size() ||
      job.find('/', slash + 1) != std::string::npos || job.size() > kMaxJobNameBytes || !IsUtf8(job)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "job name: '", CutUtf8(job, 64), "' is not namespace/name with at most ", kMaxJobNameBytes, " bytes of UTF-8"));
  }
  return absl::OkStatus();
}

}  // namespace taskd::manager
