#include "manager/job/job_link_core.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::manager {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kS = 1000 * kMs;

JobJoin Join(uint32_t index, uint32_t nodes, const std::string& run_id = "") {
  JobJoin join;
  join.index = index;
  join.nodes = nodes;
  join.name = std::string(1, static_cast<char>('a' + index % 26));
  join.run_id = run_id.empty() ? absl::StrCat("run", index) : run_id;
  join.plan = "torch";
  join.remote_start = true;
  return join;
}

JobJoin Serving(JobJoin join) {
  join.serves = true;
  return join;
}

// A core with what its peers have heard.
class Job {
 public:
  explicit Job(bool hosted = false) : core(JobLinkCore::Options{hosted}) {}

  void Take(JobOutputs outputs) {
    messages += outputs.size();
    for (JobOutput& output : outputs) heard[output.peer].push_back(std::move(output.message));
  }
  void Enter(uint64_t peer, JobJoin join) { Take(core.Join(peer, std::move(join), now)); }
  void Ready(uint64_t peer) { Take(core.Ready(peer, now)); }
  void End(uint64_t peer, int code, const std::string& reason = "") { Take(core.Ended(peer, {code, reason}, now)); }
  void Lose(uint64_t peer) { Take(core.Lost(peer, now)); }
  void Call(uint64_t caller, const std::string& host, const std::string& command = "true") {
    Take(core.Call(caller, host, command, now));
  }
  // As the service does: no later than the core wants.
  void Pass(int64_t ns) {
    const int64_t until = now + ns;
    while (core.next_tick_ns() <= until) {
      const int64_t next = std::max(now, core.next_tick_ns());
      const bool stuck = next == now && ++ticks_in_place > 100;
      ASSERT_FALSE(stuck) << "Tick does not get on";
      if (next > now) ticks_in_place = 0;
      now = next;
      Take(core.Tick(now));
    }
    now = until;
  }

  template <typename Message>
  std::vector<Message> All(uint64_t peer) {
    std::vector<Message> found;
    for (const JobMessage& message : heard[peer]) {
      if (const auto* one = std::get_if<Message>(&message)) found.push_back(*one);
    }
    return found;
  }
  template <typename Message>
  Message Last(uint64_t peer) {
    std::vector<Message> all = All<Message>(peer);
    EXPECT_FALSE(all.empty()) << "peer " << peer;
    return all.empty() ? Message{} : all.back();
  }
  std::vector<int> Ends(uint64_t peer) {
    std::vector<int> codes;
    for (const JobEnd& end : All<JobEnd>(peer)) codes.push_back(end.code);
    return codes;
  }
  std::string Refusal(uint64_t peer) { return Last<JobRefusal>(peer).text; }

  JobLinkCore core;
  int64_t now = 1000 * kS;
  int ticks_in_place = 0;
  size_t messages = 0;
  std::map<uint64_t, std::vector<JobMessage>> heard;
};

// ---- Beginning

