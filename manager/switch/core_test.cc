#include "manager/switch/core.h"

#include <atomic>
#include <climits>
#include <thread>

#include "common/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr KindMask kStep = MaskOf(SwitchKind::kStep);

SwitchChange Set(SwitchKind kind, bool on) {
  SwitchChange change;
  change[static_cast<int>(kind)] = on;
  return change;
}

class FakeNode final : public NodeSink {
 public:
  void Wanted(const SwitchState& state) override { wanted.push_back(state); }
  void Call(const AgentCall& call) override { calls.push_back(call); }
  void Close(const std::string& reason) override { closed = reason; }

  std::vector<SwitchState> wanted;
  std::vector<AgentCall> calls;
  std::string closed;
};

class FakeSubscriber final : public ChangeSink {
 public:
  void Changed(const SwitchState& state) override { changes.push_back(state); }
  void Close() override { closed = true; }

  std::vector<SwitchState> changes;
  bool closed = false;
};

RankReport Attached(int rank, int pid = 100) {
  RankReport report;
  report.rank = rank;
  report.pid = pid;
  report.attached = true;
  return report;
}

RankAnswer Applied(int rank) { return {rank, 0, RankAnswer::State::kApplied, 0, ""}; }

class ManagerCoreTest : public ::testing::Test {
 protected:
  uint64_t Connect(FakeNode& node, int node_rank, std::vector<RankReport> ranks, const std::string& identity = "a") {
    auto stream = core_.Connect({node_rank, "host", identity, "1"}, &node);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(core_.Report(*stream, std::move(ranks), Now()).ok());
    return *stream;
  }
  uint64_t Wait(uint64_t revision) {
    return core_.Wait(revision, [this] { ++done_; });
  }
  std::vector<int> Beating() const {
    std::vector<int> ranks;
    for (const RankPulse& rank : core_.Pulse().ranks) ranks.push_back(rank.rank);
    return ranks;
  }
  // ms after the beginning
  SteadyTime Now(int ms = 0) const { return begin_ + std::chrono::milliseconds(ms); }

  const SteadyTime begin_ = std::chrono::steady_clock::now();
  std::vector<KeptState> kept_;
  absl::Status persist_status_;
  ManagerCore core_{{"ns/job", "task", 2, 2}, {}, [this](const KeptState& state) {
                      kept_.push_back(state);
                      return persist_status_;
                    }};
  std::atomic<int> done_{0};
};

TEST_F(ManagerCoreTest, NodeIsToldTheWantedStateAtOnceAndOnEachChange) {
  core_.ChangeKinds(Set(SwitchKind::kStep, true));
  FakeNode node;
  Connect(node, 0, {});
  ASSERT_EQ(node.wanted.size(), 1u);
  EXPECT_EQ(node.wanted[0], (SwitchState{1, kStep, kStep}));
  core_.ChangeKinds(Set(SwitchKind::kStep, false));
  EXPECT_EQ(node.wanted.back(), (SwitchState{2, 0, 0}));
  EXPECT_EQ(kept_.back().wanted, node.wanted.back());
}

TEST_F(ManagerCoreTest, WaitsForEveryAttachedRankOfConnectedNodes) {
  FakeNode node0, node1;
  uint64_t stream0 = Connect(node0, 0, {Attached(0), Attached(1)});
  RankReport gone = Attached(3);
  gone.attached = false;
  gone.reason = "killed";
  uint64_t stream1 = Connect(node1, 1, {Attached(2), gone});

  uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  ASSERT_NE(Wait(revision), 0u);
  core_.Applied(stream0, revision, {Applied(0)}, Now(3));
  EXPECT_EQ(done_, 0);
  core_.Applied(stream0, revision, {{1, 0, RankAnswer::State::kFailed, 0, "mprotect"}}, Now(4));
  EXPECT_EQ(done_, 0);
  core_.Applied(stream1, revision - 1, {Applied(2)}, Now(4));
  EXPECT_EQ(done_, 0) << "an answer to an older revision";
  core_.Applied(stream1, revision, {Applied(2)}, Now(7));
  EXPECT_EQ(done_, 1);

  auto answers = core_.Answers(revision, Now(), 1);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[0].state, RankAnswer::State::kApplied);
  EXPECT_DOUBLE_EQ(answers[0].ms, 3);
  EXPECT_EQ(answers[1].state, RankAnswer::State::kFailed);
  EXPECT_EQ(answers[1].reason, "mprotect");
  EXPECT_EQ(answers[2].state, RankAnswer::State::kApplied);
  EXPECT_DOUBLE_EQ(answers[2].ms, 7);
  EXPECT_EQ(answers[2].node, 1);
  EXPECT_EQ(answers[3].state, RankAnswer::State::kUnreachable);
  EXPECT_EQ(answers[3].reason, "killed");
}

