// Against a real manager in this process.
#include "agent/modes/job_link_client.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_secret.h"
#include "common/testing/deadline.h"
#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"
#include "taskd/v1/job_link.grpc.pb.h"

namespace taskd::modes {
namespace {

using manager::StartManager;
using ::testing::HasSubstr;

constexpr char kToken[] = "secret";

std::string Address(int port) { return absl::StrCat("127.0.0.1:", port); }

v1::JoinJob JoinOf(uint32_t index, uint32_t nodes) {
  v1::JoinJob join;
  join.set_index(index);
  join.set_nodes(nodes);
  join.set_name(absl::StrCat("host", index));
  join.add_addresses(absl::StrCat("10.0.0.", index + 1));
  join.set_run_id(absl::StrCat("run", index));
  join.set_plan("test");
  join.set_remote_start(true);
  return join;
}

// A node that keeps what it receives.
class Node {
 public:
  Node(int port, v1::JoinJob join, const std::string& token = kToken) {
    JobLinkClient::Options options;
    options.manager = Address(port);
    options.security.secret = token;
    options.join = std::move(join);
    auto client = JobLinkClient::Start(options, {[this](const v1::JobNotice& notice) { Receive(notice); },
                                                 [this](const absl::Status& status) {
                                                   std::lock_guard lock(mutex_);
                                                   lost_.push_back(status);
                                                   wake_.notify_all();
                                                 }});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  ~Node() { client_.reset(); }

  void Ready() {
    v1::NodeReport report;
    report.mutable_ready();
    client_->Send(std::move(report));
  }
  void End(int code, const std::string& reason = "") {
    v1::NodeReport report;
    report.mutable_ended()->set_code(code);
    report.mutable_ended()->set_reason(reason);
    client_->Send(std::move(report));
  }
  void Mpirun(uint32_t number, bool ended, int code) {
    v1::NodeReport report;
    report.mutable_mpirun()->set_number(number);
    report.mutable_mpirun()->set_ended(ended);
    report.mutable_mpirun()->set_code(code);
    client_->Send(std::move(report));
  }
  void Answer(uint64_t id, const std::function<void(v1::RemoteOutput*)>& fill) {
    v1::NodeReport report;
    report.mutable_remote()->set_id(id);
    fill(report.mutable_remote()->mutable_output());
    client_->Send(std::move(report));
  }
  void Disconnect() { client_.reset(); }

  // Until the condition holds for what was received, or the time is over.
  bool Wait(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return taskd::testing::WaitFor(wake_, lock, condition);
  }
  bool WaitState(const std::function<bool(const v1::JobState&)>& condition) {
    return Wait([&] { return state_ && condition(*state_); });
  }
  std::optional<v1::JobEnd> WaitEnd() {
    Wait([&] { return end_.has_value(); });
    std::lock_guard lock(mutex_);
    return end_;
  }

  std::function<void(const v1::RemoteCommand&)> on_remote;  // set before any comes

  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<v1::JobState> state_;
  std::optional<v1::JobEnd> end_;
  std::string refused_;
  std::vector<v1::MpirunCall> mpirun_;
  std::vector<absl::Status> lost_;
  std::vector<v1::RemoteCommand> remote_;

 private:
  void Receive(const v1::JobNotice& notice) {
    if (notice.has_remote() && on_remote) {
      on_remote(notice.remote());
      return;
    }
    std::lock_guard lock(mutex_);
    if (notice.has_state()) state_ = notice.state();
    if (notice.has_end()) {
      EXPECT_FALSE(end_.has_value()) << "a second end";
      end_ = notice.end();
    }
    if (notice.has_refused()) refused_ = notice.refused();
    if (notice.has_mpirun()) mpirun_.push_back(notice.mpirun());
    if (notice.has_remote()) remote_.push_back(notice.remote());
    wake_.notify_all();
  }

  std::unique_ptr<JobLinkClient> client_;
};

TEST(JobLinkClientTest, NodesMeetAndEndTogether) {
  auto manager = StartManager({.secret = kToken});
  v1::JoinJob serving = JoinOf(1, 3);
  serving.set_serves(true);
  Node a(manager->port(), JoinOf(0, 3)), b(manager->port(), serving), c(manager->port(), JoinOf(2, 3));
  EXPECT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  {
    std::lock_guard lock(a.mutex_);
    EXPECT_FALSE(a.state_->all_ready());
    EXPECT_THAT(a.state_->missing(), ::testing::ElementsAre(1));
    EXPECT_EQ(a.state_->connected(), 3u);
    EXPECT_FALSE(a.state_->hosted());
  }
  b.Ready();
  EXPECT_TRUE(c.WaitState([](const v1::JobState& state) { return state.all_ready(); }));
  a.End(0);
  c.End(0);
  for (Node* node : {&a, &b, &c}) {
    std::optional<v1::JobEnd> end = node->WaitEnd();
    ASSERT_TRUE(end);
    EXPECT_EQ(end->code(), 0);
  }
  b.Disconnect();
  c.Disconnect();
  EXPECT_TRUE(a.WaitState([](const v1::JobState& state) { return state.connected() == 1; }));
}

TEST(JobLinkClientTest, TheFirstFailureIsEverybodys) {
  auto manager = StartManager({.secret = kToken});
  Node a(manager->port(), JoinOf(0, 2)), b(manager->port(), JoinOf(1, 2));
  ASSERT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  b.End(7, "no luck");
  EXPECT_EQ(a.WaitEnd()->reason(), "node 1 (host1) ended with code 7: no luck");
  EXPECT_EQ(b.WaitEnd()->code(), 7);
}

TEST(JobLinkClientTest, NodeThatGoesWithoutAWordFailsTheJob) {
  auto manager = StartManager({.secret = kToken});
  Node a(manager->port(), JoinOf(0, 2)), b(manager->port(), JoinOf(1, 2));
  ASSERT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  b.Disconnect();
  std::optional<v1::JobEnd> end = a.WaitEnd();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code(), 1);
  EXPECT_THAT(end->reason(), HasSubstr("node 1 (host1): its `taskd run` is gone"));
}

TEST(JobLinkClientTest, WhatWasSentJustBeforeTheEndArrives) {
  for (int i = 0; i < 20; ++i) {
    auto manager = StartManager({.secret = kToken});
    Node a(manager->port(), JoinOf(0, 2)), b(manager->port(), JoinOf(1, 2));
    ASSERT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
    b.End(9);
    b.Disconnect();
    EXPECT_EQ(a.WaitEnd()->code(), 9);
  }
}

TEST(JobLinkClientTest, WhatWasSaidWhileTheManagerWasAwayArrivesBeforeTheClientGoes) {
  const int port = taskd::testing::FreePort();
  auto manager = StartManager({.secret = kToken, .port = port});
  Node a(port, JoinOf(0, 2));
  ASSERT_TRUE(a.WaitState([](const v1::JobState& state) { return state.first_joined(); }));
  manager.reset();
  Node b(port, JoinOf(1, 2));
  ASSERT_TRUE(b.Wait([&] { return !b.lost_.empty(); }));
  b.End(6);
  std::thread again([&] { manager = StartManager({.secret = kToken, .port = port}); });
  b.Disconnect();
  again.join();
  EXPECT_EQ(a.WaitEnd()->code(), 6);
}

TEST(JobLinkClientTest, ManagerMayComeLateAndAgain) {
  const int port = taskd::testing::FreePort();
  v1::JoinJob serving = JoinOf(1, 2);
  serving.set_serves(true);
  Node a(port, JoinOf(0, 2)), b(port, serving);
  ASSERT_TRUE(a.Wait([&] { return !a.lost_.empty(); }));
  EXPECT_TRUE(absl::IsUnavailable(a.lost_.front())) << a.lost_.front();
  b.Ready();
  a.Mpirun(1, false, 0);
  auto manager = StartManager({.secret = kToken, .port = port});
  EXPECT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_ready(); }));
  EXPECT_TRUE(b.Wait([&] { return b.mpirun_.size() == 1; }));
  const size_t lost = [&] {
    std::lock_guard lock(a.mutex_);
    a.state_.reset();
    return a.lost_.size();
  }();
  manager.reset();
  EXPECT_TRUE(a.Wait([&] { return a.lost_.size() > lost; }));
  a.Mpirun(1, true, 4);
  a.End(0);
  manager = StartManager({.secret = kToken, .port = port});
  EXPECT_EQ(a.WaitEnd()->code(), 0);
  EXPECT_EQ(b.WaitEnd()->code(), 0);
}