TEST(JobLinkCoreTest, FirstAndAllAreToldAtOnce) {
  Job job(true);
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
  job.Enter(1, Join(3, 65536));
  EXPECT_EQ(job.Last<JobState>(1).missing_count, 65535u);
  EXPECT_THAT(job.Last<JobState>(1).missing, ElementsAre(0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
}

TEST(JobLinkCoreTest, SaysWhomItWaitsFor) {
  Job job;
  EXPECT_EQ(job.core.WaitsFor(), "");
  job.Enter(10, Join(0, 8));
  job.Enter(13, Join(3, 8));
  EXPECT_EQ(job.core.WaitsFor(), "nodes 1, 2, 4-7 (2 of 8 here)");
  for (uint32_t i : {1, 2, 4, 5, 6}) job.Enter(10 + i, Join(i, 8));
  EXPECT_EQ(job.core.WaitsFor(), "node 7 (7 of 8 here)");
  job.Enter(17, Join(7, 8));
  EXPECT_EQ(job.core.WaitsFor(), "");
  Job large;
  large.Enter(1, Join(3, 65536));
  EXPECT_EQ(large.core.WaitsFor(), "nodes 0-2, 4-16 and 65519 more (1 of 65536 here)");
}

TEST(JobLinkCoreTest, AllReadyWaitsForThoseThatServe) {
  Job job;
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
  Job job;
  job.Enter(10, Join(0, 1));
  EXPECT_TRUE(job.Last<JobState>(10).all_ready);
  job.Enter(11, Serving(Join(1, 1)));
  EXPECT_TRUE(job.Last<JobState>(11).all_ready);
  job.End(10, 0);
  EXPECT_THAT(job.Ends(11), ElementsAre(0));
}

TEST(JobLinkCoreTest, AnotherPlanIsRefused) {
  Job job;
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
  Job job;
  job.Enter(10, Join(1, 2));
  JobJoin other = Join(1, 2, "other");
  other.name = "z";
  job.Enter(11, other);
  EXPECT_EQ(job.Refusal(11), "index 1 is taken by node 1 (b), which is connected; this is z");
  EXPECT_THAT(job.Ends(10), IsEmpty());
}

TEST(JobLinkCoreTest, SameRunReplacesItsStream) {
  Job job;
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
  Job job;
  for (uint32_t i = 0; i < 3; ++i) job.Enter(10 + i, Join(i, 3));
  job.End(10, 0);
  job.End(11, 0);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.End(12, 0);
  for (uint64_t peer : {10, 11, 12}) EXPECT_THAT(job.Ends(peer), ElementsAre(0));
}

TEST(JobLinkCoreTest, FirstFailureIsTheJobs) {
  Job job;
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
    Job job;
    job.Enter(10, Join(0, 2));
    job.End(10, code);
    EXPECT_THAT(job.Ends(10), ElementsAre(1));
  }
}

TEST(JobLinkCoreTest, NobodyWaitsForThoseThatServe) {
  Job job;
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
  Job job;
  job.Enter(10, Serving(Join(0, 2)));
  job.Enter(11, Join(1, 2));
  job.End(10, 3);
  EXPECT_THAT(job.Ends(11), ElementsAre(3));
}

TEST(JobLinkCoreTest, WhereAllServeAllAreWaitedFor) {
  Job job;
  job.Enter(10, Serving(Join(0, 2)));
  job.Enter(11, Serving(Join(1, 2)));
  job.End(10, 0);
  EXPECT_THAT(job.Ends(11), IsEmpty());
  job.End(11, 0);
  EXPECT_THAT(job.Ends(11), ElementsAre(0));
}

TEST(JobLinkCoreTest, NoEndBeforeAllHaveJoined) {
  Job job;
  job.Enter(10, Join(0, 2));
  job.End(10, 0);
  job.Pass(60 * kS);
  EXPECT_THAT(job.Ends(10), IsEmpty());
  job.Enter(11, Join(1, 2));
  job.End(11, 0);
  EXPECT_THAT(job.Ends(10), ElementsAre(0));
}

TEST(JobLinkCoreTest, LostNodeHasFiveSeconds) {
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
  job.Enter(10, Join(0, 2));
  job.Enter(11, Join(1, 2));
  job.Lose(11);
  job.End(10, 4);
  job.Enter(12, Join(1, 2));
  EXPECT_THAT(job.Ends(12), ElementsAre(4));
}

TEST(JobLinkCoreTest, WhoIsLeftHearsThatTheOthersGo) {
  Job job;
  for (uint32_t i = 0; i < 3; ++i) job.Enter(10 + i, Join(i, 3));
  job.End(11, 7);
  job.Lose(12);
  job.Pass(kS);
  EXPECT_EQ(job.Last<JobState>(10).connected, 2u);
  job.Lose(11);
  EXPECT_EQ(job.Last<JobState>(10).connected, 1u) << "without a second's delay: node 0 waits for it";
}

// ---- The next attempt

TEST(JobLinkCoreTest, NextAttemptWaitsForTheStreamsOfTheLast) {
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
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
  Job job;
  job.Enter(10, Join(0, 2));
  job.End(10, 1);
  job.Enter(20, Join(0, 2, "again0"));
  job.Take(job.core.Mpirun(20, {1, false, 0}, job.now));
  job.End(20, 0);
  job.Enter(21, Serving(Join(1, 2, "again1")));
  job.Ready(21);
  job.Lose(10);
  EXPECT_EQ(job.All<JobMpirunCall>(21).size(), 1u);
  EXPECT_THAT(job.Ends(20), ElementsAre(0));
  EXPECT_THAT(job.Ends(21), ElementsAre(0));
}

TEST(JobLinkCoreTest, EverythingIsForgottenInTheEnd) {
  Job job;
  job.Enter(10, Join(0, 1));
  job.End(10, 0);
  job.Lose(10);
  job.Pass(10 * kS);
  EXPECT_EQ(job.core.next_tick_ns(), std::numeric_limits<int64_t>::max());
  job.Enter(11, Join(0, 1));
  EXPECT_TRUE(job.Last<JobState>(11).all_joined);
}

// ---- mpirun

TEST(JobLinkCoreTest, MpirunIsToldInOrderAndToLateOnes) {
  Job job;
  job.Enter(10, Join(0, 3));
  job.Enter(11, Join(1, 3));
  for (const JobMpirunCall& call : {JobMpirunCall{1, false, 0}, {1, true, 3}, {2, false, 0}, {1, true, 3}}) {
    job.Take(job.core.Mpirun(10, call, job.now));
  }
  job.Take(job.core.Mpirun(11, {9, false, 0}, job.now));  // only node 0's count
  job.Enter(12, Join(2, 3));
  for (uint64_t peer : {11, 12}) {
    EXPECT_THAT(job.All<JobMpirunCall>(peer),
                ElementsAre(JobMpirunCall{1, false, 0}, JobMpirunCall{1, true, 3}, JobMpirunCall{2, false, 0}));
  }
  EXPECT_THAT(job.All<JobMpirunCall>(10), IsEmpty());
}

TEST(JobLinkCoreTest, MpirunCallsAreBounded) {
  Job job;
  job.Enter(10, Join(0, 1));
  for (uint32_t i = 0; i <= JobLimits::kMaxMpirunEvents; ++i) job.Take(job.core.Mpirun(10, {i, false, 0}, job.now));
  EXPECT_THAT(job.Ends(10), ElementsAre(1));
  EXPECT_THAT(job.Last<JobEnd>(10).reason, HasSubstr("mpirun"));
}

TEST(JobLinkCoreTest, CallsOfNodesThatWaitAreBoundedWithTheirJoins) {
  Job job;
  job.Enter(1, Join(0, 1));
  job.End(1, 0);
  // Node 0 of many attempts to come: each is large, and the last ones' calls are what is too much.
  uint64_t peer = 2;
  while (job.All<JobRefusal>(peer - 1).empty()) {
    JobJoin join = Join(0, 1, absl::StrCat("run ", peer));
    join.addresses.assign(JobLimits::kMaxAddresses, std::string(JobLimits::kMaxNameBytes, 'a'));
    job.Enter(peer++, std::move(join));
  }
  peer -= 2;  // the last one that waits
  for (uint32_t i = 0; i < JobLimits::kMaxMpirunEvents && job.All<JobRefusal>(peer).empty(); ++i) {
    job.Take(job.core.Mpirun(peer, {i, false, 0}, job.now));
  }
  EXPECT_THAT(job.Refusal(peer), HasSubstr("wait for the next attempt"));
  job.Enter(peer + 2, Join(0, 1, "there is room again"));
  EXPECT_THAT(job.All<JobRefusal>(peer + 2), IsEmpty());
}

// ---- Commands on other nodes

class RemoteTest : public ::testing::Test {
 protected:
  RemoteTest() {
    JobJoin first = Join(0, 2);
    first.name = "job-worker-0.job";
    first.addresses = {"10.0.0.1", "172.17.0.1", "fd00::1"};
    JobJoin second = Join(1, 2);
    second.name = "job-worker-1.job";
    second.addresses = {"10.0.0.2", "172.17.0.1", "FD00:0:0::2", "Other"};
    job.Enter(10, first);
    job.Enter(11, second);
  }
  std::vector<RemoteOrder::Kind> Kinds(uint64_t peer) {
    std::vector<RemoteOrder::Kind> kinds;
    for (const RemoteOrder& order : job.All<RemoteOrder>(peer)) kinds.push_back(order.kind);
    return kinds;
  }
  absl::StatusCode Failure(uint64_t caller) { return job.Last<StreamEnd>(caller).status.code(); }

  Job job;
};

TEST_F(RemoteTest, HostIsFoundByEachOfItsNames) {
  uint64_t caller = 100;
  for (const char* host : {"job-worker-1.job", "JOB-Worker-1.Job", "job-worker-1", "job-worker-1.job.", "10.0.0.2",
                           "fd00::2", "[FD00::2]", "other", "job-worker-1.elsewhere"}) {
    const size_t before = job.All<RemoteOrder>(11).size();
    job.Call(++caller, host, absl::StrCat("echo ", host));
    EXPECT_EQ(job.All<RemoteOrder>(11).size(), before + 1) << host;
    EXPECT_EQ(job.Last<RemoteOrder>(11).data, absl::StrCat("echo ", host));
  }
  EXPECT_THAT(Kinds(10), IsEmpty());
}

TEST_F(RemoteTest, HostThatIsNoneOrTwo) {
  for (const char* host : {"job-worker-2", "10.0.0.3", "10", "", "[]"}) {
    job.Call(200, host);
    EXPECT_EQ(Failure(200), absl::StatusCode::kNotFound) << host;
    EXPECT_THAT(std::string(job.Last<StreamEnd>(200).status.message()), HasSubstr(host));
  }
  job.Call(201, "172.17.0.1");
  EXPECT_THAT(std::string(job.Last<StreamEnd>(201).status.message()),
              AllOf(HasSubstr("node 0"), HasSubstr("node 1"), HasSubstr("172.17.0.1")));
  Job nobody;
  nobody.Call(202, "a");
  EXPECT_EQ(nobody.Last<StreamEnd>(202).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(RemoteTest, InputAndOutputAreRelayed) {
  job.Call(100, "10.0.0.2", "cat");
  job.Call(101, "10.0.0.2", "dog");
  const uint64_t id = job.All<RemoteOrder>(11)[0].id;
  job.Take(job.core.Input(100, "meow", job.now));
  job.Take(job.core.InputEnd(100, job.now));
  job.Take(job.core.Input(100, "too late", job.now));
  std::vector<RemoteOrder> orders = job.All<RemoteOrder>(11);
  ASSERT_EQ(orders.size(), 4u);
  EXPECT_NE(orders[1].id, id);
  EXPECT_EQ(orders[2].id, id);
  EXPECT_EQ(orders[2].data, "meow");
  EXPECT_EQ(orders[3].kind, RemoteOrder::Kind::kInputEnd);
  job.Take(job.core.Answer(10, {id, RemoteAnswer::Kind::kOut, "not mine", 0}, job.now));
  job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kOut, "out", 0}, job.now));
  job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kErr, "err", 0}, job.now));
  job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kEnded, "", 3}, job.now));
  job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kOut, "after", 0}, job.now));
  std::vector<RemoteAnswer> answers = job.All<RemoteAnswer>(100);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].data, "out");
  EXPECT_EQ(answers[1].kind, RemoteAnswer::Kind::kErr);
  EXPECT_EQ(answers[2].code, 3);
  EXPECT_THAT(job.All<RemoteAnswer>(101), IsEmpty());
  for (const RemoteOrder& order : orders) job.core.Sent(order.id, order.data.size());
  for (const RemoteAnswer& answer : answers) job.core.Sent(answer.id, answer.data.size());
  job.Lose(100);
  EXPECT_EQ(job.All<RemoteOrder>(11).size(), 4u) << "nothing is left to be cancelled";
}

