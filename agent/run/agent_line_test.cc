// The launcher's agent line, with the test as the proxy.
#include "agent/run/agent_line.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "taskd/hello.h"

namespace taskd::run {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// One accepted line, read and written by a thread that may block.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {
    const timeval patience{taskd::testing::kHangLimit.count(), 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  std::string Read(size_t size) {
    std::string data(size, '\0');
    size_t done = 0;
    while (done < size) {
      const ssize_t got = recv(fd_.get(), data.data() + done, size - done, 0);
      if (got <= 0) return "";
      done += static_cast<size_t>(got);
    }
    return data;
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  static std::string Frame(const std::string& text) {
    const auto length = static_cast<uint32_t>(text.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  }
  json ReadAnswer() {
    const std::string prefix = Read(sizeof(uint32_t));
    if (prefix.empty()) return nullptr;
    uint32_t length;
    memcpy(&length, prefix.data(), sizeof(length));
    return json::parse(Read(length), nullptr, false);
  }
  json Ask(const json& request) {
    Write(Frame(request.dump()));
    return ReadAnswer();
  }
  bool IsClosed() { return Read(1).empty() && errno != EAGAIN; }

 private:
  UniqueFd fd_;
};

class AgentLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/taskd-agent-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    AgentOperations operations;
    operations.state = [this] { return state_; };
    operations.kill_ranks = [this](AgentOperations::Done done) {
      did_.push_back("kill");
      if (answer_late_) {
        late_.push_back(std::move(done));
      } else {
        done(absl::OkStatus());
      }
    };
    operations.start_ranks = [this](const std::vector<int>& ranks, const AgentOperations::Done& done) {
      did_.push_back("start" + ::testing::PrintToString(ranks));
      done(absl::OkStatus());
    };
    operations.restart = [](const AgentOperations::Done& done) {
      done(absl::FailedPreconditionError("no restart is left (--max-restarts 0)"));
    };
    state_[0] = {4711, std::nullopt, 8};
    state_[1] = {4712, 139, 9};
    loop_.Post([this, operations = std::move(operations)] {
      line_ = std::make_unique<AgentLine>(&loop_, folder_ + "/proxy.sock", operations);
    });
    thread_ = std::thread([this] { loop_.Run(); });
  }

  void TearDown() override {
    loop_.Post([this] {
      line_.reset();
      loop_.Stop();
    });
    thread_.join();
    std::filesystem::remove_all(folder_);
  }

  void Listen() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder_ + "/proxy.sock").copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{taskd::testing::kHangLimit.count(), 0};
    setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
  }

  // A line whose hello was read and answered with `reply`.
  std::unique_ptr<Line> Accept(uint16_t status = hello::kAccepted) {
    auto line = std::make_unique<Line>(accept(listener_.get(), nullptr, nullptr));
    const std::string bytes = line->Read(sizeof(hello_));
    if (bytes.size() == sizeof(hello_)) memcpy(&hello_, bytes.data(), sizeof(hello_));
    hello::HelloReply reply{};
    reply.magic = hello::kMagic;
    reply.version = hello::kVersion;
    reply.status = status;
    line->Write(std::string(reinterpret_cast<const char*>(&reply), sizeof(reply)));
    return line;
  }

  void OnLoop(std::function<void()> work) {
    std::promise<void> done;
    loop_.Post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  EventLoop loop_;
  std::string folder_;
  UniqueFd listener_;
  hello::Hello hello_{};
  std::unique_ptr<AgentLine> line_;
  std::thread thread_;
  // On the loop's thread, or between OnLoop() and the next request.
  std::map<int, AgentOperations::RankState> state_;
  std::vector<std::string> did_;
  bool answer_late_ = false;
  std::vector<AgentOperations::Done> late_;
};

// `arguments`: JSON, the function's.
json Request(int id, const std::string& operation, const std::string& arguments = "") {
  json request = {{"id", id}, {"operator", operation}, {"args", json::object()}};
  if (!arguments.empty()) request["args"]["args"] = json::parse(arguments);
  return request;
}

TEST_F(AgentLineTest, SaysHelloAsAgentOnceThereIsAProxy) {
  Listen();
  Accept();
  EXPECT_EQ(hello_.magic, hello::kMagic);
  EXPECT_EQ(hello_.version, hello::kVersion);
  EXPECT_EQ(hello_.role, hello::kRoleAgent);
  EXPECT_EQ(hello_.rank, -1);
  EXPECT_EQ(hello_.pid, static_cast<uint32_t>(getpid()));
}

TEST_F(AgentLineTest, DoesWhatIsAsked) {
  Listen();
  auto line = Accept();
  EXPECT_EQ(line->Ask(Request(7, "KILL_WORKER")), json({{"id", 7}, {"ok", true}, {"message", ""}}));
  EXPECT_TRUE(line->Ask(Request(8, "KILL_WORKER", "[[-1]]"))["ok"]);
  EXPECT_TRUE(line->Ask(Request(9, "START_ALL_WORKER"))["ok"]);
  EXPECT_TRUE(line->Ask(Request(10, "START_WORKER_LIST", "[[1, 0]]"))["ok"]);
  EXPECT_THAT(did_, ::testing::ElementsAre("kill", "kill", "start{}", "start{ 1, 0 }"));
  EXPECT_EQ(line->Ask(Request(11, "RESTART")),
            json({{"id", 11}, {"ok", false}, {"message", "no restart is left (--max-restarts 0)"}}));
}

