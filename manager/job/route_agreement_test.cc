#include "manager/job/route_agreement.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Kind = RouteVerdict::Kind;
using Core = RouteAgreementCore;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kFirstRound = 1000;

std::string Digest(char c) { return std::string(64, c); }

RouteProposal Proposal(uint32_t nodes, uint32_t index, const std::string& plan = Digest('a'),
                       const std::string& table = Digest('7')) {
  RouteProposal proposal;
  proposal.nodes = nodes;
  proposal.index = index;
  proposal.table_digest = table;
  proposal.plan_digest = plan;
  return proposal;
}

class RouteAgreementTest : public ::testing::Test {
 protected:
  // The peer's number is chosen here: a hundred a start of the job, plus the node's index.
  void Propose(uint64_t peer, const RouteProposal& proposal) { core_.Propose(peer, proposal, now_, &out_); }
  void ProposeAll(uint32_t nodes, uint64_t base = 0) {
    for (uint32_t i = 0; i < nodes; ++i) Propose(base + i, Proposal(nodes, i));
  }
  void AcknowledgeAll(uint32_t nodes, uint64_t base = 0) {
    for (uint32_t i = 0; i < nodes; ++i) core_.Acknowledge(base + i, now_, &out_);
  }
  void Gone(uint64_t peer) { core_.Gone(peer, now_, &out_); }
  // As the service's thread does it: at every moment that the core asks for.
  void Pass(std::chrono::milliseconds time) {
    const Core::Time until = now_ + time;
    while (std::optional<Core::Time> next = core_.NextTick()) {
      if (*next > until) break;
      now_ = std::max(now_, *next);
      core_.Tick(now_, &out_);
    }
    now_ = until;
    core_.Tick(now_, &out_);
  }

  std::vector<RouteVerdict> All(uint64_t peer) const {
    std::vector<RouteVerdict> verdicts;
    for (const Core::Output& output : out_) {
      if (output.peer == peer) verdicts.push_back(output.message);
    }
    return verdicts;
  }
  // The last that the peer heard.
  RouteVerdict Last(uint64_t peer) const {
    std::vector<RouteVerdict> all = All(peer);
    return all.empty() ? RouteVerdict{} : all.back();
  }
  Kind LastKind(uint64_t peer) const {
    EXPECT_THAT(All(peer), Not(IsEmpty())) << "peer " << peer << " heard nothing";
    return Last(peer).kind;
  }
  void ExpectIdentity(const std::vector<uint64_t>& peers, const std::string& reason) const {
    for (uint64_t peer : peers) {
      EXPECT_EQ(LastKind(peer), Kind::kIdentity) << peer;
      EXPECT_THAT(Last(peer).reason, HasSubstr(reason)) << peer;
    }
  }

  Core::Time now_{seconds(1000)};
  Core core_{kFirstRound};
  std::vector<Core::Output> out_;
};

TEST_F(RouteAgreementTest, CommitsOnceAllHaveAcknowledgedOnePlan) {
  ProposeAll(3);
  for (uint64_t peer : {0, 1, 2}) {
    EXPECT_EQ(LastKind(peer), Kind::kPrepare);
    EXPECT_EQ(Last(peer).round, kFirstRound);
  }
  core_.Acknowledge(0, now_, &out_);
  core_.Acknowledge(1, now_, &out_);
  core_.Acknowledge(1, now_, &out_);
  EXPECT_EQ(LastKind(0), Kind::kPrepare);
  core_.Acknowledge(2, now_, &out_);
  for (uint64_t peer : {0, 1, 2}) EXPECT_EQ(LastKind(peer), Kind::kCommit);
  EXPECT_EQ(core_.NextTick(), std::nullopt);
}

TEST_F(RouteAgreementTest, OneNodeAgreesWithItself) {
  ProposeAll(1);
  AcknowledgeAll(1);
  EXPECT_EQ(LastKind(0), Kind::kCommit);
}