TEST_F(ManagerCoreTest, ReportsCountAsAnswersToo) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0)});
  SwitchState state = core_.ChangeKinds(Set(SwitchKind::kStep, true));
  Wait(state.revision);
  RankReport report = Attached(0);
  report.applied_revision = state.revision;
  report.applied = state.effective;
  ASSERT_TRUE(core_.Report(stream, {report}, Now(5)).ok());
  EXPECT_EQ(done_, 1);
  EXPECT_DOUBLE_EQ(core_.Answers(state.revision, Now(), 1)[0].ms, 5);
}

TEST_F(ManagerCoreTest, AReportBringsTheAnswerThatWasNotThereYet) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0), Attached(1)});
  SwitchState state = core_.ChangeKinds(Set(SwitchKind::kStep, true));
  Wait(state.revision);
  core_.Applied(stream, state.revision, {Applied(0)}, Now(1));  // rank 1 waits for MSPTI
  EXPECT_EQ(done_, 0);
  RankReport first = Attached(0);
  first.applied_revision = state.revision;
  first.applied = state.effective;
  RankReport second = Attached(1);
  ASSERT_TRUE(core_.Report(stream, {first, second}, Now(2)).ok());
  EXPECT_EQ(done_, 0);
  second.failed_revision = state.revision;
  second.reason = "not applied: another profiler";
  ASSERT_TRUE(core_.Report(stream, {first, second}, Now(30)).ok());
  EXPECT_EQ(done_, 1);
  auto answers = core_.Answers(state.revision, Now(), 1);
  EXPECT_EQ(answers[0].state, RankAnswer::State::kApplied);
  EXPECT_DOUBLE_EQ(answers[0].ms, 1);
  EXPECT_EQ(answers[1].state, RankAnswer::State::kFailed);
  EXPECT_EQ(answers[1].reason, "not applied: another profiler");
  EXPECT_EQ(core_.Snapshot().nodes[0].ranks[1].reason, "not applied: another profiler");

  // A message that was written before the report says nothing new.
  core_.Applied(stream, state.revision, {{1, 0, RankAnswer::State::kFailed, 0, "older"}}, Now(31));
  EXPECT_EQ(core_.Answers(state.revision, Now(), 1)[1].reason, "not applied: another profiler");

  // It was tried again.
  second.failed_revision = 0;
  second.reason.clear();
  second.applied_revision = state.revision;
  second.applied = state.effective;
  ASSERT_TRUE(core_.Report(stream, {first, second}, Now(1000)).ok());
  answers = core_.Answers(state.revision, Now(), 1);
  EXPECT_EQ(answers[1].state, RankAnswer::State::kApplied);
  EXPECT_EQ(answers[1].reason, "");
  EXPECT_DOUBLE_EQ(answers[1].ms, 1000) << "when it was true, not when it was asked";
}

TEST_F(ManagerCoreTest, AFailureOfAnotherRevisionAnswersNothing) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0)});
  uint64_t first = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  uint64_t second = core_.ChangeKinds(Set(SwitchKind::kStep, false)).revision;
  Wait(second);
  RankReport report = Attached(0);
  report.reason = "not applied";
  for (uint64_t revision : {first, second + 1}) {
    report.failed_revision = revision;
    ASSERT_TRUE(core_.Report(stream, {report}, Now(1)).ok());
    EXPECT_EQ(done_, 0);
    EXPECT_EQ(core_.wanted().revision, second);
  }
  report.failed_revision = second;
  ASSERT_TRUE(core_.Report(stream, {report}, Now(1)).ok());
  EXPECT_EQ(done_, 1);
}

TEST_F(ManagerCoreTest, ANewerRevisionAnswersForAnOlderOne) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0)});
  uint64_t first = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  Wait(first);
  uint64_t second = core_.ChangeKinds(Set(SwitchKind::kStep, false)).revision;
  core_.Applied(stream, second, {Applied(0)}, Now(1));
  EXPECT_EQ(done_, 1);
}

