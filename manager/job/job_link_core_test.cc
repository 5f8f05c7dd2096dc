// How the nodes of a job begin together and end with one code.
#include "manager/job/job_link_core.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/job/test_link_job.h"

namespace taskd::manager {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Beginning

TEST(JobLinkCoreTest, FirstAndAllAreToldAtOnce) {
  LinkJob job(true);
  job.Enter(12, Join(1, 3));
  JobState state = job.Last<JobState>(12);
  EXPECT_FALSE(state.first_joined);
  EXPECT_TRUE(state.hosted);
  EXPECT_EQ(state.connected, 1u);
  EXPECT_EQ(state.missing_count, 2u);
  EXPECT_THAT(state.missing, ElementsAre(0, 2));
  job.Enter(11, Join(0, 3));
  EXPECT_TRUE(job.Last<JobState>(12).first_joined);
  EXPECT_TRUE(job.Last<JobState>(11).first_joined);
  EXPECT_FALSE(job.Last<JobState>(11).all_joined);
  job.Enter(13, Join(2, 3));
  for (uint64_t peer : {11, 12, 13}) {
    state = job.Last<JobState>(peer);
    EXPECT_TRUE(state.all_joined && state.all_ready) << peer;
    EXPECT_EQ(state.connected, 3u);
    EXPECT_EQ(state.missing_count, 0u);
  }
}

TEST(JobLinkCoreTest, WhatANodeSaysOfItselfHasASize) {
  LinkJob job;
  JobJoin join = Join(0, 2);
  join.addresses = {"a", std::string(4'000'000, 'x')};
  job.Enter(1, join);
  EXPECT_EQ(job.Refusal(1), "addresses: one: 4000000 bytes are more than 256");
  join = Join(0, 2);
  join.name.assign(257, 'x');
  job.Enter(2, join);
  EXPECT_EQ(job.Refusal(2), "name: 257 bytes are more than 256");
  join = Join(0, 2);
  join.plan.assign(4097, 'x');
  job.Enter(3, join);
  EXPECT_EQ(job.Refusal(3), "plan: 4097 bytes are more than 4096");
  join.plan.assign(4096, 'x');
  job.Enter(4, join);
  JobJoin other = Join(1, 2);
  other.plan = join.plan;
  other.plan.back() = 'y';
  job.Enter(5, other);
  EXPECT_THAT(job.Refusal(5), HasSubstr("the plan is")) << "no part of it is left out of the comparison";
}

TEST(JobLinkCoreTest, AllJoinsHaveASumToo) {
  LinkJob job;
  JobJoin join = Join(0, JobLimits::kMaxNodes);
  join.addresses.assign(JobLimits::kMaxAddresses, std::string(JobLimits::kMaxNameBytes, 'x'));
  uint32_t taken = 0;
  while (taken < JobLimits::kMaxNodes) {
    join.index = taken;
    job.Enter(taken + 1, join);
    if (!job.All<JobRefusal>(taken + 1).empty()) break;
    ++taken;
  }
  EXPECT_GT(taken, 2000u);
  EXPECT_LT(taken, 8000u);
  EXPECT_THAT(job.Refusal(taken + 1), HasSubstr("64 MiB"));
  join = Join(3, JobLimits::kMaxNodes, "run0");
  join.addresses.assign(JobLimits::kMaxAddresses, std::string(JobLimits::kMaxNameBytes, 'x'));
  job.Enter(100'000, join);
  EXPECT_TRUE(job.All<JobRefusal>(100'000).empty()) << "a node that comes back";
}

TEST(JobLinkCoreTest, ProgressIsToldOnceASecond) {
  LinkJob job;
  job.Enter(10, Join(0, 30));
  for (uint32_t i = 1; i < 20; ++i) job.Enter(10 + i, Join(i, 30));
  const size_t told = job.All<JobState>(10).size();
  EXPECT_LE(told, 2u);
  job.Pass(kS);
  EXPECT_EQ(job.All<JobState>(10).size(), told + 1);
  EXPECT_EQ(job.Last<JobState>(10).missing_count, 10u);
  EXPECT_EQ(job.Last<JobState>(10).connected, 20u);
  job.Pass(100 * kS);
  EXPECT_EQ(job.All<JobState>(10).size(), told + 1) << "nothing has changed";
  EXPECT_EQ(job.All<JobState>(29).size(), 1u) << "it knew";
}

TEST(JobLinkCoreTest, MissingAreAtMostSixteen) {
  LinkJob job;
  job.Enter(1, Join(3, 65536));
  EXPECT_EQ(job.Last<JobState>(1).missing_count, 65535u);
  EXPECT_THAT(job.Last<JobState>(1).missing, ElementsAre(0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
}

TEST(JobLinkCoreTest, SaysWhomItWaitsFor) {
  LinkJob job;
  EXPECT_EQ(job.core.WaitsFor(), "");
  job.Enter(10, Join(0, 8));
  job.Enter(13, Join(3, 8));
  EXPECT_EQ(job.core.WaitsFor(), "nodes 1, 2, 4-7 (2 of 8 here)");
  for (uint32_t i : {1, 2, 4, 5, 6}) job.Enter(10 + i, Join(i, 8));
  EXPECT_EQ(job.core.WaitsFor(), "node 7 (7 of 8 here)");
  job.Enter(17, Join(7, 8));
  EXPECT_EQ(job.core.WaitsFor(), "");
  LinkJob large;
  large.Enter(1, Join(3, 65536));
  EXPECT_EQ(large.core.WaitsFor(), "nodes 0-2, 4-16 and 65519 more (1 of 65536 here)");
}

TEST(JobLinkCoreTest, AllReadyWaitsForThoseThatServe) {
  LinkJob job;
  job.Enter(10, Join(0, 3));
  job.Enter(11, Serving(Join(1, 3)));
  job.Ready(11);
  EXPECT_FALSE(job.Last<JobState>(10).all_ready);
  job.Enter(12, Serving(Join(2, 3)));
  EXPECT_TRUE(job.Last<JobState>(10).all_joined);
  EXPECT_FALSE(job.Last<JobState>(10).all_ready);
  EXPECT_THAT(job.Last<JobState>(10).missing, ElementsAre(2));
  job.Ready(12);
  EXPECT_TRUE(job.Last<JobState>(10).all_ready);
  EXPECT_EQ(job.Last<JobState>(10).missing_count, 0u);
}

TEST(JobLinkCoreTest, NobodyWaitsForAnExtra) {
  LinkJob job;
  job.Enter(10, Join(0, 1));
  EXPECT_TRUE(job.Last<JobState>(10).all_ready);
  job.Enter(11, Serving(Join(1, 1)));
  EXPECT_TRUE(job.Last<JobState>(11).all_ready);
  job.End(10, 0);
  EXPECT_THAT(job.Ends(11), ElementsAre(0));
}

TEST(JobLinkCoreTest, AnotherPlanIsRefused) {
  LinkJob job;
  job.Enter(10, Join(1, 3));
  JobJoin other = Join(0, 2);
  job.Enter(11, other);
  EXPECT_EQ(job.Refusal(11), "the job has 3 nodes at node 1 (b), which came first, and 2 at node 0 (a)");
  other = Join(0, 3);
  other.plan = "mpi";
  job.Enter(12, other);
  EXPECT_EQ(job.Refusal(12), "the plan is 'torch' at node 1 (b), which came first, and 'mpi' at node 0 (a)");
  job.Enter(13, Join(68, 3));
  EXPECT_THAT(job.Refusal(13), HasSubstr("index: 68 is not one of 3 nodes"));
  job.Enter(14, Join(0, 0));
  job.Enter(15, Join(0, 65537));
  EXPECT_THAT(job.Refusal(15), HasSubstr("65537"));
  EXPECT_EQ(job.All<JobRefusal>(14).size(), 1u);
  for (uint64_t peer : {11, 12, 13, 14, 15}) EXPECT_THAT(job.All<JobState>(peer), IsEmpty());
  job.Lose(11);
  job.Pass(20 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
}

TEST(JobLinkCoreTest, TakenIndexIsRefused) {
  LinkJob job;
  job.Enter(10, Join(1, 2));
  JobJoin other = Join(1, 2, "other");
  other.name = "z";
  job.Enter(11, other);
  EXPECT_EQ(job.Refusal(11), "index 1 is taken by node 1 (b), which is connected; this is z");
  EXPECT_THAT(job.Ends(10), IsEmpty());
}

TEST(JobLinkCoreTest, SameRunReplacesItsStream) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Enter(12, Join(1, 2));
  EXPECT_EQ(job.Last<StreamEnd>(11).status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(job.Last<JobState>(12).connected, 2u);
  job.Lose(11);
  job.Pass(20 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  EXPECT_EQ(job.Last<JobState>(10).connected, 2u);
}

// ---- The end

TEST(JobLinkCoreTest, AllDoneIsZero) {
  LinkJob job;
  for (uint32_t i = 0; i < 3; ++i) job.Enter(10 + i, Join(i, 3));
  job.End(10, 0);
  job.End(11, 0);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.End(12, 0);
  for (uint64_t peer : {10, 11, 12}) EXPECT_THAT(job.Ends(peer), ElementsAre(0));
}

TEST(JobLinkCoreTest, FirstFailureIsTheJobs) {
  LinkJob job;
  for (uint32_t i = 0; i < 3; ++i) job.Enter(10 + i, Join(i, 3));
  job.End(10, 0);
  job.End(11, 7, "signal\nor not");
  job.End(12, 9);
  for (uint64_t peer : {10, 11, 12}) {
    EXPECT_THAT(job.Ends(peer), ElementsAre(7));
    EXPECT_EQ(job.Last<JobEnd>(peer).reason, "node 1 (b) ended with code 7: signal or not");
  }
}

TEST(JobLinkCoreTest, CodesOutOfRangeAreOne) {
  for (int code : {-1, 256, 1000000}) {
    LinkJob job;
    job.Enter(10, Join(0, 2));
    job.End(10, code);
    EXPECT_THAT(job.Ends(10), ElementsAre(1));
  }
}

TEST(JobLinkCoreTest, NobodyWaitsForThoseThatServe) {
  LinkJob job;
  job.Enter(10, Serving(Join(0, 3)));
  job.Enter(11, Join(1, 3));
  job.Enter(12, Join(2, 3));
  job.End(10, 0);
  job.End(11, 0);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.End(12, 0);
  EXPECT_THAT(job.Ends(10), ElementsAre(0));
}

TEST(JobLinkCoreTest, ServingNodeThatFailsEndsTheJob) {
  LinkJob job;
  job.Enter(10, Serving(Join(0, 2)));
  job.Enter(11, Join(1, 2));
  job.End(10, 3);
  EXPECT_THAT(job.Ends(11), ElementsAre(3));
}

TEST(JobLinkCoreTest, WhereAllServeAllAreWaitedFor) {
  LinkJob job;
  job.Enter(10, Serving(Join(0, 2)));
  job.Enter(11, Serving(Join(1, 2)));
  job.End(10, 0);
  EXPECT_THAT(job.Ends(11), IsEmpty());
  job.End(11, 0);
  EXPECT_THAT(job.Ends(11), ElementsAre(0));
}

TEST(JobLinkCoreTest, NoEndBeforeAllHaveJoined) {
  LinkJob job;
  job.Enter(10, Join(0, 2));
  job.End(10, 0);
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.Enter(11, Join(1, 2));
  job.End(11, 0);
  EXPECT_THAT(job.Ends(10), ElementsAre(0));
}

}  // namespace
}  // namespace taskd::manager
