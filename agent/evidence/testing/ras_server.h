// A RAS of one's own, for tests: what it says is theirs.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace taskd::testing {

// Takes connections, one after the other, and speaks on each as the test says.
class RasServer {
 public:
  using Speak = std::function<void(RasServer&)>;

  explicit RasServer(Speak speak, int family = AF_INET) : listener_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    const bool is_v4 = family == AF_INET;
    auto* address = is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6);
    socklen_t size = is_v4 ? sizeof(v4) : sizeof(v6);
    if (bind(listener_.get(), address, size) != 0 || listen(listener_.get(), 1) != 0) return;
    getsockname(listener_.get(), address, &size);
    port_ = ntohs(is_v4 ? v4.sin_port : v6.sin6_port);
    thread_ = std::thread([this, speak = std::move(speak)] {
      while (true) {
        connection_.reset(accept(listener_.get(), nullptr, nullptr));
        if (!connection_.valid()) return;
        speak(*this);
        connection_.reset();
      }
    });
  }
  ~RasServer() { Join(); }
  RasServer(const RasServer&) = delete;
  RasServer& operator=(const RasServer&) = delete;

  int port() const { return port_; }                                // 0: there is no such address here
  const std::vector<std::string>& lines() const { return lines_; }  // that came; once the server is done

  // Empty: the client has gone.
  std::string Line() {
    std::string line;
    for (char c = 0; recv(connection_.get(), &c, 1, 0) == 1 && c != '\n';) line += c;
    lines_.push_back(line);
    return line;
  }
  // False: the client has gone.
  bool Say(const std::string& text) {
    return send(connection_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Takes no more.
  void Join() {
    shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

 private:
  UniqueFd listener_, connection_;
  int port_ = 0;
  std::vector<std::string> lines_;
  std::thread thread_;
};

// Up to the answer, as NCCL does.
void Greet(RasServer& server) {
  server.Line();
  server.Say("SERVER PROTOCOL 2\n");
  for (int i = 0; i < 2; ++i) {
    server.Line();
    server.Say("OK\n");
  }
  server.Line();
}

}  // namespace taskd::testing