TEST_F(AgentLineTest, MonitorSaysHowEachRankIs) {
  Listen();
  auto line = Accept();
  const json answer = line->Ask(json::parse(R"({"id":1,"operator":"MONITOR"})"));
  EXPECT_EQ(json::parse(answer["message"].get<std::string>()),
            json::parse(R"({"0":{"pid":4711,"status":null,"global_rank":8},
                            "1":{"pid":4712,"status":139,"global_rank":9}})"));
  const json one = line->Ask(Request(2, "MONITOR", "[[1]]"));
  EXPECT_EQ(one["message"], R"({"1":{"pid":4712,"status":139,"global_rank":9}})");
}

TEST_F(AgentLineTest, WrongRequestsAreAnsweredAndDoNothing) {
  Listen();
  auto line = Accept();
  const std::vector<std::pair<json, std::string>> wrong = {
      {Request(1, "DANCE"), "unknown operator DANCE"},
      {json::parse(R"({"id":1})"), "unknown operator"},
      {json::parse(R"({"id":1,"operator":5})"), "unknown operator"},
      {Request(1, "START_WORKER_LIST"), "missing"},
      {Request(1, "START_WORKER_LIST", "[[]]"), "empty"},
      {Request(1, "START_WORKER_LIST", "[[0, 2]]"), "2 is no local rank of this node; it has 2"},
      {Request(1, "START_WORKER_LIST", "[[0, -1]]"), "-1 is no local rank"},
      {Request(1, "START_WORKER_LIST", "[[1e300]]"), "is not a local rank"},
      {Request(1, "START_WORKER_LIST", "[[9223372036854775808]]"), "is not a local rank"},
      {Request(1, "START_WORKER_LIST", "[[18446744073709551615]]"), "is not a local rank"},
      {Request(1, "START_WORKER_LIST", "[0]"), "not a list"},
      {Request(1, "KILL_WORKER", "[[0]]"), "for all ranks of a node"},
      {Request(1, "MONITOR", "[[0], [1]]"), "args may only be"},
      {json::parse(R"({"id":1,"operator":"MONITOR","args":3})"), "args is not an object"},
      {json::parse(R"({"id":1,"operator":"MONITOR","args":{"kwargs":{"a":1}}})"), "args may only be"},
  };
  for (const auto& [request, words] : wrong) {
    const json answer = line->Ask(request);
    EXPECT_EQ(answer["ok"], false) << request;
    EXPECT_THAT(answer["message"].get<std::string>(), HasSubstr(words)) << request;
  }
  EXPECT_THAT(did_, ::testing::IsEmpty());
  // Nobody could be answered: left out, and the line goes on.
  line->Write(Line::Frame("{") + Line::Frame("[1]") + Line::Frame(R"({"id":-1})") + Line::Frame(""));
  constexpr size_t kDepth = 32'000;
  line->Write(Line::Frame(R"({"id":1,"operator":"MONITOR","args":)" + std::string(kDepth, '[') +
                          std::string(kDepth, ']') + "}"));
  EXPECT_TRUE(line->Ask(Request(2, "KILL_WORKER"))["ok"]);
}

TEST_F(AgentLineTest, ManyRequestsInPieces) {
  Listen();
  auto line = Accept();
  std::string bytes;
  for (int id = 0; id < 200; ++id) bytes += Line::Frame(Request(id, "MONITOR").dump());
  for (size_t at = 0; at < bytes.size(); at += 777) line->Write(bytes.substr(at, 777));
  for (int id = 0; id < 200; ++id) ASSERT_EQ(line->ReadAnswer()["id"], id);
}

TEST_F(AgentLineTest, AnswersWhenItIsDone) {
  answer_late_ = true;  // the loop has not been asked for anything yet
  Listen();
  auto line = Accept();
  line->Write(Line::Frame(Request(1, "KILL_WORKER").dump()));
  EXPECT_EQ(line->Ask(Request(2, "MONITOR"))["id"], 2);  // meanwhile
  OnLoop([this] { late_.at(0)(absl::OkStatus()); });
  EXPECT_EQ(line->ReadAnswer(), json({{"id", 1}, {"ok", true}, {"message", ""}}));

  // The proxy has gone meanwhile: the answer is for nobody, least of all for the next line.
  line->Write(Line::Frame(Request(3, "KILL_WORKER").dump()));
  EXPECT_EQ(line->Ask(Request(4, "MONITOR"))["id"], 4);
  line.reset();
  auto next = Accept();
  OnLoop([this] { late_.at(1)(absl::OkStatus()); });
  EXPECT_EQ(next->Ask(Request(5, "MONITOR"))["id"], 5);
}

TEST_F(AgentLineTest, ComesBackAfterTheProxyIsGoneOrTalksNonsense) {
  Listen();
  Accept();  // and closed
  auto line = Accept();
  const uint32_t length = hello::kMaxFrameBytes + 1;
  line->Write(std::string(reinterpret_cast<const char*>(&length), sizeof(length)));
  EXPECT_TRUE(line->IsClosed());
  auto next = Accept();
  EXPECT_TRUE(next->Ask(Request(1, "KILL_WORKER"))["ok"]);
}

TEST_F(AgentLineTest, RefusedByTheProxy) {
  Listen();
  auto line = Accept(hello::kRefused);
  EXPECT_TRUE(line->IsClosed());
}

}  // namespace
}  // namespace taskd::run