TEST(JobLinkClientTest, MpirunEventsArriveInOrder) {
  auto manager = StartManager({.secret = kToken});
  Node a(manager->port(), JoinOf(0, 2)), b(manager->port(), JoinOf(1, 2));
  for (uint32_t i = 1; i <= 100; ++i) {
    a.Mpirun(i, false, 0);
    a.Mpirun(i, true, static_cast<int>(i));
  }
  ASSERT_TRUE(b.Wait([&] { return b.mpirun_.size() == 200; }));
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(b.mpirun_[i].number(), i / 2 + 1);
    EXPECT_EQ(b.mpirun_[i].ended(), i % 2 == 1);
  }
  EXPECT_EQ(b.mpirun_.back().code(), 100);
}

TEST(JobLinkClientTest, RefusalIsFinal) {
  auto manager = StartManager({.secret = kToken});
  Node a(manager->port(), JoinOf(0, 2));
  ASSERT_TRUE(a.WaitState([](const v1::JobState& state) { return state.first_joined(); }));
  v1::JoinJob join = JoinOf(1, 3);
  Node b(manager->port(), join);
  ASSERT_TRUE(b.Wait([&] { return !b.refused_.empty() && !b.lost_.empty(); }));
  EXPECT_THAT(b.refused_, HasSubstr("2 nodes at node 0 (host0)"));
}

