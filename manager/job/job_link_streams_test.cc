// Nodes whose streams break, fall silent or come anew, and the attempts that follow each other.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/job/job_link_core.h"
#include "manager/job/test_link_job.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Gone and back

TEST(JobLinkCoreTest, LostNodeHasFiveSeconds) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Lose(11);
  job.Pass(4900 * kMs);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  EXPECT_EQ(job.Last<JobState>(10).connected, 1u);
  job.Enter(12, Join(1, 2));
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.Lose(12);
  job.Pass(5 * kS);
  EXPECT_THAT(job.Ends(10), ElementsAre(1));
  EXPECT_EQ(job.Last<JobEnd>(10).reason, "node 1 (b): its `taskd run` is gone");
  job.Enter(13, Join(1, 2));
  EXPECT_THAT(job.Ends(13), ElementsAre(1));
}

// The manager was stopped: the node may be back, and its join not read yet.
TEST(JobLinkCoreTest, TimeInWhichNobodyLookedGivesNobodyUp) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Lose(11);
  job.Pass(kS);
  job.now += 9 * kS;
  job.Take(job.core.Tick(job.now));
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.Enter(12, Join(1, 2));
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.Lose(10);
  job.Lose(12);
  job.now += 9 * kS;
  job.Take(job.core.Tick(job.now));
  job.Enter(13, Join(0, 2));
  job.Enter(14, Join(1, 2));
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(13), IsEmpty());
  job.Lose(14);
  job.Pass(5 * kS);
  EXPECT_THAT(job.Ends(13), ElementsAre(1));
}

TEST(JobLinkCoreTest, NodeThatHasEndedMayGo) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.End(11, 0);
  job.Lose(11);
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.End(10, 0);
  EXPECT_THAT(job.Ends(10), ElementsAre(0));
}

TEST(JobLinkCoreTest, WhenAllHaveGoneTheAttemptEnds) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.End(10, 0);
  job.Lose(10);
  job.Enter(11, Join(0, 2, "again"));  // waits: the first run may come back
  EXPECT_FALSE(job.Last<JobState>(11).first_joined);
  job.Pass(5 * kS);
  EXPECT_TRUE(job.Last<JobState>(11).first_joined);
  job.Enter(12, Join(1, 2));
  job.End(11, 0);
  job.End(12, 0);
  EXPECT_THAT(job.Ends(11), ElementsAre(0));
}

TEST(JobLinkCoreTest, ReconnectionSaysAgainWhatWasReported) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Serving(Join(1, 2)));
  job.Lose(11);
  JobJoin again = Serving(Join(1, 2));
  again.ready = true;
  job.Enter(12, again);
  EXPECT_TRUE(job.Last<JobState>(10).all_ready);
  job.Lose(10);
  again = Join(0, 2);
  again.ended = JobEnd{0, ""};
  job.Enter(13, again);
  EXPECT_THAT(job.Ends(13), ElementsAre(0));
  EXPECT_THAT(job.Ends(12), ElementsAre(0));
}

TEST(JobLinkCoreTest, ManagerThatForgotLearnsFromTheNodes) {
  LinkJob job;
  JobJoin first = Join(0, 2);
  first.ended = JobEnd{0, ""};
  job.Enter(10, first);
  JobJoin second = Join(1, 2);
  second.ended = JobEnd{5, "it"};
  job.Enter(11, second);
  EXPECT_THAT(job.Ends(10), ElementsAre(5));
  EXPECT_THAT(job.Ends(11), ElementsAre(5));
}

TEST(JobLinkCoreTest, LateOnesHearOfTheEnd) {
  LinkJob job;
  job.Enter(10, Join(0, 4));
  job.Enter(11, Join(1, 4));
  job.End(11, 7);
  job.Pass(60 * kS);  // others of it are connected still
  job.Enter(12, Join(2, 4));
  EXPECT_THAT(job.Ends(12), ElementsAre(7));
  for (uint64_t peer : {10, 11, 12}) job.Lose(peer);
  job.Enter(13, Join(3, 4));  // 10 s are over and nobody is left: a new attempt
  EXPECT_THAT(job.Ends(13), IsEmpty());
}

TEST(JobLinkCoreTest, LateOnesHearOfTheEndForTenSeconds) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.End(10, 7);
  job.Lose(10);
  job.Pass(9900 * kMs);
  job.Enter(11, Join(1, 2));
  EXPECT_THAT(job.Ends(11), ElementsAre(7));
  job.Lose(11);
  job.Pass(kS);
  job.Enter(12, Join(1, 2, "later"));
  EXPECT_THAT(job.Ends(12), IsEmpty());
}

TEST(JobLinkCoreTest, NodeWhoseStreamBrokeHearsOfTheEnd) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Lose(11);
  job.End(10, 4);
  job.Enter(12, Join(1, 2));
  EXPECT_THAT(job.Ends(12), ElementsAre(4));
}