TEST_F(ManagerCoreTest, NobodyToWaitForIsDoneAtOnce) {
  EXPECT_EQ(Wait(core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision), 0u);
  EXPECT_EQ(done_, 1);
  auto answers = core_.Answers(1, Now(), 1);
  ASSERT_EQ(answers.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(answers[rank].rank, rank);
    EXPECT_EQ(answers[rank].node, rank / 2);
    EXPECT_EQ(answers[rank].reason, "never attached");
  }
}

TEST_F(ManagerCoreTest, WaitsForAProxyWithoutRanksToo) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {});
  uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  ASSERT_NE(Wait(revision), 0u) << "a rank that starts now would get the state from before";
  core_.Applied(stream, revision, {}, Now(1));
  EXPECT_EQ(done_, 1);
}

TEST_F(ManagerCoreTest, ExpiryDisconnectAndCloseEndAWaitOnce) {
  FakeNode node;
  uint64_t stream = Connect(node, 1, {Attached(2)});
  uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  uint64_t waiter = Wait(revision);
  core_.Expire(waiter);
  core_.Expire(waiter);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(core_.Answers(revision, Now(), 1.5)[2].reason, "no answer within 1.5 s");

  waiter = Wait(revision);
  core_.Disconnect(stream);
  core_.Disconnect(stream);
  core_.Expire(waiter);
  EXPECT_EQ(done_, 2);
  EXPECT_EQ(core_.Answers(revision, Now(), 1)[2].reason, "node 1's proxy is not connected");

  FakeNode again;
  Connect(again, 1, {Attached(2)});
  Wait(revision);
  core_.Close();
  EXPECT_EQ(done_, 3);
  EXPECT_NE(again.closed, "");
  EXPECT_EQ(core_.Connect({0, "h", "i", "v"}, &node).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ManagerCoreTest, ARestartedRankMustAnswerAgain) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0, 100)});
  uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  core_.Applied(stream, revision, {Applied(0)}, Now(1));
  ASSERT_TRUE(core_.Report(stream, {Attached(0, 200)}, Now(2)).ok());
  EXPECT_NE(core_.Answers(revision, Now(), 1)[0].state, RankAnswer::State::kApplied);
}

TEST_F(ManagerCoreTest, TheSameProxyReplacesItsStreamAnotherIsKeptBesideIt) {
  FakeNode first, second, impostor;
  uint64_t old_stream = Connect(first, 0, {Attached(0)});
  Connect(second, 0, {Attached(0)});
  EXPECT_NE(first.closed, "");
  core_.Disconnect(old_stream);  // the old stream's end must not touch the new one
  EXPECT_EQ(core_.Snapshot().nodes.size(), 1u);
  EXPECT_TRUE(core_.Snapshot().nodes[0].connected);

  Connect(impostor, 0, {Attached(7)}, "another");
  EXPECT_EQ(second.closed, "");
  ASSERT_EQ(core_.Snapshot().nodes.size(), 2u);
  EXPECT_TRUE(core_.Snapshot().nodes[1].connected);
}

TEST_F(ManagerCoreTest, ARankThatTwoNodesReportIsTheFirstOnes) {
  FakeNode node0, node1;
  uint64_t stream1 = Connect(node1, 1, {Attached(7)});
  uint64_t stream0 = Connect(node0, 0, {Attached(0)});
  ASSERT_TRUE(core_.Report(stream0, {Attached(0), Attached(7)}, Now()).ok());
  ASSERT_TRUE(core_.Report(stream1, {Attached(7)}, Now()).ok());
  auto attached_at = [this](int node) {
    for (const JobSnapshot::Node& one : core_.Snapshot().nodes) {
      if (one.node != node) continue;
      for (const RankReport& rank : one.ranks) {
        if (rank.rank == 7) return rank.attached ? std::string("attached") : rank.reason;
      }
    }
    return std::string("unknown");
  };
  EXPECT_EQ(attached_at(1), "attached");
  EXPECT_EQ(attached_at(0), "the rank is node 1's (host) already: not counted");
  EXPECT_THAT(Beating(), ElementsAre(0, 7));
  EXPECT_EQ(core_.Answers(0, Now(), 1).back().node, 1);
  RankReport ended = Attached(7);
  ended.attached = false;
  ASSERT_TRUE(core_.Report(stream1, {ended}, Now()).ok());
  EXPECT_EQ(attached_at(0), "attached");
  EXPECT_EQ(core_.Answers(0, Now(), 1).back().node, 0);
  ASSERT_TRUE(core_.Report(stream1, {Attached(7)}, Now()).ok());
  EXPECT_EQ(attached_at(0), "attached") << "the first of now";
  core_.Disconnect(stream0);
  EXPECT_EQ(attached_at(1), "attached");
}

