// Pieces that store_join.py puts together: stores to join, and thousands of ranks that join one.
//
//   store_join serve --count N --host A [--upstream HOST:PORT]     N stores (tiers if there is an upstream), one thread
//       prints "HOST:PORT" N times; then for each line on stdin one of JSON: counters of all of them together
//   store_join ranks --servers FILE --first R --count C --world N --per-server L --second S --connecting K
//       ranks R to R+C-1 of N; rank r asks server r/L of FILE. Prints "ready", then obeys stdin:
//       "connect"   connects its ranks; prints JSON when the last one has had its first answer
//       "enter"     they go on from there; prints JSON when all of them have joined
//       "join"      both, every rank on its own; prints JSON when all of them have joined
//       "poll S"    every rank asks CHECK exception_dump once a second for S seconds, prints JSON
//       "load S"    every rank asks SET, ADD and GET as fast as it is answered, for S seconds
//
// What a rank does to join: two connections, the second stays silent (ranks from S on do without it: a process may have
// 20,000 descriptors); ADD init/ 1, and rank 0 polls init/ until all are there; ADD to a counter, then ADD 0 every 10
// ms until all have come; rank 0 SETs an id of 128 bytes, the others WAIT for it and GET it. At most K ranks of a
// process are between connecting and the first answer, so that no SYN is dropped by the queue of the listener
// (2,048 in PyTorch 1.13) and waits for a second.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/address.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"
#include "store/request.h"
#include "store/server.h"
#include "store/wire.h"

namespace taskd {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kPollBarrierNs = 10 * kNsPerMs;

[[noreturn]] void Die(const std::string& what) {
  fprintf(stderr, "store_join: %s: %s\n", what.c_str(), strerror(errno));
  exit(1);
}

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 2; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  }
  std::string Text(const std::string& name) const {
    auto found = values_.find(name);
    return found == values_.end() ? "" : found->second;
  }
  int Number(const std::string& name) const {
    int value = 0;
    if (!absl::SimpleAtoi(Text(name), &value)) {
      fprintf(stderr, "store_join: %s '%s' is not a number\n", name.c_str(), Text(name).c_str());
      exit(2);
    }
    return value;
  }

 private:
  std::map<std::string, std::string> values_;
};