// Trying again is in vain where the secret was given; where it was looked up the right one may come yet.
TEST(JobLinkClientTest, AStrangerInTheManagersPlaceIsLeft) {
  auto stranger = StartManager({.secret = "another job's"});
  Node node(stranger->port(), JoinOf(0, 1));
  ASSERT_TRUE(node.Wait([&] { return !node.lost_.empty(); }));
  EXPECT_TRUE(absl::IsUnauthenticated(node.lost_.front())) << node.lost_.front();
  EXPECT_THAT(std::string(node.lost_.front().message()), HasSubstr("TASKD_TOKEN"));
  Node unknowing(stranger->port(), JoinOf(0, 1), "");
  ASSERT_TRUE(unknowing.Wait([&] { return unknowing.lost_.size() > 1; }));
  EXPECT_TRUE(absl::IsUnavailable(unknowing.lost_.front())) << unknowing.lost_.front();
  EXPECT_THAT(std::string(unknowing.lost_.front().message()), HasSubstr("TASKD_TOKEN"));
  EXPECT_FALSE(node.state_.has_value() || unknowing.state_.has_value());
}

TEST(JobLinkClientTest, WrongAddressIsReported) {
  JobLinkClient::Options options;
  options.manager = "nowhere";
  EXPECT_EQ(JobLinkClient::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JobLinkClientTest, EndsSoonWithoutAManager) {
  JobLinkClient::Options options;
  options.manager = Address(1);
  options.join = JoinOf(0, 1);
  auto client = JobLinkClient::Start(options, {});
  ASSERT_TRUE(client.ok());
  v1::NodeReport report;
  report.mutable_ended();
  (*client)->Send(report);
}

TEST(JobLinkClientTest, ManyNodes) {
  constexpr uint32_t kNodes = 64;
  auto manager = StartManager({.secret = kToken});
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint32_t i = 0; i < kNodes; ++i) nodes.push_back(std::make_unique<Node>(manager->port(), JoinOf(i, kNodes)));
  for (auto& node : nodes) {
    EXPECT_TRUE(node->WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  }
  for (auto& node : nodes) node->End(0);
  for (auto& node : nodes) EXPECT_EQ(node->WaitEnd()->code(), 0);
}

// ---- Commands on other nodes

// What `taskd rsh` does.
class Caller {
 public:
  Caller(int port, const std::string& host, const std::string& command, const std::string& token = kToken)
      : stub_(v1::JobLink::NewStub(*proto::MakeChannel(Address(port), {"", token}))) {
    context_.set_deadline(std::chrono::system_clock::now() + taskd::testing::kHangLimit);
    stream_ = stub_->Remote(&context_);
    v1::RemoteInput start;
    start.mutable_start()->set_host(host);
    start.mutable_start()->set_command(command);
    stream_->Write(start);
  }
  bool Input(const std::string& bytes) {
    v1::RemoteInput input;
    input.set_input(bytes);
    return stream_->Write(input);
  }
  void InputEnd() {
    v1::RemoteInput input;
    input.set_input_end(true);
    stream_->Write(input);
  }
  void Cancel() { context_.TryCancel(); }
  // Everything to the end.
  grpc::Status Read() {
    v1::RemoteOutput output;
    while (stream_->Read(&output)) {
      out += output.out();
      err += output.err();
      if (output.kind_case() == v1::RemoteOutput::kEnded) code = output.ended();
    }
    return stream_->Finish();
  }

  std::string out, err;
  std::optional<int> code;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::JobLink::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RemoteInput, v1::RemoteOutput>> stream_;
};

// Echoes its input on both outputs, and ends with 3.
void EchoOn(Node& node) {
  node.on_remote = [&node](const v1::RemoteCommand& command) {
    node.Answer(command.id(), [&](v1::RemoteOutput* output) {
      if (command.kind_case() == v1::RemoteCommand::kInputEnd) {
        output->set_ended(3);
      } else if (command.kind_case() == v1::RemoteCommand::kStart) {
        output->set_err(command.start());
      } else {
        output->set_out(command.input());
      }
    });
  };
}

class JobLinkRemoteTest : public ::testing::Test {
 protected:
  JobLinkRemoteTest()
      : manager(StartManager({.secret = kToken})), a(manager->port(), JoinOf(0, 2)), b(manager->port(), JoinOf(1, 2)) {
    EXPECT_TRUE(a.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  }

  std::unique_ptr<manager::ManagerServer> manager;
  Node a, b;
};

TEST_F(JobLinkRemoteTest, InputOutputAndCode) {
  EchoOn(b);
  Caller caller(manager->port(), "10.0.0.2", "echo it");
  const std::string binary("\0\xff\n", 3);
  EXPECT_TRUE(caller.Input(binary));
  EXPECT_TRUE(caller.Input("second"));
  caller.InputEnd();
  EXPECT_TRUE(caller.Read().ok());
  EXPECT_EQ(caller.out, binary + "second");
  EXPECT_EQ(caller.err, "echo it");
  EXPECT_EQ(caller.code, 3);
}

TEST_F(JobLinkRemoteTest, ManyBytesBothWays) {
  EchoOn(b);
  Caller caller(manager->port(), "host1", "cat");
  const std::string chunk(65536, 'x');
  std::thread reader([&] { EXPECT_TRUE(caller.Read().ok()); });
  for (int i = 0; i < 800; ++i) EXPECT_TRUE(caller.Input(chunk));
  caller.InputEnd();
  reader.join();
  EXPECT_EQ(caller.out.size(), 800 * chunk.size());
  EXPECT_EQ(caller.code, 3);
}

TEST_F(JobLinkRemoteTest, InputForANodeThatTakesNoneWaits) {
  std::mutex mutex;
  std::condition_variable wake;
  bool open = false;
  size_t bytes = 0;
  b.on_remote = [&](const v1::RemoteCommand& command) {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return open; });
    bytes += command.input().size();
    if (command.kind_case() == v1::RemoteCommand::kInputEnd) {
      b.Answer(command.id(), [](v1::RemoteOutput* output) { output->set_ended(0); });
    }
  };
  Caller caller(manager->port(), "host1", "slow");
  std::atomic<int> written{0};
  std::thread writer([&] {
    const std::string chunk(65536, 'x');
    for (; written < 800; ++written) EXPECT_TRUE(caller.Input(chunk));
    caller.InputEnd();
  });
  // Another command of the same manager gets on meanwhile.
  EchoOn(a);
  Caller other(manager->port(), "host0", "x");
  other.InputEnd();
  EXPECT_TRUE(other.Read().ok());
  EXPECT_LT(written, 800);
  {
    std::lock_guard lock(mutex);
    open = true;
  }
  wake.notify_all();
  EXPECT_TRUE(caller.Read().ok());
  writer.join();
  EXPECT_EQ(caller.code, 0);
  EXPECT_EQ(bytes, 800u * 65536);
}

