// For the manager's gRPC tests: a server on a free port, and proxies and subscribers that are real clients of it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/testing/deadline.h"
#include "common/unique_fd.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "manager/server.h"
#include "profiling.grpc.pb.h"
#include "proto/channel.h"
#include "proto/stream_connection.h"
#include "taskd/v1/control.grpc.pb.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::manager {

inline constexpr char kTestSecret[] = "of the test's job";

inline std::shared_ptr<grpc::Channel> Dial(int port, const std::string& secret = kTestSecret) {
  auto channel = proto::MakeChannel("127.0.0.1:" + std::to_string(port), {"", secret});
  return channel.ok() ? *channel : nullptr;
}

// A manager on loopback that touches no file.
struct TestManager {
  std::string secret = kTestSecret;
  int port = 0;  // 0: a free one
  std::string job = {};
};
inline std::unique_ptr<ManagerServer> StartManager(const TestManager& given = {}) {
  ManagerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(given.port);
  options.http.clear();
  options.switch_file.clear();
  options.secret = given.secret;
  options.job = given.job;
  auto server = ManagerServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// A condition that nobody announces.
template <typename Condition>
bool PollFor(const Condition& condition) {
  return testing::WaitUntil(condition);
}

// A ClientContext with a deadline and, if given, a bearer token.
struct Context : grpc::ClientContext {
  explicit Context(const std::string& token = "") {
    set_deadline(std::chrono::system_clock::now() + testing::kHangLimit);
    if (!token.empty()) AddMetadata("authorization", "Bearer " + token);
  }
};

// GET of a path on loopback: the whole answer, headers and all. `header`: further lines of the request.
inline std::string HttpGet(int port, const std::string& path, const std::string& header = "") {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return "cannot connect";
  std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header + "\r\n";
  if (write(fd.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) return "cannot write";
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = read(fd.get(), buffer, sizeof buffer)) > 0;) answer.append(buffer, static_cast<size_t>(got));
  return answer;
}

// Waits for a condition that another thread makes true.
class Watched {
 public:
  template <typename Condition>
  bool WaitFor(Condition condition) {
    std::unique_lock lock(mutex_);
    return testing::WaitFor(changed_, lock, condition);
  }

 protected:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A proxy: one stream, ranks that apply the wanted state as soon as they hear of it (unless set otherwise).
class TestProxy : public Watched {
 public:
  // One that shares a connection with other calls.
  TestProxy(const std::shared_ptr<grpc::Channel>& channel, int node_rank, std::vector<int> ranks, bool answers = true)
      : TestProxy(v1::NodeLink::NewStub(channel), node_rank, std::move(ranks), answers, false) {}
  // One with a connection of its own to the manager at `port`, as real ones have.
  TestProxy(int port, int node_rank, std::vector<int> ranks, bool answers = true)
      : TestProxy(v1::NodeLink::NewStub(Dial(port)), node_rank, std::move(ranks), answers, true) {}
  ~TestProxy() { End(); }

  // Ends the stream as a killed proxy does; returns what the manager sent, if it sent something first.
  grpc::Status End() {
    context_.TryCancel();
    if (reader_.joinable()) reader_.join();
    return status_;
  }
  // Waits until the manager has ended the stream.
  grpc::Status Ended() {
    WaitFor([this] { return ended_; });
    return End();
  }
  bool WaitForWanted(uint64_t revision) {
    return WaitFor([&] { return !wanted_.empty() && wanted_.back().revision() >= revision; });
  }
  std::vector<v1::WantedState> wanted() {
    std::lock_guard lock(mutex_);
    return wanted_;
  }
  void Write(const v1::NodeMessage& message) {
    std::lock_guard lock(write_mutex_);
    stream_->Write(message);
  }
  void Report() {
    v1::NodeMessage message;
    message.mutable_ranks();
    for (int rank : ranks_) {
      v1::RankStatus* status = message.mutable_ranks()->add_ranks();
      status->set_rank(rank);
      status->set_pid(1000 + rank);
      status->set_attached(true);
      status->set_step(17);
      status->mutable_marks()->set_step(rank + 1);
    }
    Write(message);
  }