TEST_F(RouteAgreementTest, AnAcknowledgementThatNobodyAskedForCountsForNothing) {
  Propose(0, Proposal(2, 0));
  core_.Acknowledge(0, now_, &out_);
  Propose(1, Proposal(2, 1));
  core_.Acknowledge(1, now_, &out_);
  EXPECT_EQ(LastKind(1), Kind::kPrepare);
}

TEST_F(RouteAgreementTest, TellsWhoIsMissingAtMostOnceASecond) {
  Propose(0, Proposal(40, 0));
  EXPECT_EQ(Last(0).missing_count, 39u);
  EXPECT_THAT(Last(0).missing, SizeIs(Core::kMaxMissing));
  Propose(5, Proposal(40, 5));
  EXPECT_EQ(Last(5).missing_count, 38u);
  Propose(6, Proposal(40, 6));
  EXPECT_THAT(All(0), SizeIs(1));
  Pass(seconds(1));
  EXPECT_THAT(All(0), SizeIs(2));
  EXPECT_EQ(Last(0).missing_count, 37u);
  std::vector<uint32_t> missing = Last(0).missing;
  missing.resize(5);
  EXPECT_THAT(missing, ElementsAre(1, 2, 3, 4, 7));
  Pass(seconds(10));
  EXPECT_THAT(All(0), SizeIs(2)) << "nothing has changed";
}

TEST_F(RouteAgreementTest, RefusesAllWhereRankTablesDifferWhateverElseIsWrong) {
  Propose(0, Proposal(3, 0, ""));
  Propose(1, Proposal(3, 1, Digest('b')));
  Propose(2, Proposal(3, 2, Digest('a'), Digest('8')));
  for (uint64_t peer : {0, 1, 2}) {
    EXPECT_EQ(LastKind(peer), Kind::kRefused);
    EXPECT_THAT(Last(peer).reason, AllOf(HasSubstr("node 0"), HasSubstr("node 2"), HasSubstr("rank tables")));
  }
}

TEST_F(RouteAgreementTest, ANodeWithoutAPlanMakesItIdentity) {
  RouteProposal without = Proposal(3, 1, "");
  without.reason = "topology /a\n/b is not there";
  Propose(0, Proposal(3, 0));
  Propose(1, without);
  EXPECT_EQ(LastKind(0), Kind::kWaiting) << "node 2 may have another rank table";
  Propose(2, Proposal(3, 2, Digest('b')));
  ExpectIdentity({0, 1, 2}, "node 1 has no plan: topology /a\\n/b is not there");
}

TEST_F(RouteAgreementTest, AnotherPlanMakesItIdentity) {
  Propose(0, Proposal(3, 0));
  Propose(1, Proposal(3, 1));
  Propose(2, Proposal(3, 2, Digest('b')));
  ExpectIdentity({0, 1, 2}, "node 2 has planned something else than node 0");
}

TEST_F(RouteAgreementTest, AReasonIsCutAtWholeCharacters) {
  RouteProposal without = Proposal(1, 0, "");
  without.reason = std::string(Core::kMaxReasonBytes - 1, 'x') + "\u00e4";
  Propose(0, without);
  ExpectIdentity({0}, "xxx");
  EXPECT_TRUE(Last(0).reason.ends_with("x…"));
}

TEST_F(RouteAgreementTest, WhoGoesBeforeAllHaveAcknowledgedMakesItIdentity) {
  Propose(0, Proposal(3, 0));
  Propose(1, Proposal(3, 1));
  Gone(1);
  ExpectIdentity({0}, "node 1 has gone while node 2 did not come");

  now_ += seconds(100);
  ProposeAll(3, 100);
  core_.Acknowledge(100, now_, &out_);
  Gone(101);
  ExpectIdentity({100, 102}, "node 1 has gone");

  now_ += seconds(100);
  ProposeAll(3, 200);
  core_.Acknowledge(201, now_, &out_);
  Gone(201);
  ExpectIdentity({200, 202}, "node 1 has gone");
}