TEST_F(JobLinkRemoteTest, OutputThatNobodyTakesIsTooMuchInTheEnd) {
  Caller caller(manager->port(), "host1", "yes");
  ASSERT_TRUE(b.Wait([&] { return !b.remote_.empty(); }));
  const uint64_t id = b.remote_.front().id();
  // The caller's side of the connection takes some too.
  for (int i = 0; i < 500; ++i) {
    b.Answer(id, [](v1::RemoteOutput* output) { output->set_out(std::string(65536, 'y')); });
  }
  EXPECT_TRUE(b.Wait([&] { return b.remote_.back().cancel(); }));
  grpc::Status status = caller.Read();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("16 MiB"));
}

TEST_F(JobLinkRemoteTest, CallerThatGoesCancels) {
  Caller caller(manager->port(), "host1", "sleep");
  ASSERT_TRUE(b.Wait([&] { return b.remote_.size() == 1; }));
  caller.Cancel();
  ASSERT_TRUE(b.Wait([&] { return b.remote_.size() == 2; }));
  EXPECT_TRUE(b.remote_[1].cancel());
  EXPECT_EQ(b.remote_[1].id(), b.remote_[0].id());
  caller.Read();
}

TEST_F(JobLinkRemoteTest, NodeThatGoesFailsTheCall) {
  Caller caller(manager->port(), "host1", "sleep");
  ASSERT_TRUE(b.Wait([&] { return b.remote_.size() == 1; }));
  b.Disconnect();
  grpc::Status status = caller.Read();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("node 1 (host1) is gone"));
}

