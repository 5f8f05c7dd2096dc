#include "proto/plain_server.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "common/testing/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plain_connection.h"
#include "proto/test_http2_client.h"

namespace taskd::proto {
namespace {

// A client at the other end of a socket.
class Peer {
 public:
  explicit Peer(PlainServer* server, uint32_t window = 65535) : http2(window) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    fd_ = UniqueFd(ends[0]);
    server->Take(UniqueFd(ends[1]));
  }

  // Until `done`, or false: the connection is closed, or time is up.
  template <typename Done>
  bool Until(const Done& done) {
    while (true) {
      const std::string output = http2.Output();
      if (!output.empty()) {
        const ssize_t size = send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL);
        if (size != static_cast<ssize_t>(output.size())) return done();
      }
      if (done()) return true;
      pollfd poll_fd = {fd_.get(), POLLIN, 0};
      if (poll(&poll_fd, 1, testing::kHangLimitMs) != 1) return false;
      char buffer[16384];
      const ssize_t size = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (size <= 0) return done();
      http2.Receive({buffer, static_cast<size_t>(size)});
    }
  }
  std::string Unary(const std::string& path, const std::string& message) {
    const int32_t stream = http2.Call(path, GrpcMessage(message));
    TestHttp2Client::Answer& answer = http2.answers[stream];
    if (!Until([&] { return answer.closed; })) return "no answer";
    return answer.status() == "0" ? answer.messages().at(0) : answer.status() + " " + answer.text();
  }
  // Answers what the server has sent meanwhile: one that is silent for kPlainKeepaliveMs is asked whether it lives.
  void Answer() {
    char buffer[16384];
    for (ssize_t size; (size = recv(fd_.get(), buffer, sizeof buffer, 0)) > 0;) {
      http2.Receive({buffer, static_cast<size_t>(size)});
    }
    const std::string output = http2.Output();
    if (!output.empty()) send(fd_.get(), output.data(), output.size(), MSG_NOSIGNAL);
  }
  void Close() { fd_.reset(); }

  TestHttp2Client http2;

 private:
  UniqueFd fd_;
};

void RaiseDescriptorLimit(rlim_t descriptors) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur >= descriptors) return;
  limit.rlim_cur = descriptors;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0) << "this machine allows too few descriptors";
}

class PlainServerTest : public ::testing::Test {
 protected:
  void Start() {
    PlainServer::Methods methods;
    methods["/Echo"] = [](const std::shared_ptr<PlainCall>& call, const std::string& request) -> PlainServer::Over {
      call->Write(request);
      call->Finish(absl::OkStatus());
      return [] {};
    };
    methods["/Later"] = [](const std::shared_ptr<PlainCall>& call, const std::string&) -> PlainServer::Over {
      call->After(std::chrono::milliseconds(20), [call] {
        call->Write("later");
        call->Finish(absl::OkStatus());
      });
      return [] {};
    };
    methods["/Watch"] = [this](const std::shared_ptr<PlainCall>& call, const std::string&) -> PlainServer::Over {
      std::lock_guard lock(mutex_);
      watching_.insert(call);
      ++begun_;
      return [this, call] {
        std::lock_guard over(mutex_);
        watching_.erase(call);
        ++over_;
      };
    };
    auto server = PlainServer::Start(std::move(methods), absl::UnimplementedError("nothing else"));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void Tell(const std::string& message) {
    std::lock_guard lock(mutex_);
    for (const auto& call : watching_) call->Write(message);
  }

  std::mutex mutex_;
  std::set<std::shared_ptr<PlainCall>> watching_;
  int begun_ = 0, over_ = 0;
  std::unique_ptr<PlainServer> server_;  // last: it calls back into the others until it is gone
};

TEST_F(PlainServerTest, AnswersCalls) {
  Start();
  Peer peer(server_.get());
  for (int i = 0; i < 100; ++i) ASSERT_EQ(peer.Unary("/Echo", "hello"), "hello");
  EXPECT_EQ(peer.Unary("/Later", ""), "later");
  EXPECT_EQ(peer.Unary("/Else", ""), "12 nothing else");
}

TEST_F(PlainServerTest, MessagesFromAnyThreadComeInTheOrderOfTheirCalls) {
  Start();
  constexpr int kPeers = 8, kThreads = 4, kEach = 200;
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>(server_.get()));
    peers.back()->http2.Call("/Watch", GrpcMessage(""));
    ASSERT_TRUE(peers.back()->Until([&] {
      if (peers.back()->http2.pongs == 0) peers.back()->http2.Ping();
      std::lock_guard lock(mutex_);
      return begun_ == i + 1;
    }));
  }
  std::mutex order;
  std::vector<std::string> told;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        std::lock_guard lock(order);
        told.push_back(std::to_string(thread) + " " + std::to_string(i));
        Tell(told.back());
      }
    });
  }
  for (const auto& peer : peers) {
    TestHttp2Client::Answer& answer = peer->http2.answers[1];
    EXPECT_TRUE(peer->Until([&] { return answer.messages().size() >= kThreads * kEach || answer.closed; }));
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& peer : peers) EXPECT_EQ(peer->http2.answers[1].messages(), told);
}