TEST_F(RouteAgreementTest, TimeInWhichTheManagerDidNotRunIsNobodysSilence) {
  ProposeAll(3);
  now_ += seconds(60);
  core_.Tick(now_, &out_);
  EXPECT_EQ(LastKind(0), Kind::kPrepare) << "their answers may not have been read";
  AcknowledgeAll(3);
  EXPECT_EQ(LastKind(0), Kind::kCommit);
}

TEST_F(RouteAgreementTest, NorDoesItReleaseWhoIsHeld) {
  ProposeAll(2);
  AcknowledgeAll(2);
  core_.Written(0);
  Gone(0);
  Gone(1);
  Propose(11, Proposal(2, 1));  // started again, as node 0 may have been
  now_ += seconds(60);
  core_.Tick(now_, &out_);
  core_.Acknowledge(11, now_, &out_);
  EXPECT_EQ(LastKind(11), Kind::kPrepare);
  Propose(10, Proposal(2, 0));
  core_.Acknowledge(10, now_, &out_);
  EXPECT_EQ(LastKind(10), Kind::kCommit) << "a new round";
  EXPECT_EQ(LastKind(11), Kind::kCommit);
}

TEST_F(RouteAgreementTest, WhoIsSilentAfterPrepareMakesItIdentity) {
  ProposeAll(6);
  core_.Acknowledge(0, now_, &out_);
  Pass(Core::kAckTimeout - milliseconds(1));
  EXPECT_EQ(LastKind(0), Kind::kPrepare);
  Pass(milliseconds(1));
  ExpectIdentity({0, 1, 5}, "node 1, node 2, node 3 and 2 more did not answer");
  core_.Acknowledge(1, now_, &out_);  // too late
  EXPECT_EQ(LastKind(1), Kind::kIdentity);
}

TEST_F(RouteAgreementTest, RefusesOnlyTheSecondNodeOfAnIndex) {
  Propose(0, Proposal(2, 0));
  Propose(7, Proposal(2, 0));
  EXPECT_EQ(LastKind(7), Kind::kRefused);
  EXPECT_THAT(Last(7).reason, HasSubstr("index 0 is given twice"));
  Gone(7);
  Propose(1, Proposal(2, 1));
  AcknowledgeAll(2);
  EXPECT_EQ(LastKind(0), Kind::kCommit);
}

TEST_F(RouteAgreementTest, ASecondProposalIsTheEndOfTheFirst) {
  Propose(0, Proposal(3, 0));
  Propose(1, Proposal(3, 1));
  Propose(1, Proposal(3, 1));
  EXPECT_EQ(LastKind(1), Kind::kRefused);
  ExpectIdentity({0}, "node 1 has gone while node 2 did not come");
  core_.Acknowledge(1, now_, &out_);  // forgotten
  Gone(1);
  EXPECT_EQ(LastKind(1), Kind::kRefused);
}

TEST_F(RouteAgreementTest, RefusesWhatMakesNoSense) {
  Propose(50, Proposal(3, 0));
  std::vector<RouteProposal> bad = {Proposal(0, 0),
                                    Proposal(Core::kMaxNodes + 1, 0),
                                    Proposal(3, 3),
                                    Proposal(3, 1, "abc"),
                                    Proposal(3, 1, Digest('A')),
                                    Proposal(3, 1, Digest('a'), ""),
                                    Proposal(4, 1),
                                    Proposal(3, 1, "")};
  bad.back().in_doubt = kFirstRound;
  uint64_t peer = 0;
  for (const RouteProposal& proposal : bad) {
    Propose(++peer, proposal);
    EXPECT_EQ(LastKind(peer), Kind::kRefused) << peer;
    Gone(peer);
  }
  Propose(50, Proposal(3, 1));
  EXPECT_EQ(LastKind(50), Kind::kRefused) << "a second proposal";
  Propose(60, Proposal(3, 0));
  EXPECT_EQ(LastKind(60), Kind::kWaiting) << "the seat is free";
}

