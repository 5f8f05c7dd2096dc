#include "proto/grpc_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/base_sink.h"

namespace taskd::proto {
namespace {

using Speaks = GrpcListener::Speaks;

// A listener that keeps what it is given, until Close().
class Door {
 public:
  explicit Door(GrpcListener::Limits limits = {}) {
    auto listener = GrpcListener::Listen({"127.0.0.1", 0}, limits, [this](Speaks speaks, UniqueFd fd) {
      std::lock_guard lock(mutex_);
      taken_.emplace_back(speaks, std::move(fd));
      changed_.notify_all();
    });
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  ~Door() { listener_.reset(); }

  UniqueFd Dial() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  UniqueFd Dial(const std::string& says) const {
    UniqueFd fd = Dial();
    EXPECT_EQ(send(fd.get(), says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
    return fd;
  }

  // False: not within the patience of a test.
  bool WaitTaken(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return taken_.size() >= count; });
  }
  int port() const { return listener_->port(); }
  size_t taken() {
    std::lock_guard lock(mutex_);
    return taken_.size();
  }
  std::pair<Speaks, std::string> Take(size_t index) {
    std::lock_guard lock(mutex_);
    char bytes[64];
    const ssize_t size = recv(taken_[index].second.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return {taken_[index].first, std::string(bytes, size > 0 ? static_cast<size_t>(size) : 0)};
  }
  void Close(size_t index) {
    std::lock_guard lock(mutex_);
    taken_[index].second.reset();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Speaks, UniqueFd>> taken_;
  std::unique_ptr<GrpcListener> listener_;
};

// The other side has closed it.
bool WaitClosed(const UniqueFd& fd) {
  pollfd one{fd.get(), POLLIN, 0};
  char byte;
  return poll(&one, 1, 30'000) == 1 && recv(fd.get(), &byte, 1, 0) <= 0;
}

// What is logged while it lives.
class LogLines {
 public:
  LogLines() : sink_(std::make_shared<Sink>()) { spdlog::default_logger()->sinks().push_back(sink_); }
  ~LogLines() { spdlog::default_logger()->sinks().pop_back(); }

  bool WaitFor(const std::string& text) {
    std::unique_lock lock(sink_->mutex);
    return sink_->changed.wait_for(lock, std::chrono::seconds(30), [&] { return CountLocked(text) > 0; });
  }
  int Count(const std::string& text) {
    std::lock_guard lock(sink_->mutex);
    return CountLocked(text);
  }

 private:
  struct Sink : spdlog::sinks::base_sink<std::mutex> {
    void sink_it_(const spdlog::details::log_msg& message) override {
      std::lock_guard lock(mutex);
      lines.emplace_back(message.payload.data(), message.payload.size());
      changed.notify_all();
    }
    void flush_() override {}

    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;
  };
  int CountLocked(const std::string& text) const {
    return static_cast<int>(std::count_if(sink_->lines.begin(), sink_->lines.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    }));
  }

  const std::shared_ptr<Sink> sink_;
};

const std::string kTls("\x16\x03\x01", 3);
const std::string kPlain("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

TEST(GrpcListenerTest, HandsOverByTheFirstByteAndReadsNothing) {
  Door door;
  UniqueFd tls = door.Dial(kTls);
  ASSERT_TRUE(door.WaitTaken(1));
  UniqueFd plain = door.Dial(kPlain);
  ASSERT_TRUE(door.WaitTaken(2));
  EXPECT_EQ(door.Take(0), std::pair(Speaks::kTls, kTls));
  EXPECT_EQ(door.Take(1), std::pair(Speaks::kPlainOwn, kPlain));
}

TEST(GrpcListenerTest, WhatIsNeitherIsClosed) {
  Door door;
  for (const std::string& says : {std::string("GET / HTTP/1.1\r\n"), std::string(1, '\0'), std::string("x")}) {
    EXPECT_TRUE(WaitClosed(door.Dial(says))) << says;
  }
  EXPECT_EQ(door.taken(), 0u);
}

TEST(GrpcListenerTest, ASilentConnectionIsClosedAfterItsTime) {
  Door door({.first_byte_ms = 1});
  UniqueFd silent = door.Dial();
  EXPECT_TRUE(WaitClosed(silent));
}

TEST(GrpcListenerTest, AFloodOfSilentOnesPushesOutTheOldest) {
  Door door({.silent = 4, .first_byte_ms = 3'600'000});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(door.Dial());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(WaitClosed(silent[static_cast<size_t>(i)])) << i;
  UniqueFd speaking = door.Dial(kTls);
  EXPECT_TRUE(door.WaitTaken(1)) << "whoever speaks is heard";
}

TEST(GrpcListenerTest, APeerHasHalfOfTheConnectionsAndPlainTextItsShare) {
  Door door({.connections = 8, .plain = 3, .plain_of_peer = 2});
  std::vector<UniqueFd> open;
  for (size_t i = 1; i <= 2; ++i) {
    open.push_back(door.Dial(kPlain));
    ASSERT_TRUE(door.WaitTaken(i));
  }
  EXPECT_TRUE(WaitClosed(door.Dial(kPlain))) << "the third in plain text of one user";
  for (size_t i = 3; i <= 6; ++i) {
    open.push_back(door.Dial(kTls));
    ASSERT_TRUE(door.WaitTaken(i));
  }
  EXPECT_TRUE(WaitClosed(door.Dial(kTls))) << "the fifth of one peer, of eight in all";
  // One that its server has closed makes room again; that is looked at now and then.
  door.Close(5);
  for (bool taken = false; !taken;) {
    UniqueFd next = door.Dial(kTls);
    pollfd one{next.get(), POLLIN, 0};
    poll(&one, 1, 50);
    taken = door.taken() == 7;
  }
}

// Descriptors run out for the listener's process, not for its clients: those are another process's.
TEST(GrpcListenerTest, GoesOnWhenThereAreDescriptorsAgain) {
  LogLines log;
  Door door({.connections = 10'000, .silent = 10'000, .first_byte_ms = 3'600'000});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  // No number above those in use can be given out.
  const rlim_t used = static_cast<rlim_t>(clients.back().get()) + 1;
  const rlimit none{used, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ASSERT_LT(socket(AF_INET, SOCK_STREAM, 0), 0) << "descriptors did not run out: nothing is tested";
  // They are in the backlog: accepted by the kernel, not by the listener.
  for (UniqueFd& client : clients) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(door.port()));
    ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(client.get(), kTls.data(), kTls.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kTls.size()));
  }
  const bool paused = log.WaitFor("no more connections can be taken");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(paused);
  EXPECT_TRUE(door.WaitTaken(clients.size()));
  EXPECT_TRUE(log.WaitFor("connections are taken again"));
  EXPECT_EQ(log.Count("no more connections can be taken"), 1) << "it is said once";
}

}  // namespace
}  // namespace taskd::proto
