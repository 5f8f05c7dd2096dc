#include "manager/supervision/supervision_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "common/log.h"
#include "common/testing/deadline.h"

namespace taskd::manager {
namespace {

using Kind = SupervisionEvent::Kind;
using State = SupervisionSnapshot::State;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SupervisionEvent Event(Kind kind, int rank = -1, std::string message = "") {
  SupervisionEvent event;
  event.kind = kind;
  event.rank = rank;
  event.message = std::move(message);
  return event;
}

class Sink : public HangSink {
 public:
  void OnVerdict(const HangVerdict& verdict) override { verdicts.push_back(verdict.hung); }
  void Close() override { closed = true; }
  std::vector<bool> verdicts;
  bool closed = false;
};

// A node with two ranks that step together.
class SupervisionCoreTest : public ::testing::Test {
 protected:
  SupervisionCoreTest() {
    spdlog::set_level(spdlog::level::off);  // 64 KiB of x
    job_.wanted.effective = kAllKindsMask;
    job_.is_seen = true;
    for (int rank = 0; rank < 2; ++rank) job_.ranks.push_back({.rank = rank, .pid = 100 + rank});
  }
  void Look(bool step) {
    for (RankPulse& rank : job_.ranks) {
      rank.step += step ? 1 : 0;
      rank.step_ms = 1000;
      rank.marks[0] += step ? 1 : 0;
    }
    now_ += std::chrono::seconds(1);
    core_.Look(job_, now_, 1);
  }
  void Hang() {
    for (int i = 0; i < 5; ++i) Look(true);
    for (int i = 0; i < 30; ++i) Look(false);
  }
  State state() { return core_.Snapshot().state; }
  absl::Status Report(SupervisionEvent event) { return core_.Report({std::move(event)}, now_); }