TEST_F(RemoteTest, CallerThatGoesCancels) {
  job.Call(100, "10.0.0.2");
  job.Lose(100);
  EXPECT_THAT(Kinds(11), ElementsAre(RemoteOrder::Kind::kStart, RemoteOrder::Kind::kCancel));
}

TEST_F(RemoteTest, NodeThatGoesFailsTheCall) {
  job.Call(100, "10.0.0.2");
  const uint64_t id = job.Last<RemoteOrder>(11).id;
  job.Lose(11);
  EXPECT_EQ(Failure(100), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(job.Last<StreamEnd>(100).status.message()), HasSubstr("node 1 (job-worker-1.job)"));
  job.Call(101, "job-worker-1");
  EXPECT_EQ(Failure(101), absl::StatusCode::kUnavailable);
  JobJoin again = Join(1, 2);
  again.name = "job-worker-1.job";
  job.Enter(12, again);
  ASSERT_THAT(Kinds(12), ElementsAre(RemoteOrder::Kind::kCancel)) << "its caller has given up";
  EXPECT_EQ(job.Last<RemoteOrder>(12).id, id);
  job.Call(102, "job-worker-1");
  EXPECT_EQ(Kinds(12).size(), 2u);
}

TEST_F(RemoteTest, NotAfterTheEnd) {
  job.End(10, 1);
  job.Call(100, "10.0.0.2");
  EXPECT_EQ(Failure(100), absl::StatusCode::kUnavailable);
}

