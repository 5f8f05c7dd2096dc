// mpirun of node 0, and commands on other nodes.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/job/job_link_core.h"
#include "manager/job/test_link_job.h"

namespace taskd::manager {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- mpirun

TEST(JobLinkCoreTest, MpirunIsToldInOrderAndToLateOnes) {
  LinkJob job;
  job.Enter(10, Join(0, 3));
  job.Enter(11, Join(1, 3));
  for (const JobMpirunCall& call : {JobMpirunCall{1, false, 0}, {1, true, 3}, {2, false, 0}, {1, true, 3}}) {
    job.Take(job.core.Mpirun(10, call, job.now));
  }
  job.Take(job.core.Mpirun(11, {9, false, 0}, job.now));  // only node 0's count
  job.Enter(12, Join(2, 3));
  for (uint64_t peer : {11, 12}) {
    EXPECT_THAT(job.MpirunCalls(peer),
                ElementsAre(JobMpirunCall{1, false, 0}, JobMpirunCall{1, true, 3}, JobMpirunCall{2, false, 0}));
  }
  EXPECT_THAT(job.MpirunCalls(10), IsEmpty());
  EXPECT_EQ(job.Last<JobMpirunNews>(11).calls, job.Last<JobMpirunNews>(12).calls) << "kept once for all nodes";
}

TEST(JobLinkCoreTest, MpirunCallsAreBounded) {
  LinkJob job;
  job.Enter(10, Join(0, 1));
  for (uint32_t i = 0; i <= JobLimits::kMaxMpirunEvents; ++i) job.Take(job.core.Mpirun(10, {i, false, 0}, job.now));
  EXPECT_THAT(job.Ends(10), ElementsAre(1));
  EXPECT_THAT(job.Last<JobEnd>(10).reason, HasSubstr("mpirun"));
}

TEST(JobLinkCoreTest, CallsOfNodesThatWaitAreBoundedWithTheirJoins) {
  LinkJob job;
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

  LinkJob job;
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
  LinkJob nobody;
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
  EXPECT_THAT(job.All<RemoteAnswer>(999), ::testing::SizeIs(1));
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