TEST_F(ManagerCoreTest, ThePulseIsThatOfRanksThatLiveWhereItCanBeSeen) {
  FakeNode here, gone;
  EXPECT_FALSE(core_.Pulse().is_seen);
  RankReport counted = Attached(3);
  counted.step = 9;
  counted.step_ms = 2.5;
  counted.marks = {1, 2, 3, 4, 5, 6};
  counted.stopped_ms = 7;
  RankReport ended = Attached(4);
  ended.attached = false;
  Connect(here, 1, {counted, ended});
  core_.Disconnect(Connect(gone, 0, {Attached(0)}));
  const SwitchState wanted = core_.ChangeKinds(Set(SwitchKind::kStep, true));
  const JobPulse pulse = core_.Pulse();
  EXPECT_EQ(pulse.wanted.revision, wanted.revision);
  EXPECT_TRUE(pulse.is_seen);
  ASSERT_EQ(pulse.ranks.size(), 1u);
  EXPECT_EQ(pulse.ranks[0].rank, 3);
  EXPECT_EQ(pulse.ranks[0].pid, counted.pid);
  EXPECT_EQ(pulse.ranks[0].step, 9);
  EXPECT_EQ(pulse.ranks[0].step_ms, 2.5);
  EXPECT_EQ(pulse.ranks[0].marks, counted.marks);
  EXPECT_EQ(pulse.ranks[0].stopped_ms, 7u);
}

TEST_F(ManagerCoreTest, NobodySeesThePulseOfASilentProxy) {
  FakeNode silent, alive;
  // Both say that they have rank 1; it is the silent one's.
  ASSERT_TRUE(
      core_
          .Report(*core_.Connect({0, "host", "a", "1", std::nullopt, true}, &silent), {Attached(0), Attached(1)}, Now())
          .ok());
  Connect(alive, 1, {Attached(1), Attached(2)});
  EXPECT_THAT(Beating(), ElementsAre(0, 1, 2));
  for (int second = 1; second < 8; ++second) core_.Look(begin_ + std::chrono::seconds(second));
  EXPECT_THAT(Beating(), ElementsAre(2));
  EXPECT_TRUE(core_.Pulse().is_seen);
}

TEST_F(ManagerCoreTest, AProxyThatMovedReplacesOneThatHasGone) {
  FakeNode first, second;
  core_.Disconnect(Connect(first, 0, {Attached(0)}, "old pod"));
  Connect(second, 0, {Attached(0)}, "new pod");
  EXPECT_EQ(core_.Snapshot().nodes.size(), 1u);
}

TEST_F(ManagerCoreTest, ARankKnownTwiceCountsWhereItIsAttached) {
  FakeNode old_node, new_node;
  core_.Disconnect(Connect(old_node, 0, {Attached(0)}));
  uint64_t stream = Connect(new_node, 1, {Attached(0)});
  uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, true)).revision;
  core_.Applied(stream, revision, {Applied(0)}, Now(1));
  auto answers = core_.Answers(revision, Now(), 1);
  EXPECT_EQ(answers[0].node, 1);
  EXPECT_EQ(answers[0].state, RankAnswer::State::kApplied);
}

TEST_F(ManagerCoreTest, BadReportsAreRefusedWhole) {
  FakeNode node;
  uint64_t stream = Connect(node, 0, {Attached(0)});
  EXPECT_THAT(std::string(core_.Report(stream, {Attached(1), Attached(-1)}, Now()).message()), HasSubstr("-1"));
  EXPECT_THAT(std::string(core_.Report(stream, {Attached(INT_MAX), Attached(1)}, Now()).message()),
              HasSubstr("2147483647 is above"));
  EXPECT_THAT(std::string(core_.Report(stream, {Attached(1), Attached(1)}, Now()).message()), HasSubstr("twice"));
  EXPECT_FALSE(core_.Report(stream, std::vector<RankReport>(kMaxRanksPerNode + 1), Now()).ok());
  EXPECT_EQ(core_.Snapshot().nodes[0].ranks.at(0).rank, 0);
  EXPECT_FALSE(core_.Connect({-1, "h", "i", "v"}, &node).ok());
  EXPECT_FALSE(core_.Connect({1, std::string(1000, 'h'), "i", "v"}, &node).ok());
  RankReport wordy = Attached(0);
  wordy.reason = std::string(100000, 'r');
  ASSERT_TRUE(core_.Report(stream, {wordy}, Now()).ok());
  EXPECT_LE(core_.Snapshot().nodes[0].ranks[0].reason.size(), kMaxTextBytes);
  wordy.reason = std::string(kMaxTextBytes - 1, 'r') + "节";
  ASSERT_TRUE(core_.Report(stream, {wordy}, Now()).ok());
  EXPECT_EQ(core_.Snapshot().nodes[0].ranks[0].reason, std::string(kMaxTextBytes - 1, 'r'));
}