TEST_F(RemoteTest, WhatIsQueuedIsBounded) {
  job.Call(100, "10.0.0.2");
  job.Call(101, "10.0.0.2");
  const uint64_t id = job.All<RemoteOrder>(11)[0].id;
  const std::string chunk(65536, 'x');
  for (int i = 0; i < 1000; ++i) {  // that are taken: no limit
    job.Take(job.core.Input(100, chunk, job.now));
    EXPECT_EQ(job.core.Sent(id, chunk.size()), 100u);
  }
  EXPECT_THAT(job.All<StreamEnd>(100), IsEmpty());
  for (int i = 0; i < 300; ++i) {
    job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kOut, chunk, 0}, job.now));
  }
  EXPECT_EQ(Failure(100), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(job.All<RemoteAnswer>(100).size() * chunk.size(), JobLimits::kMaxQueuedBytes);
  EXPECT_GE(job.All<RemoteAnswer>(100).size(), 250u);
  EXPECT_EQ(job.Last<RemoteOrder>(11).kind, RemoteOrder::Kind::kCancel);
  EXPECT_EQ(job.core.Sent(id, 1), 0u);
  EXPECT_THAT(job.All<StreamEnd>(101), IsEmpty());
}

TEST_F(RemoteTest, CommandsOnANodeAreBounded) {
  for (uint64_t caller = 100; caller < 100 + JobLimits::kMaxCommands; ++caller) job.Call(caller, "10.0.0.2");
  const uint64_t id = job.All<RemoteOrder>(11)[0].id;
  job.Call(999, "10.0.0.2");
  EXPECT_EQ(Failure(999), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(job.Last<StreamEnd>(999).status.message()), HasSubstr("256 at a time"));
  job.Call(1000, "10.0.0.1");
  EXPECT_EQ(Kinds(10).size(), 1u) << "another node";
  job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kEnded, "", 0}, job.now));
  job.Call(1001, "10.0.0.2");
  EXPECT_THAT(job.All<StreamEnd>(1001), IsEmpty()) << "one has ended";
}