TEST_F(JobLinkRemoteTest, UnknownHost) {
  Caller caller(manager->port(), "host7", "x");
  grpc::Status status = caller.Read();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("'host7'"));
}

TEST_F(JobLinkRemoteTest, ManagerThatEndsEndsTheCall) {
  Caller caller(manager->port(), "host1", "sleep");
  ASSERT_TRUE(b.Wait([&] { return b.remote_.size() == 1; }));
  manager.reset();
  EXPECT_EQ(caller.Read().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(JobLinkServiceTest, NoRemoteCommandsOnTheStrengthOfAStandIn) {
  const std::string stand_in = StandInSecret("job");
  auto manager = StartManager({.secret = stand_in});
  Node node(manager->port(), JoinOf(0, 1), stand_in);
  ASSERT_TRUE(node.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  Caller caller(manager->port(), "host0", "x", stand_in);
  grpc::Status status = caller.Read();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("TASKD_TOKEN"));
  node.End(0);
  EXPECT_EQ(node.WaitEnd()->code(), 0);
}

TEST(JobLinkServiceTest, ANodeThatWasNotStartedWithRemoteStartTakesNoCommands) {
  auto manager = StartManager({.secret = kToken});
  v1::JoinJob join = JoinOf(0, 1);
  join.set_remote_start(false);
  Node node(manager->port(), join);
  ASSERT_TRUE(node.WaitState([](const v1::JobState& state) { return state.all_joined(); }));
  Caller caller(manager->port(), "host0", "x");
  grpc::Status status = caller.Read();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("--remote-start taskd"));
  node.End(0);
  EXPECT_EQ(node.WaitEnd()->code(), 0);
}

TEST(JobLinkServiceTest, RemoteCommandsNeedTheSecret) {
  auto manager = StartManager({.secret = kToken});
  for (const char* other : {"", "other"}) {
    Caller stranger(manager->port(), "host0", "x", other);
    EXPECT_EQ(stranger.Read().error_code(), grpc::StatusCode::UNAVAILABLE) << other;
  }
}

TEST(JobLinkServiceTest, WhatMakesNoSenseIsRefused) {
  auto manager = StartManager();
  auto stub = v1::JobLink::NewStub(*proto::MakeChannel(Address(manager->port()), {"", manager::kTestSecret}));
  auto answer = [&](const v1::NodeReport& report) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + taskd::testing::kHangLimit);
    auto stream = stub->Join(&context);
    stream->Write(report);
    v1::JobNotice notice;
    while (stream->Read(&notice)) {
    }
    return stream->Finish();
  };
  v1::NodeReport report;
  report.mutable_ready();
  EXPECT_EQ(answer(report).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  *report.mutable_join() = JoinOf(0, 1);
  report.mutable_join()->set_job("no slash");
  EXPECT_EQ(answer(report).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace taskd::modes