TEST_F(ManagerCoreTest, RevisionsOfALostStateAreNotGivenOutAgain) {
  FakeNode node;
  auto stream = core_.Connect({0, "h", "i", "v"}, &node);
  RankReport report = Attached(0);
  report.applied_revision = 41;
  report.applied = kAllKindsMask;
  ASSERT_TRUE(core_.Report(*stream, {report}, Now()).ok());
  EXPECT_EQ(core_.wanted(), (SwitchState{42, 0, 0}));
  EXPECT_EQ(node.wanted.back().revision, 42u);
  // The same number for another state is no answer either.
  report.applied_revision = 42;
  FakeNode again;
  stream = core_.Connect({0, "h", "i", "v"}, &again);
  ASSERT_TRUE(core_.Report(*stream, {report}, Now()).ok());
  EXPECT_EQ(core_.wanted().revision, 43u);
  // Once a stream, and never into overflow.
  report.applied_revision = 100;
  ASSERT_TRUE(core_.Report(*stream, {report}, Now()).ok());
  report.applied_revision = ~uint64_t{0};
  FakeNode hostile;
  stream = core_.Connect({0, "h", "i", "v"}, &hostile);
  ASSERT_TRUE(core_.Report(*stream, {report}, Now()).ok());
  EXPECT_EQ(core_.wanted().revision, 43u);
}

TEST_F(ManagerCoreTest, SubscribersGetThePresentAndEachChangeInOrder) {
  core_.ChangeDomains(Set(SwitchKind::kStep, true));
  FakeSubscriber one, two;
  EXPECT_TRUE(core_.Subscribe(&one));
  core_.ChangeDomains(Set(SwitchKind::kCommunication, true));
  EXPECT_TRUE(core_.Subscribe(&two));
  core_.Unsubscribe(&one);
  core_.ChangeDomains(Set(SwitchKind::kStep, false));
  ASSERT_EQ(one.changes.size(), 2u);
  EXPECT_EQ(one.changes[0].revision, 1u);
  EXPECT_EQ(one.changes[1].revision, 2u);
  ASSERT_EQ(two.changes.size(), 2u);
  EXPECT_EQ(two.changes[1].revision, 3u);
  core_.Close();
  EXPECT_TRUE(two.closed);
  EXPECT_FALSE(core_.Subscribe(&one));
}

TEST_F(ManagerCoreTest, OnlyNewWordsOfFileAndClusterdAreCommands) {
  core_.ApplySwitchFile(Set(SwitchKind::kStep, true));
  core_.ApplyClusterdSwitch(Set(SwitchKind::kStep, false), true);
  EXPECT_EQ(core_.wanted().revision, 2u);
  SwitchState own = core_.ChangeKinds(Set(SwitchKind::kForward, true));
  core_.ApplySwitchFile(Set(SwitchKind::kStep, true));
  core_.ApplyClusterdSwitch(Set(SwitchKind::kStep, false), true);
  EXPECT_EQ(core_.wanted(), own) << "replays";
  core_.ApplyClusterdSwitch(Set(SwitchKind::kStep, false), false);
  EXPECT_EQ(core_.wanted().revision, own.revision + 1) << "the same command, given again";
  core_.ApplySwitchFile(Set(SwitchKind::kStep, false));
  EXPECT_EQ(core_.wanted().revision, own.revision + 2);

  // A successor goes on from what was kept.
  ManagerCore successor({}, kept_.back(), {});
  EXPECT_EQ(successor.wanted(), core_.wanted());
  successor.ApplySwitchFile(Set(SwitchKind::kStep, false));
  EXPECT_EQ(successor.wanted(), core_.wanted());
}

