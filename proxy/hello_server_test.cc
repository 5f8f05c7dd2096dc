#include "proxy/hello_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <condition_variable>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proxy/testing/fake_segment.h"
#include "proxy/testing/temp_dir.h"

namespace taskd::proxy {
namespace {

using testing::FakeSegment;
using ::testing::HasSubstr;
using testing::TempDir;

class HelloServerTest : public ::testing::Test {
 protected:
  HelloServerTest()
      : socket_(temp_ / "proxy.sock"),
        node_({.host = "h", .socket = socket_}, ProfilingDir(temp_ / "profiling", "task")),
        server_(&node_, [this](const AgentAnswer& answer) {
          std::lock_guard<std::mutex> lock(mutex_);
          answers_.push_back(answer);
          answered_.notify_all();
        }) {
    node_.Start();
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval limit = {taskd::testing::kHangLimit.count(), 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
  }

  static hello::Hello HelloOf(hello::Role role, int rank) {
    hello::Hello hello = {};
    hello.magic = hello::kMagic;
    hello.version = hello::kVersion;
    hello.role = role;
    hello.rank = rank;
    return hello;
  }

  static void Send(int fd, const hello::Hello& hello, int passed = -1) {
    iovec data = {const_cast<hello::Hello*>(&hello), sizeof(hello)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (passed >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      memcpy(CMSG_DATA(header), &passed, sizeof(int));
    }
    ASSERT_EQ(sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(hello)));
  }

  static hello::HelloReply Reply(int fd) {
    hello::HelloReply reply = {};
    EXPECT_EQ(recv(fd, &reply, sizeof(reply), MSG_WAITALL), static_cast<ssize_t>(sizeof(reply)));
    return reply;
  }

  static bool Closed(int fd) {
    char byte;
    return recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN;
  }

  AgentAnswer NextAnswer() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(taskd::testing::WaitFor(answered_, lock, [this] { return !answers_.empty(); }));
    if (answers_.empty()) return {};
    AgentAnswer answer = answers_.front();
    answers_.erase(answers_.begin());
    return answer;
  }