TEST_F(RouteAgreementTest, InDoubtHearsCommit) {
  ProposeAll(2);
  AcknowledgeAll(2);
  Gone(1);  // before it has read it
  RouteProposal again = Proposal(2, 1);
  again.in_doubt = kFirstRound;
  Propose(11, again);
  EXPECT_EQ(LastKind(11), Kind::kCommit);
  // That counts as the verdict's arrival: with both written, the next proposal begins a new round.
  core_.Written(0);
  core_.Written(11);
  ProposeAll(2, 100);
  EXPECT_EQ(Last(100).kind, Kind::kPrepare);
  EXPECT_EQ(Last(100).round, kFirstRound + 1);
}

TEST_F(RouteAgreementTest, InDoubtHearsIdentityEvenDuringTheNextRound) {
  ProposeAll(3);
  core_.Acknowledge(1, now_, &out_);
  Gone(1);
  ExpectIdentity({0, 2}, "node 1 has gone");
  Propose(100, Proposal(3, 0));
  RouteProposal again = Proposal(3, 1);
  again.in_doubt = kFirstRound;
  Propose(11, again);
  ExpectIdentity({11}, "node 1 has gone");
  EXPECT_EQ(LastKind(100), Kind::kWaiting);
}

TEST_F(RouteAgreementTest, InDoubtTakesItsSeatWhereTheOldStreamHasNotBrokenYet) {
  ProposeAll(2);
  RouteProposal again = Proposal(2, 1);
  again.in_doubt = kFirstRound;
  Propose(11, again);  // its acknowledgement was lost with the old stream
  Gone(1);
  core_.Acknowledge(0, now_, &out_);
  EXPECT_EQ(LastKind(0), Kind::kCommit);
  EXPECT_EQ(LastKind(11), Kind::kCommit);
}

TEST_F(RouteAgreementTest, AnotherManagersRoundIsUnknown) {
  RouteProposal again = Proposal(2, 1);
  again.in_doubt = 5;
  Propose(1, again);
  EXPECT_EQ(LastKind(1), Kind::kUnknownRound);
}

TEST_F(RouteAgreementTest, KilledBeforeItHasWrittenTakesThePlanThatTheOthersFollow) {
  ProposeAll(3);
  AcknowledgeAll(3);
  core_.Written(0);
  core_.Written(2);
  for (uint64_t peer : {0, 1, 2}) Gone(peer);
  now_ += seconds(1000);
  Propose(11, Proposal(3, 1));
  EXPECT_EQ(LastKind(11), Kind::kPrepare) << "so that it cannot fall back meanwhile";
  core_.Acknowledge(11, now_, &out_);
  Pass(Core::kSettle);
  EXPECT_EQ(LastKind(11), Kind::kCommit);
  core_.Written(11);
  Gone(11);
  ProposeAll(3, 100);
  EXPECT_EQ(Last(101).kind, Kind::kPrepare) << "a new round: all had written";
}

TEST_F(RouteAgreementTest, KilledBeforeItHasWrittenAndAcknowledgesLate) {
  ProposeAll(2);
  AcknowledgeAll(2);
  core_.Written(0);
  Gone(1);
  Propose(11, Proposal(2, 1));
  Pass(Core::kSettle + seconds(5));
  EXPECT_EQ(LastKind(11), Kind::kPrepare);
  core_.Acknowledge(11, now_, &out_);
  EXPECT_EQ(LastKind(11), Kind::kCommit);
}

