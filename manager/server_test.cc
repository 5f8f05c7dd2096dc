// The manager over real gRPC, on free ports of loopback.
#include "manager/server.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"

namespace taskd::manager {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/taskd-manager-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    options_.job = "ns/job";
    options_.task_id = "task-1";
    options_.listen = "127.0.0.1:0";
    options_.http = "";
    options_.state_dir = folder_ / "state";
    options_.switch_file = "";
    options_.secret = kTestSecret;
  }
  void TearDown() override {
    server_.reset();
    fs::remove_all(folder_);
  }

  void Start() {
    server_.reset();
    auto server = ManagerServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    options_.listen = "127.0.0.1:" + std::to_string(server_->port());  // a restart comes back to it
    channel_ = Dial(server_->port());
    trace_ = TrainingDataTrace::NewStub(channel_);
    control_ = v1::Control::NewStub(channel_);
  }

  static ProfilingSwitch Switch(const char* step, const char* communication) {
    ProfilingSwitch value;
    value.set_step(step);
    value.set_communicationoperator(communication);
    return value;
  }
  DataTypeRes Modify(const std::string& job, std::optional<ProfilingSwitch> value) {
    DataTypeReq request;
    request.set_jobnsname(job);
    if (value.has_value()) *request.mutable_profilingswitch() = *value;
    Context context;
    DataTypeRes reply;
    grpc::Status status = trace_->ModifyTrainingDataTraceSwitch(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  DataStatusRes Get(const std::string& job) {
    DataStatusReq request;
    request.set_jobnsname(job);
    Context context;
    DataStatusRes reply;
    grpc::Status status = trace_->GetTrainingDataTraceSwitch(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  v1::JobStatus Status() {
    Context context;
    v1::JobStatus reply;
    EXPECT_TRUE(control_->GetStatus(&context, {}, &reply).ok());
    return reply;
  }
  uint64_t Revision() { return Status().wanted().revision(); }
  // Until the manager has heard of that many attached ranks; each ask is a round trip, so this does not spin.
  void WaitForRanks(int count) {
    auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
    int attached = -1;
    while (attached != count && std::chrono::steady_clock::now() < deadline) {
      attached = 0;
      v1::JobStatus status = Status();
      for (const auto& node : status.nodes()) {
        if (!node.connected()) continue;
        for (const auto& rank : node.ranks()) attached += rank.attached() ? 1 : 0;
      }
    }
    ASSERT_EQ(attached, count);
  }
  v1::SetSwitchReply SetStep(bool on, uint32_t timeout_ms = 20000) {
    v1::SetSwitchRequest request;
    request.set_step(on);
    request.set_timeout_ms(timeout_ms);
    Context context;
    v1::SetSwitchReply reply;
    grpc::Status status = control_->SetSwitch(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

  fs::path folder_;
  ManagerOptions options_;
  std::unique_ptr<ManagerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<TrainingDataTrace::Stub> trace_;
  std::unique_ptr<v1::Control::Stub> control_;
};

TEST_F(ServerTest, CodesOfModifyAndGet) {
  Start();
  for (const char* job : {"", "job", "ns/", "/job", "/", "ns/job/x", "ns//job"}) {
    EXPECT_EQ(Modify(job, Switch("on", "")).code(), 300) << job;
    EXPECT_EQ(Get(job).code(), 300) << job;
  }
  EXPECT_EQ(Modify("ns/other", Switch("on", "")).code(), 404);
  EXPECT_EQ(Get("ns/other").code(), 404);
  EXPECT_FALSE(Get("ns/other").has_profilingswitch());
  for (const char* value : {"ON", "Off", "1", "true", " on"}) {
    EXPECT_EQ(Modify("ns/job", Switch(value, "on")).code(), 300) << value;
    EXPECT_EQ(Modify("ns/job", Switch("on", value)).code(), 300) << value;
  }
  EXPECT_EQ(Modify("ns/job", std::nullopt).code(), 300);
  EXPECT_EQ(Modify("ns/job", ProfilingSwitch()).code(), 300);
  EXPECT_EQ(Revision(), 0u) << "nothing of this changed anything";

  DataTypeRes reply = Modify("ns/job", Switch("on", ""));
  EXPECT_EQ(reply.code(), 200);
  EXPECT_THAT(reply.message(), HasSubstr("0 of 0 ranks"));
  DataStatusRes status = Get("ns/job");
  EXPECT_EQ(status.code(), 200);
  EXPECT_EQ(status.profilingswitch().step(), "on");
  EXPECT_EQ(status.profilingswitch().communicationoperator(), "off");
  EXPECT_EQ(status.profilingswitch().savecheckpoint(), "off");
  EXPECT_EQ(status.profilingswitch().fp(), "off");
  EXPECT_EQ(status.profilingswitch().dataloader(), "off");
}

TEST_F(ServerTest, WithoutAJobEveryWellFormedNameIsIt) {
  options_.job.clear();
  Start();
  EXPECT_EQ(Modify("a/b", Switch("on", "")).code(), 200);
  EXPECT_EQ(Get("c/d").profilingswitch().step(), "on");
  EXPECT_EQ(Get("c").code(), 300);
  EXPECT_EQ(Status().job(), "");
}

TEST_F(ServerTest, ModifyReachesTheRanksAndSaysHowMany) {
  Start();
  TestProxy node0(channel_, 0, {0, 1}), node1(channel_, 1, {2, 3});
  WaitForRanks(4);
  DataTypeRes reply = Modify("ns/job", Switch("on", "off"));
  EXPECT_EQ(reply.code(), 200);
  EXPECT_THAT(reply.message(), HasSubstr("4 of 4 ranks"));
  EXPECT_TRUE(node0.wanted().back().kinds().step());
  EXPECT_TRUE(node0.wanted().back().kinds().dataloader()) << "one domain";
  EXPECT_FALSE(node0.wanted().back().kinds().communication());

  TestProxy silent(channel_, 2, {4}, /*answers=*/false);
  WaitForRanks(5);
  reply = Modify("ns/job", Switch("", "on"));
  EXPECT_EQ(reply.code(), 200) << "it is kept, and silent ranks get it later";
  EXPECT_THAT(reply.message(), HasSubstr("4 of 5 ranks"));
}

TEST_F(ServerTest, SetSwitchListsEveryRank) {
  options_.nodes = 3;
  options_.procs_per_node = 2;
  Start();
  TestProxy node0(channel_, 0, {0, 1}), silent(channel_, 1, {2}, /*answers=*/false);
  {
    TestProxy gone(channel_, 2, {4});
    WaitForRanks(4);
  }
  WaitForRanks(3);
  v1::SetSwitchReply reply = SetStep(true, 100);
  EXPECT_EQ(reply.job(), "ns/job");
  EXPECT_TRUE(reply.wanted().kinds().step());
  EXPECT_FALSE(reply.wanted().kinds().fp()) << "kind by kind";
  EXPECT_EQ(reply.total(), 6u);
  EXPECT_EQ(reply.applied(), 2u);
  ASSERT_EQ(reply.ranks_size(), 6);
  EXPECT_EQ(reply.ranks(0).state(), v1::RankAnswer::APPLIED);
  EXPECT_GT(reply.ranks(0).ms(), 0);
  EXPECT_EQ(reply.ranks(2).reason(), "no answer within 0.1 s");
  EXPECT_EQ(reply.ranks(3).reason(), "never attached");
  EXPECT_EQ(reply.ranks(3).node(), 1);
  EXPECT_EQ(reply.ranks(4).reason(), "node 2's proxy is not connected");
  EXPECT_EQ(reply.ranks(5).state(), v1::RankAnswer::UNREACHABLE);
}

TEST_F(ServerTest, ControlRefusesWrongJobsAndEmptyRequests) {
  Start();
  auto set = [&](const std::string& job, bool step) {
    v1::SetSwitchRequest request;
    request.set_job(job);
    if (step) request.set_step(true);
    Context context;
    v1::SetSwitchReply reply;
    return control_->SetSwitch(&context, request, &reply).error_code();
  };
  EXPECT_EQ(set("", false), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(set("job", true), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(set("ns/other", true), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Revision(), 0u);
  EXPECT_EQ(set("ns/job", true), grpc::StatusCode::OK);
}

TEST_F(ServerTest, StatusTellsWhatProxiesReport) {
  options_.nodes = 1;
  options_.procs_per_node = 2;
  Start();
  TestProxy node(channel_, 0, {0, 1});
  WaitForRanks(2);
  v1::JobStatus status = Status();
  EXPECT_EQ(status.job(), "ns/job");
  EXPECT_EQ(status.task_id(), "task-1");
  EXPECT_EQ(status.expected_ranks(), 2u);
  EXPECT_GT(status.uptime_s(), 0);
  ASSERT_EQ(status.nodes_size(), 1);
  EXPECT_EQ(status.nodes(0).host(), "host0");
  EXPECT_EQ(status.nodes(0).ranks(1).pid(), 1001);
  EXPECT_EQ(status.nodes(0).ranks(1).step(), 17);
  EXPECT_EQ(status.nodes(0).ranks(1).marks().step(), 2u);
}

TEST_F(ServerTest, LateAndReturningNodesGetTheWantedState) {
  Start();
  SetStep(true);
  {
    TestProxy late(channel_, 0, {0});
    EXPECT_TRUE(late.WaitForWanted(1));
    EXPECT_TRUE(late.wanted()[0].kinds().step());
  }
  TestProxy back(channel_, 0, {0});
  EXPECT_TRUE(back.WaitForWanted(1));
  WaitForRanks(1);
  EXPECT_EQ(Status().nodes_size(), 1);
}

TEST_F(ServerTest, ARestartedManagerGoesOn) {
  Start();
  SetStep(true);
  SetStep(false);
  SetStep(true);
  Start();
  EXPECT_EQ(Revision(), 3u);
  EXPECT_EQ(Get("ns/job").profilingswitch().step(), "on");
  TestProxy node(channel_, 0, {0});
  WaitForRanks(1);
  EXPECT_EQ(SetStep(false).wanted().revision(), 4u);
}

TEST_F(ServerTest, OneStreamAProxy) {
  Start();
  TestProxy first(channel_, 0, {0});
  WaitForRanks(1);
  TestProxy second(channel_, 0, {0});  // the same identity
  EXPECT_EQ(first.Ended().error_code(), grpc::StatusCode::ABORTED);
  WaitForRanks(1);
  EXPECT_EQ(SetStep(true).applied(), 1u);
}

TEST_F(ServerTest, BrokenStreamsAreClosedAndHarmNobody) {
  Start();
  TestProxy good(channel_, 0, {0});
  WaitForRanks(1);
  TestProxy negative(channel_, -5, {1});
  EXPECT_EQ(negative.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy double_rank(channel_, 1, {3, 3});
  EXPECT_EQ(double_rank.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy wordy(channel_, 2, {4});
  v1::NodeMessage message;
  for (int i = 0; i < 5000; ++i) message.mutable_ranks()->add_ranks()->set_rank(i);
  wordy.Write(message);
  EXPECT_EQ(wordy.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy second_hello(channel_, 3, {5});
  message.Clear();
  message.mutable_hello();
  second_hello.Write(message);
  EXPECT_EQ(second_hello.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy empty(channel_, 4, {6});
  message.Clear();
  empty.Write(message);  // of a later release
  WaitForRanks(2);
  EXPECT_EQ(SetStep(true).applied(), 2u);
}

// Raw bytes to each method: what does not parse, and what is too big.
TEST_F(ServerTest, SurvivesMalformedAndHugeMessages) {
  Start();
  grpc::GenericStub stub(channel_);
  for (const char* method :
       {"/TrainingDataTrace/ModifyTrainingDataTraceSwitch", "/TrainingDataTrace/GetTrainingDataTraceSwitch",
        "/TrainingDataTrace/SubscribeDataTraceSwitch", "/taskd.v1.Control/SetSwitch", "/taskd.v1.NodeLink/Connect"}) {
    for (const std::string& bytes : {std::string("\xff\xff\xff\xff"), std::string(kMaxMessageBytes + 1000, '\x0a')}) {
      grpc::Slice slice(bytes);
      grpc::ByteBuffer request(&slice, 1), reply;
      Context context;
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      grpc::Status status;
      stub.UnaryCall(&context, method, {}, &request, &reply, [&](grpc::Status result) {
        std::lock_guard lock(mutex);
        status = std::move(result);
        done = true;
        changed.notify_all();
      });
      std::unique_lock lock(mutex);
      ASSERT_TRUE(changed.wait_for(lock, kTestDeadline, [&] { return done; })) << method;
      EXPECT_FALSE(status.ok()) << method;
    }
  }
  EXPECT_EQ(Get("ns/job").code(), 200);
  EXPECT_EQ(Revision(), 0u);
}

TEST_F(ServerTest, SubscribersSeeEveryChangeInOrder) {
  Start();
  Modify("ns/job", Switch("on", ""));
  TestSubscriber one(channel_, "task-1"), two(channel_, "task-1");
  EXPECT_EQ(one.WaitForMessages(1)[0].profilingswitch().step(), "on");
  EXPECT_EQ(two.WaitForMessages(1)[0].code(), 200);
  constexpr int kThreads = 4, kEach = 25;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < kEach; ++n) Modify("ns/job", Switch(n % 2 == 0 ? "on" : "off", i % 2 == 0 ? "on" : "off"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto first = one.WaitForMessages(1 + kThreads * kEach);
  auto second = two.WaitForMessages(1 + kThreads * kEach);
  ASSERT_EQ(first.size(), 1u + kThreads * kEach);
  ASSERT_EQ(second.size(), first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].SerializeAsString(), second[i].SerializeAsString()) << i;
  }
  EXPECT_EQ(first.back().profilingswitch().SerializeAsString(), Get("ns/job").profilingswitch().SerializeAsString());
}

TEST_F(ServerTest, SubscribingToAnotherJobIsAnError) {
  Start();
  TestSubscriber other(channel_, "task-2");
  EXPECT_EQ(other.Ended().error_code(), grpc::StatusCode::NOT_FOUND);
  options_.task_id.clear();
  Start();
  TestSubscriber any(channel_, "task-2");
  EXPECT_EQ(any.WaitForMessages(1).size(), 1u);
}

TEST_F(ServerTest, SixtyFourNodes) {
  Start();
  std::vector<std::unique_ptr<TestProxy>> nodes;
  for (int i = 0; i < 64; ++i) {
    nodes.push_back(std::make_unique<TestProxy>(channel_, i, std::vector<int>{2 * i, 2 * i + 1}));
  }
  WaitForRanks(128);
  for (bool on : {true, false, true}) {
    v1::SetSwitchReply reply = SetStep(on);
    EXPECT_EQ(reply.applied(), 128u);
    EXPECT_EQ(reply.total(), 128u);
  }
}

TEST_F(ServerTest, CallsAgents) {
  Start();
  TestProxy node0(channel_, 0, {}), node1(channel_, 1, {});
  while (Status().nodes_size() < 2) {
  }
  auto call = [&](const std::string& operation, v1::CallAgentsReply* reply) {
    v1::CallAgentsRequest request;
    request.set_operator_(operation);
    Context context;
    return control_->CallAgents(&context, request, reply).error_code();
  };
  v1::CallAgentsReply reply;
  ASSERT_EQ(call("MONITOR", &reply), grpc::StatusCode::OK);
  ASSERT_EQ(reply.nodes_size(), 2);
  EXPECT_TRUE(reply.nodes(0).ok());
  EXPECT_EQ(reply.nodes(1).message(), "MONITOR");
  EXPECT_EQ(call("FORMAT_DISK", &reply), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, OnlyWhoHasTheSecretIsServed) {
  Start();
  for (const char* secret : {"", "of another job"}) {
    channel_ = Dial(server_->port(), secret);
    Context context;
    v1::JobStatus status;
    EXPECT_EQ(v1::Control::NewStub(channel_)->GetStatus(&context, {}, &status).error_code(),
              grpc::StatusCode::UNAVAILABLE);
    TestProxy proxy(channel_, 0, {0});
    EXPECT_EQ(proxy.Ended().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(Status().nodes_size(), 0);
}

// The same user on the same machine: what is typed against a job that nobody has protected.
TEST_F(ServerTest, InPlainTextThereIsClusterdsServiceAlone) {
  Start();
  channel_ = MakePlainChannel(options_.listen);
  trace_ = TrainingDataTrace::NewStub(channel_);
  control_ = v1::Control::NewStub(channel_);
  EXPECT_EQ(Modify("ns/job", Switch("on", "")).code(), 200);
  Context context;
  v1::JobStatus status;
  EXPECT_EQ(control_->GetStatus(&context, {}, &status).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  TestProxy proxy(channel_, 0, {0});
  EXPECT_EQ(proxy.Ended().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerTest, WithATokenPlainTextNeedsItOrTheOperatorsLeave) {
  options_.token = options_.secret = "right token";
  Start();
  channel_ = MakePlainChannel(options_.listen);
  trace_ = TrainingDataTrace::NewStub(channel_);
  for (const auto& [token, expected] :
       {std::pair("", grpc::StatusCode::UNAUTHENTICATED), std::pair("wrong token", grpc::StatusCode::PERMISSION_DENIED),
        std::pair("right toke", grpc::StatusCode::PERMISSION_DENIED),
        std::pair("right token ", grpc::StatusCode::PERMISSION_DENIED),
        std::pair("right token", grpc::StatusCode::OK)}) {
    DataTypeReq modify;
    modify.set_jobnsname("ns/job");
    modify.mutable_profilingswitch()->set_step("on");
    DataTypeRes modified;
    Context context(token);
    EXPECT_EQ(trace_->ModifyTrainingDataTraceSwitch(&context, modify, &modified).error_code(), expected) << token;
  }
  TestSubscriber subscriber(channel_, "task-1");
  EXPECT_EQ(subscriber.Ended().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  control_ = v1::Control::NewStub(Dial(server_->port(), "right token"));
  EXPECT_EQ(Revision(), 1u) << "the wrong ones changed nothing";

  options_.allow_plaintext = true;
  Start();
  channel_ = MakePlainChannel(options_.listen);
  trace_ = TrainingDataTrace::NewStub(channel_);
  EXPECT_EQ(Modify("ns/job", Switch("off", "")).code(), 200);
}

TEST_F(ServerTest, HealthAnswersInPlainText) {
  options_.token = options_.secret = "right token";
  Start();
  channel_ = MakePlainChannel(options_.listen);
  // grpc.health.v1.Health/Check, by hand: Debian has no library with its stub. Field 1 of the reply: SERVING = 1.
  grpc::GenericStub stub(channel_);
  grpc::Slice slice("");
  grpc::ByteBuffer request(&slice, 1), reply;
  Context context;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<grpc::Status> result;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &reply, [&](grpc::Status status) {
    std::lock_guard lock(mutex);
    result = std::move(status);
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, kTestDeadline, [&] { return result.has_value(); }));
  ASSERT_TRUE(result->ok()) << result->error_message();
  grpc::Slice answer;
  ASSERT_TRUE(reply.TrySingleSlice(&answer).ok());
  EXPECT_EQ(std::string(answer.begin(), answer.end()), "\x08\x01");
}

TEST_F(ServerTest, FollowsTheSwitchFileButOnlyItsChanges) {
  options_.switch_file = folder_ / "profilingSwitch";
  std::ofstream(options_.switch_file) << R"({"Step":"on","CommunicationOperator":"on"})";
  Start();
  TestSubscriber subscriber(channel_, "task-1");
  TestProxy node(channel_, 0, {0});
  ASSERT_TRUE(node.WaitForWanted(1));
  EXPECT_TRUE(node.wanted().back().kinds().communication());
  EXPECT_EQ(Modify("ns/job", Switch("off", "off")).code(), 200);
  uint64_t revision = Revision();
  Start();  // reads the same file again
  TestProxy again(channel_, 0, {0});
  std::ofstream(options_.switch_file) << R"({"Step":"on"})";
  ASSERT_TRUE(again.WaitForWanted(revision + 1));
  EXPECT_EQ(again.wanted().back().revision(), revision + 1) << "the old content was no new command";
  EXPECT_FALSE(again.wanted().back().kinds().communication());
}

TEST_F(ServerTest, AnAddressInUseIsAnErrorThatNamesIt) {
  Start();
  ManagerOptions second = options_;
  auto server = ManagerServer::Start(second);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(std::string(server.status().message()), HasSubstr(options_.listen));
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("in use"));
}

TEST_F(ServerTest, HttpIsOptionalOnlyByDefault) {
  options_.http = "127.0.0.1:0";
  Start();
  ASSERT_GT(server_->http_port(), 0);
  TestProxy node(channel_, 0, {0, 1});
  WaitForRanks(2);
  EXPECT_THAT(HttpGet(server_->http_port(), "/healthz"), HasSubstr("200 OK"));
  std::string metrics = HttpGet(server_->http_port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_ranks_attached 2\n"));
  EXPECT_THAT(metrics, HasSubstr("\ntaskd_marks_total{kind=\"step\"} 3\n"));
  EXPECT_THAT(HttpGet(server_->http_port(), "/other"), HasSubstr("404"));
  ManagerOptions second = options_;
  second.listen = "127.0.0.1:0";
  second.http = "127.0.0.1:" + std::to_string(server_->http_port());
  second.state_dir = folder_ / "other";
  second.http_is_default = false;
  auto refused = ManagerServer::Start(second);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(second.http));
  second.http_is_default = true;
  auto without = ManagerServer::Start(second);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->http_port(), 0);
}

TEST_F(ServerTest, EndsThoughClientsHoldOn) {
  Start();
  TestProxy node(channel_, 0, {0}, /*answers=*/false);
  TestSubscriber subscriber(channel_, "task-1");
  subscriber.WaitForMessages(1);
  WaitForRanks(1);
  std::thread waiting([&] {
    v1::SetSwitchReply reply = SetStep(true);  // nobody answers
    EXPECT_EQ(reply.applied(), 0u);
  });
  ASSERT_TRUE(node.WaitForWanted(1));
  server_.reset();
  EXPECT_FALSE(node.Ended().ok());
  EXPECT_FALSE(subscriber.Ended().ok());
  waiting.join();
}

}  // namespace
}  // namespace taskd::manager