TEST_F(PlainServerTest, WhoComesAndGoesWhileMessagesAreSent) {
  Start();
  std::atomic<bool> stop = false;
  std::thread teller([&] {
    while (!stop) Tell("state");
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 30; ++i) {
        Peer peer(server_.get());
        const int32_t stream = peer.http2.Call("/Watch", GrpcMessage(""));
        peer.Until([&] { return !peer.http2.answers[stream].body.empty() || peer.http2.answers[stream].closed; });
        if (i % 3 == thread % 3) peer.http2.Cancel(stream);
        if (i % 3 == 1) {
          EXPECT_EQ(peer.Unary("/Echo", "hello"), "hello");
        }
        peer.Close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  teller.join();
  server_.reset();
  EXPECT_EQ(over_, 4 * 30);
}

TEST_F(PlainServerTest, ItsEndEndsCalls) {
  Start();
  Peer peer(server_.get());
  const int32_t stream = peer.http2.Call("/Watch", GrpcMessage(""));
  peer.http2.Call("/Watch", GrpcMessage(""));
  TestHttp2Client::Answer& answer = peer.http2.answers[stream];
  ASSERT_EQ(peer.Unary("/Echo", "hello"), "hello");
  std::shared_ptr<PlainCall> call;
  {
    std::lock_guard lock(mutex_);
    ASSERT_EQ(watching_.size(), 2u);
    call = *watching_.begin();
  }
  server_.reset();
  EXPECT_EQ(over_, 2);
  call->Write("nobody hears it");
  call->Finish(absl::OkStatus());
  EXPECT_TRUE(peer.Until([&] { return answer.closed; }));
  EXPECT_EQ(answer.status(), "14");
}

// Each connection stays below its own limit. Their messages alone exceed the limit of the sum.
TEST_F(PlainServerTest, TheSumOfAllConnectionsIsBounded) {
  constexpr int kMessages = 15, kMessageBytes = 4'000;
  constexpr int kPeers = kPlainHeldBytes / (kMessages * kMessageBytes) + 1;
  RaiseDescriptorLimit(2 * kPeers + 100);
  Start();
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>(server_.get(), 0));  // takes nothing of a message
    peers.back()->http2.Call("/Watch", GrpcMessage(""));
    ASSERT_EQ(peers.back()->Unary("/Else", ""), "12 nothing else");
    for (int earlier = i % 64; earlier < i; earlier += 64) peers[static_cast<size_t>(earlier)]->Answer();
  }
  for (int i = 0; i < kMessages; ++i) Tell(std::string(kMessageBytes, 'x'));
  EXPECT_TRUE(testing::WaitUntil([&] {
    std::lock_guard lock(mutex_);
    return over_ > 0;
  }));
  Peer late(server_.get());
  EXPECT_EQ(late.Unary("/Echo", "hello"), "hello");
  std::lock_guard lock(mutex_);
  EXPECT_EQ(begun_, kPeers);
  EXPECT_LT(over_, kPeers / 2);
}

}  // namespace
}  // namespace taskd::proto