TEST_F(ManagerCoreTest, AStateThatCannotBeKeptIsTriedAgain) {
  persist_status_ = absl::UnavailableError("disk full");
  core_.ChangeKinds(Set(SwitchKind::kStep, true));
  EXPECT_EQ(core_.wanted().effective, kStep);
  core_.RetryPersist();
  EXPECT_EQ(kept_.size(), 2u);
  persist_status_ = absl::OkStatus();
  core_.RetryPersist();
  core_.RetryPersist();
  ASSERT_EQ(kept_.size(), 3u);
  EXPECT_EQ(kept_.back().wanted, core_.wanted());
}

TEST_F(ManagerCoreTest, WhoHasGoneIsForgottenAfterAWhileUnlessTheJobHasIt) {
  FakeNode expected, other, back;
  uint64_t stream = Connect(expected, 1, {Attached(2)});
  uint64_t other_stream = Connect(other, 2, {Attached(9)});
  core_.Disconnect(stream);
  core_.Disconnect(other_stream);
  const auto forget_at = [&](std::chrono::minutes minutes) { core_.Look(begin_ + minutes); };
  forget_at(std::chrono::minutes(1));
  forget_at(std::chrono::minutes(10));
  EXPECT_EQ(core_.Snapshot().nodes.size(), 2u);
  forget_at(std::chrono::minutes(11));
  ASSERT_EQ(core_.Snapshot().nodes.size(), 1u);
  EXPECT_EQ(core_.Snapshot().nodes[0].node, 1) << "the job of two nodes has it";
  // Coming back begins anew.
  other_stream = Connect(back, 2, {Attached(9)});
  forget_at(std::chrono::minutes(60));
  core_.Disconnect(other_stream);
  forget_at(std::chrono::minutes(61));
  forget_at(std::chrono::minutes(70));
  EXPECT_EQ(core_.Snapshot().nodes.size(), 2u);
  forget_at(std::chrono::minutes(71));
  EXPECT_EQ(core_.Snapshot().nodes.size(), 1u);
}

TEST_F(ManagerCoreTest, ASilentProxyIsShownAndThenItsStreamIsClosed) {
  FakeNode silent, alive, old;
  const uint64_t stream = *core_.Connect({0, "host", "a", "1", std::nullopt, true}, &silent);
  const uint64_t other = *core_.Connect({1, "host", "b", "1", std::nullopt, true}, &alive);
  core_.Connect({2, "host", "c", "1"}, &old).IgnoreError();  // of an earlier release
  int second = 0;
  const auto look = [&](int seconds, bool heard) {
    for (const int end = second + seconds; second < end;) {
      core_.Look(begin_ + std::chrono::seconds(++second));
      if (heard) core_.Heard(stream);
      core_.Heard(other);
    }
    return core_.Snapshot().nodes;
  };
  EXPECT_EQ(look(100, true)[0].silent.count(), 0);
  EXPECT_EQ(look(4, false)[0].silent.count(), 0);
  EXPECT_EQ(look(3, false)[0].silent.count(), 7);
  second += 3600;  // this one did not run
  EXPECT_EQ(look(1, false)[0].silent.count(), 9);
  EXPECT_EQ(look(1, true)[0].silent.count(), 0);
  EXPECT_EQ(look(19, false)[0].silent.count(), 19);
  EXPECT_EQ(silent.closed, "");
  const std::vector<JobSnapshot::Node> nodes = look(1, false);
  EXPECT_EQ(silent.closed, "silent for 20 s");
  EXPECT_FALSE(nodes[0].connected);
  EXPECT_EQ(nodes[0].silent.count(), 0);
  for (const int node : {1, 2}) {
    EXPECT_TRUE(nodes[node].connected);
    EXPECT_EQ(nodes[node].silent.count(), 0);
  }
  core_.Heard(stream);  // too late
}

