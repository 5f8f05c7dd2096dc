#include "manager/job/route_agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/printable.h"

namespace taskd::manager {
namespace {

using Kind = RouteVerdict::Kind;

constexpr size_t kDigestSize = 64;
constexpr size_t kMaxNamed = 3;

bool IsDigest(const std::string& text) {
  return text.size() == kDigestSize &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// "node 1, node 2, node 5 and 3 more"
std::string Named(const std::set<uint32_t>& nodes) {
  std::string text;
  size_t named = 0;
  for (uint32_t index : nodes) {
    if (named == kMaxNamed) return absl::StrCat(text, " and ", nodes.size() - named, " more");
    absl::StrAppend(&text, named++ == 0 ? "node " : ", node ", index);
  }
  return text;
}

RouteVerdict Because(Kind kind, std::string reason) {
  RouteVerdict verdict;
  verdict.kind = kind;
  verdict.reason = std::move(reason);
  return verdict;
}

}  // namespace

std::string RouteAgreementCore::Complaint(const RouteProposal& proposal) {
  if (proposal.nodes < 1 || proposal.nodes > kMaxNodes) {
    return absl::StrCat("nodes: ", proposal.nodes, " is not in 1..", kMaxNodes);
  }
  if (proposal.index >= proposal.nodes) {
    return absl::StrCat("index: ", proposal.index, " is not below the number of nodes, ", proposal.nodes);
  }
  if (!IsDigest(proposal.table_digest)) return "table_digest: is not 64 lower-case hex digits";
  if (!proposal.plan_digest.empty() && !IsDigest(proposal.plan_digest)) {
    return "plan_digest: is neither empty nor 64 lower-case hex digits";
  }
  if (proposal.in_doubt != 0 && proposal.plan_digest.empty()) return "in_doubt: a node without a plan cannot be";
  return "";
}

RouteAgreementCore::Time RouteAgreementCore::Look(Time now) {
  now_ = now;
  return Time(std::chrono::nanoseconds(clock_.Look(std::chrono::nanoseconds(now.time_since_epoch()).count())));
}

void RouteAgreementCore::Propose(uint64_t peer, RouteProposal proposal, Time now, std::vector<Output>* out) {
  std::string complaint;
  if (peers_.contains(peer)) {
    complaint = "a second proposal";
    Gone(peer, now, out);
  } else {
    complaint = Complaint(proposal);
  }
  if (!complaint.empty()) {
    out->push_back({peer, Because(Kind::kRefused, std::move(complaint))});
    return;
  }
  now = Look(now);
  proposal.reason = Printable(proposal.reason, kMaxReasonBytes);
  if (proposal.in_doubt != 0) {
    AskedInDoubt(peer, std::move(proposal), now, out);
    return;
  }
  if (current_ != nullptr && !current_->members.empty()) {
    if (proposal.nodes != current_->nodes) {
      out->push_back({peer, Because(Kind::kRefused,
                                    absl::StrCat("node ", proposal.index, " says ", proposal.nodes, " nodes, node ",
                                                 current_->members.begin()->first, " says ", current_->nodes))});
      return;
    }
    if (current_->members.contains(proposal.index)) {
      out->push_back({peer, Because(Kind::kRefused, absl::StrCat("index ", proposal.index,
                                                                 " is given twice: another node has proposed as node ",
                                                                 proposal.index))});
      return;
    }
  }
  bool held = (current_ == nullptr || current_->stage == Stage::kHeld) && MayBelongToLast(proposal);
  Join(peer, std::move(proposal), /*acknowledged=*/false, held, now, out);
}

void RouteAgreementCore::AskedInDoubt(uint64_t peer, RouteProposal proposal, Time now, std::vector<Output>* out) {
  if (current_ != nullptr && current_->number == proposal.in_doubt && current_->nodes == proposal.nodes) {
    auto found = current_->members.find(proposal.index);
    if (found == current_->members.end()) {
      Join(peer, std::move(proposal), /*acknowledged=*/true, /*held=*/current_->stage == Stage::kHeld, now, out);
      return;
    }
    // Its old stream has broken; we have only not noticed yet.
    Member& member = found->second;
    if (member.proposal.table_digest != proposal.table_digest || member.proposal.plan_digest != proposal.plan_digest) {
      out->push_back({peer, Because(Kind::kRefused, "in_doubt: the round had another proposal of this node")});
      return;
    }
    peers_.erase(member.peer);
    peers_[peer] = {current_, proposal.index};
    member.peer = peer;
    if (!member.acknowledged) {
      member.asked = member.acknowledged = true;
      ++current_->acknowledged;
    }
    CommitIfAll(out);
    return;
  }
  for (const std::shared_ptr<Round>& round : decided_) {
    if (round->number != proposal.in_doubt) continue;
    if (round->verdict->kind == Kind::kCommit) {
      if (round->nodes != proposal.nodes || round->table_digest != proposal.table_digest ||
          round->plan_digest != proposal.plan_digest) {
        out->push_back({peer, Because(Kind::kRefused, "in_doubt: the round had another plan")});
        return;
      }
      peers_[peer] = {round, proposal.index};
    } else {
      round->concluded.insert(proposal.index);
    }
    out->push_back({peer, *round->verdict});
    return;
  }
  out->push_back(
      {peer, Because(Kind::kUnknownRound, "the manager does not know the round that this node acknowledged")});
}

void RouteAgreementCore::Join(uint64_t peer, RouteProposal proposal, bool acknowledged, bool held, Time now,
                              std::vector<Output>* out) {
  if (current_ == nullptr || (current_->members.empty() && current_->nodes != proposal.nodes)) {
    current_ = std::make_shared<Round>();
    current_->number = next_round_++;
    if (next_round_ == 0) next_round_ = 1;
    current_->nodes = proposal.nodes;
    current_->sent_waiting_at = now - kWaitingInterval;
    for (uint32_t i = 0; i < proposal.nodes; ++i) current_->missing.insert(current_->missing.end(), i);
  }
  Round& round = *current_;
  const uint32_t index = proposal.index;
  peers_[peer] = {current_, index};
  round.missing.erase(index);
  Member& member = round.members[index];
  member.peer = peer;
  member.proposal = std::move(proposal);
  member.asked = member.acknowledged = acknowledged;
  member.held_until = now + kSettle;
  if (acknowledged) ++round.acknowledged;
  if (round.stage == Stage::kHeld && (!held || round.missing.empty())) round.stage = Stage::kCollecting;
  if (round.missing.empty()) {
    Compare(now, out);
    return;
  }
  round.send_waiting_at = std::max(now, round.sent_waiting_at + kWaitingInterval);
  if (*round.send_waiting_at > now) {
    RouteVerdict waiting;
    waiting.missing_count = static_cast<uint32_t>(round.missing.size());
    for (uint32_t missing : round.missing) {
      if (waiting.missing.size() == kMaxMissing) break;
      waiting.missing.push_back(missing);
    }
    out->push_back({peer, std::move(waiting)});
  } else {
    SendWaiting(now, out);
  }
  if (held && FollowsLast(member.proposal)) Ask(member, out);
}

void RouteAgreementCore::Leave(Round& round, uint32_t index) {
  auto member = round.members.find(index);
  if (member->second.acknowledged) --round.acknowledged;
  round.members.erase(member);
  round.missing.insert(index);
}

// 5. of the design. Another number of nodes or another rank table: the job was placed anew.
bool RouteAgreementCore::MayBelongToLast(const RouteProposal& proposal) const {
  if (last_ == nullptr || last_->verdict->kind == Kind::kRefused || last_->nodes != proposal.nodes ||
      last_->table_digest != proposal.table_digest || last_->concluded.contains(proposal.index)) {
    return false;
  }
  return last_->verdict->kind == Kind::kCommit || now_ < last_->decided_at + kLateWindow;
}

bool RouteAgreementCore::FollowsLast(const RouteProposal& proposal) const {
  return last_->verdict->kind == Kind::kCommit && last_->plan_digest == proposal.plan_digest;
}

void RouteAgreementCore::Ask(Member& member, std::vector<Output>* out) {
  if (member.asked) return;
  member.asked = true;
  RouteVerdict prepare;
  prepare.kind = Kind::kPrepare;
  prepare.round = current_->number;
  out->push_back({member.peer, prepare});
}

void RouteAgreementCore::Compare(Time now, std::vector<Output>* out) {
  const Member& first = current_->members.begin()->second;
  for (const auto& [index, member] : current_->members) {
    if (member.proposal.table_digest != first.proposal.table_digest) {
      Decide(Because(Kind::kRefused, absl::StrCat("the rank tables of node 0 and node ", index, " differ")), out);
      return;
    }
  }
  for (const auto& [index, member] : current_->members) {
    if (!member.proposal.plan_digest.empty()) continue;
    std::string why = member.proposal.reason.empty() ? "" : absl::StrCat(": ", member.proposal.reason);
    Decide(Because(Kind::kIdentity, absl::StrCat("node ", index, " has no plan", why)), out);
    return;
  }
  for (const auto& [index, member] : current_->members) {
    if (member.proposal.plan_digest == first.proposal.plan_digest) continue;
    Decide(Because(Kind::kIdentity, absl::StrCat("node ", index, " has planned something else than node 0")), out);
    return;
  }
  current_->stage = Stage::kPreparing;
  current_->send_waiting_at.reset();
  current_->acknowledge_by = now + kAckTimeout;
  for (auto& [index, member] : current_->members) Ask(member, out);
  CommitIfAll(out);
}

void RouteAgreementCore::Acknowledge(uint64_t peer, Time now, std::vector<Output>* out) {
  now = Look(now);
  auto seat = peers_.find(peer);
  if (seat == peers_.end() || seat->second.round != current_) return;
  Member& member = current_->members.at(seat->second.index);
  if (!member.asked || member.acknowledged) return;
  member.acknowledged = true;
  ++current_->acknowledged;
  CommitIfAll(out);
  if (current_ != nullptr) ReleaseHeld(now, out);
}

void RouteAgreementCore::CommitIfAll(std::vector<Output>* out) {
  if (current_->stage != Stage::kPreparing || current_->acknowledged != current_->nodes) return;
  RouteVerdict commit;
  commit.kind = Kind::kCommit;
  Decide(commit, out);
}

void RouteAgreementCore::Decide(const RouteVerdict& verdict, std::vector<Output>* out) {
  std::shared_ptr<Round> round = std::move(current_);
  current_ = nullptr;
  round->verdict = verdict;
  round->decided_at = now_;
  if (!round->members.empty()) {
    round->table_digest = round->members.begin()->second.proposal.table_digest;
    round->plan_digest = round->members.begin()->second.proposal.plan_digest;
  }
  for (const auto& [index, member] : round->members) {
    out->push_back({member.peer, verdict});
    if (verdict.kind == Kind::kCommit) continue;  // concluded when it has written
    round->concluded.insert(index);
    peers_.erase(member.peer);
  }
  // Nobody has heard of it: it binds nobody.
  if (!round->members.empty()) last_ = round;
  round->members.clear();
  round->missing.clear();
  decided_.push_back(std::move(round));
  if (decided_.size() > kKeptRounds) decided_.pop_front();
}

void RouteAgreementCore::Written(uint64_t peer) {
  auto seat = peers_.find(peer);
  if (seat == peers_.end() || !seat->second.round->verdict.has_value()) return;
  seat->second.round->concluded.insert(seat->second.index);
}

void RouteAgreementCore::Gone(uint64_t peer, Time now, std::vector<Output>* out) {
  now = Look(now);
  auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  const Seat seat = found->second;
  peers_.erase(found);
  if (seat.round != current_) return;
  // Mostly it has given up waiting, and the nodes that it waited for are what the user wants to know.
  const std::string when = current_->missing.empty()
                               ? "before all nodes took the plan"
                               : absl::StrCat("while ", Named(current_->missing), " did not come");
  Leave(*current_, seat.index);
  if (current_->stage == Stage::kHeld) return;
  Decide(Because(Kind::kIdentity, absl::StrCat("node ", seat.index, " has gone ", when)), out);
}

void RouteAgreementCore::ReleaseHeld(Time now, std::vector<Output>* out) {
  if (current_->stage != Stage::kHeld) return;
  std::vector<uint32_t> released;
  for (const auto& [index, member] : current_->members) {
    if (member.held_until > now) continue;
    if (!FollowsLast(member.proposal) || member.acknowledged) released.push_back(index);
  }
  for (uint32_t index : released) {
    const Member& member = current_->members.at(index);
    const uint64_t peer = member.peer;
    if (last_->verdict->kind != Kind::kCommit) {
      last_->concluded.insert(index);
      peers_.erase(peer);
      out->push_back({peer, *last_->verdict});
    } else if (FollowsLast(member.proposal)) {
      peers_[peer] = {last_, index};
      out->push_back({peer, *last_->verdict});
    } else {
      peers_.erase(peer);
      const char* what = member.proposal.plan_digest.empty() ? " has no plan any more" : " has another plan now";
      out->push_back({peer, Because(Kind::kRefused, absl::StrCat("the other nodes follow a plan, and node ", index,
                                                                 what, "; start all nodes again"))});
    }
    Leave(*current_, index);
  }
}

void RouteAgreementCore::SendWaiting(Time now, std::vector<Output>* out) {
  Round& round = *current_;
  round.send_waiting_at.reset();
  round.sent_waiting_at = now;
  RouteVerdict waiting;
  waiting.missing_count = static_cast<uint32_t>(round.missing.size());
  for (uint32_t missing : round.missing) {
    if (waiting.missing.size() == kMaxMissing) break;
    waiting.missing.push_back(missing);
  }
  for (const auto& [index, member] : round.members) out->push_back({member.peer, waiting});
}

void RouteAgreementCore::Tick(Time now, std::vector<Output>* out) {
  now = Look(now);
  if (current_ == nullptr) return;
  if (current_->stage == Stage::kPreparing && now >= current_->acknowledge_by) {
    std::set<uint32_t> silent;
    for (const auto& [index, member] : current_->members) {
      if (!member.acknowledged) silent.insert(index);
    }
    Decide(Because(Kind::kIdentity, absl::StrCat(Named(silent), " did not answer within ", kAckTimeout.count(), " s")),
           out);
    return;
  }
  ReleaseHeld(now, out);
  if (current_->send_waiting_at.has_value() && now >= *current_->send_waiting_at) SendWaiting(now, out);
}

std::optional<RouteAgreementCore::Time> RouteAgreementCore::NextTick() const {
  if (current_ == nullptr) return std::nullopt;
  std::optional<Time> next;
  auto consider = [&next](Time time) { next = next.has_value() ? std::min(*next, time) : time; };
  if (current_->stage == Stage::kPreparing) consider(current_->acknowledge_by);
  if (current_->send_waiting_at.has_value()) consider(*current_->send_waiting_at);
  if (current_->stage == Stage::kHeld) {
    for (const auto& [index, member] : current_->members) {
      // What follows the last plan waits for its acknowledgement too, and then for nothing that time brings.
      const bool waits_on = FollowsLast(member.proposal) && !member.acknowledged;
      if (!waits_on || member.held_until > Time(std::chrono::nanoseconds(clock_.time_ns())))
        consider(member.held_until);
    }
  }
  if (!next) return std::nullopt;
  return Time(std::chrono::nanoseconds(clock_.NextLook(std::chrono::nanoseconds(next->time_since_epoch()).count())));
}

}  // namespace taskd::manager