  TempDir temp_;
  std::string socket_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<AgentAnswer> answers_;
  Node node_;
  HelloServer server_;
};

TEST_F(HelloServerTest, TakesARanksSegment) {
  ASSERT_TRUE(server_.Start(socket_).ok());
  FakeSegment fake;
  UniqueFd fd = Connect();
  UniqueFd segment = fake.Fd();
  Send(fd.get(), HelloOf(hello::kRoleWorker, 3), segment.get());
  EXPECT_EQ(Reply(fd.get()).status, hello::kAccepted);
  ASSERT_EQ(node_.Reports().size(), 1u);
  EXPECT_TRUE(node_.Reports()[0].attached);
}

TEST_F(HelloServerTest, SaysWhyItRefuses) {
  ASSERT_TRUE(server_.Start(socket_).ok());
  FakeSegment fake;
  UniqueFd segment = fake.Fd();
  hello::Hello other_version = HelloOf(hello::kRoleWorker, 3);
  other_version.version = 99;
  for (const auto& [hello, passed, message] :
       {std::tuple<hello::Hello, int, const char*>{HelloOf(hello::kRoleWorker, -5), segment.get(), "rank -5"},
        {HelloOf(hello::kRoleWorker, 1), -1, "without its segment"},
        {other_version, segment.get(), "version 99"}}) {
    UniqueFd fd = Connect();
    Send(fd.get(), hello, passed);
    hello::HelloReply reply = Reply(fd.get());
    EXPECT_EQ(reply.status, hello::kRefused);
    EXPECT_THAT(std::string(reply.message), HasSubstr(message));
    EXPECT_TRUE(Closed(fd.get()));
  }
  EXPECT_TRUE(node_.Reports().empty());
}

TEST_F(HelloServerTest, GarbageIsClosedAndOthersGoOn) {
  ASSERT_TRUE(server_.Start(socket_).ok());
  UniqueFd garbage = Connect();
  const std::string noise(1000, '\xa5');
  ASSERT_EQ(send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 1000);
  EXPECT_TRUE(Closed(garbage.get()));
  FakeSegment fake;
  UniqueFd fd = Connect();
  UniqueFd segment = fake.Fd();
  Send(fd.get(), HelloOf(hello::kRoleWorker, 3), segment.get());
  EXPECT_EQ(Reply(fd.get()).status, hello::kAccepted);
}

TEST_F(HelloServerTest, ReplacesAnAbandonedSocketButNotALivingOne) {
  {
    UniqueFd abandoned(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(abandoned.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ASSERT_TRUE(server_.Start(socket_).ok());
  HelloServer second(&node_, [](const AgentAnswer&) {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.Start(socket_)));
  struct stat info;
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  server_.Stop();
  EXPECT_NE(stat(socket_.c_str(), &info), 0) << "a stopped server removes its socket";
}

TEST_F(HelloServerTest, NamesABadPath) {
  testing::WriteFile(socket_, "precious");
  EXPECT_TRUE(absl::IsInvalidArgument(server_.Start(socket_)));
  EXPECT_EQ(testing::ReadFile(socket_), "precious");
  EXPECT_TRUE(absl::IsInvalidArgument(server_.Start("/tmp/" + std::string(200, 'x'))));
  EXPECT_FALSE(server_.Start(temp_ / "no/such/folder/proxy.sock").ok());
}

TEST_F(HelloServerTest, CallsTheAgentsCallbacks) {
  ASSERT_TRUE(server_.Start(socket_).ok());
  server_.CallAgents(1, "KILL_WORKER", "{}");
  AgentAnswer nobody = NextAnswer();
  EXPECT_FALSE(nobody.ok);
  EXPECT_THAT(nobody.message, HasSubstr("no agent"));

  UniqueFd agent = Connect();
  Send(agent.get(), HelloOf(hello::kRoleAgent, -1));
  ASSERT_EQ(Reply(agent.get()).status, hello::kAccepted);
  server_.CallAgents(2, "START_WORKER_LIST", R"({"ranks":[1,2]})");
  uint32_t length = 0;
  ASSERT_EQ(recv(agent.get(), &length, sizeof(length), MSG_WAITALL), 4);
  std::string frame(length, '\0');
  ASSERT_EQ(recv(agent.get(), frame.data(), length, MSG_WAITALL), static_cast<ssize_t>(length));
  nlohmann::json call = nlohmann::json::parse(frame);
  EXPECT_EQ(call["operator"], "START_WORKER_LIST");
  EXPECT_EQ(call["args"]["ranks"], (std::vector<int>{1, 2}));
  std::string reply = nlohmann::json{{"id", call["id"]}, {"ok", true}, {"message", "started"}}.dump();
  length = reply.size();
  reply.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  ASSERT_EQ(send(agent.get(), reply.data(), reply.size(), MSG_NOSIGNAL), static_cast<ssize_t>(reply.size()));
  AgentAnswer answer = NextAnswer();
  EXPECT_EQ(answer.id, 2u);
  EXPECT_TRUE(answer.ok);
  EXPECT_EQ(answer.message, "started");

  length = hello::kMaxFrameBytes + 1;
  ASSERT_EQ(send(agent.get(), &length, sizeof(length), MSG_NOSIGNAL), 4);
  EXPECT_TRUE(Closed(agent.get())) << "a frame above the limit ends the connection";
}

// The frame of a call, and the agent's answer to it.
class HelloServerAgentTest : public HelloServerTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.Start(socket_).ok());
    agent_ = Connect();
    Send(agent_.get(), HelloOf(hello::kRoleAgent, -1));
    ASSERT_EQ(Reply(agent_.get()).status, hello::kAccepted);
  }
  void Answer(const std::string& text) {
    const uint32_t length = text.size();
    std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
    frame += text;
    ASSERT_EQ(send(agent_.get(), frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  }
  // Until the call has come: an answer before it belongs to no call.
  void TakeCall() {
    uint32_t length = 0;
    ASSERT_EQ(recv(agent_.get(), &length, sizeof(length), MSG_WAITALL), 4);
    std::string frame(length, '\0');
    ASSERT_EQ(recv(agent_.get(), frame.data(), length, MSG_WAITALL), static_cast<ssize_t>(length));
  }
  UniqueFd agent_;
};

TEST_F(HelloServerAgentTest, RefusesArgumentsThatCannotBePassedOn) {
  const std::string deep(32'000, '[');
  uint64_t id = 0;
  for (const std::string& args : {deep, deep + std::string(32'000, ']'), std::string("nonsense"),
                                  "\"" + std::string(hello::kMaxFrameBytes, 'x') + "\"",
                                  "[\"" + std::string(hello::kMaxFrameBytes - 4, 'x') + "\"]"}) {
    server_.CallAgents(++id, "KILL_WORKER", args);
    AgentAnswer answer = NextAnswer();
    EXPECT_EQ(answer.id, id);
    EXPECT_FALSE(answer.ok);
    EXPECT_THAT(answer.message, HasSubstr("the call"));
  }
  server_.CallAgents(7, "KILL_WORKER", "");
  TakeCall();
  Answer(R"({"id":7,"ok":true})");
  EXPECT_TRUE(NextAnswer().ok) << "others go on";
}

TEST_F(HelloServerAgentTest, ADeepAnswerEndsItsConnection) {
  server_.CallAgents(1, "KILL_WORKER", "{}");
  TakeCall();
  const std::string nested = std::string(32'000, '[') + std::string(32'000, ']');
  Answer(R"({"id":1,"ok":true,"message":)" + nested + "}");
  EXPECT_FALSE(NextAnswer().ok);
}

}  // namespace
}  // namespace taskd::proxy