TEST_F(ManagerCoreTest, RanksOfAllNodesHaveASumAndWhoWentFirstMakesRoom) {
  constexpr int kFit = static_cast<int>(kMaxKnownRanks) / kMaxRanksPerNode;  // nodes
  auto ranks = [&](int node) {
    std::vector<RankReport> reports;
    for (int i = 0; i < kMaxRanksPerNode; ++i) reports.push_back(Attached(node * kMaxRanksPerNode + i));
    return reports;
  };
  auto known = [&] {
    size_t sum = 0;
    for (const auto& node : core_.Snapshot().nodes) sum += node.ranks.size();
    return sum;
  };
  std::vector<FakeNode> nodes(200);
  for (int i = 0; i < 200; ++i) {
    core_.Disconnect(Connect(nodes[i], i, ranks(i)));
    EXPECT_LE(known(), kMaxKnownRanks);
  }
  EXPECT_EQ(known(), kMaxKnownRanks);
  EXPECT_EQ(core_.Snapshot().nodes.front().node, 200 - kFit) << "who went first was forgotten first";
  EXPECT_EQ(core_.Answers(1, Now(), 1).size(), kMaxKnownRanks + 4) << "and those that the job expects";

  // With all of them here there is no room for one more.
  std::vector<FakeNode> live(kFit + 1);
  std::vector<uint64_t> streams;
  for (int i = 0; i < kFit; ++i) streams.push_back(Connect(live[i], i, ranks(i)));
  EXPECT_EQ(known(), kMaxKnownRanks);
  uint64_t late = Connect(live[kFit], kFit, {});
  EXPECT_TRUE(absl::IsResourceExhausted(core_.Report(late, {Attached(kFit * kMaxRanksPerNode)}, Now())));
  EXPECT_EQ(known(), kMaxKnownRanks);
  EXPECT_TRUE(core_.Report(streams[3], ranks(3), Now()).ok()) << "the same again";
  core_.Disconnect(streams[7]);
  EXPECT_TRUE(core_.Report(late, {Attached(kFit * kMaxRanksPerNode)}, Now()).ok());
  EXPECT_EQ(known(), kMaxKnownRanks - kMaxRanksPerNode + 1);
}

TEST_F(ManagerCoreTest, AgentsAnswersFitIntoOneMessage) {
  std::vector<FakeNode> nodes(1000);
  std::vector<uint64_t> streams;
  for (int i = 0; i < 1000; ++i) streams.push_back(Connect(nodes[i], i, {}));
  size_t bytes = 0;
  core_.CallAgents({0, "MONITOR", "{}"}, {}, [&](const std::vector<NodeAnswer>& all) {
    EXPECT_EQ(all.size(), 1000u);
    for (const NodeAnswer& answer : all) {
      bytes += answer.message.size();
      EXPECT_TRUE(IsUtf8(answer.message));
    }
  });
  std::string wordy;
  while (wordy.size() < kMaxAgentArgsBytes) wordy += "节";
  for (int i = 0; i < 1000; ++i) core_.AgentReplied(streams[i], nodes[i].calls[0].id, true, wordy);
  EXPECT_GT(bytes, size_t{1} << 20);
  EXPECT_LE(bytes, size_t{3} << 20);
}

TEST_F(ManagerCoreTest, CallsAgentsAndCollectsEveryNodesAnswer) {
  FakeNode node0, node1, node2;
  uint64_t stream0 = Connect(node0, 0, {});
  uint64_t stream1 = Connect(node1, 1, {});
  core_.Disconnect(Connect(node2, 2, {}));
  std::vector<NodeAnswer> answers;
  uint64_t call =
      core_.CallAgents({0, "MONITOR", "{}"}, {}, [&](const std::vector<NodeAnswer>& all) { answers = all; });
  ASSERT_NE(call, 0u);
  ASSERT_EQ(node0.calls.size(), 1u);
  EXPECT_EQ(node0.calls[0].operation, "MONITOR");
  core_.AgentReplied(stream1, node1.calls[0].id, true, "fine");
  core_.AgentReplied(stream1, node1.calls[0].id, false, "twice");
  EXPECT_TRUE(answers.empty());
  core_.Disconnect(stream0);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_FALSE(answers[0].ok);
  EXPECT_TRUE(answers[1].ok);
  EXPECT_EQ(answers[1].message, "fine");
  EXPECT_FALSE(answers[2].ok);

  answers.clear();
  call = core_.CallAgents({0, "MONITOR", ""}, {1, 9}, [&](const std::vector<NodeAnswer>& all) { answers = all; });
  core_.ExpireCall(call);
  core_.ExpireCall(call);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].message, "no answer in time");
  EXPECT_EQ(answers[1].node, 9);
}