TEST_F(RouteAgreementTest, KilledBeforeItHasWrittenAndComesBackWithoutThePlanIsRefused) {
  for (const std::string& plan : {std::string(), Digest('b')}) {
    SCOPED_TRACE(plan);
    ProposeAll(2);
    AcknowledgeAll(2);
    core_.Written(0);
    Gone(0);
    Gone(1);
    Propose(11, Proposal(2, 1, plan));
    EXPECT_EQ(LastKind(11), Kind::kWaiting);
    Pass(Core::kSettle);
    EXPECT_EQ(LastKind(11), Kind::kRefused);
    EXPECT_THAT(Last(11).reason, AllOf(HasSubstr("node 1"), HasSubstr("the other nodes follow a plan")));
    core_ = Core(kFirstRound);
    out_.clear();
  }
}

TEST_F(RouteAgreementTest, StartedAgainTogetherItIsANewRoundWhoeverComesFirst) {
  ProposeAll(3);
  AcknowledgeAll(3);
  core_.Written(0);
  for (uint64_t peer : {0, 1, 2}) Gone(peer);
  Propose(101, Proposal(3, 1));  // had not written
  core_.Acknowledge(101, now_, &out_);
  Pass(seconds(2));
  Propose(100, Proposal(3, 0));
  Pass(seconds(20));
  EXPECT_EQ(LastKind(101), Kind::kWaiting) << "no plan without node 2";
  Propose(102, Proposal(3, 2, ""));
  ExpectIdentity({100, 101, 102}, "node 2 has no plan");
}

TEST_F(RouteAgreementTest, AllThereIsANewRoundThoughNoneHadWritten) {
  ProposeAll(2);
  AcknowledgeAll(2);
  Gone(0);
  Gone(1);
  Propose(100, Proposal(2, 0));
  Propose(101, Proposal(2, 1, Digest('b')));
  ExpectIdentity({100, 101}, "node 1 has planned something else");
}

TEST_F(RouteAgreementTest, ALateNodeHearsOfIdentity) {
  Propose(0, Proposal(3, 0));
  Propose(1, Proposal(3, 1));
  Gone(1);
  Pass(seconds(1));
  Propose(2, Proposal(3, 2));
  EXPECT_EQ(LastKind(2), Kind::kWaiting);
  Pass(Core::kSettle);
  ExpectIdentity({2}, "node 1 has gone");
  // Node 0 has been told: when it comes again, all were started again.
  Propose(101, Proposal(3, 1));
  Propose(100, Proposal(3, 0));
  Propose(102, Proposal(3, 2));
  EXPECT_EQ(LastKind(101), Kind::kPrepare);
}

TEST_F(RouteAgreementTest, AVeryLateNodeBeginsANewRound) {
  Propose(0, Proposal(3, 0));
  Propose(1, Proposal(3, 1));
  Gone(1);
  Pass(Core::kLateWindow);
  Propose(2, Proposal(3, 2));
  Pass(seconds(20));
  EXPECT_EQ(LastKind(2), Kind::kWaiting);
  EXPECT_THAT(Last(2).missing, ElementsAre(0, 1));
}

TEST_F(RouteAgreementTest, ARoundNobodyHeardTheEndOfBindsNobody) {
  Propose(0, Proposal(2, 0));
  Gone(0);
  Propose(10, Proposal(2, 0));
  Pass(seconds(9));
  EXPECT_EQ(LastKind(10), Kind::kWaiting);
  Propose(11, Proposal(2, 1));
  EXPECT_EQ(LastKind(10), Kind::kPrepare);
}

TEST_F(RouteAgreementTest, AnotherRankTableOrSizeIsAnotherRound) {
  ProposeAll(3);
  AcknowledgeAll(3);
  for (uint64_t peer : {0, 1, 2}) Gone(peer);
  for (uint32_t i : {0, 1, 2}) Propose(100 + i, Proposal(3, i, Digest('b'), Digest('9')));
  AcknowledgeAll(3, 100);
  EXPECT_EQ(LastKind(102), Kind::kCommit);
  for (uint64_t peer : {100, 101, 102}) Gone(peer);
  ProposeAll(2, 200);
  AcknowledgeAll(2, 200);
  EXPECT_EQ(LastKind(201), Kind::kCommit);
}

