// Bytes of a process of this user on the proxy's socket, of a rank or of an agent, and of a proxy on a launcher's agent
// line: each ends its own connection at most, and the next one is heard.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "agent/run/agent_line.h"
#include "common/event_loop.h"
#include "common/log.h"
#include "common/testing/deadline.h"
#include "nlohmann/json.hpp"
#include "proxy/hello_server.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

namespace hello = taskd::hello;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

class Proxy {
 public:
  Proxy() {
    FUZZ_CHECK(mkdtemp(folder_) != nullptr);
    socket_ = std::string(folder_) + "/proxy.sock";
    node_ =
        std::make_unique<taskd::proxy::Node>(taskd::proxy::Node::Options{.host = "h", .socket = socket_},
                                             taskd::proxy::ProfilingDir(std::string(folder_) + "/profiling", "task"));
    server_ = std::make_unique<taskd::proxy::HelloServer>(
        node_.get(), [](const taskd::proxy::AgentAnswer& answer) { FUZZ_CHECK(answer.message.size() < 128 * 1024); });
    FUZZ_CHECK(server_->Start(socket_).ok());
  }
  ~Proxy() {
    server_.reset();
    rmdir(folder_);
  }
  taskd::UniqueFd Connect() const {
    taskd::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf(socket_);
    const timeval limit = {taskd::testing::kHangLimit.count(), 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    FUZZ_CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    return fd;
  }
  void Call(uint64_t id) { server_->CallAgents(id, "MONITOR", "{}"); }

 private:
  char folder_[32] = "/tmp/taskd_fuzz_XXXXXX";
  std::string socket_;
  std::unique_ptr<taskd::proxy::Node> node_;
  std::unique_ptr<taskd::proxy::HelloServer> server_;
};

std::string HelloOf(hello::Role role) {
  hello::Hello hello = {};
  hello.magic = hello::kMagic;
  hello.version = hello::kVersion;
  hello.role = role;
  hello.rank = -1;
  return {reinterpret_cast<const char*>(&hello), sizeof(hello)};
}

void ToProxy(std::string_view bytes) {
  static Proxy proxy;
  static uint64_t next = 0;
  const taskd::UniqueFd fd = proxy.Connect();
  proxy.Call(next++ % 16);
  send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  shutdown(fd.get(), SHUT_WR);
  // Whatever it was: the proxy answers what it has to answer, and ends the connection.
  char answer[4096];
  ssize_t got;
  do {  // libFuzzer's own timer interrupts a call that has a time-out
    got = recv(fd.get(), answer, sizeof(answer), 0);
  } while (got > 0 || (got < 0 && errno == EINTR));
  FUZZ_CHECK(got == 0 || errno == ECONNRESET);
}

// The line's own socket is ours; it says hello, is accepted and told the bytes.
void ToAgent(std::string_view bytes) {
  static const std::string path = "/tmp/taskd_fuzz_agent_" + std::to_string(getpid()) + ".sock";
  unlink(path.c_str());
  taskd::UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  FUZZ_CHECK(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
             listen(listener.get(), 4) == 0);
  taskd::EventLoop loop;
  taskd::run::AgentOperations operations;
  operations.kill_ranks = [](const auto& done) { done(absl::OkStatus()); };
  operations.start_ranks = [](const std::vector<int>& ranks, const auto& done) {
    for (int rank : ranks) FUZZ_CHECK(rank >= 0 && rank < 2);
    done(ranks.size() > 1 ? absl::UnavailableError("no") : absl::OkStatus());
  };
  operations.state = [] {
    return std::map<int, taskd::run::AgentOperations::RankState>{{0, {11, 3, 8}}, {1, {12, {}, 9}}};
  };
  operations.restart = [](const auto& done) { done(absl::OkStatus()); };
  {
    taskd::run::AgentLine line(&loop, path, std::move(operations));
    taskd::UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    FUZZ_CHECK(peer.valid());
    send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(peer.get(), SHUT_WR);
    loop.RunAfter(20'000'000'000, [] { FUZZ_CHECK(!"the line did not end"); });
    // Until it has read to the end and closed.
    std::string answers;
    loop.Add(peer.get(), EPOLLIN, [&](uint32_t) {
      char buffer[4096];
      const ssize_t got = recv(peer.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (got > 0) answers.append(buffer, static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EAGAIN)) loop.Stop();
    });
    loop.Run();
    loop.Remove(peer.get());
    FUZZ_CHECK(answers.size() <= (1 + bytes.size()) * size_t{64} * 1024);
  }
  unlink(path.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  if (!quiet || size < 1 || size > 60'000) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? ToProxy(bytes) : ToAgent(bytes);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  const auto frame = [](std::string_view text) {
    const auto length = static_cast<uint32_t>(text.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + std::string(text);
  };
  hello::HelloReply reply = {};
  reply.magic = hello::kMagic;
  reply.version = hello::kVersion;
  const std::string accepted(reinterpret_cast<const char*>(&reply), sizeof(reply));
  reply.status = hello::kRefused;
  memset(reply.message, 'x', sizeof(reply.message));
  const std::string refused(reinterpret_cast<const char*>(&reply), sizeof(reply));
  return {"0" + HelloOf(hello::kRoleWorker),
          "0" + HelloOf(hello::kRoleAgent) + frame(R"({"id":0,"ok":true,"message":""})") +
              frame(R"({"id":1,"ok":false,"declined":true,"message":"x"})"),
          "0" + HelloOf(hello::kRoleAgent) + frame("[[[[") + frame("{}"),
          "1" + accepted + frame(R"({"id":7,"operator":"MONITOR","args":[[-1]]})") +
              frame(R"({"id":8,"operator":"START_WORKER_LIST","args":[[0,1]]})") +
              frame(R"({"id":9,"operator":"KILL_WORKER","args":{}})"),
          "1" + accepted + frame(R"({"id":9,"operator":"START_WORKER_LIST","args":[[2147483648, 1.5, "x"]]})") +
              "\xff\xff\xff\xff",
          "1" + refused};
}