 private:
  TestProxy(std::unique_ptr<v1::NodeLink::Stub> stub, int node_rank, std::vector<int> ranks, bool answers, bool alone)
      : node_rank_(node_rank), ranks_(std::move(ranks)), answers_(answers), stub_(std::move(stub)) {
    if (alone) context_.AddMetadata(proto::kOnlyCall, "1");
    stream_ = stub_->Connect(&context_);
    v1::NodeMessage message;
    message.mutable_hello()->set_node_rank(node_rank);
    message.mutable_hello()->set_host("host" + std::to_string(node_rank));
    message.mutable_hello()->set_identity("proxy" + std::to_string(node_rank));
    stream_->Write(message);
    Report();
    reader_ = std::thread([this] { Read(); });
  }

  void Read() {
    v1::ManagerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_wanted()) {  // before it is answered: whoever waits for the answer looks here
        std::lock_guard lock(mutex_);
        wanted_.push_back(message.wanted());
        changed_.notify_all();
      }
      v1::NodeMessage answer;
      if (message.has_wanted() && answers_) {
        answer.mutable_applied()->set_revision(message.wanted().revision());
        for (int rank : ranks_) {
          v1::RankAnswer* applied = answer.mutable_applied()->add_ranks();
          applied->set_rank(rank);
          applied->set_node(node_rank_);
          applied->set_state(v1::RankAnswer::APPLIED);
        }
        Write(answer);
      } else if (message.has_agent_call()) {
        answer.mutable_agent_reply()->set_id(message.agent_call().id());
        answer.mutable_agent_reply()->set_ok(true);
        answer.mutable_agent_reply()->set_message(message.agent_call().operator_());
        Write(answer);
      }
    }
    grpc::Status status = stream_->Finish();
    std::lock_guard lock(mutex_);
    status_ = status;
    ended_ = true;
    changed_.notify_all();
  }

  const int node_rank_;
  const std::vector<int> ranks_;
  const bool answers_;
  std::unique_ptr<v1::NodeLink::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NodeMessage, v1::ManagerMessage>> stream_;
  std::mutex write_mutex_;
  std::vector<v1::WantedState> wanted_;
  grpc::Status status_;
  bool ended_ = false;
  std::thread reader_;
};

// Hears what a stream pushes, until the stream or this ends.
template <typename Message>
class TestListener : public Watched {
 public:
  // `open` starts the call.
  explicit TestListener(std::function<std::unique_ptr<grpc::ClientReader<Message>>(grpc::ClientContext*)> open)
      : stream_(open(&context_)) {
    reader_ = std::thread([this] {
      Message message;
      while (stream_->Read(&message)) {
        std::lock_guard lock(mutex_);
        messages_.push_back(message);
        changed_.notify_all();
      }
      grpc::Status status = stream_->Finish();
      std::lock_guard lock(mutex_);
      status_ = status;
      ended_ = true;
      changed_.notify_all();
    });
  }
  ~TestListener() {
    context_.TryCancel();
    reader_.join();
  }

  std::vector<Message> WaitForMessages(size_t count) {
    WaitFor([&] { return messages_.size() >= count; });
    return messages();
  }
  std::vector<Message> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  grpc::Status Ended() {
    WaitFor([this] { return ended_; });
    std::lock_guard lock(mutex_);
    return status_;
  }

 protected:
  std::vector<Message> messages_;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Message>> stream_;
  grpc::Status status_;
  bool ended_ = false;
  std::thread reader_;
};

// A client of SubscribeDataTraceSwitch.
class TestSubscriber : public TestListener<DataStatusRes> {
 public:
  TestSubscriber(std::shared_ptr<grpc::Channel> channel, const std::string& job_id)
      : TestListener([&](grpc::ClientContext* context) {
          ProfilingClientInfo info;
          info.set_jobid(job_id);
          info.set_role("any");
          return TrainingDataTrace::NewStub(channel)->SubscribeDataTraceSwitch(context, info);
        }) {}
};

}  // namespace taskd::manager
