#include "proxy/node_events.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nvsentinel.grpc.pb.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using ::testing::HasSubstr;

// NVSentinel's platform connector.
class Connector final : public datamodels::PlatformConnector::Service {
 public:
  explicit Connector(const std::string& path) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Connector() override {
    {
      std::lock_guard lock(mutex_);
      holds_ = false;
    }
    changed_.notify_all();
    server_->Shutdown();
  }
  grpc::Status HealthEventOccurredV1(grpc::ServerContext*, const datamodels::HealthEvents* events,
                                     google::protobuf::Empty*) override {
    std::unique_lock lock(mutex_);
    taken_.push_back(*events);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !holds_; });
    return grpc::Status::OK;
  }
  void Hold() {
    std::lock_guard lock(mutex_);
    holds_ = true;
  }
  std::vector<datamodels::HealthEvents> taken() {
    std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_ = false;
  std::vector<datamodels::HealthEvents> taken_;
  std::unique_ptr<grpc::Server> server_;
};

class NodeEventsTest : public ::testing::Test {
 protected:
  std::string Event(const std::string& socket, const std::string& node_name = "worker-1") {
    proto::NodeEvent event;
    event.socket = socket;
    event.events.set_version(1);
    event.events.add_events()->set_nodename(node_name);
    return proto::RenderNodeEvent(event);
  }
  std::pair<bool, std::string> AnswerOf(uint64_t id) {
    EXPECT_TRUE(taskd::testing::WaitUntil([&] {
      std::lock_guard lock(mutex_);
      return answers_.count(id) != 0;
    }));
    std::lock_guard lock(mutex_);
    return answers_[id];
  }

  testing::TempDir folder_;
  std::mutex mutex_;
  std::map<uint64_t, std::pair<bool, std::string>> answers_;
  NodeEvents events_{"worker-1", [this](uint64_t id, bool ok, const std::string& message) {
                       std::lock_guard lock(mutex_);
                       answers_[id] = {ok, message};
                     }};
};

TEST_F(NodeEventsTest, AnEventOfThisNodeReachesNvsentinel) {
  const std::string path = folder_.path() + "/connector.sock";
  Connector connector(path);
  events_.Send(1, Event(path));
  EXPECT_TRUE(AnswerOf(1).first) << AnswerOf(1).second;
  ASSERT_EQ(connector.taken().size(), 1u);
  EXPECT_EQ(connector.taken()[0].events(0).nodename(), "worker-1");
  events_.Send(2, Event(path, "worker-2"));
  EXPECT_THAT(AnswerOf(2).second, HasSubstr("this node is called 'worker-1'"));
  connector.Hold();
  events_.Send(3, Event(path));
  ASSERT_TRUE(taskd::testing::WaitUntil([&] { return connector.taken().size() == 2; }));
  events_.Send(4, Event(path));
  EXPECT_THAT(AnswerOf(4).second, HasSubstr("under way"));
  events_.Stop();  // at once, though nobody has answered
  EXPECT_EQ(connector.taken().size(), 2u);
}

TEST_F(NodeEventsTest, OnlyASocketOfRootOrThisUserIsUsed) {
  const std::string path = folder_.path() + "/connector.sock";
  events_.Send(1, Event(path));
  EXPECT_THAT(AnswerOf(1).second, HasSubstr("No such file"));
  events_.Send(2, Event("/dev/null"));
  EXPECT_THAT(AnswerOf(2).second, HasSubstr("no socket"));
  events_.Send(3, Event("connector.sock"));
  EXPECT_FALSE(AnswerOf(3).first);
  events_.Send(4, "{\"socket\":1}");
  EXPECT_FALSE(AnswerOf(4).first);
  events_.Send(5, R"({"socket":"/x","events":"zz"})");
  EXPECT_FALSE(AnswerOf(5).first);
  if (geteuid() != 0) return;
  Connector connector(path);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  events_.Send(6, Event(path));
  EXPECT_THAT(AnswerOf(6).second, HasSubstr("belongs to user 12345"));
  EXPECT_TRUE(connector.taken().empty());
}

}  // namespace
}  // namespace taskd::proxy