  SupervisionCore core_{nullptr};
  JobPulse job_;
  SteadyTime now_{};
};

TEST_F(SupervisionCoreTest, KnowsWhomTheRendezvousWaitsForAndSinceWhen) {
  EXPECT_EQ(core_.Snapshot().waits_for, "");
  const SteadyTime began = now_;
  core_.SetWaitsFor("nodes 1-2 (1 of 3 here)", now_);
  core_.SetWaitsFor("node 2 (2 of 3 here)", now_ + std::chrono::seconds(5));
  EXPECT_EQ(core_.Snapshot().waits_for, "node 2 (2 of 3 here)");
  EXPECT_EQ(core_.Snapshot().waits_since, began) << "since when it waits for anybody";
  core_.SetWaitsFor("", now_);
  EXPECT_EQ(core_.Snapshot().waits_for, "");
  core_.SetWaitsFor("node 2 (2 of 3 here)", now_);
  ASSERT_TRUE(Report(Event(Kind::kEnded)).ok());
  EXPECT_EQ(core_.Snapshot().waits_for, "");
}

TEST_F(SupervisionCoreTest, StatesFollowTheEvents) {
  EXPECT_EQ(state(), State::kUnknown);
  ASSERT_TRUE(Report(Event(Kind::kStarted)).ok());
  EXPECT_EQ(state(), State::kRunning);
  ASSERT_TRUE(Report(Event(Kind::kExited, 1)).ok());
  EXPECT_EQ(state(), State::kRunning);
  ASSERT_TRUE(Report(Event(Kind::kRestarting)).ok());
  EXPECT_EQ(state(), State::kRestarting);
  ASSERT_TRUE(Report(Event(Kind::kStarted)).ok());
  ASSERT_TRUE(Report(Event(Kind::kEnded)).ok());
  EXPECT_EQ(state(), State::kEnded);
  SupervisionSnapshot snapshot = core_.Snapshot();
  EXPECT_EQ(snapshot.restarts, 1u);
  EXPECT_EQ(snapshot.rank_exits, 1u);
  ASSERT_EQ(snapshot.events.size(), 5u);
  EXPECT_EQ(snapshot.events.back().kind, Kind::kEnded);
  EXPECT_GT(snapshot.events.back().time_ns, 0);
}

TEST_F(SupervisionCoreTest, HangIsReportedOnceAndAgainWhenItIsOver) {
  Sink sink;
  ASSERT_TRUE(core_.Subscribe(&sink, {}));
  ASSERT_TRUE(Report(Event(Kind::kStarted)).ok());
  Hang();
  EXPECT_EQ(state(), State::kHung);
  EXPECT_EQ(core_.Snapshot().hung_ranks, 2);
  Sink late;
  ASSERT_TRUE(core_.Subscribe(&late, {}));
  EXPECT_THAT(late.verdicts, ElementsAre(true));
  Look(true);
  EXPECT_EQ(state(), State::kRunning);
  EXPECT_EQ(core_.Snapshot().hung_ranks, 0);
  EXPECT_THAT(sink.verdicts, ElementsAre(true, false));
  std::vector<SupervisionEvent> events = core_.Snapshot().events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, Kind::kHang);
  EXPECT_THAT(events[1].message, HasSubstr("no rank has ended a step"));
  EXPECT_EQ(events[2].kind, Kind::kResumed);
  core_.Close();
  EXPECT_TRUE(sink.closed);
  EXPECT_FALSE(core_.Subscribe(&sink, {}));
}

TEST_F(SupervisionCoreTest, RestartAndEndOfTheRanksEndAHang) {
  Hang();
  ASSERT_TRUE(Report(Event(Kind::kRestarting)).ok());
  EXPECT_EQ(state(), State::kRestarting);
  for (RankPulse& rank : job_.ranks) rank.pid += 100;
  Look(false);
  Hang();
  EXPECT_EQ(state(), State::kHung);
  job_.ranks.clear();
  Look(false);
  EXPECT_EQ(state(), State::kRestarting);
}

// Ctrl-C, as a rule: what held the job up is the answer also after its end.
TEST_F(SupervisionCoreTest, AJobThatEndsInAHangKeepsIt) {
  Hang();
  ASSERT_EQ(state(), State::kHung);
  const std::string text = core_.Snapshot().hang_answer().text;
  job_.ranks.clear();
  Look(false);
  EXPECT_FALSE(core_.Snapshot().hang.has_value()) << "the ranks may start again";
  ASSERT_TRUE(Report(Event(Kind::kEnded)).ok());
  EXPECT_EQ(state(), State::kEnded);
  ASSERT_TRUE(core_.Snapshot().hang.has_value());
  EXPECT_EQ(core_.Snapshot().hang_answer().text, text);
  ASSERT_TRUE(Report(Event(Kind::kStarted)).ok());
  ASSERT_TRUE(Report(Event(Kind::kEnded)).ok());
  EXPECT_FALSE(core_.Snapshot().hang.has_value()) << "the second time it did not hang";
}

TEST_F(SupervisionCoreTest, ProxyAwayIsNotTheEndOfAHang) {
  Hang();
  job_ = {job_.wanted, false, {}};
  Look(false);
  EXPECT_EQ(state(), State::kHung);
}

// The manager was stopped: what the proxies sent meanwhile is not read before it looks.
TEST_F(SupervisionCoreTest, TimeInWhichNobodyLookedIsNoHang) {
  for (int i = 0; i < 5; ++i) Look(true);
  now_ += std::chrono::seconds(1000);
  Look(false);
  EXPECT_NE(state(), State::kHung);
  for (int i = 0; i < 5; ++i) Look(true);
  for (int i = 0; i < 29; ++i) Look(false);
  EXPECT_NE(state(), State::kHung);
  Look(false);
  EXPECT_EQ(state(), State::kHung);
}

// A proxy that was stopped reports nothing: whether its ranks go on is not known.
TEST_F(SupervisionCoreTest, SilenceOfTheProxiesIsNoHang) {
  for (int i = 0; i < 5; ++i) Look(true);
  for (int i = 0; i < 5; ++i) Look(false);
  const JobPulse seen = std::exchange(job_, {job_.wanted, false, {}});
  for (int i = 0; i < 600; ++i) Look(false);
  EXPECT_NE(state(), State::kHung);
  job_ = seen;
  for (int i = 0; i < 5; ++i) Look(true);
  for (int i = 0; i < 30; ++i) Look(false);
  EXPECT_EQ(state(), State::kHung);
  job_ = {job_.wanted, false, {}};
  Look(false);
  EXPECT_EQ(state(), State::kHung) << "nor is it the end of one";
}

TEST_F(SupervisionCoreTest, EvidenceIsOfTheOpenHang) {
  const auto report = [this](uint64_t hang, const std::string& text) {
    HangEvidence evidence;
    evidence.hang = hang;
    evidence.is_found = true;
    evidence.origins = {1};
    evidence.text = text;
    SupervisionEvent event = Event(Kind::kEvidence, -1, text);
    event.evidence = std::make_shared<const HangEvidence>(evidence);
    ASSERT_TRUE(Report(event).ok());
  };
  report(1, "too early");
  EXPECT_EQ(core_.Snapshot().evidence, nullptr);
  Hang();
  EXPECT_EQ(core_.Snapshot().evidence, nullptr);
  report(1, "rank 1 came late");
  report(1, "rank 1 never came");
  report(7, "of another");
  const SupervisionSnapshot snapshot = core_.Snapshot();
  EXPECT_THAT(snapshot.hang_answer().text, HasSubstr("rank 1 never came; no rank has ended a step"));
  EXPECT_EQ(snapshot.events.back().message, "of another");
  EXPECT_EQ(snapshot.events.back().evidence, nullptr);
  Look(true);
  EXPECT_EQ(core_.Snapshot().evidence, nullptr);
  Hang();
  EXPECT_EQ(core_.Snapshot().evidence, nullptr) << "of a new hang nothing is known yet";
}

TEST_F(SupervisionCoreTest, RefusesWhatMakesNoSense) {
  for (Kind kind : {Kind::kUnknown, Kind::kHang, Kind::kResumed}) {
    EXPECT_EQ(Report(Event(kind)).code(), absl::StatusCode::kInvalidArgument);
  }
  absl::Status status = core_.Report({Event(Kind::kStarted), Event(Kind::kExited, -2)}, now_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank: -2"));
  EXPECT_TRUE(core_.Snapshot().events.empty()) << "none was taken";
}

TEST_F(SupervisionCoreTest, KeepsTheNewest) {
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(Report(Event(Kind::kExited, i)).ok());
  std::vector<SupervisionEvent> events = core_.Snapshot().events;
  ASSERT_EQ(events.size(), SupervisionCore::kMaxEvents);
  EXPECT_EQ(events.front().rank, 300);
  EXPECT_EQ(core_.Snapshot().rank_exits, 500u);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Report(Event(Kind::kStacks, -1, std::string(size_t{1} << 20, 'x'))).ok());
  }
  size_t bytes = 0;
  for (const SupervisionEvent& event : core_.Snapshot().events) bytes += event.message.size();
  EXPECT_LE(bytes, SupervisionCore::kMaxEventsBytes);
  EXPECT_EQ(core_.Snapshot().events.back().message.size(), SupervisionCore::kMaxMessageBytes);
}

TEST_F(SupervisionCoreTest, CutsAtWholeCharacters) {
  std::string text(SupervisionCore::kMaxMessageBytes - 1, 'x');
  ASSERT_TRUE(Report(Event(Kind::kStacks, -1, text + "ä")).ok());
  EXPECT_EQ(core_.Snapshot().events.back().message, text);
}

TEST(SupervisionCoreThreadTest, LooksByItself) {
  std::atomic<int> looks{0};
  SupervisionCore core([&] {
    ++looks;
    return JobPulse{};
  });
  EXPECT_TRUE(testing::WaitUntil([&] { return looks > 0; }));
}

}  // namespace
}  // namespace taskd::manager
