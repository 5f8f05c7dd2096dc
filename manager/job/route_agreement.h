// All nodes of a job adopt one route plan, or none does: what the manager decides. Without transport and clock.
//
// Design
//  1. A round collects one proposal of each node. When all are there: rank tables that differ refuse it; a node without
//     a plan, or with another one, makes it identity; otherwise every node is asked to acknowledge (`prepare`), and
//     once all have, the plan is committed. So a node that adopts a plan knows that each node has acknowledged this
//     plan, and a node that has acknowledged takes identity only from the manager.
//  2. A node falls back to identity by itself only before it acknowledges. It never acknowledges afterwards, so no
//     round that it is in can be committed. Its stream breaks, which makes the round identity for the others.
//  3. A stream that breaks, or a node that is silent for kAckTimeout after `prepare`, makes an undecided round
//     identity. No `commit` was sent then, so nobody has adopted.
//     In this object's own time (ObservedClock): a manager that did not run has heard nobody.
//  4. A node that has acknowledged and lost its stream is in doubt. It asks by the round's number and is sent what was
//     decided; the last kKeptRounds rounds are kept. The numbers begin at a random one: a manager that was restarted
//     answers that it does not know the round, and the node fails instead of guessing.
//  5. A proposal after a decided round either belongs to it (a node that comes late, or was killed and started again by
//     itself) or begins the next one (all nodes were started again). The core cannot see it in the proposal. A node
//     that had not concluded the decided round (written after `commit`, been answered after `identity`) is held for
//     kSettle. If a node that had concluded it proposes meanwhile, or all are there, it is a new round and the held
//     ones are in it; otherwise the held node gets the verdict of the decided round. After `commit` it must acknowledge
//     first, so that it cannot fall back meanwhile; if it has no plan or another one, it is refused: the others follow
//     the plan.
//
// Covered, because of 1..5: a node that dies or stops before its proposal, before and after its acknowledgement, after
// `commit` and before it has written, and comes back or does not; any order of proposals; a stream that breaks on the
// way of any message; a client's time that runs out while `prepare` is on its way; a manager that dies at any moment
// (nodes that had acknowledged fail and write nothing, the others take identity).
// Not covered, pods have to be started again together: a node that is started again alone after it has written, or
// whose manager has lost its memory meanwhile, or that cannot reach the manager when it comes back: it takes identity
// while the others follow the plan. And nodes that are started again together, but more than kSettle apart, where the
// first one had been killed between its acknowledgement and its files: it takes the old plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/observed_clock.h"

namespace taskd::manager {

struct RouteProposal {  // taskd.v1.RouteProposal
  uint32_t nodes = 0;
  uint32_t index = 0;
  std::string table_digest;
  std::string plan_digest;
  std::string reason;
  uint64_t in_doubt = 0;
};

struct RouteVerdict {
  enum class Kind {
    kWaiting,
    kPrepare,
    kCommit,
    kIdentity,
    kRefused,
    kUnknownRound,  // the peer is in doubt about a round that is not kept
  };
  Kind kind = Kind::kWaiting;
  std::string reason;             // of identity, refused and unknown round: one line
  uint64_t round = 0;             // of prepare
  uint32_t missing_count = 0;     // of waiting
  std::vector<uint32_t> missing;  // of waiting, the first kMaxMissing
};

// Thread safety: none. Peers are numbered by the caller; a number is never used again. Outputs are in order.
class RouteAgreementCore {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Output {
    uint64_t peer;
    RouteVerdict message;  // after identity, refused and unknown round the core has forgotten the peer
  };

  static constexpr uint32_t kMaxNodes = 65536;
  static constexpr size_t kMaxReasonBytes = 1024;
  static constexpr size_t kMaxMissing = 16;
  static constexpr size_t kKeptRounds = 64;
  static constexpr std::chrono::seconds kAckTimeout{10};
  static constexpr std::chrono::seconds kLateWindow{10};  // for a node that comes after an identity round was decided
  static constexpr std::chrono::seconds kSettle{3};
  static constexpr std::chrono::seconds kWaitingInterval{1};
  static constexpr std::chrono::nanoseconds kLook = std::chrono::seconds(1);

  // `first_round`: random and not 0.
  explicit RouteAgreementCore(uint64_t first_round) : next_round_(first_round) {}

  // The first of a peer; a second one is refused, and its seat is free as if its stream had ended. What else is wrong
  // with a proposal refuses this peer alone.
  void Propose(uint64_t peer, RouteProposal proposal, Time now, std::vector<Output>* out);
  void Acknowledge(uint64_t peer, Time now, std::vector<Output>* out);
  void Written(uint64_t peer);
  // Its stream has ended. Peers that the core does not know, or has forgotten, are no error.
  void Gone(uint64_t peer, Time now, std::vector<Output>* out);

  void Tick(Time now, std::vector<Output>* out);
  // When Tick has something to do, if nothing else happens before.
  std::optional<Time> NextTick() const;

 private:
  struct Member {
    uint64_t peer = 0;
    RouteProposal proposal;
    bool asked = false;  // `prepare` was sent
    bool acknowledged = false;
    Time held_until;  // while its round is held
  };
  enum class Stage : uint8_t {
    kHeld,        // all members are held (5.)
    kCollecting,  // it is a new round, and proposals are missing
    kPreparing,   // all are there and alike: acknowledgements are missing
  };
  struct Round {
    uint64_t number = 0;
    uint32_t nodes = 0;
    std::map<uint32_t, Member> members;  // by index
    std::set<uint32_t> missing;
    size_t acknowledged = 0;
    Stage stage = Stage::kHeld;  // of a round that is not decided
    Time acknowledge_by;         // while it is preparing
    std::optional<Time> send_waiting_at;
    Time sent_waiting_at;

    std::optional<RouteVerdict> verdict;    // set: decided
    Time decided_at;                        // as it is: nobody looks afterwards
    std::string table_digest, plan_digest;  // of what was decided
    std::set<uint32_t> concluded;
  };
  struct Seat {
    std::shared_ptr<Round> round;
    uint32_t index;
  };

  static std::string Complaint(const RouteProposal& proposal);
  void AskedInDoubt(uint64_t peer, RouteProposal proposal, Time now, std::vector<Output>* out);
  void Join(uint64_t peer, RouteProposal proposal, bool acknowledged, bool held, Time now, std::vector<Output>* out);
  void Leave(Round& round, uint32_t index);
  bool MayBelongToLast(const RouteProposal& proposal) const;
  bool FollowsLast(const RouteProposal& proposal) const;
  void Ask(Member& member, std::vector<Output>* out);
  void Compare(Time now, std::vector<Output>* out);
  void CommitIfAll(std::vector<Output>* out);
  void Decide(const RouteVerdict& verdict, std::vector<Output>* out);
  void ReleaseHeld(Time now, std::vector<Output>* out);
  void SendWaiting(Time now, std::vector<Output>* out);

  // Notes the time and returns it as it has been seen.
  Time Look(Time now);

  Time now_;
  ObservedClock clock_{kLook.count()};  // the times of rounds are its, but decided_at
  uint64_t next_round_;
  std::shared_ptr<Round> current_;  // undecided; may be without members
  std::shared_ptr<Round> last_;     // decided, and somebody has heard of it
  std::deque<std::shared_ptr<Round>> decided_;
  std::map<uint64_t, Seat> peers_;
};

}  // namespace taskd::manager