std::string Bytes(store::StoreOp op, std::vector<std::string> keys, std::vector<std::string> values = {},
                  int64_t number = 0) {
  std::string bytes;
  const store::StoreRequest request{.op = op, .keys = std::move(keys), .values = std::move(values), .number = number};
  if (auto status = store::AppendRequest(store::StoreDialect::k1x, request, bytes); !status.ok()) {
    fprintf(stderr, "store_join: %s\n", std::string(status.message()).c_str());
    exit(1);
  }
  return bytes;
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int Serve(const Arguments& arguments) {
  EventLoop loop;
  std::vector<std::unique_ptr<store::StoreServer>> servers;
  for (int i = arguments.Number("--count"); i > 0; --i) {
    store::StoreServer::Options options;
    options.listen = {arguments.Text("--host"), 0};
    options.upstream = arguments.Text("--upstream");
    auto server = store::StoreServer::Start(&loop, options);
    if (!server.ok()) {
      fprintf(stderr, "store_join: %s\n", std::string(server.status().message()).c_str());
      return 1;
    }
    servers.push_back(*std::move(server));
    printf("%s:%d\n", arguments.Text("--host").c_str(), servers.back()->port());
  }
  fflush(stdout);
  std::thread reader([&] {
    std::string line;
    while (std::getline(std::cin, line)) {
      loop.Post([&] {
        store::StoreStats sum;
        for (const auto& server : servers) {
          const store::StoreStats stats = server->stats();
          sum.connections += stats.connections;
          sum.tiers += stats.tiers;
          sum.requests += stats.requests;
          sum.upstream_requests += stats.upstream_requests;
          sum.upstream_bytes += stats.upstream_bytes;
          sum.refused += stats.refused;
          sum.waiting += stats.waiting;
        }
        printf(
            "{\"connections\": %lu, \"tiers\": %lu, \"waiting\": %lu, \"requests\": %lu, \"upstream_requests\": %lu, "
            "\"upstream_bytes\": %lu, \"refused\": %lu, \"cpu_s\": %.3f}\n",
            sum.connections, sum.tiers, sum.waiting, sum.requests, sum.upstream_requests, sum.upstream_bytes,
            sum.refused, CpuSeconds());
        fflush(stdout);
      });
    }
    loop.Stop();
  });
  loop.Run();
  reader.join();
  return 0;
}

// All ranks of this process on one thread.
class Ranks {
 public:
  explicit Ranks(const Arguments& arguments)
      : world_(arguments.Number("--world")),
        second_(arguments.Number("--second")),
        connecting_limit_(arguments.Number("--connecting")),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    std::vector<sockaddr_in> servers = ReadServers(arguments.Text("--servers"));
    const int first = arguments.Number("--first"), per_server = arguments.Number("--per-server");
    for (int i = 0; i < arguments.Number("--count"); ++i) {
      Rank rank;
      rank.number = first + i;
      rank.server = servers.at(static_cast<size_t>(rank.number / per_server));
      ranks_.push_back(std::move(rank));
    }
  }

  // Each rank goes on as soon as it is connected, polling the barrier while others still connect.
  void Join() {
    const int64_t begin_ns = EventLoop::NowNs();
    size_t next = together_ ? ranks_.size() : 0;
    while (joined_ < ranks_.size()) {
      while (next < ranks_.size() && connecting_ < connecting_limit_) Connect(ranks_[next++]);
      Round(due_.empty() ? -1 : due_.front().first);
      const int64_t now_ns = EventLoop::NowNs();
      while (!due_.empty() && due_.front().first <= now_ns) {
        Rank& rank = *due_.front().second;
        due_.pop_front();
        Ask(rank);
      }
    }
    Print("join", begin_ns);
  }

  void ConnectAll() {
    const int64_t begin_ns = EventLoop::NowNs();
    together_ = true;
    size_t next = 0;
    while (next < ranks_.size() || connecting_ > 0) {
      while (next < ranks_.size() && connecting_ < connecting_limit_) Connect(ranks_[next++]);
      Round(-1);
    }
    Print("connect", begin_ns);
  }

  void Enter() {
    for (Rank& rank : ranks_) due_.emplace_back(0, &rank);
    Join();
  }

  void Poll(int seconds) {
    phase_ = Phase::kPoll;
    const std::string check = Bytes(store::StoreOp::kCheck, {"/exception_dump"});
    const int64_t begin_ns = EventLoop::NowNs();
    const int64_t count = static_cast<int64_t>(ranks_.size());
    for (int64_t i = 0; i < seconds * count;
         ++i) {  // evenly over each second, as ranks that know nothing of each other
      const int64_t due_ns = begin_ns + i * 1000 * kNsPerMs / count;
      while (EventLoop::NowNs() < due_ns) Round(due_ns);
      Send(ranks_[static_cast<size_t>(i % count)], check, 1);
    }
    while (outstanding_ > 0) Round(-1);
    Print("poll", begin_ns);
  }

  void Load(int seconds) {
    phase_ = Phase::kLoad;
    load_until_ns_ = EventLoop::NowNs() + seconds * 1000 * kNsPerMs;
    const int64_t begin_ns = EventLoop::NowNs();
    requests_ = 0;
    for (Rank& rank : ranks_) AskLoad(rank);
    while (outstanding_ > 0) Round(-1);
    Print("load", begin_ns);
  }

 private:
  enum class Phase { kJoin, kPoll, kLoad };
  enum class Step { kConnect, kInit, kWaitInit, kGetInit, kEnter, kPollBarrier, kWaitId, kGetId, kDone };
  struct Rank {
    int number = 0;
    sockaddr_in server{};
    UniqueFd fd;
    UniqueFd silent;
    Step step = Step::kConnect;
    size_t expected = 0;  // bytes of the reply
    size_t got = 0;
    std::array<char, 160> reply{};
    uint64_t asked = 0;
  };

  static std::vector<sockaddr_in> ReadServers(const std::string& path) {
    std::vector<sockaddr_in> servers;
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      auto address = ParseHostPort("server", line);
      sockaddr_in server{};
      server.sin_family = AF_INET;
      if (!address.ok() || inet_pton(AF_INET, address->host.c_str(), &server.sin_addr) != 1)
        Die("server '" + line + "'");
      server.sin_port = htons(static_cast<uint16_t>(address->port));
      servers.push_back(server);
    }
    return servers;
  }

  // From an address of its own for every thousand ranks: so many connections to one port need more than one address's
  // ports.
  UniqueFd Open(const Rank& rank) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) Die("socket");
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    sockaddr_in source{};
    source.sin_family = AF_INET;
    source.sin_addr.s_addr = htonl(0x7f010001 + static_cast<uint32_t>(rank.number / 1000));
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&source), sizeof(source)) != 0) Die("bind");
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&rank.server), sizeof(rank.server)) != 0 &&
        errno != EINPROGRESS) {
      Die("connect");
    }
    return fd;
  }

  void Connect(Rank& rank) {
    ++connecting_;
    rank.fd = Open(rank);
    if (rank.number < second_) rank.silent = Open(rank);
    Watch(rank, EPOLLOUT, EPOLL_CTL_ADD);
  }

  void Watch(Rank& rank, uint32_t events, int operation) {
    epoll_event event{.events = events, .data = {.ptr = &rank}};
    if (epoll_ctl(epoll_.get(), operation, rank.fd.get(), &event) != 0) Die("epoll_ctl");
  }

  // Until something came or the time is there; -1: without limit.
  void Round(int64_t until_ns) {
    int timeout_ms = -1;
    if (until_ns >= 0) {
      timeout_ms = static_cast<int>(std::max<int64_t>(0, (until_ns - EventLoop::NowNs() + kNsPerMs - 1) / kNsPerMs));
    }
    std::array<epoll_event, 512> events;
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms);
    for (int i = 0; i < count; ++i) {
      Rank& rank = *static_cast<Rank*>(events[static_cast<size_t>(i)].data.ptr);
      if (rank.step == Step::kConnect) {
        int error = 0;
        socklen_t length = sizeof(error);
        getsockopt(rank.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        errno = error;
        if (error != 0) Die("connect");
        Watch(rank, EPOLLIN, EPOLL_CTL_MOD);
        rank.step = Step::kInit;
        Ask(rank);
      } else {
        Receive(rank);
      }
    }
  }

  void Send(Rank& rank, const std::string& bytes, size_t reply_bytes) {
    if (write(rank.fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) Die("write");
    rank.expected = reply_bytes;
    rank.got = 0;
    ++requests_;
    ++outstanding_;
  }

  void Receive(Rank& rank) {
    const ssize_t count = read(rank.fd.get(), rank.reply.data() + rank.got, rank.reply.size() - rank.got);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) Die("rank " + std::to_string(rank.number) + " lost its connection");
    rank.got += static_cast<size_t>(count);
    if (rank.step == Step::kGetInit && rank.got >= sizeof(uint64_t)) {
      uint64_t length;
      memcpy(&length, rank.reply.data(), sizeof(length));
      rank.expected = sizeof(length) + length;
    }
    if (rank.got < rank.expected) return;
    if (rank.got > rank.expected) Die("rank " + std::to_string(rank.number) + " received more than it asked for");
    --outstanding_;
    if (phase_ == Phase::kLoad) {
      if (EventLoop::NowNs() < load_until_ns_) AskLoad(rank);
    } else if (phase_ == Phase::kJoin) {
      Replied(rank);
    }
  }

  void Ask(Rank& rank) {
    static const std::string kAddInit = Bytes(store::StoreOp::kAdd, {"init/"}, {}, 1);
    static const std::string kWaitInit = Bytes(store::StoreOp::kWait, {"init/"});
    static const std::string kGetInit = Bytes(store::StoreOp::kGet, {"init/"});
    static const std::string kEnter = Bytes(store::StoreOp::kAdd, {"/default_pg/store_based_barrier_key:1"}, {}, 1);
    static const std::string kLook = Bytes(store::StoreOp::kAdd, {"/default_pg/store_based_barrier_key:1"}, {}, 0);
    static const std::string kSetId = Bytes(store::StoreOp::kSet, {"/default_pg/0/0"}, {std::string(128, 'i')});
    static const std::string kWaitId = Bytes(store::StoreOp::kWait, {"/default_pg/0/0"});
    static const std::string kGetId = Bytes(store::StoreOp::kGet, {"/default_pg/0/0"});
    switch (rank.step) {
      case Step::kInit:
        return Send(rank, kAddInit, 8);
      case Step::kWaitInit:
        return Send(rank, kWaitInit, 1);
      case Step::kGetInit:
        return Send(rank, kGetInit, 8 + 1);  // at least; then as many as the length field has
      case Step::kEnter:
        return Send(rank, kEnter, 8);
      case Step::kPollBarrier:
        return Send(rank, kLook, 8);
      case Step::kWaitId:
        if (rank.number == 0) {
          Send(rank, kSetId, 0);
          --outstanding_;
          return Joined(rank);
        }
        return Send(rank, kWaitId, 1);
      case Step::kGetId:
        return Send(rank, kGetId, 8 + 128);
      case Step::kConnect:
      case Step::kDone:
        return;
    }
  }

  void Replied(Rank& rank) {
    int64_t number = 0;
    if (rank.expected >= sizeof(number)) memcpy(&number, rank.reply.data(), sizeof(number));
    switch (rank.step) {
      case Step::kInit:
        --connecting_;
        rank.step = rank.number == 0 ? Step::kWaitInit : Step::kEnter;
        if (!together_) Ask(rank);
        return;
      case Step::kWaitInit:
        rank.step = Step::kGetInit;
        return Ask(rank);
      case Step::kGetInit: {
        const int here = atoi(std::string(rank.reply.data() + sizeof(number), static_cast<size_t>(number)).c_str());
        rank.step = here >= world_ ? Step::kEnter : Step::kWaitInit;
        if (here >= world_) return Ask(rank);
        return AskLater(rank);
      }
      case Step::kEnter:
        rank.step = Step::kPollBarrier;
        return Ask(rank);
      case Step::kPollBarrier:
        if (number < world_) return AskLater(rank);
        rank.step = Step::kWaitId;
        return Ask(rank);
      case Step::kWaitId:
        rank.step = Step::kGetId;
        return Ask(rank);
      case Step::kGetId:
        return Joined(rank);
      case Step::kConnect:
      case Step::kDone:
        return;
    }
  }

  void AskLater(Rank& rank) { due_.emplace_back(EventLoop::NowNs() + kPollBarrierNs, &rank); }

  void Joined(Rank& rank) {
    rank.step = Step::kDone;
    ++joined_;
  }

  void AskLoad(Rank& rank) {
    // A key of its own, a counter of its own.
    const std::string mine = "/load/" + std::to_string(rank.number);
    switch (rank.asked++ % 3) {
      case 0: {
        // SET has no reply: it goes with the ADD, and counts.
        ++requests_;
        return Send(rank,
                    Bytes(store::StoreOp::kSet, {mine}, {std::string(64, 'v')}) +
                        Bytes(store::StoreOp::kAdd, {mine + "n"}, {}, 1),
                    8);
      }
      default:
        return Send(rank, Bytes(store::StoreOp::kGet, {mine}), 8 + 64);
    }
  }

  void Print(const char* what, int64_t begin_ns) {
    printf("{\"what\": \"%s\", \"begin_ns\": %ld, \"end_ns\": %ld, \"requests\": %lu, \"cpu_s\": %.3f}\n", what,
           begin_ns, EventLoop::NowNs(), requests_, CpuSeconds());
    fflush(stdout);
    requests_ = 0;
  }

  const int world_;
  const int second_;
  const int connecting_limit_;
  UniqueFd epoll_;
  std::deque<Rank> ranks_;
  std::deque<std::pair<int64_t, Rank*>> due_;  // all of the same delay: in order of time
  Phase phase_ = Phase::kJoin;
  bool together_ = false;  // no rank goes on before all are connected
  int connecting_ = 0;
  size_t joined_ = 0;
  size_t outstanding_ = 0;
  uint64_t requests_ = 0;
  int64_t load_until_ns_ = 0;
};

int RunRanks(const Arguments& arguments) {
  Ranks ranks(arguments);
  printf("ready\n");
  fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "connect") {
      ranks.ConnectAll();
    } else if (line == "enter") {
      ranks.Enter();
    } else if (line == "join") {
      ranks.Join();
    } else if (line.starts_with("poll ")) {
      ranks.Poll(atoi(line.c_str() + 5));
    } else if (line.starts_with("load ")) {
      ranks.Load(atoi(line.c_str() + 5));
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  const Arguments arguments(argc, argv);
  if (role == "serve") return Serve(arguments);
  if (role == "ranks") return RunRanks(arguments);
  fprintf(stderr, "store_join: '%s' is neither serve nor ranks; store_join.py calls this\n", role.c_str());
  return 2;
}

}  // namespace
}  // namespace taskd

int main(int argc, char** argv) { return taskd::Main(argc, argv); }
