// The manager over real gRPC, on free ports of loopback.
#include "manager/server.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "common/job_secret.h"
#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "manager/switch/core.h"
#include "manager/test_client.h"
#include "proto/plain_link.h"
#include "reflection.grpc.pb.h"
#include "taskd/v1/job_link.grpc.pb.h"
#include "taskd/v1/route_agreement.grpc.pb.h"

namespace taskd::manager {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

size_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6)) * 1024;
  }
  return 0;
}

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
  // Until the manager has heard of that many attached ranks.
  void WaitForRanks(int count) {
    int attached = -1;
    testing::WaitUntil([&] {
      attached = 0;
      v1::JobStatus status = Status();
      for (const auto& node : status.nodes()) {
        if (!node.connected()) continue;
        for (const auto& rank : node.ranks()) attached += rank.attached() ? 1 : 0;
      }
      return attached == count;
    });
    ASSERT_EQ(attached, count);
  }
  v1::SetSwitchReply SetStep(bool on, uint32_t timeout_ms = testing::kHangLimitMs) {
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
  TestProxy node0(server_->port(), 0, {0, 1}), node1(server_->port(), 1, {2, 3});
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
    TestProxy gone(server_->port(), 2, {4});
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
  TestProxy node(server_->port(), 0, {0, 1});
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

TEST_F(ServerTest, StatusTellsWhatWillNotHappen) {
  options_.not_supported = {"elastic training (HIGH_AVAILABILITY=elastic-training)"};
  Start();
  ASSERT_EQ(Status().not_supported_size(), 1);
  EXPECT_EQ(Status().not_supported(0), options_.not_supported[0]);
}

// A string that is no UTF-8 makes the whole message unreadable: the job's status, or every rank's answer.
TEST_F(ServerTest, TextsAreCutBetweenCharacters) {
  options_.nodes = 1;
  options_.procs_per_node = 2;
  Start();
  const std::string whole = std::string(kMaxTextBytes - 1, 'x');
  TestProxy proxy(server_->port(), 0, {0, 1}, /*answers=*/false);
  std::thread failing([&] {
    EXPECT_TRUE(proxy.WaitForWanted(1));
    v1::NodeMessage message;
    message.mutable_applied()->set_revision(1);
    for (auto [rank, state] : {std::pair(0, v1::RankAnswer::FAILED), std::pair(1, v1::RankAnswer::UNREACHABLE)}) {
      v1::RankAnswer* answer = message.mutable_applied()->add_ranks();
      answer->set_rank(rank);
      answer->set_state(state);
      answer->set_reason(whole + "节点");
    }
    proxy.Write(message);
  });
  WaitForRanks(2);
  const v1::SetSwitchReply reply = SetStep(true);
  failing.join();
  ASSERT_EQ(reply.ranks_size(), 2);
  EXPECT_EQ(reply.ranks(0).reason(), whole);
  EXPECT_EQ(reply.ranks(1).reason(), whole);
  EXPECT_EQ(Status().nodes(0).ranks(1).reason(), whole);
  EXPECT_THAT(Get("ns" + std::string(61, 'x') + "节点").message(), HasSubstr("ns" + std::string(61, 'x') + "'"));
}

TEST_F(ServerTest, LateAndReturningNodesGetTheWantedState) {
  Start();
  SetStep(true);
  {
    TestProxy late(server_->port(), 0, {0});
    EXPECT_TRUE(late.WaitForWanted(1));
    EXPECT_TRUE(late.wanted()[0].kinds().step());
  }
  TestProxy back(server_->port(), 0, {0});
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
  TestProxy first(server_->port(), 0, {0});
  WaitForRanks(1);
  TestProxy second(server_->port(), 0, {0});  // the same identity
  EXPECT_EQ(first.Ended().error_code(), grpc::StatusCode::ABORTED);
  WaitForRanks(1);
  EXPECT_EQ(SetStep(true).applied(), 1u);
}

TEST_F(ServerTest, BrokenStreamsAreClosedAndHarmNobody) {
  Start();
  TestProxy good(server_->port(), 0, {0});
  WaitForRanks(1);
  TestProxy negative(server_->port(), -5, {1});
  EXPECT_EQ(negative.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy double_rank(server_->port(), 1, {3, 3});
  EXPECT_EQ(double_rank.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy wordy(server_->port(), 2, {4});
  v1::NodeMessage message;
  for (int i = 0; i < 5000; ++i) message.mutable_ranks()->add_ranks()->set_rank(i);
  wordy.Write(message);
  EXPECT_EQ(wordy.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy second_hello(server_->port(), 3, {5});
  message.Clear();
  message.mutable_hello();
  second_hello.Write(message);
  EXPECT_EQ(second_hello.Ended().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  TestProxy empty(server_->port(), 4, {6});
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
    for (const std::string& bytes :
         {std::string("\xff\xff\xff\xff"), std::string(proto::kMaxMessageBytes + 1000, '\x0a')}) {
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
      ASSERT_TRUE(testing::WaitFor(changed, lock, [&] { return done; })) << method;
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
  TestProxy node0(server_->port(), 0, {}), node1(server_->port(), 1, {});
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
TEST_F(ServerTest, DescribesItsServicesToWhoHasTheSecret) {
  namespace v1alpha = grpc::reflection::v1alpha;
  Start();
  Context context;
  auto stream = v1alpha::ServerReflection::NewStub(channel_)->ServerReflectionInfo(&context);
  v1alpha::ServerReflectionRequest question;
  v1alpha::ServerReflectionResponse answer;
  question.set_list_services("");
  ASSERT_TRUE(stream->Write(question) && stream->Read(&answer));
  std::vector<std::string> names;
  for (const auto& service : answer.list_services_response().service()) names.push_back(service.name());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"TrainingDataTrace", "taskd.v1.Control", "taskd.v1.NodeLink"}));
  question.set_file_containing_symbol("taskd.v1.Control");
  ASSERT_TRUE(stream->Write(question) && stream->Read(&answer));
  ASSERT_FALSE(answer.file_descriptor_response().file_descriptor_proto().empty());
  EXPECT_THAT(answer.file_descriptor_response().file_descriptor_proto(0), HasSubstr("SetSwitch"));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ServerTest, InPlainTextThereIsClusterdsServiceAlone) {
  Start();
  channel_ = proto::PlainLink::Begin(options_.listen)->channel();
  trace_ = TrainingDataTrace::NewStub(channel_);
  control_ = v1::Control::NewStub(channel_);
  EXPECT_EQ(Modify("ns/job", Switch("on", "")).code(), 200);
  Context context;
  v1::JobStatus status;
  EXPECT_EQ(control_->GetStatus(&context, {}, &status).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  TestProxy proxy(channel_, 0, {0});
  EXPECT_EQ(proxy.Ended().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ServerTest, WithATokenPlainTextNeedsTheOperatorsLeave) {
  options_.token = options_.secret = "right token";
  Start();
  for (const char* token : {"", "wrong token", "right token"}) {
    channel_ = proto::PlainLink::Begin(options_.listen)->channel();
    DataTypeReq modify;
    modify.set_jobnsname("ns/job");
    modify.mutable_profilingswitch()->set_step("on");
    DataTypeRes modified;
    Context context(token);
    EXPECT_EQ(
        TrainingDataTrace::NewStub(channel_)->ModifyTrainingDataTraceSwitch(&context, modify, &modified).error_code(),
        grpc::StatusCode::UNAVAILABLE)
        << token << ": it was not even read";
  }
  control_ = v1::Control::NewStub(Dial(server_->port(), "right token"));
  EXPECT_EQ(Revision(), 0u);

  options_.allow_plaintext = true;
  Start();
  channel_ = proto::PlainLink::Begin(options_.listen)->channel();
  for (const char* token : {"", "wrong token", "right token"}) {
    DataStatusReq get;
    get.set_jobnsname("ns/job");
    DataStatusRes got;
    Context context(token);
    EXPECT_TRUE(TrainingDataTrace::NewStub(channel_)->GetTrainingDataTraceSwitch(&context, get, &got).ok())
        << "everybody is served, whatever he brings";
  }
}

TEST_F(ServerTest, HealthAnswersInPlainText) {
  Start();
  channel_ = proto::PlainLink::Begin(options_.listen)->channel();
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
  ASSERT_TRUE(testing::WaitFor(changed, lock, [&] { return result.has_value(); }));
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
  TestProxy node(server_->port(), 0, {0});
  ASSERT_TRUE(node.WaitForWanted(1));
  EXPECT_TRUE(node.wanted().back().kinds().communication());
  EXPECT_EQ(Modify("ns/job", Switch("off", "off")).code(), 200);
  uint64_t revision = Revision();
  Start();  // reads the same file again
  TestProxy again(server_->port(), 0, {0});
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

TEST_F(ServerTest, HttpShowsTheJobToWhoMaySeeIt) {
  options_.http = "127.0.0.1:0";
  options_.token = options_.secret = "right token";
  Start();
  const int port = server_->http_port();
  EXPECT_THAT(HttpGet(port, "/healthz"), HasSubstr("200 OK"));
  for (const char* header : {"", "Authorization: Bearer wrong token\r\n", "Authorization: right token\r\n",
                             "Authorization: Bearer \r\n", "Authorization: Bearer right token\r\n"}) {
    const std::string answer = HttpGet(port, "/metrics", header);
    EXPECT_THAT(answer, HasSubstr("401 Unauthorized")) << header;
    EXPECT_THAT(answer, Not(HasSubstr("taskd_"))) << header;
  }
  EXPECT_THAT(HttpGet(port, "/metrics", "authorization: Bearer " + ViewToken("right token") + "\r\n"),
              HasSubstr("taskd_ranks_attached"));

  options_.allow_plaintext = true;
  Start();
  EXPECT_THAT(HttpGet(server_->http_port(), "/metrics"), HasSubstr("200 OK"));
}

TEST_F(ServerTest, HttpTakesAnotherPortOnlyByDefault) {
  options_.http = "127.0.0.1:0";
  Start();
  ASSERT_GT(server_->http_port(), 0);
  TestProxy node(server_->port(), 0, {0, 1});
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
  auto elsewhere = ManagerServer::Start(second);
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_NE((*elsewhere)->http_port(), server_->http_port());
  EXPECT_THAT(HttpGet((*elsewhere)->http_port(), "/healthz"), HasSubstr("200 OK"));
}

// Sixteen nodes of 4,096 ranks: their answers do not fit into one message.
TEST_F(ServerTest, AnswersAboutAnyNumberOfRanksComeInParts) {
  options_.nodes = 16;
  options_.procs_per_node = kMaxRanksPerNode;
  Start();
  std::vector<std::unique_ptr<TestProxy>> nodes;
  for (int node = 0; node < 16; ++node) {
    std::vector<int> ranks(kMaxRanksPerNode);
    std::iota(ranks.begin(), ranks.end(), node * kMaxRanksPerNode);
    nodes.push_back(std::make_unique<TestProxy>(channel_, node, ranks));
  }
  auto stub = v1::Control::NewStub(channel_);
  v1::SetSwitchRequest request;
  request.set_step(true);
  v1::SetSwitchReply reply;
  ASSERT_TRUE(PollFor([&] {
    reply.Clear();
    Context context;
    v1::SetSwitchReply part;
    size_t parts = 0;
    auto reader = stub->SwitchInParts(&context, request);
    while (reader->Read(&part)) {
      reply.MergeFrom(part);
      ++parts;
    }
    grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.total(), 65536u);
    EXPECT_GT(parts, 1u);
    return reply.applied() == reply.total();
  }));
  ASSERT_EQ(reply.ranks_size(), 65536);
  for (int rank = 0; rank < 65536; ++rank) {
    ASSERT_EQ(reply.ranks(rank).rank(), rank);
    ASSERT_EQ(reply.ranks(rank).node(), rank / kMaxRanksPerNode);
  }
  EXPECT_EQ(reply.job(), "ns/job");
  EXPECT_TRUE(reply.wanted().kinds().step());

  for (int node = 0; node < 16; ++node) {
    v1::NodeMessage message;
    for (int i = 0; i < kMaxRanksPerNode; ++i) {
      v1::RankStatus* rank = message.mutable_ranks()->add_ranks();
      rank->set_rank(node * kMaxRanksPerNode + i);
      rank->set_reason(std::string(100, 'x'));
    }
    nodes[static_cast<size_t>(node)]->Write(message);
  }
  v1::JobStatus status;
  ASSERT_TRUE(PollFor([&] {
    status.Clear();
    Context context;
    v1::JobStatus part;
    auto reader = stub->StatusInParts(&context, {});
    while (reader->Read(&part)) status.MergeFrom(part);
    EXPECT_TRUE(reader->Finish().ok());
    return status.ByteSizeLong() > 65536 * 100;
  }));
  ASSERT_EQ(status.nodes_size(), 16);
  Context context;
  v1::JobStatus whole;
  EXPECT_EQ(stub->GetStatus(&context, {}, &whole).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (int node = 0; node < 16; ++node) {
    EXPECT_EQ(status.nodes(node).node(), node);
    EXPECT_EQ(status.nodes(node).ranks_size(), kMaxRanksPerNode);
  }
  EXPECT_EQ(status.expected_ranks(), 65536u);
  EXPECT_EQ(status.wanted().revision(), reply.wanted().revision());
}

TEST_F(ServerTest, PartsOfASmallOrRefusedAnswer) {
  Start();
  auto stub = v1::Control::NewStub(channel_);
  {
    Context context;
    v1::JobStatus status;
    auto reader = stub->StatusInParts(&context, {});
    ASSERT_TRUE(reader->Read(&status)) << "also of a job without nodes";
    EXPECT_EQ(status.job(), "ns/job");
    EXPECT_FALSE(reader->Read(&status));
    EXPECT_TRUE(reader->Finish().ok());
  }
  for (auto [job, step, code] : {std::tuple("ns/job", false, grpc::StatusCode::INVALID_ARGUMENT),
                                 std::tuple("ns/other", true, grpc::StatusCode::NOT_FOUND)}) {
    Context context;
    v1::SetSwitchRequest request;
    request.set_job(job);
    if (step) request.set_step(true);
    v1::SetSwitchReply reply;
    auto reader = stub->SwitchInParts(&context, request);
    EXPECT_FALSE(reader->Read(&reply));
    EXPECT_EQ(reader->Finish().error_code(), code);
  }
  // A rank that does not answer is waited for, then said to be silent; a caller who goes ends the wait.
  TestProxy silent(channel_, 0, {0}, /*answers=*/false);
  WaitForRanks(1);
  v1::SetSwitchRequest request;
  request.set_step(true);
  request.set_timeout_ms(50);
  {
    Context context;
    v1::SetSwitchReply reply;
    auto reader = stub->SwitchInParts(&context, request);
    ASSERT_TRUE(reader->Read(&reply));
    EXPECT_EQ(reply.applied(), 0u);
    EXPECT_TRUE(reader->Finish().ok());
  }
  request.set_timeout_ms(60'000);
  Context context;
  auto reader = stub->SwitchInParts(&context, request);
  ASSERT_TRUE(silent.WaitForWanted(2));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServerTest, AStreamThatSaysNothingIsEnded) {
  Start();
  std::vector<std::thread> streams;
  auto silent = [&](auto open) {
    streams.emplace_back([open] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
      grpc::Status status = open(&context)->Finish();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      EXPECT_EQ(status.error_message(), "no first message");
    });
  };
  silent([stub = std::shared_ptr(v1::NodeLink::NewStub(channel_))](auto* context) { return stub->Connect(context); });
  silent([stub = std::shared_ptr(v1::NodeLink::NewStub(Dial(server_->port())))](auto* context) {
    context->AddMetadata(proto::kOnlyCall, "1");
    return stub->Connect(context);
  });
  silent([stub = std::shared_ptr(v1::JobLink::NewStub(channel_))](auto* context) { return stub->Join(context); });
  silent(
      [stub = std::shared_ptr(v1::RouteAgreement::NewStub(channel_))](auto* context) { return stub->Agree(context); });
  for (std::thread& stream : streams) stream.join();
}

// Two bytes of a message are a step of 200 bytes: what comes in is counted before it is built.
TEST_F(ServerTest, MessagesOfEmptyPartsTakeNoMemory) {
  Start();
  const size_t before = PeakBytes();
  // Folds of two million empty steps, not built here either.
  std::string steps;
  while (steps.size() < 4'000'000) steps.append("\x12\x00", 2);
  std::string wire("\x2a", 1);
  for (size_t size = steps.size(); size > 0; size >>= 7) {
    wire.push_back(static_cast<char>(size >= 0x80 ? size | 0x80 : size));
  }
  wire += steps;
  std::vector<std::thread> streams;
  for (int i = 0; i < 16; ++i) {
    streams.emplace_back([&, i] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
      grpc::GenericStub generic(channel_);
      grpc::CompletionQueue queue;
      auto wait = [&] {
        void* tag;
        bool ok = false;
        queue.Next(&tag, &ok);
        return ok;
      };
      auto stream = generic.PrepareCall(&context, "/taskd.v1.NodeLink/Connect", &queue);
      stream->StartCall(nullptr);
      ASSERT_TRUE(wait());
      v1::NodeMessage hello;
      hello.mutable_hello()->set_node_rank(i);
      hello.mutable_hello()->set_identity(std::to_string(i));
      for (const std::string& bytes : {hello.SerializeAsString(), wire}) {
        grpc::Slice slice(bytes);
        stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
        if (!wait()) break;
      }
      grpc::ByteBuffer answer;
      do {
        stream->Read(&answer, nullptr);
      } while (wait());
      grpc::Status status;
      stream->Finish(&status, nullptr);
      ASSERT_TRUE(wait());
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    });
  }
  for (std::thread& stream : streams) stream.join();
  // The messages themselves, at both ends; built they would have taken 8 GB.
  EXPECT_LT(PeakBytes() - before, size_t{400} << 20);
}

TEST_F(ServerTest, EndsThoughClientsHoldOn) {
  Start();
  TestProxy node(server_->port(), 0, {0}, /*answers=*/false);
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
