#include "manager/page/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> Lines(const EventLog& log, uint64_t since = 0) {
  std::vector<std::string> lines;
  for (const LoggedEvent& event : log.Since(since, EventLog::kMaxEvents)) {
    lines.push_back(std::to_string(event.number) + " " + event.kind + ": " + event.text);
  }
  return lines;
}

diagnosis::Verdict VerdictOf(uint64_t id, bool open) {
  diagnosis::Verdict verdict;
  verdict.id = id;
  verdict.ids = {7};
  verdict.open = open;
  verdict.text = "rank 7 is slow";
  return verdict;
}

TEST(EventLogTest, NumbersWhatHappensInItsOrder) {
  EventLog log;
  SupervisionEvent exited;
  exited.kind = SupervisionEvent::Kind::kExited;
  exited.rank = 3;
  exited.signal = 9;
  exited.message = "killed\nby whom nobody knows";
  log.Add(exited);
  SwitchState state;
  state.revision = 2;
  state.effective = MaskOf(SwitchKind::kStep);
  log.Add(state, 5);
  EXPECT_THAT(Lines(log), ElementsAre("1 exited: rank 3 signal 9: killed",
                                      "2 switch: step on, checkpoint off, forward off, dataloader off, communication "
                                      "off (revision 2)"));
  EXPECT_THAT(Lines(log, 1), SizeIs(1));
  EXPECT_THAT(Lines(log, 2), IsEmpty());
  EXPECT_THAT(Lines(log, 99), IsEmpty());
}

TEST(EventLogTest, AVerdictIsToldWhenItOpensAndWhenItClears) {
  EventLog log;
  diagnosis::Report report;
  report.verdicts = {VerdictOf(1, true)};
  log.Add(report, 1);
  log.Add(report, 2);
  report.verdicts = {VerdictOf(2, true), VerdictOf(1, false)};
  log.Add(report, 3);
  log.Add(report, 4);
  EXPECT_THAT(Lines(log), ElementsAre("1 verdict_opened: rank 7 is slow", "2 verdict_opened: rank 7 is slow",
                                      "3 verdict_cleared: rank 7 is slow"));
  report.verdicts = {VerdictOf(2, false)};
  report.verdicts[0].unjudged = true;
  log.Add(report, 5);
  EXPECT_THAT(Lines(log, 3), ElementsAre("4 verdict_unjudged: rank 7 is slow"));
}

TEST(EventLogTest, VerdictsOfAnEarlierManagerAreNoEvents) {
  EventLog log;
  auto report = std::make_shared<diagnosis::Report>();
  report->verdicts = {VerdictOf(2, true), VerdictOf(1, false)};
  log.Changed(report);
  log.Changed(report);
  EXPECT_THAT(Lines(log), IsEmpty());
  report = std::make_shared<diagnosis::Report>();
  report->verdicts = {VerdictOf(3, true), VerdictOf(2, false), VerdictOf(1, false)};
  log.Changed(report);
  EXPECT_THAT(Lines(log), ElementsAre("1 verdict_opened: rank 7 is slow", "2 verdict_cleared: rank 7 is slow"));
}

TEST(EventLogTest, TheStateAtTheStartIsNoChange) {
  EventLog log;
  log.Changed(SwitchState{});
  EXPECT_EQ(log.last(), 0u);
  log.Changed(SwitchState{});
  EXPECT_EQ(log.last(), 1u);
}

TEST(EventLogTest, KeepsTheNewest) {
  EventLog log;
  SupervisionEvent event;
  event.kind = SupervisionEvent::Kind::kStacks;
  event.message = std::string(64 * 1024, 'x');
  for (int i = 0; i < 100; ++i) log.Add(event);
  event = {};
  event.kind = SupervisionEvent::Kind::kStarted;
  for (int i = 0; i < 2000; ++i) log.Add(event);
  EXPECT_EQ(log.last(), 2100u);
  EXPECT_THAT(Lines(log), SizeIs(EventLog::kMaxEvents));
  EXPECT_THAT(log.Since(0, 3), SizeIs(3));
  EXPECT_EQ(log.NewestStacks(0).number, 0u);
}

TEST(EventLogTest, StacksOfAnEarlierHangAreNotThisOnes) {
  EventLog log;
  SupervisionEvent event;
  event.kind = SupervisionEvent::Kind::kStacks;
  event.message = "ranks 0-3:\n  wait";
  event.time_ns = 10;
  log.Add(event);
  EXPECT_EQ(log.NewestStacks(10).detail, event.message);
  EXPECT_EQ(log.NewestStacks(11).number, 0u);
}

}  // namespace
}  // namespace taskd::manager
