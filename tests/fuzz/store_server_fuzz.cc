// A root and a tier below it, over real connections: whatever clients, tiers and launchers send, in whatever order and
// with whatever ids, somebody else is answered after them, and what they have sent is forgotten when they are gone.
//
// An input is a program: each step is one byte that says who does what, and the bytes that this needs. Ids and keys
// come from few, so that they come again.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "agent/run/launcher_frames.h"
#include "agent/run/rendezvous_messages.h"
#include "common/event_loop.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "store/server.h"
#include "store/tier_frame.h"
#include "store/wire.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using taskd::store::StoreDialect;
using taskd::store::StoreOp;
using taskd::store::TierFrame;

constexpr int kPeers = 4;
constexpr int kMaxSteps = 64;
constexpr uint64_t kMemoryLimit = 256 * 1024;

// Abseil's own is deprecated in newer releases, and its successor is not in older ones.
std::string FromHex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// One round: events that are there already, and what they bring.
void Round(taskd::EventLoop& loop) {
  loop.Post([&loop] { loop.Stop(); });
  loop.Run();
}

std::unique_ptr<taskd::store::StoreServer> Start(taskd::EventLoop* loop, const std::string& upstream) {
  taskd::store::StoreServer::Options options;
  options.listen = {"127.0.0.1", 0};
  options.upstream = upstream;
  options.memory_limit_bytes = kMemoryLimit;
  if (upstream.empty()) {
    options.frame_service.magic = taskd::run::kLauncherMagic;
    options.frame_service.max_frame_bytes = taskd::run::kMaxStrangersFrameBytes;
    options.frame_service.opened = [](uint64_t, const std::string&, const std::string&, bool) {};
    options.frame_service.received = [](uint64_t, std::string_view body) {
      if (auto message = taskd::run::DecodeNodeMessage(body); message.ok()) {
        FUZZ_CHECK(taskd::run::DecodeNodeMessage(taskd::run::Encode(*message)).ok());
      }
      if (auto message = taskd::run::DecodeRootMessage(body); message.ok()) {
        FUZZ_CHECK(taskd::run::DecodeRootMessage(taskd::run::Encode(*message)).ok());
      }
    };
    options.frame_service.closed = [](uint64_t) {};
  }
  auto server = taskd::store::StoreServer::Start(loop, options);
  FUZZ_CHECK(server.ok());
  return *std::move(server);
}

