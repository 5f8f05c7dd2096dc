// Contract §1.1, SubscribeDataTraceSwitch: the manager as ClusterD's subscriber, against a ClusterD of our own making.
#include "manager/switch/clusterd_client.h"

#include <deque>

#include "common/testing/free_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "manager/test_client.h"

namespace taskd::manager {
namespace {

constexpr std::chrono::milliseconds kLookAgain{50};

// As ClusterD: plain text, pushes only what Modify brings, one publisher for the job.
class FakeTraceServer final : public TrainingDataTrace::Service, public Watched {
 public:
  explicit FakeTraceServer(int port = 0) {
    grpc::ServerBuilder builder;
    proto::SetServerLimits(builder, size_t{64} << 20);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeTraceServer() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    server_->Shutdown(std::chrono::system_clock::now());
  }

  int port() const { return port_; }
  bool WaitForSubscription() {
    return WaitFor([this] { return subscriptions_ > 0; });
  }
  bool WaitForSubscriptions(int count) {
    return WaitFor([&] { return subscriptions_ >= count; });
  }
  ProfilingClientInfo client() {
    std::lock_guard lock(mutex_);
    return client_;
  }
  void Push(const DataStatusRes& message) {
    std::lock_guard lock(mutex_);
    queue_.push_back(message);
    changed_.notify_all();
  }
  void Push(const char* step, const char* communication) {
    DataStatusRes message;
    message.set_code(200);
    message.set_message("update profiling switch");
    message.mutable_profilingswitch()->set_step(step);
    message.mutable_profilingswitch()->set_communicationoperator(communication);
    Push(message);
  }

  grpc::Status SubscribeDataTraceSwitch(grpc::ServerContext* context, const ProfilingClientInfo* request,
                                        grpc::ServerWriter<DataStatusRes>* writer) override {
    std::unique_lock lock(mutex_);
    client_ = *request;
    ++subscriptions_;
    changed_.notify_all();
    while (!stopping_ && !context->IsCancelled()) {
      // A cancelled call does not wake us; look now and then.
      changed_.wait_for(lock, kLookAgain, [this] { return stopping_ || !queue_.empty(); });
      while (!queue_.empty()) {
        writer->Write(queue_.front());
        queue_.pop_front();
      }
    }
    return {grpc::StatusCode::UNAVAILABLE, "ClusterD is going down"};
  }

 private:
  int port_ = 0;
  int subscriptions_ = 0;
  bool stopping_ = false;
  ProfilingClientInfo client_;
  std::deque<DataStatusRes> queue_;
  std::unique_ptr<grpc::Server> server_;
};

class Recorder : public Watched {
 public:
  ClusterdClient::OnSwitch Function() {
    return [this](const SwitchChange& change, bool may_be_replay) {
      std::lock_guard lock(mutex_);
      changes_.emplace_back(change, may_be_replay);
      changed_.notify_all();
    };
  }
  std::vector<std::pair<SwitchChange, bool>> WaitForChanges(size_t count) {
    EXPECT_TRUE(WaitFor([&] { return changes_.size() >= count; }));
    std::lock_guard lock(mutex_);
    return changes_;
  }