TEST_F(RouteAgreementTest, TheLargestJob) {
  ProposeAll(Core::kMaxNodes);
  AcknowledgeAll(Core::kMaxNodes);
  EXPECT_EQ(out_.back().message.kind, Kind::kCommit);
  EXPECT_EQ(std::count_if(out_.begin(), out_.end(), [](const auto& o) { return o.message.kind == Kind::kCommit; }),
            Core::kMaxNodes);
}

// Random interleavings: messages that are under way, streams that break, nodes that are killed, give up, come back.
// Nodes behave as agent/route/route_agreement_client.cc does.
class Job {
 public:
  enum class Wrote { kNothing, kPlan, kIdentity };

  Job(uint32_t seed, uint32_t nodes) : random_(seed), nodes_(nodes) {}

  // All processes are new. Returns when each has ended.
  void Run(bool restarts) {
    const bool all_same = Chance(60);
    const std::string table = Chance(90) ? Digest('7') : Digest('8');
    const std::string plan = Chance(70) ? Digest('a') : Digest('b');
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      node = Node();
      node.proposal = Proposal(static_cast<uint32_t>(nodes_.size()), i, plan, table);
      if (!all_same && Chance(15)) node.proposal.plan_digest = Chance(50) ? "" : Digest('c');
      if (!all_same && Chance(4)) node.proposal.table_digest = Digest('9');
      node.state = Chance(3) ? State::kEnded : State::kOff;
    }
    // Together: within kSettle. Except for those that never come.
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < nodes_.size(); ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (uint32_t i : order) {
      if (nodes_[i].state != State::kOff) continue;
      Start(nodes_[i]);
      while (!streams_[nodes_[i].peer].up.empty()) DeliverUp(nodes_[i].peer);
      if (Chance(20)) Step(false);
    }
    const int faults = static_cast<int>(Below(3));
    for (int steps = 0, left = faults; steps < 3000 && !Ended(); ++steps) {
      Step(true);
      if (left > 0 && Chance(10)) {
        --left;
        Fault(restarts);
      }
    }
    // Whoever has not heard by now gives up.
    for (int i = 0; i < 2000 && !Ended(); ++i) {
      Pass(milliseconds(500));
      for (int k = 0; k < 20; ++k) Step(false);
      if (i > 60) GiveUp(nodes_[Below(nodes_.size())]);
    }
    for (Node& node : nodes_) {
      if (node.state != State::kEnded) Break(node);
      node.state = State::kEnded;
    }
    while (!streams_.empty()) DeliverUp(streams_.begin()->first);
  }

  int Count(Wrote what) const {
    return static_cast<int>(
        std::count_if(nodes_.begin(), nodes_.end(), [what](const Node& n) { return n.wrote == what; }));
  }
  // Digests that were adopted.
  std::set<std::string> adopted() const {
    std::set<std::string> plans;
    for (const Node& node : nodes_) {
      if (node.wrote == Wrote::kPlan) plans.insert(node.proposal.plan_digest);
    }
    return plans;
  }
  const std::string& log() const { return log_; }

 private:
  enum class State { kOff, kWaiting, kAcknowledged, kCommitted, kEnded };
  enum class Vote { kProposal, kAcknowledged, kWritten, kGone };
  struct Node {
    RouteProposal proposal;
    State state = State::kOff;
    uint64_t peer = 0;  // 0: no stream
    uint64_t round = 0;
    Core::Time since;
    bool came_back = false;
    Wrote wrote = Wrote::kNothing;
  };
  struct Stream {
    Node* node;  // null: broken
    RouteProposal proposal;
    std::deque<Vote> up;
    std::deque<RouteVerdict> down;
  };

  uint64_t Below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }
  bool Chance(uint64_t percent) { return Below(100) < percent; }
  bool Ended() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.state == State::kEnded; });
  }
  void Log(const Node& node, const std::string& what) {
    absl::StrAppend(&log_, "node ", node.proposal.index, " (peer ", node.peer, ") ", what, "\n");
  }

  void Start(Node& node) {
    node.state = State::kWaiting;
    node.since = now_;
    node.round = 0;
    Connect(node);
  }
  void Connect(Node& node) {
    node.peer = ++peers_;
    Stream& stream = streams_[node.peer];
    stream.node = &node;
    stream.proposal = node.proposal;
    stream.proposal.in_doubt = node.round;
    stream.up.push_back(Vote::kProposal);
    Log(node, absl::StrCat("proposes, in doubt of ", node.round));
  }
  // What is on its way up may still arrive, in part.
  void Break(Node& node) {
    if (node.peer == 0) return;
    Stream& stream = streams_[node.peer];
    stream.node = nullptr;
    while (!stream.up.empty() && Chance(50)) stream.up.pop_back();
    stream.up.push_back(Vote::kGone);
    Log(node, "breaks");
    node.peer = 0;
  }
  void DeliverUp(uint64_t peer) {
    auto found = streams_.find(peer);
    if (found == streams_.end() || found->second.up.empty()) return;
    Stream& stream = found->second;
    const Vote vote = stream.up.front();
    stream.up.pop_front();
    switch (vote) {
      case Vote::kProposal:
        core_.Propose(peer, stream.proposal, now_, &out_);
        break;
      case Vote::kAcknowledged:
        core_.Acknowledge(peer, now_, &out_);
        break;
      case Vote::kWritten:
        core_.Written(peer);
        break;
      case Vote::kGone:
        streams_.erase(found);
        core_.Gone(peer, now_, &out_);
        break;
    }
    Send();
  }
  void Send() {
    for (Core::Output& output : out_) {
      auto stream = streams_.find(output.peer);
      if (stream != streams_.end() && stream->second.node != nullptr) stream->second.down.push_back(output.message);
    }
    out_.clear();
  }
  void DeliverDown(uint64_t peer) {
    auto found = streams_.find(peer);
    if (found == streams_.end() || found->second.down.empty() || found->second.node == nullptr) return;
    Stream& stream = found->second;
    Node& node = *stream.node;
    const RouteVerdict verdict = stream.down.front();
    stream.down.pop_front();
    switch (verdict.kind) {
      case Kind::kWaiting:
        break;
      case Kind::kPrepare:
        ASSERT_EQ(node.state, State::kWaiting);
        node.state = State::kAcknowledged;
        node.round = verdict.round;
        stream.up.push_back(Vote::kAcknowledged);
        Log(node, absl::StrCat("acknowledges ", verdict.round));
        break;
      case Kind::kCommit:
        ASSERT_EQ(node.state, State::kAcknowledged);
        node.state = State::kCommitted;
        Log(node, "commits");
        break;
      case Kind::kIdentity:
        End(node, Wrote::kIdentity, verdict.reason);
        break;
      case Kind::kRefused:
      case Kind::kUnknownRound:
        End(node, Wrote::kNothing, verdict.reason);
        break;
    }
  }
  void End(Node& node, Wrote wrote, const std::string& why) {
    Log(node, absl::StrCat("ends, ", wrote == Wrote::kNothing ? "nothing" : "identity", ": ", why));
    node.wrote = wrote;
    node.state = State::kEnded;
    Break(node);
  }
  void GiveUp(Node& node) {
    // A node that came back because it was killed has all the time that it needs to ask.
    if (now_ < node.since + Core::kSettle + seconds(node.came_back ? 20 : 1)) return;
    if (node.state == State::kWaiting) End(node, Wrote::kIdentity, "gives up");
    if (node.state == State::kAcknowledged) End(node, Wrote::kNothing, "gives up in doubt");
  }
  void Pass(milliseconds time) {
    now_ += time;
    core_.Tick(now_, &out_);
    Send();
  }
  void Step(bool time_passes) {
    Node& node = nodes_[Below(nodes_.size())];
    if ((node.state == State::kWaiting || node.state == State::kAcknowledged) && node.peer == 0) Connect(node);
    if (node.state == State::kCommitted) {
      node.wrote = Wrote::kPlan;
      node.state = State::kEnded;
      if (node.peer != 0) streams_[node.peer].up.push_back(Vote::kWritten);
      Log(node, "writes the plan");
      if (Chance(50)) {
        for (int i = 0; i < 5; ++i) DeliverUp(node.peer);
      }
      Break(node);
    }
    if (!streams_.empty()) {
      auto stream = streams_.begin();
      std::advance(stream, static_cast<int64_t>(Below(streams_.size())));
      const uint64_t peer = stream->first;
      if (Chance(50)) {
        DeliverUp(peer);
      } else {
        DeliverDown(peer);
      }
    }
    if (time_passes && Chance(5)) Pass(milliseconds(Below(1500)));
    if (time_passes && Chance(1)) GiveUp(nodes_[Below(nodes_.size())]);
  }
  void Fault(bool restarts) {
    Node& node = nodes_[Below(nodes_.size())];
    if (Chance(30)) {
      Break(node);
    } else if (Chance(10)) {
      Pass(seconds(12));
    } else if (node.wrote == Wrote::kNothing && node.state != State::kEnded) {
      Log(node, "is killed");
      Break(node);
      node.state = State::kEnded;
      if (!restarts) return;
      // Not before the manager has heard of its death, as after a kill on a host that lives on.
      for (auto& [peer, stream] : streams_) {
        if (stream.node == nullptr && stream.proposal.index == node.proposal.index) {
          while (streams_.contains(peer)) {
            const uint64_t gone = peer;
            DeliverUp(gone);
            if (!streams_.contains(gone)) break;
          }
          break;
        }
      }
      if (Chance(20)) node.proposal.plan_digest = Chance(50) ? "" : Digest('d');
      node.came_back = true;
      Start(node);
    }
  }

  std::mt19937 random_;
  Core::Time now_{seconds(1000)};
  Core core_{kFirstRound};
  std::vector<Core::Output> out_;
  std::vector<Node> nodes_;
  std::map<uint64_t, Stream> streams_;
  uint64_t peers_ = 0;
  std::string log_;
};