TEST(CheckAgentCallTest, KnowsOperationsAndArguments) {
  EXPECT_TRUE(CheckAgentCall({0, "KILL_WORKER", ""}).ok());
  EXPECT_TRUE(CheckAgentCall({0, "RESTART", R"( {"a":[1,2]} )"}).ok());
  for (const char* bad : {"[]", "x", "{", " ", "3", "{}{}"})
    EXPECT_FALSE(CheckAgentCall({0, "RESTART", bad}).ok()) << bad;
  EXPECT_FALSE(CheckAgentCall({0, "kill_worker", "{}"}).ok());
  EXPECT_FALSE(CheckAgentCall({0, "RESTART", "{\"a\":\"" + std::string(kMaxAgentArgsBytes, 'x') + "\"}"}).ok());
}

TEST(CheckJobNameTest, IsNamespaceSlashName) {
  EXPECT_TRUE(CheckJobName("ns/name").ok());
  for (const char* bad : {"", "/", "ns", "ns/", "/name", "a/b/c", "//"}) EXPECT_FALSE(CheckJobName(bad).ok()) << bad;
  EXPECT_FALSE(CheckJobName("ns/" + std::string(1000, 'n')).ok());
}

// For ThreadSanitizer: everything at once. What holds in the end: each wait ended once, each subscriber saw every
// revision in order, each node the last one.
TEST_F(ManagerCoreTest, ManyThreads) {
  constexpr int kNodes = 8;
  constexpr int kChanges = 200;
  FakeSubscriber subscriber;
  core_.Subscribe(&subscriber);
  std::atomic<bool> stop{false};
  std::vector<FakeNode> nodes(kNodes);
  std::vector<std::thread> threads;
  std::atomic<int> waits{0};
  for (int i = 0; i < kNodes; ++i) {
    threads.emplace_back([&, i] {
      uint64_t stream = 0;
      for (int turn = 0; !stop; ++turn) {
        if (stream == 0) stream = *core_.Connect({i, "h", "i", "v"}, &nodes[i]);
        RankReport report = Attached(i);
        SwitchState wanted = core_.wanted();
        report.applied_revision = wanted.revision;
        report.applied = wanted.effective;
        EXPECT_TRUE(core_.Report(stream, {report}, Now()).ok());
        core_.Applied(stream, core_.wanted().revision, {Applied(i)}, Now());
        if (turn % 50 == 49) {
          core_.Disconnect(stream);
          stream = 0;
        }
      }
      if (stream == 0) stream = *core_.Connect({i, "h", "i", "v"}, &nodes[i]);
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int change = 0; change < kChanges; ++change) {
        uint64_t revision = core_.ChangeKinds(Set(SwitchKind::kStep, change % 2 == 0)).revision;
        ++waits;
        uint64_t waiter = Wait(revision);
        core_.Answers(revision, Now(), 1);
        core_.Snapshot();
        if (change % 3 == 0) core_.Expire(waiter);
      }
    });
  }
  for (size_t i = kNodes; i < threads.size(); ++i) threads[i].join();
  stop = true;
  for (int i = 0; i < kNodes; ++i) threads[i].join();
  core_.Close();
  EXPECT_EQ(done_, waits);
  ASSERT_EQ(subscriber.changes.size(), 2u * kChanges + 1);
  for (size_t i = 0; i < subscriber.changes.size(); ++i) EXPECT_EQ(subscriber.changes[i].revision, i);
  for (const FakeNode& node : nodes) EXPECT_EQ(node.wanted.back(), core_.wanted());
}

TEST_F(ManagerCoreTest, TotalsNeverFall) {
  FakeNode node0, node1;
  RankReport lively = Attached(0), lossy = Attached(7);
  lively.marks[0] = 100;
  lossy.marks[0] = 50;
  lossy.lost = 3;
  Connect(node0, 0, {lively});
  const uint64_t elastic = Connect(node1, 2, {lossy});
  const auto steps = [this] { return core_.Snapshot().marks_total[0]; };
  EXPECT_EQ(steps(), 150u);
  core_.Disconnect(elastic);
  for (int minutes : {0, 11}) core_.Look(begin_ + std::chrono::minutes(minutes));
  ASSERT_EQ(core_.Snapshot().nodes.size(), 1u);
  EXPECT_EQ(steps(), 150u);
  EXPECT_EQ(core_.Snapshot().lost_total, 3u);
  // A proxy that was started again knows of the living process alone.
  lively.marks[0] = 40;
  const uint64_t again = Connect(node0, 0, {lively});
  EXPECT_EQ(steps(), 150u);
  lively.marks[0] = 45;
  EXPECT_TRUE(core_.Report(again, {lively}, Now()).ok());
  EXPECT_EQ(steps(), 155u);
}

}  // namespace
}  // namespace taskd::manager