TEST_F(RemoteTest, WhatIsQueuedOfAllIsBounded) {
  const std::string chunk(JobLimits::kMaxQueuedBytes / 2, 'x');
  const uint64_t count = JobLimits::kMaxAllQueuedBytes / chunk.size() - 1;
  for (uint64_t caller = 100; caller < 100 + count; ++caller) {
    job.Call(caller, "10.0.0.2");
    const uint64_t id = job.Last<RemoteOrder>(11).id;
    job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kOut, chunk, 0}, job.now));
    // Its end does not free what nobody has taken.
    job.Take(job.core.Answer(11, {id, RemoteAnswer::Kind::kEnded, "", 0}, job.now));
    EXPECT_THAT(job.All<StreamEnd>(caller), IsEmpty());
  }
  job.Call(998, "10.0.0.2");
  const uint64_t small = job.Last<RemoteOrder>(11).id;
  job.Take(job.core.Answer(11, {small, RemoteAnswer::Kind::kOut, chunk.substr(1), 0}, job.now));
  job.Call(999, "10.0.0.2");
  job.Take(job.core.Answer(11, {job.Last<RemoteOrder>(11).id, RemoteAnswer::Kind::kOut, "little", 0}, job.now));
  EXPECT_EQ(Failure(100), absl::StatusCode::kResourceExhausted) << "it has most";
  EXPECT_THAT(job.All<StreamEnd>(999), IsEmpty());
  EXPECT_THAT(job.All<RemoteAnswer>(999), testing::SizeIs(1));
}