// Reset when it is closed: no port is left in TIME_WAIT.
taskd::UniqueFd Connect(int port) {
  taskd::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // libFuzzer's timer may interrupt it: then it goes on by itself.
  int connected;
  do {
    connected = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } while (connected != 0 && (errno == EINTR || errno == EALREADY));
  FUZZ_CHECK(connected == 0 || errno == EISCONN);
  const linger reset = {1, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  return fd;
}

void Send(const taskd::UniqueFd& fd, std::string_view bytes) {
  (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Drain(const taskd::UniqueFd& fd) {
  static std::array<char, 64 * 1024> buffer;
  while (recv(fd.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
}

class Program {
 public:
  explicit Program(std::string_view bytes) : bytes_(bytes) {}

  bool done() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return byte;
  }
  std::string_view Some(size_t most) {
    const std::string_view some = bytes_.substr(0, most);
    bytes_.remove_prefix(some.size());
    return some;
  }
  std::vector<std::string> Keys(size_t count) {
    std::vector<std::string> keys;
    for (; count > 0; --count) keys.push_back(std::string("/") + static_cast<char>('a' + Byte() % 4));
    return keys;
  }
  std::string Value() {
    const uint8_t byte = Byte();
    return byte < 128 ? std::to_string(byte % 8) : std::string(byte * 100u, 'v');
  }

 private:
  std::string_view bytes_;
};

// As many keys and values as the operation has, or others.
void FillCall(Program& program, StoreOp op, std::vector<std::string>& keys, std::vector<std::string>& values) {
  switch (op) {
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kQueuePush:
      keys = program.Keys(1);
      values = {program.Value()};
      break;
    case StoreOp::kCompareSet:
      keys = program.Keys(1);
      values = {program.Value(), program.Value()};
      break;
    case StoreOp::kMultiSet:
      keys = program.Keys(program.Byte() % 4);
      for (size_t i = 0; i < keys.size(); ++i) values.push_back(program.Value());
      break;
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
      keys = program.Keys(program.Byte() % 4);
      break;
    case StoreOp::kNumKeys:
    case StoreOp::kListKeys:
    case StoreOp::kPing:
    case StoreOp::kCancelWait:
      break;
    default:
      keys = program.Keys(1);
  }
}

std::string Greeting(uint8_t kind) {
  std::string bytes(1, '\0');
  const uint32_t magic = kind == 0   ? taskd::store::kTierMagic
                         : kind == 1 ? taskd::run::kLauncherMagic
                                     : taskd::store::kValidateMagic;
  bytes.append(reinterpret_cast<const char*>(&magic), sizeof(magic));
  if (kind == 0) {
    TierFrame hello;
    hello.number = taskd::store::kTierProtocol;
    taskd::store::AppendFrame(hello, bytes);
  }
  return bytes;
}

std::string Step(Program& program, uint8_t kind) {
  std::string bytes;
  const uint8_t what = program.Byte();
  if (what >= 240) return std::string(program.Some(what - 239));  // anything
  const auto op = static_cast<StoreOp>(1 + program.Byte() % 19);
  if (kind == 0) {
    TierFrame frame;
    frame.type = what < 160 ? TierFrame::Type::kRequest : static_cast<TierFrame::Type>(1 + what % 10);
    frame.op = op;
    frame.id = program.Byte() % 4;
    frame.number = program.Byte() % 4;
    FillCall(program, op, frame.keys, frame.values);
    if (what % 32 == 0) frame.keys.emplace_back(what * 100, 'k');
    taskd::store::AppendFrame(frame, bytes);
  } else if (kind == 1) {
    static const char* const kBodies[] = {
        (R"({"type":"join","run_id":"a","version":"1","host":"h","pid":1,"node_rank":0,"local_world_size":1,"role":"r",)"
         R"("min_nodes":1,"max_nodes":1,"max_restarts":0,"nonce":"","tier_port":0})"),
        R"({"type":"pong","id":1})",
        R"({"type":"event","event":"started","round":0,"rank":0,"node":0,"pid":1,"code":0,"signal":0,"reason":"","time_ns":1})",
        R"({"type":"stacks","id":1,"text":"x"})",
        R"({"type":"leave","signal":15})",
        R"({"type":"stop","round":1,"reason":"r"})",
        R"({"type":"end","exit_code":1,"reason":"","failures":[]})",
        "[[[[[[[[[[[["};
    std::string body = kBodies[what % 8];
    body.insert(program.Byte() % (body.size() + 1), program.Some(what % 3));
    const auto size = static_cast<uint32_t>(body.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += body;
  } else {
    taskd::store::StoreRequest request;
    request.op = op;
    request.number = program.Byte() % 4;
    FillCall(program, op, request.keys, request.values);
    (void)taskd::store::AppendRequest(StoreDialect::k22, request, bytes);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    spdlog::set_level(getenv("FUZZ_LOG") != nullptr ? spdlog::level::debug : spdlog::level::off);
    return true;
  }();
  (void)quiet;
  Program program(std::string_view(reinterpret_cast<const char*>(data), size));
  taskd::EventLoop loop;
  auto root = Start(&loop, "");
  auto tier = Start(&loop, "127.0.0.1:" + std::to_string(root->port()));
  {
    struct Peer {
      taskd::UniqueFd fd;
      uint8_t kind = 0;
    };
    std::array<Peer, kPeers> peers;
    for (int i = 0; i < kMaxSteps && !program.done(); ++i) {
      const uint8_t who = program.Byte();
      Peer& peer = peers[who % kPeers];
      if (!peer.fd.valid()) {
        peer.fd = Connect(who & 4 ? root->port() : tier->port());
        peer.kind = (who >> 3) % 3;
        Send(peer.fd, Greeting(peer.kind));
      }
      if (who >= 248) {
        peer.fd.reset();
      } else {
        Send(peer.fd, Step(program, peer.kind));
        if (who & 128) Drain(peer.fd);
      }
      Round(loop);
    }
  }
  for (int i = 0; i < 4; ++i) Round(loop);

  // Somebody else is answered. Not before: a tier that does not give its copies back may hold up others for 10 s.
  for (taskd::store::StoreServer* server : {root.get(), tier.get()}) {
    const taskd::UniqueFd good = Connect(server->port());
    std::string bytes = Greeting(2);
    FUZZ_CHECK(
        taskd::store::AppendRequest(StoreDialect::k22, {.op = StoreOp::kNumKeys, .keys = {}, .values = {}}, bytes)
            .ok());
    Send(good, bytes);
    int64_t count = 0;
    int rounds = 0;
    while (recv(good.get(), &count, sizeof(count), MSG_DONTWAIT) != sizeof(count)) {
      FUZZ_CHECK(++rounds < 100'000);
      Round(loop);
    }
  }
  for (int i = 0; i < 4; ++i) Round(loop);
  FUZZ_CHECK(tier->stats().connections == 0);
  FUZZ_CHECK(root->stats().connections <= 1);  // the tier
  FUZZ_CHECK(root->stats().waiting == 0);
  FUZZ_CHECK(root->stats().bytes < 2 * kMemoryLimit);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  // who: bits 0-1 the peer, 2 the root, 3-4 tier, launcher or client. Then what, op - 1, id, number, keys …
  const std::string wait_twice = {'\4', '\1', '\5', '\1', '\0', '\1', '\0', '\4', '\1', '\5', '\1', '\0', '\1', '\0'};
  const std::string set = {'\x15', '\1', '\0', '\0', '\0', '\1'};
  const std::string barriers = {'\4', '\1', '\20', '\1', '\3', '\1', '\4', '\1', '\20', '\1', '\3', '\1'};
  // Values that grow and are read through a tier: nothing of the large replies stays behind.
  const std::string large_replies = FromHex("100000000202010203110701010202010203120e0202") + std::string(78, '\xda') +
                                    FromHex(
                                        "5b0d010202080001869f020102030907010102020102030a0e02020202010203"
                                        "0815030302010203020112620e0203091c020204000202010203");
  // A tier below that goes while its read is under way, and a write of what it read: it does not get a copy.
  const std::string gone_tier =
      FromHex("1400000002020102031507010102010e1602010203153007030202ffff2a060202023808010302");
  std::vector<std::string> seeds = {wait_twice + set, barriers + set, barriers + wait_twice + set, large_replies,
                                    gone_tier};
  for (uint8_t kind = 0; kind < 3; ++kind) {
    for (uint8_t place = 0; place < 2; ++place) {
      std::string all;
      for (uint8_t op = 0; op < 19; ++op) {
        all += {static_cast<char>(op % 3 + 4 * place + 8 * kind),
                static_cast<char>(op * 7),
                static_cast<char>(op),
                static_cast<char>(op % 4),
                '\2',
                '\2',
                '\1',
                '\2',
                '\3'};
      }
      seeds.push_back(all);
      std::string twice = all;
      twice.append(set).append(wait_twice).append(all);
      seeds.push_back(std::move(twice));
    }
  }
  return seeds;
}