 private:
  std::vector<std::pair<SwitchChange, bool>> changes_;
};

std::string Local(int port) { return "127.0.0.1:" + std::to_string(port); }

TEST(ClusterdClientTest, SubscribesAsTaskdAndTakesWhatIsValid) {
  FakeTraceServer clusterd;
  Recorder recorder;
  ClusterdClient client(Local(clusterd.port()), "task-1", recorder.Function());
  ASSERT_TRUE(clusterd.WaitForSubscription());
  EXPECT_EQ(clusterd.client().jobid(), "task-1");
  EXPECT_EQ(clusterd.client().role(), "taskd");

  clusterd.Push("on", "off");
  DataStatusRes without_switch;
  without_switch.set_code(200);
  clusterd.Push(without_switch);
  clusterd.Push("ON", "off");
  DataStatusRes failed;
  failed.set_code(500);
  failed.mutable_profilingswitch()->set_step("off");
  clusterd.Push(failed);
  clusterd.Push("on", "off");
  auto changes = recorder.WaitForChanges(2);
  ASSERT_EQ(changes.size(), 2u) << "the broken ones in between are ignored";
  EXPECT_EQ(changes[0].first[static_cast<int>(SwitchKind::kStep)], true);
  EXPECT_EQ(changes[0].first[static_cast<int>(SwitchKind::kCommunication)], false);
  EXPECT_EQ(changes[0].first[static_cast<int>(SwitchKind::kForward)], std::nullopt);
  EXPECT_FALSE(changes[1].second) << "not the first message of a subscription";
}

TEST(ClusterdClientTest, ComesBackAfterClusterdRestarts) {
  const int port = testing::FreePort();
  auto clusterd = std::make_unique<FakeTraceServer>(port);
  Recorder recorder;
  ClusterdClient client(Local(port), "task-1", recorder.Function());
  ASSERT_TRUE(clusterd->WaitForSubscription());
  clusterd->Push("on", "");
  recorder.WaitForChanges(1);
  clusterd.reset();
  clusterd = std::make_unique<FakeTraceServer>(port);
  ASSERT_EQ(clusterd->port(), port);
  clusterd->Push("off", "");
  EXPECT_EQ(recorder.WaitForChanges(2)[1].first[static_cast<int>(SwitchKind::kStep)], false);
}

TEST(ClusterdClientTest, LeavesAServerThatSendsWithoutEnd) {
  FakeTraceServer clusterd;
  Recorder recorder;
  ClusterdClient client(Local(clusterd.port()), "task-1", recorder.Function());
  for (int i = 0; i < 5000; ++i) clusterd.Push(i % 2 == 0 ? "on" : "off", "");
  ASSERT_TRUE(clusterd.WaitForSubscriptions(2));
  EXPECT_LT(recorder.WaitForChanges(1).size(), 400u);
}

TEST(ClusterdClientTest, EndsWhileNobodyAnswersAndWhileSubscribed) {
  Recorder recorder;
  { ClusterdClient nobody("127.0.0.1:1", "task-1", recorder.Function()); }
  FakeTraceServer clusterd;
  auto client = std::make_unique<ClusterdClient>(Local(clusterd.port()), "task-1", recorder.Function());
  ASSERT_TRUE(clusterd.WaitForSubscription());
  client.reset();
}

// The manager as a whole: the newest command wins whoever sent it, a replay is none.
TEST(ClusterdClientTest, NewestCommandWins) {
  auto clusterd = std::make_unique<FakeTraceServer>();
  ManagerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "";
  options.switch_file = "";
  options.secret = kTestSecret;
  options.clusterd = Local(clusterd->port());
  auto manager = ManagerServer::Start(options);
  ASSERT_TRUE(manager.ok()) << manager.status();
  auto channel = Dial((*manager)->port());
  TestProxy node(channel, 0, {0});
  clusterd->Push("on", "on");
  ASSERT_TRUE(node.WaitForWanted(1));
  EXPECT_TRUE(node.wanted().back().kinds().communication());

  auto control = v1::Control::NewStub(channel);
  v1::SetSwitchRequest request;
  request.set_communication(false);
  v1::SetSwitchReply reply;
  Context context;
  ASSERT_TRUE(control->SetSwitch(&context, request, &reply).ok());
  EXPECT_EQ(reply.wanted().revision(), 2u);

  int port = clusterd->port();
  clusterd.reset();
  clusterd = std::make_unique<FakeTraceServer>(port);
  clusterd->Push("on", "on");  // what it said before: a replay
  clusterd->Push("off", "");   // a new command
  ASSERT_TRUE(node.WaitForWanted(3));
  EXPECT_EQ(node.wanted().back().revision(), 3u);
  EXPECT_FALSE(node.wanted().back().kinds().communication()) << "the replay has not switched it on again";
}

}  // namespace
}  // namespace taskd::manager