// ---- At any size, in any order

TEST(JobLinkCoreTest, ManyNodesAreFewMessages) {
  constexpr uint32_t kNodes = 2048;
  Job job;
  for (uint32_t i = 0; i < kNodes; ++i) {
    job.Enter(10 + i, Join(i, kNodes));
    job.Pass(kMs);
  }
  job.Pass(2 * kS);
  EXPECT_TRUE(job.Last<JobState>(10).all_joined);
  // One each when it joins, one each when all have, and one a second in the two seconds that it took.
  EXPECT_LE(job.messages, 5u * kNodes);
  job.messages = 0;
  for (uint32_t i = 0; i < kNodes; ++i) job.End(10 + i, 0);
  EXPECT_EQ(job.messages, kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) EXPECT_THAT(job.Ends(10 + i), ElementsAre(0));
  job.messages = 0;
  for (uint32_t i = kNodes - 1; i > 0; --i) job.Lose(10 + i);
  EXPECT_LE(job.messages, 2u * kNodes);
  EXPECT_EQ(job.Last<JobState>(10).connected, 1u);
}

// Nodes that do anything at any time. A life is one `taskd run`: its streams hear at most one code, and all lives that
// were in one attempt the same.
class RandomNodes {
 public:
  explicit RandomNodes(uint32_t seed) : random_(seed), nodes_(1 + Below(4)) {}

