// The way between a client and a server, which can lose what lies on it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/address.h"
#include "common/listen.h"
#include "common/unique_fd.h"

namespace taskd::testing {

// Passes on what comes to `port()` on loopback, and what comes back, in a thread of its own.
class FaultyLine {
 public:
  explicit FaultyLine(int server_port)
      : server_port_(server_port), listener_(ListenTcp({"127.0.0.1", 0}, false).value()) {
    thread_ = std::thread([this] { Run(); });
  }
  ~FaultyLine() {
    stopping_ = true;
    thread_.join();
  }
  FaultyLine(const FaultyLine&) = delete;
  FaultyLine& operator=(const FaultyLine&) = delete;

  int port() const { return LocalPort(listener_.get()); }
  // From now on what the clients send is taken from them, and goes nowhere.
  void Swallow() { swallows_ = true; }
  size_t swallowed_bytes() const { return swallowed_bytes_; }
  // All connections are reset; those that come then are passed on again.
  void Reset() {
    swallows_ = false;
    resets_ = true;
  }

 private:
  struct Pair {
    UniqueFd client, server;
  };

  static void Abort(UniqueFd& fd) {
    const linger now = {1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    fd.reset();
  }

  void Accept() {
    Pair pair{UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
              UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<in_port_t>(server_port_));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!pair.client.valid() || connect(pair.server.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return;
    pairs_.push_back(std::move(pair));
  }

  // False: it is over.
  static bool Pass(int from, int to, std::atomic<size_t>* swallowed) {
    char bytes[65536];
    const ssize_t size = recv(from, bytes, sizeof(bytes), 0);
    if (size <= 0) return false;
    if (swallowed != nullptr) {
      *swallowed += static_cast<size_t>(size);
      return true;
    }
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t more = send(to, bytes + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (more < 0) return false;
      sent += more;
    }
    return true;
  }

  void Run() {
    while (!stopping_) {
      if (resets_.exchange(false)) {
        for (Pair& pair : pairs_) {
          Abort(pair.client);
          Abort(pair.server);
        }
        pairs_.clear();
      }
      std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        fds.push_back({pair.client.get(), POLLIN, 0});
        fds.push_back({pair.server.get(), POLLIN, 0});
      }
      constexpr int kLookAgainMs = 5;
      if (poll(fds.data(), fds.size(), kLookAgainMs) <= 0) continue;
      std::vector<Pair> left;
      for (size_t i = 0; i < pairs_.size(); ++i) {
        Pair& pair = pairs_[i];
        bool open = true;
        if (fds[1 + 2 * i].revents != 0) {
          open = Pass(pair.client.get(), pair.server.get(), swallows_ ? &swallowed_bytes_ : nullptr);
        }
        if (open && fds[2 + 2 * i].revents != 0) open = Pass(pair.server.get(), pair.client.get(), nullptr);
        if (open) left.push_back(std::move(pair));
      }
      pairs_ = std::move(left);
      if (fds[0].revents != 0) Accept();
    }
  }

  const int server_port_;
  const UniqueFd listener_;
  std::vector<Pair> pairs_;  // the thread's
  std::atomic<bool> stopping_{false};
  std::atomic<bool> swallows_{false};
  std::atomic<bool> resets_{false};
  std::atomic<size_t> swallowed_bytes_{0};
  std::thread thread_;  // last: it uses the others
};

}  // namespace taskd::testing