void RunJobs(uint32_t seeds, bool restarts) {
  int planned = 0, identity = 0, nothing = 0;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    Job job(seed, 2 + seed % 4);
    for (int run = 0; run < 4; ++run) {
      job.Run(restarts);
      if (::testing::Test::HasFatalFailure()) return;
      const int plan = job.Count(Job::Wrote::kPlan), same = job.Count(Job::Wrote::kIdentity);
      ASSERT_TRUE(plan == 0 || same == 0) << "seed " << seed << " run " << run << "\n" << job.log();
      ASSERT_LE(job.adopted().size(), 1u) << "seed " << seed << " run " << run << "\n" << job.log();
      ++(plan > 0 ? planned : same > 0 ? identity : nothing);
    }
  }
  // The test is worth something only if all of it happens.
  EXPECT_GT(planned, static_cast<int>(seeds / 2));
  EXPECT_GT(identity, static_cast<int>(seeds / 2));
  EXPECT_GT(nothing, 0);
}

TEST(RouteAgreementInterleavings, NoMixture) { RunJobs(5000, /*restarts=*/false); }
TEST(RouteAgreementInterleavings, NoMixtureWhereKilledNodesComeBackAlone) { RunJobs(5000, /*restarts=*/true); }

}  // namespace
}  // namespace taskd::manager