TEST(JobLinkCoreTest, WhoIsLeftHearsThatTheOthersGo) {
  LinkJob job;
  for (uint32_t i = 0; i < 3; ++i) job.Enter(10 + i, Join(i, 3));
  job.End(11, 7);
  job.Lose(12);
  job.Pass(kS);
  EXPECT_EQ(job.Last<JobState>(10).connected, 2u);
  job.Lose(11);
  EXPECT_EQ(job.Last<JobState>(10).connected, 1u) << "without a second's delay: node 0 waits for it";
}

// ---- Silent

JobJoin Watched(JobJoin join, uint32_t node_timeout_ms = 60'000) {
  join.node_timeout_ms = node_timeout_ms;
  return join;
}

// Each of these peers says every 2 s that it runs.
void PassAlive(LinkJob& job, int64_t ns, const std::vector<uint64_t>& alive) {
  for (const int64_t until = job.now + ns; job.now < until;) {
    job.Pass(std::min(2 * kS, until - job.now));
    for (const uint64_t peer : alive) job.Take(job.core.Alive(peer, job.now));
  }
}

TEST(JobLinkCoreTest, SilentNodeHasAMinute) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 2)));
  job.Enter(11, Watched(Join(1, 2)));
  PassAlive(job, 10 * kS, {10, 11});
  PassAlive(job, 57'900 * kMs, {10});
  EXPECT_THAT(job.Ends(10), IsEmpty());
  PassAlive(job, 600 * kS, {10, 11});
  EXPECT_THAT(job.Ends(10), IsEmpty());
  EXPECT_THAT(job.All<JobAlive>(11), ::testing::SizeIs(305)) << "each one is answered";
  PassAlive(job, 62 * kS, {10});
  EXPECT_THAT(job.Ends(10), ElementsAre(1));
  EXPECT_EQ(job.Last<JobEnd>(10).reason, "node 1 (b): its `taskd run` was silent for 60 s");
  EXPECT_EQ(job.Last<StreamEnd>(11).status, absl::DeadlineExceededError("this node was silent for 60 s"));
  EXPECT_THAT(job.Ends(11), IsEmpty());
  job.Lose(10);
  job.Pass(1800 * kS);
  job.Enter(12, Watched(Join(1, 2)));
  EXPECT_THAT(job.Ends(12), ElementsAre(1)) << "it was only stopped, and hears of it";
}

TEST(JobLinkCoreTest, NodeZerosTimeoutHolds) {
  LinkJob job;
  job.Enter(11, Watched(Join(1, 2), 5'000));
  EXPECT_EQ(job.Last<JobState>(11).node_timeout_ms, 60'000u);
  PassAlive(job, 30 * kS, {});
  EXPECT_THAT(job.Ends(11), IsEmpty());
  job.Enter(10, Watched(Join(0, 2), 300'000));
  EXPECT_EQ(job.Last<JobState>(11).node_timeout_ms, 300'000u);
  PassAlive(job, 260 * kS, {10});
  EXPECT_THAT(job.Ends(10), IsEmpty());
  PassAlive(job, 20 * kS, {10});
  EXPECT_EQ(job.Last<JobEnd>(10).reason, "node 1 (b): its `taskd run` was silent for 300 s");
}

TEST(JobLinkCoreTest, ATimeoutIsWithinWhatTheOptionAllows) {
  for (const auto& [asked, taken] : {std::pair(1u, 5'000u), {0xffff'ffffu, 86'400'000u}}) {
    LinkJob job;
    job.Enter(10, Watched(Join(0, 2), asked));
    EXPECT_EQ(job.Last<JobState>(10).node_timeout_ms, taken);
  }
}

// The manager was stopped: what the nodes said is not read yet.
TEST(JobLinkCoreTest, TimeInWhichNobodyLookedIsNobodysSilence) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 2)));
  job.Enter(11, Watched(Join(1, 2)));
  job.Pass(10 * kS);
  job.now += 3600 * kS;
  job.Take(job.core.Tick(job.now));
  EXPECT_THAT(job.Ends(10), IsEmpty());
  PassAlive(job, 600 * kS, {10, 11});
  EXPECT_THAT(job.Ends(10), IsEmpty());
}

TEST(JobLinkCoreTest, NodeThatHasEndedMayBeSilent) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 2)));
  job.Enter(11, Watched(Join(1, 2)));
  job.End(11, 0);
  PassAlive(job, 600 * kS, {10});
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.End(10, 0);
  EXPECT_THAT(job.Ends(10), ElementsAre(0));
}

TEST(JobLinkCoreTest, NodeOfAnEarlierReleaseSaysNothing) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 2)));
  job.Enter(11, Join(1, 2));
  PassAlive(job, 600 * kS, {10});
  EXPECT_THAT(job.Ends(10), IsEmpty());
}

TEST(JobLinkCoreTest, NextAttemptDoesNotWaitLongForTheSilentOfTheLast) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 2)));
  job.Enter(11, Watched(Join(1, 2)));
  job.End(10, 3);
  job.Lose(10);
  job.Enter(20, Watched(Join(0, 2, "again 0")));
  job.Enter(21, Watched(Join(1, 2, "again 1")));
  PassAlive(job, 6 * kS, {20, 21});
  EXPECT_FALSE(job.Last<JobState>(20).all_joined);
  PassAlive(job, 4 * kS, {20, 21});
  EXPECT_TRUE(job.Last<JobState>(20).all_joined);
}