  void Run() {
    for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) Act();
    // Now nobody else comes and all do their part: every stream hears an end, and nothing is left.
    for (int i = 0; i < 50 && !Open().empty(); ++i) {
      for (uint64_t peer : Open()) {
        if (lives_[streams_[peer]].code) {
          Close(peer);
        } else {
          Take(job_.core.Ended(peer, {0, ""}, job_.now));
        }
      }
      job_.Pass(kS);
      Check();
      // Who waits for nodes that never come gives up.
      if (i > 20) {
        for (uint64_t peer : Open()) Close(peer);
      }
    }
    job_.Pass(60 * kS);
    EXPECT_EQ(job_.core.next_tick_ns(), std::numeric_limits<int64_t>::max());
  }

 private:
  struct Life {
    uint32_t index = 0;
    bool serves = false;
    std::optional<int> code;
  };

  int Below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  std::vector<uint64_t> Open() const {
    std::vector<uint64_t> open;
    for (const auto& [peer, life] : streams_) open.push_back(peer);
    return open;
  }
  void Close(uint64_t peer) {
    streams_.erase(peer);
    Take(job_.core.Lost(peer, job_.now));
  }
  void Take(JobOutputs outputs, bool may_begin_next = true) {
    job_.Take(std::move(outputs));
    Check(may_begin_next);
  }

  // Everything that was heard since the last time.
  void Check(bool may_begin_next = true) {
    std::set<int> codes;
    for (auto& [peer, messages] : job_.heard) {
      for (const JobMessage& message : messages) {
        ASSERT_FALSE(over_.count(peer)) << "peer " << peer << " hears something after its last";
        if (const auto* end = std::get_if<JobEnd>(&message)) {
          ASSERT_FALSE(ended_.count(peer)) << "a second end";
          ended_.insert(peer);
          Life& life = lives_[of_.at(peer)];
          ASSERT_TRUE(!life.code || *life.code == end->code) << "one run, two codes";
          life.code = end->code;
          codes.insert(end->code);
        } else if (std::holds_alternative<JobRefusal>(message) || std::holds_alternative<StreamEnd>(message)) {
          over_.insert(peer);
          streams_.erase(peer);
        }
      }
      messages.clear();
    }
    ASSERT_TRUE(codes.size() <= 1 || may_begin_next) << "one attempt, two codes";
    for (int code : codes) ASSERT_TRUE(code >= 0 && code <= 255);
  }

  void Join(size_t life, bool again) {
    const uint64_t peer = next_peer_++;
    JobJoin join = manager::Join(lives_[life].index, static_cast<uint32_t>(nodes_), absl::StrCat("life", life));
    join.serves = lives_[life].serves;
    if (again && Below(3) == 0) join.ready = true;
    streams_[peer] = of_[peer] = life;
    Take(job_.core.Join(peer, std::move(join), job_.now));
  }

  void Act() {
    const int what = Below(20);
    const std::vector<uint64_t> open = Open();
    if (open.empty() || what < 5) {
      if (!lives_.empty() && Below(3) == 0) {
        const auto life = static_cast<size_t>(Below(static_cast<int>(lives_.size())));
        if (!lives_[life].code) Join(life, true);  // who has heard the end does not come back
      } else {
        lives_.push_back({static_cast<uint32_t>(Below(nodes_ + 1)), Below(4) == 0, std::nullopt});
        Join(lives_.size() - 1, false);
      }
      return;
    }
    const uint64_t peer = open[static_cast<size_t>(Below(static_cast<int>(open.size())))];
    if (what < 9) {
      job_.Pass(Below(3) == 0 ? Below(7) * kS : Below(500) * kMs);
      Check();
    } else if (what < 11) {
      Take(job_.core.Ended(peer, {Below(4) == 0 ? 1 + Below(300) : 0, "why"}, job_.now), false);
    } else if (what < 12) {
      Take(job_.core.Ready(peer, job_.now));
    } else if (what < 13) {
      Take(job_.core.Mpirun(peer, {static_cast<uint32_t>(Below(5)), Below(2) == 0, 0}, job_.now));
    } else if (what < 16) {
      Close(peer);
    } else if (what < 18) {
      const uint64_t caller = next_peer_++;
      of_[caller] = 0;
      Take(job_.core.Call(caller, std::string(1, static_cast<char>('a' + Below(nodes_))), "x", job_.now));
      callers_.push_back(caller);
    } else if (!callers_.empty()) {
      const uint64_t caller = callers_[static_cast<size_t>(Below(static_cast<int>(callers_.size())))];
      if (over_.count(caller)) return;
      switch (Below(4)) {
        case 0:
          Take(job_.core.Input(caller, std::string(static_cast<size_t>(Below(6)) << 20, 'x'), job_.now));
          break;
        case 1:
          Take(job_.core.InputEnd(caller, job_.now));
          break;
        case 2:
          Take(job_.core.Answer(
              peer, {static_cast<uint64_t>(Below(50)), static_cast<RemoteAnswer::Kind>(Below(3)), "y", 0}, job_.now));
          break;
        default:
          Take(job_.core.Lost(caller, job_.now));
          over_.insert(caller);
      }
    }
  }

  std::mt19937 random_;
  const int nodes_;
  Job job_;
  uint64_t next_peer_ = 1;
  std::vector<Life> lives_;
  std::map<uint64_t, size_t> streams_;  // open ones: their life
  std::map<uint64_t, size_t> of_;       // all
  std::set<uint64_t> over_, ended_;
  std::vector<uint64_t> callers_;
};

TEST(JobLinkCoreTest, AnythingAtAnyTime) {
  for (uint32_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomNodes(seed).Run();
  }
}

TEST(JobLinkCoreTest, ANodeWithoutRemoteStartIsToldNoCommand) {
  JobLinkCore core({});
  JobJoin join = Join(0, 1);
  join.remote_start = false;
  core.Join(1, join, 0);
  const JobOutputs outputs = core.Call(2, "a", "x", 1);
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].peer, 2u);
  ASSERT_TRUE(std::holds_alternative<StreamEnd>(outputs[0].message));
  const absl::Status status = std::get<StreamEnd>(outputs[0].message).status;
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--remote-start taskd"));
}

}  // namespace
}  // namespace taskd::manager