TEST(JobLinkCoreTest, WhoWaitsForTheNextAttemptMayNotBeSilentForGood) {
  LinkJob job;
  job.Enter(10, Watched(Join(0, 1)));
  job.End(10, 0);
  job.Enter(11, Watched(Join(0, 1, "again")));
  PassAlive(job, 62 * kS, {10});
  EXPECT_EQ(job.Last<StreamEnd>(11).status, absl::DeadlineExceededError("this node was silent for 60 s"));
}

// ---- The next attempt

TEST(JobLinkCoreTest, NextAttemptWaitsForTheStreamsOfTheLast) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.End(10, 7);
  job.Enter(20, Join(0, 2, "again0"));
  EXPECT_FALSE(job.Last<JobState>(20).first_joined);
  EXPECT_EQ(job.Last<JobState>(20).missing_count, 2u);
  job.Lose(10);
  job.Enter(21, Join(1, 2, "again1"));
  EXPECT_FALSE(job.Last<JobState>(21).first_joined);
  job.Lose(11);
  EXPECT_TRUE(job.Last<JobState>(20).all_joined);
  EXPECT_TRUE(job.Last<JobState>(21).all_joined);
  EXPECT_THAT(job.Ends(20), IsEmpty());
  job.End(20, 0);
  job.End(21, 0);
  EXPECT_THAT(job.Ends(20), ElementsAre(0));
}

TEST(JobLinkCoreTest, NextAttemptMayHaveAnotherPlan) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.End(10, 1);
  JobJoin next = Join(2, 3, "again2");
  next.plan = "mpi";
  job.Enter(20, next);
  EXPECT_THAT(job.Ends(20), IsEmpty());
  job.Lose(10);
  EXPECT_EQ(job.Last<JobState>(20).missing_count, 2u);
  job.Enter(21, Join(1, 2, "again1"));
  EXPECT_THAT(job.Refusal(21), HasSubstr("3 nodes at node 2 (c)"));
}

TEST(JobLinkCoreTest, OnceTheNextHasBegunNewcomersAreItsOwn) {
  LinkJob job;
  job.Enter(10, Join(0, 3));
  job.Enter(11, Join(1, 3));
  job.End(10, 1);
  job.Enter(20, Join(0, 3, "again0"));
  job.Enter(22, Join(2, 3, "again2"));  // had not joined the last one
  EXPECT_THAT(job.Ends(22), IsEmpty());
  job.Lose(10);
  job.Lose(11);
  EXPECT_EQ(job.Last<JobState>(22).connected, 2u);
}

TEST(JobLinkCoreTest, RunOfTheLastAttemptHearsItsEnd) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Lose(11);
  job.End(10, 7);
  job.Lose(10);
  job.Enter(20, Join(0, 2, "again0"));
  EXPECT_TRUE(job.Last<JobState>(20).first_joined);
  job.Enter(12, Join(1, 2));
  EXPECT_THAT(job.Ends(12), ElementsAre(7));
  EXPECT_THAT(job.Ends(20), IsEmpty());
  job.Enter(21, Join(1, 2, "again1"));
  EXPECT_TRUE(job.Last<JobState>(20).all_joined);
}

TEST(JobLinkCoreTest, WhoWaitedForALostNodeIsSentAwayWhenItIsBack) {
  LinkJob job;
  job.Enter(10, Join(0, 3));
  job.Lose(10);
  job.Enter(11, Join(0, 3, "other"));
  job.Enter(12, Join(1, 3));  // may be of either attempt
  EXPECT_THAT(job.All<JobRefusal>(11), IsEmpty());
  job.Enter(13, Join(0, 3));
  EXPECT_THAT(job.Refusal(11), HasSubstr("taken"));
  EXPECT_EQ(job.Last<JobState>(12).connected, 2u);
  EXPECT_TRUE(job.Last<JobState>(12).first_joined);
}

TEST(JobLinkCoreTest, WhatAWaitingNodeReportedIsKept) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.End(10, 1);
  job.Enter(20, Join(0, 2, "again0"));
  job.Take(job.core.Mpirun(20, {1, false, 0}, job.now));
  job.End(20, 0);
  job.Enter(21, Serving(Join(1, 2, "again1")));
  job.Ready(21);
  job.Lose(10);
  EXPECT_EQ(job.MpirunCalls(21).size(), 1u);
  EXPECT_THAT(job.Ends(20), ElementsAre(0));
  EXPECT_THAT(job.Ends(21), ElementsAre(0));
}

TEST(JobLinkCoreTest, EverythingIsForgottenInTheEnd) {
  LinkJob job;
  job.Enter(10, Join(0, 1));
  job.End(10, 0);
  job.Lose(10);
  job.Pass(10 * kS);
  EXPECT_EQ(job.core.next_tick_ns(), std::numeric_limits<int64_t>::max());
  job.Enter(11, Join(0, 1));
  EXPECT_TRUE(job.Last<JobState>(11).all_joined);
}

}  // namespace
}  // namespace taskd::manager
