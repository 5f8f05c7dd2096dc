// Connections of a store: bytes to calls, answers to bytes. What the calls do is behind StoreCore.
//
// Design:
// 1. Everything runs on the loop's thread. Answers and blocked calls never run other calls from within a core: streams
//    that can go on are put into `ready_`, connections to be closed into `doomed_`, and both are looked at when the
//    round ends.
// 2. What a round brought is written at its end, one send() a connection.
// 3. A client is synchronous: while a call of its is under way nothing more of it is read but what ends a wait.
// 4. Nobody has more than a budget. A client: one request (kMaxRequestBytes), and replies of kMaxUnreadReplies and one
//    answer (core.h, 4) or one list of keys. A tier: kMaxTierBacklog, and the same answers. All together, and with the
//    keys: memory_limit_bytes. And nobody has more than a slice of a round: one answer, or kMaxTierSlice of frames.
// 5. Ids of a tier's calls are refused while they are under way (`under_way`): the cores tell calls apart by them.
// 6. PyTorch of 1.9 to 2.0 keeps a second connection for each client, which never says a byte, and spins where that is
//    closed. So silence alone is no reason to close a connection; see MakeRoom().
#include "store/server.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/memory_limit.h"
#include "store/root_core.h"
#include "store/sharing.h"
#include "store/tier_core.h"
#include "store/tier_frame.h"
#include "store/uplink.h"
#include "store/wire.h"

namespace taskd {
namespace {

constexpr int kAcceptsARound = 256;
constexpr int64_t kAcceptPauseNs = 100'000'000;    // without descriptors; asking again at once would only spin
constexpr size_t kMaxUnreadReplies = 1024 * 1024;  // of a client: then its next request waits
constexpr size_t kMaxReadAhead = 256 * 1024;       // of a client whose call is under way
constexpr size_t kMaxTierBacklog =
    256 * 1024 * 1024;                               // a tier that does not read or is blocked for so much is given up
constexpr size_t kMaxTierUnread = 16 * 1024 * 1024;  // of a tier: then its next frame waits
constexpr size_t kMaxTierSlice = 4 * 1024 * 1024;    // of a tier's frames, in a round
constexpr size_t kMaxUplinkBacklog = 16 * 1024 * 1024;
constexpr size_t kMaxLauncherUnread = 64 * 1024 * 1024;
constexpr size_t kSmallBytes = 64 * 1024;        // what a client may send and wait for where memory is short
constexpr size_t kSmallTierBytes = 1024 * 1024;  // the same, of a tier or launcher
constexpr size_t kCallOverhead = 256;

// Connections (MakeRoom). Others of this process need descriptors, too.
constexpr size_t kLeastSpareDescriptors = 32;
constexpr size_t kMostSpareDescriptors = 256;
constexpr size_t kSilentSlack = 64;
constexpr int64_t kFirstByteNs = 10'000'000'000;
constexpr int64_t kFirstByteUrgentNs = 1'000'000'000;
constexpr int64_t kFirstRequestUrgentNs = 2'000'000'000;
constexpr int64_t kMakeRoomPauseNs = 1'000'000'000;
constexpr int64_t kSayAgainNs = 60'000'000'000;

constexpr int64_t kTickNs = 1'000'000'000;
constexpr int64_t kAcknowledgeTimeoutNs = 10'000'000'000;

// An address without its port.
using PeerKey = std::array<char, 16>;

PeerKey KeyOf(const sockaddr_storage& address) {
  PeerKey key{};
  if (address.ss_family == AF_INET6) {
    memcpy(key.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, key.size());
  } else {
    memcpy(key.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  }
  return key;
}

size_t BytesOf(const std::vector<std::string>& strings) {
  size_t bytes = 0;
  for (const std::string& text : strings) bytes += text.size() + kStringOverhead;
  return bytes;
}

bool NoneIsLonger(const std::vector<std::string>& strings, size_t bytes) {
  return std::all_of(strings.begin(), strings.end(), [bytes](const std::string& text) { return text.size() <= bytes; });
}

// As many keys and values as the operation is about, within the limits of a client's request; a tier may send anything.
bool HasRightShape(const StoreRequest& request) {
  if (request.keys.size() > kMaxKeys || !NoneIsLonger(request.keys, kMaxKeyBytes) ||
      !NoneIsLonger(request.values, kMaxValueBytes)) {
    return false;
  }
  const size_t keys = request.keys.size();
  const size_t values = request.values.size();
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kQueuePush:
      return keys == 1 && values == 1;
    case StoreOp::kCompareSet:
      return keys == 1 && values == 2;
    case StoreOp::kAdd:
    case StoreOp::kDelete:
    case StoreOp::kQueuePop:
    case StoreOp::kQueueLen:
    case StoreOp::kBarrier:
      return keys == 1;
    case StoreOp::kMultiSet:
      return keys == values;
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
    case StoreOp::kNumKeys:
    case StoreOp::kListKeys:
    case StoreOp::kPing:
      return true;
    default:
      return false;
  }
}

// What only tiers and launchers have.
struct FramePeer {
  explicit FramePeer(uint32_t max_frame_bytes) : in(max_frame_bytes) {}
  FrameBuffer in;
  bool greeted = false;
  // A tier's.
  struct Queued {
    TierFrame frame;
    size_t bytes;
  };
  struct UnderWay {
    StoreOp op;
    size_t bytes;
  };
  uint64_t processed = 0;    // frames executed
  std::deque<Queued> queue;  // frames that wait for the one that is blocked
  size_t queue_bytes = 0;
  absl::flat_hash_map<uint64_t, UnderWay> under_way;  // by id: calls that have no answer yet
  size_t under_way_bytes = 0;
};

struct Connection {
  explicit Connection(StoreDialect unvalidated) : parser(unvalidated) {}

  uint64_t id = 0;
  UniqueFd fd;
  StoreParser parser;
  std::unique_ptr<FramePeer> frames;
  std::string out;
  size_t written = 0;
  uint32_t interest = EPOLLIN;
  PeerKey peer{};
  int64_t accepted_ns = 0;
  size_t charged = 0;   // of the server's buffered_bytes_
  bool spoke = false;   // it has sent a byte
  bool proven = false;  // it has sent a whole request, or is a tier or launcher
  bool dirty = false;
  bool blocked = false;
  bool doomed = false;
  bool close_when_written = false;
  // A client's.
  std::optional<StoreCall> head;  // blocked
  uint64_t last_call = 0;
  uint64_t busy_with = 0;  // the call that is under way, 0 for none; waits not counted
  uint64_t waits_in = 0;   // its kWait or kBarrier
  size_t call_bytes = 0;   // of the call that is under way
  size_t wait_bytes = 0;   // of its kWait or kBarrier
  size_t unread() const { return out.size() - written; }
  bool HasMore() const {
    return frames == nullptr ? head || parser.buffered_bytes() > 0 : !blocked && !frames->queue.empty();
  }
  size_t received_bytes() const {
    return frames == nullptr ? parser.buffered_bytes() : frames->in.size() + frames->queue_bytes;
  }
  size_t bytes() const {
    const size_t bytes = out.capacity() + received_bytes();
    return frames == nullptr ? bytes + call_bytes + wait_bytes : bytes + frames->under_way_bytes;
  }
};

class Server : public StoreServer {
 public:
  Server(EventLoop* loop, const Options& options) : loop_(*loop), options_(options) {}
  ~Server() override;

  absl::Status Listen();
  int port() const override { return port_; }
  StoreStats stats() const override;
  void SetUpstream(const HostPort& upstream) override { uplink_->SetTarget(upstream); }
  void ExpectEnd() override;
  void LauncherJoined(uint64_t peer) override;
  void SendToLauncher(uint64_t peer, std::string_view body) override;
  void CloseLauncher(uint64_t peer) override;
  void ForgetTry(bool all) override { core_->ForgetTry(all); }

 private:
  void MakeCore();
  void Accept();
  void PauseAccepting(absl::string_view why);
  void MakeRoom(bool urgent);
  void OnEvent(uint64_t id, uint32_t events);
  void Receive(Connection& connection);
  void TakeFrames(Connection& connection);
  void TakeTierFrame(Connection& connection, std::string_view body);
  void Pump(Connection& connection);
  void PumpClient(Connection& connection);
  void PumpTier(Connection& connection);
  bool ExecuteForClient(Connection& connection);
  bool ExecuteForTier(Connection& connection, TierFrame& frame);
  void Answer(const StoreCaller& caller, StoreAnswer answer);
  void Resume(uint64_t stream);
  void SendRevoke(uint64_t stream, uint64_t batch, const std::vector<std::string>& keys);
  void SendFrame(Connection& connection, const TierFrame& frame);
  void MarkDirty(Connection& connection);
  void Write(Connection& connection);
  void SetInterest(Connection& connection);
  void Doom(Connection& connection, absl::string_view why = "");
  void Charge(Connection& connection);
  uint64_t bytes() const { return buffered_bytes_ + core_->bytes() + sharing_->bytes(); }
  bool IsFull() const { return bytes() > options_.memory_limit_bytes; }
  bool MayExecute(const StoreRequest& request);
  void SayFull();
  void CloseDoomed();
  void Schedule();
  void RoundEnd();
  void Tick();
  void UplinkLost();
  Connection* Find(uint64_t id) {
    auto found = connections_.find(id);
    return found == connections_.end() || found->second->doomed ? nullptr : found->second.get();
  }

  EventLoop& loop_;
  const Options options_;
  UniqueFd listener_;
  int port_ = 0;
  std::unique_ptr<Sharing> sharing_;
  std::unique_ptr<StoreCore> core_;
  TierCore* tier_ = nullptr;  // core_, where this is a tier
  std::unique_ptr<StoreUplink> uplink_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_id_ = 1;
  std::vector<uint64_t> ready_;
  std::vector<uint64_t> later_;  // the same, in the next round
  std::vector<uint64_t> dirty_;
  std::vector<uint64_t> doomed_;
  std::vector<uint64_t> held_back_;  // streams that wait for room towards the upstream
  bool scheduled_ = false;
  size_t max_connections_ = SIZE_MAX;
  bool paused_ = false;  // nobody is accepted at the moment
  int64_t said_paused_ns_ = -kSayAgainNs;
  int64_t made_room_ns_ = 0;
  int64_t said_full_ns_ = -kSayAgainNs;
  size_t buffered_bytes_ = 0;  // of all connections
  bool expect_end_ = false;
  EventLoop::TimerId tick_{};
  uint64_t requests_ = 0;
  uint64_t refused_ = 0;
  uint64_t tiers_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // for callbacks that the loop may run after this is gone
};

Server::~Server() {
  loop_.Cancel(tick_);
  if (listener_.valid()) loop_.Remove(listener_.get());
  for (const auto& [id, connection] : connections_) loop_.Remove(connection->fd.get());
}

absl::Status Server::Listen() {
  HostPort upstream;
  if (!options_.upstream.empty()) {
    absl::StatusOr<HostPort> parsed = ParseHostPort("--upstream", options_.upstream);
    if (!parsed.ok()) return parsed.status();
    upstream = *parsed;
  }
  absl::StatusOr<UniqueFd> listener = ListenTcp(options_.listen, options_.dual_stack);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  port_ = LocalPort(listener_.get());
  if (rlimit limit; getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const size_t most = limit.rlim_cur;
    const size_t spare = std::clamp(most / 8, kLeastSpareDescriptors, kMostSpareDescriptors);
    max_connections_ = most > 2 * spare ? most - spare : spare;
  }
  MakeCore();
  if (tier_ != nullptr) {
    uplink_ = std::make_unique<StoreUplink>(&loop_, StoreUplink::Callbacks{.received =
                                                                               [this](TierFrame frame) {
                                                                                 tier_->Received(std::move(frame));
                                                                                 Schedule();
                                                                               },
                                                                           .lost = [this] { UplinkLost(); }});
    if (!upstream.host.empty()) uplink_->SetTarget(upstream);
  }
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  Tick();
  return absl::OkStatus();
}

void Server::MakeCore() {
  sharing_ = std::make_unique<Sharing>([this](uint64_t stream, uint64_t batch, const std::vector<std::string>& keys) {
    SendRevoke(stream, batch, keys);
  });
  StoreCoreHost host{
      .answer = [this](const StoreCaller& caller, StoreAnswer answer) { Answer(caller, std::move(answer)); },
      .resume = [this](uint64_t stream) { Resume(stream); },
  };
  if (options_.upstream.empty() && !options_.is_tier) {
    core_ = std::make_unique<RootCore>(std::move(host), sharing_.get());
    return;
  }
  auto tier = std::make_unique<TierCore>(std::move(host), sharing_.get(), [this](const TierFrame& frame) {
    uplink_->Send(frame);
    Schedule();
  });
  tier_ = tier.get();
  core_ = std::move(tier);
}

StoreStats Server::stats() const {
  StoreStats stats;
  stats.connections = connections_.size();
  stats.tiers = tiers_;
  stats.requests = requests_;
  stats.keys = core_->keys();
  stats.waiting = core_->waiting();
  stats.refused = refused_;
  stats.bytes = bytes();
  if (uplink_ != nullptr) {
    stats.upstream_requests = uplink_->requests();
    stats.upstream_bytes = uplink_->bytes();
  }
  return stats;
}

void Server::Accept() {
  for (int i = 0; i < kAcceptsARound; ++i) {
    if (connections_.size() >= max_connections_) return PauseAccepting("that is what the limit of open files allows");
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    UniqueFd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      return PauseAccepting(strerror(errno));
    }
    SetPrompt(fd.get());
    const uint64_t id = next_id_++;
    auto connection = std::make_unique<Connection>(options_.unvalidated);
    connection->id = id;
    connection->peer = KeyOf(address);
    connection->accepted_ns = EventLoop::NowNs();
    connection->fd = std::move(fd);
    loop_.Add(connection->fd.get(), EPOLLIN, [this, id](uint32_t events) { OnEvent(id, events); });
    connections_[id] = std::move(connection);
  }
}

// Asking again at once would only spin.
void Server::PauseAccepting(absl::string_view why) {
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - said_paused_ns_ >= kSayAgainNs) {
    said_paused_ns_ = now_ns;
    spdlog::warn("store: no more than {} connections for now: {}", connections_.size(), why);
  }
  if (now_ns - made_room_ns_ >= kMakeRoomPauseNs) MakeRoom(/*urgent=*/true);
  paused_ = true;
  loop_.Remove(listener_.get());
  loop_.RunAfter(kAcceptPauseNs, [this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    paused_ = false;
    loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  });
}

// Closes connections that have not said anything, where descriptors are short (`urgent`: where there are none). An
// address may keep as many as it has connections that speak, the oldest ones, and kSilentSlack more: PyTorch's pairs
// stay, also those of a machine whose many ranks have one address and of one that somebody floods later. `urgent`: a
// beginning without an end is taken for silence, too, and there is no slack.
void Server::MakeRoom(bool urgent) {
  struct Peer {
    size_t speaking = 0;
    std::vector<Connection*> silent;
  };
  const int64_t now_ns = made_room_ns_ = EventLoop::NowNs();
  absl::flat_hash_map<PeerKey, Peer> peers;
  for (const auto& [id, connection] : connections_) {
    if (connection->doomed) continue;
    Peer& peer = peers[connection->peer];
    if (urgent ? connection->proven : connection->spoke) {
      ++peer.speaking;
    } else {
      peer.silent.push_back(connection.get());
    }
  }
  size_t closed = 0;
  for (auto& [address, peer] : peers) {
    const size_t share = peer.speaking + (urgent ? 0 : kSilentSlack);
    if (peer.silent.size() <= share) continue;
    std::sort(peer.silent.begin(), peer.silent.end(),
              [](const Connection* a, const Connection* b) { return a->id < b->id; });
    for (size_t i = share; i < peer.silent.size(); ++i) {
      Connection& connection = *peer.silent[i];
      const int64_t patience_ns = connection.spoke ? kFirstRequestUrgentNs : urgent ? kFirstByteUrgentNs : kFirstByteNs;
      if (now_ns - connection.accepted_ns < patience_ns) continue;
      Doom(connection, "it asks nothing, and connections are short");
      ++closed;
    }
  }
  if (closed > 0) spdlog::debug("store: closed {} connections that asked nothing", closed);
}

void Server::OnEvent(uint64_t id, uint32_t events) {
  Connection* connection = Find(id);
  if (connection == nullptr) return;
  if (events & EPOLLOUT) MarkDirty(*connection);
  if (events & EPOLLIN) {
    Receive(*connection);
  } else if (events & (EPOLLHUP | EPOLLERR)) {
    Doom(*connection);
  }
}

void Server::Receive(Connection& connection) {
  static thread_local std::array<char, 256 * 1024> buffer;
  const ssize_t size = recv(connection.fd.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return Doom(connection);
  connection.spoke = true;
  std::string_view bytes(buffer.data(), static_cast<size_t>(size));
  if (connection.frames != nullptr) {
    connection.frames->in.Append(bytes);
    TakeFrames(connection);
    return;
  }
  absl::Status fed = connection.parser.Feed(bytes);
  if (!fed.ok()) return Doom(connection, fed.message());
  if (connection.parser.peer() == StoreParser::Peer::kTier ||
      connection.parser.peer() == StoreParser::Peer::kLauncher) {
    const bool is_tier = connection.parser.peer() == StoreParser::Peer::kTier;
    if (!is_tier && !options_.launchers.opened) return Doom(connection, "a launcher, where none is expected");
    SetPromptAndWatched(connection.fd.get());
    connection.frames = std::make_unique<FramePeer>(is_tier ? kMaxHelloBytes : kMaxStrangersFrameBytes);
    connection.frames->in.Append(connection.parser.TakeRest());
    if (is_tier) {
      ++tiers_;
    } else {
      connection.frames->greeted = connection.proven = true;
      options_.launchers.opened(connection.id, PeerAddress(connection.fd.get()));
    }
    TakeFrames(connection);
    return;
  }
  Pump(connection);
}

void Server::TakeFrames(Connection& connection) {
  while (!connection.doomed) {
    std::string_view body;
    absl::StatusOr<bool> whole = connection.frames->in.Next(body);
    if (!whole.ok()) return Doom(connection, whole.status().message());
    if (!*whole) break;
    if (connection.parser.peer() == StoreParser::Peer::kTier) {
      TakeTierFrame(connection, body);
    } else {
      options_.launchers.received(connection.id, body);
    }
  }
  Pump(connection);
  Charge(connection);
}

void Server::TakeTierFrame(Connection& connection, std::string_view body) {
  absl::StatusOr<TierFrame> frame = ParseFrame(body);
  if (!frame.ok()) return Doom(connection, frame.status().message());
  FramePeer& peer = *connection.frames;
  if (!peer.greeted) {
    if (frame->type != TierFrame::Type::kHello || frame->number != kTierProtocol) {
      return Doom(connection, "a tier that speaks another version of the protocol");
    }
    peer.greeted = connection.proven = true;
    peer.in.set_max_bytes(kMaxFrameBytes);
    SendFrame(connection, *frame);
    return;
  }
  // At once: what this tier asks may itself wait for the acknowledgement.
  if (frame->type == TierFrame::Type::kAcknowledge) return core_->Acknowledge(connection.id, frame->id);
  const size_t bytes = BytesOf(frame->keys) + BytesOf(frame->values) + kCallOverhead;
  peer.queue_bytes += bytes;
  peer.queue.push_back({*std::move(frame), bytes});
  if (peer.queue_bytes + peer.under_way_bytes > kMaxTierBacklog) {
    Doom(connection, "a tier that sends more than can be executed");
  }
}

void Server::Pump(Connection& connection) {
  if (connection.doomed) return;
  if (connection.frames == nullptr) {
    PumpClient(connection);
  } else if (connection.parser.peer() == StoreParser::Peer::kTier) {
    PumpTier(connection);
  }
}

void Server::PumpClient(Connection& connection) {
  while (!connection.doomed && !connection.blocked && connection.busy_with == 0 &&
         connection.unread() <= kMaxUnreadReplies) {
    if (!connection.head) {
      StoreCall call;
      absl::StatusOr<bool> whole = connection.parser.Next(call.request);
      if (!whole.ok()) return Doom(connection, whole.status().message());
      if (!*whole) break;
      connection.head = std::move(call);
      connection.proven = true;
    }
    if (uplink_ != nullptr && uplink_->unwritten_bytes() > kMaxUplinkBacklog) {
      connection.blocked = true;
      held_back_.push_back(connection.id);
      break;
    }
    if (!ExecuteForClient(connection)) break;
  }
  SetInterest(connection);
}

// False: the call stays at the head.
bool Server::ExecuteForClient(Connection& connection) {
  StoreCall call = *std::move(connection.head);  // an answer may put another one there
  connection.head.reset();
  const StoreOp op = call.request.op;
  const bool validated = connection.parser.dialect() == StoreDialect::k22;
  if (op == StoreOp::kWatchKey) {
    Doom(connection, "WATCH_KEY, which is not served");
    return true;
  }
  if (!MayExecute(call.request)) {
    Doom(connection, "a request for which the store has no memory left");
    return true;
  }
  const bool waits = op == StoreOp::kWait || op == StoreOp::kBarrier;
  // A client that cannot cancel and asks something else has given up waiting. Nobody waits twice.
  if (connection.waits_in != 0 && (op == StoreOp::kCancelWait || !validated || waits)) {
    core_->Cancel(connection.id, connection.waits_in);
    connection.waits_in = connection.wait_bytes = 0;
  }
  call.caller = {.stream = connection.id, .id = ++connection.last_call, .op = op, .tier = false};
  call.of_this_try = validated;
  if (waits) {
    connection.waits_in = connection.last_call;
  } else if (HasReply(op)) {
    connection.busy_with = connection.last_call;
  }
  const size_t bytes = BytesOf(call.request.keys) + BytesOf(call.request.values);
  (waits ? connection.wait_bytes : connection.call_bytes) = HasReply(op) ? bytes : 0;
  if (core_->Execute(call) == StoreCore::Result::kBlocked) {
    connection.head = std::move(call);
    connection.blocked = true;
    (waits ? connection.waits_in : connection.busy_with) = 0;
    return false;
  }
  ++requests_;
  Schedule();  // a tier holds back what others may join
  return true;
}

void Server::PumpTier(Connection& connection) {
  FramePeer& peer = *connection.frames;
  size_t executed_bytes = 0;
  while (!connection.doomed && !connection.blocked && !peer.queue.empty() && connection.unread() <= kMaxTierUnread) {
    if (executed_bytes > kMaxTierSlice) {
      later_.push_back(connection.id);
      return;
    }
    if (uplink_ != nullptr && uplink_->unwritten_bytes() > kMaxUplinkBacklog) {
      connection.blocked = true;
      held_back_.push_back(connection.id);
      return;
    }
    ++peer.processed;
    if (!ExecuteForTier(connection, peer.queue.front().frame)) {
      --peer.processed;
      connection.blocked = true;
      return;
    }
    executed_bytes += peer.queue.front().bytes;
    peer.queue_bytes -= peer.queue.front().bytes;
    peer.queue.pop_front();
  }
}

// False: the frame stays at the head.
bool Server::ExecuteForTier(Connection& connection, TierFrame& frame) {
  switch (frame.type) {
    case TierFrame::Type::kCancel: {
      core_->Cancel(connection.id, frame.id);
      auto call = connection.frames->under_way.find(frame.id);
      if (call != connection.frames->under_way.end() &&
          (call->second.op == StoreOp::kWait || call->second.op == StoreOp::kBarrier)) {
        connection.frames->under_way_bytes -= call->second.bytes;
        connection.frames->under_way.erase(call);
      }
      return true;
    }
    case TierFrame::Type::kForget:
      core_->Forget(connection.id, frame.keys);
      return true;
    case TierFrame::Type::kWakeBack:
      if (frame.keys.size() == 1) core_->WakeBack(frame.keys[0]);
      return true;
    case TierFrame::Type::kRequest:
      break;
    default:
      Doom(connection, "a tier that sends what only a store above it may");
      return true;
  }
  StoreCall call;
  call.caller = {.stream = connection.id, .id = frame.id, .op = frame.op, .tier = true};
  call.of_this_try = frame.of_this_try;
  call.frame = connection.frames->processed;
  call.request = {
      .op = frame.op, .keys = std::move(frame.keys), .values = std::move(frame.values), .number = frame.number};
  if (!HasRightShape(call.request)) {
    Doom(connection, "a tier's request with a wrong number of keys or values, or too long ones");
    return true;
  }
  if (!MayExecute(call.request)) {
    StoreAnswer answer;
    answer.fault = true;  // its client is closed
    Answer(call.caller, std::move(answer));
    return true;
  }
  FramePeer& peer = *connection.frames;
  const size_t bytes = BytesOf(call.request.keys) + kCallOverhead;
  if (HasReply(frame.op)) {
    if (!peer.under_way.try_emplace(frame.id, FramePeer::UnderWay{frame.op, bytes}).second) {
      Doom(connection, "a tier that gives a call the id of one that is under way");
      return true;
    }
    peer.under_way_bytes += bytes;
  }
  if (core_->Execute(call) == StoreCore::Result::kBlocked) {
    if (HasReply(frame.op) && peer.under_way.erase(frame.id) > 0) peer.under_way_bytes -= bytes;
    frame.keys = std::move(call.request.keys);
    frame.values = std::move(call.request.values);
    return false;
  }
  ++requests_;
  Schedule();  // a tier holds back what others may join
  return true;
}

void Server::Answer(const StoreCaller& caller, StoreAnswer answer) {
  Connection* connection = Find(caller.stream);
  if (connection == nullptr) return;
  if (caller.tier) {
    TierFrame frame;
    frame.type = answer.fault      ? TierFrame::Type::kFault
                 : answer.wake_one ? TierFrame::Type::kWakeOne
                                   : TierFrame::Type::kReply;
    frame.id = caller.id;
    frame.number = answer.number;
    frame.states = std::move(answer.states);
    (answer.wake_one ? frame.keys : frame.values) = std::move(answer.values);
    FramePeer& peer = *connection->frames;
    auto call = peer.under_way.find(caller.id);
    if (call != peer.under_way.end() && !answer.wake_one && HasReply(caller.op)) {
      peer.under_way_bytes -= call->second.bytes;
      peer.under_way.erase(call);
    }
    frame.processed = core_->Confirmed(connection->id, connection->frames->processed);
    SendFrame(*connection, frame);
    return;
  }
  if (answer.fault && !HasReply(caller.op)) return Doom(*connection, "a write that was refused");
  if (caller.id == connection->busy_with) {
    connection->busy_with = connection->call_bytes = 0;
  } else if (caller.id == connection->waits_in) {
    connection->waits_in = connection->wait_bytes = 0;
  } else {
    return;  // it does not wait for this any more
  }
  if (answer.fault) return Doom(*connection, "a request that was refused");
  StoreReply reply;
  reply.number = answer.number;
  reply.values = std::move(answer.values);
  AppendReply(caller.op, reply, connection->out);
  MarkDirty(*connection);
  if (!answer.rest.empty()) {
    connection->head.emplace();
    connection->head->request.op = caller.op;
    connection->head->request.keys = std::move(answer.rest);
  }
  if (connection->HasMore()) ready_.push_back(connection->id);
}

void Server::Resume(uint64_t stream) {
  Connection* connection = Find(stream);
  if (connection == nullptr) return;
  connection->blocked = false;
  Pump(*connection);
}

void Server::SendRevoke(uint64_t stream, uint64_t batch, const std::vector<std::string>& keys) {
  Connection* connection = Find(stream);
  if (connection == nullptr) return;
  TierFrame frame;
  frame.type = TierFrame::Type::kRevoke;
  frame.id = batch;
  frame.keys = keys;
  SendFrame(*connection, frame);
}

void Server::SendFrame(Connection& connection, const TierFrame& frame) {
  AppendFrame(frame, connection.out);
  MarkDirty(connection);
  if (connection.unread() > kMaxTierBacklog) Doom(connection, "a tier that does not read");
}

void Server::SendToLauncher(uint64_t peer, std::string_view body) {
  Connection* connection = Find(peer);
  if (connection == nullptr) return;
  const auto length = static_cast<uint32_t>(body.size());
  connection->out.append(reinterpret_cast<const char*>(&length), sizeof(length));
  connection->out += body;
  MarkDirty(*connection);
  if (connection->unread() > kMaxLauncherUnread) Doom(*connection, "a launcher that does not read");
}

void Server::LauncherJoined(uint64_t peer) {
  Connection* connection = Find(peer);
  if (connection != nullptr) connection->frames->in.set_max_bytes(kMaxLauncherFrameBytes);
}

void Server::ExpectEnd() {
  expect_end_ = true;
  uplink_->ExpectEnd();
}

void Server::CloseLauncher(uint64_t peer) {
  Connection* connection = Find(peer);
  if (connection == nullptr) return;
  connection->close_when_written = true;
  MarkDirty(*connection);
}

void Server::MarkDirty(Connection& connection) {
  if (!connection.dirty) dirty_.push_back(connection.id);
  connection.dirty = true;
  Schedule();
}

void Server::Write(Connection& connection) {
  connection.dirty = false;
  while (connection.unread() > 0) {
    const ssize_t size =
        send(connection.fd.get(), connection.out.data() + connection.written, connection.unread(), MSG_NOSIGNAL);
    if (size < 0) {
      if (errno == EAGAIN || errno == EINTR) break;
      return Doom(connection);
    }
    connection.written += size;
  }
  if (connection.unread() == 0) {
    connection.out.clear();
    if (connection.out.capacity() > kMaxUnreadReplies) connection.out.shrink_to_fit();
    connection.written = 0;
    if (connection.close_when_written) return Doom(connection);
    if (connection.HasMore()) ready_.push_back(connection.id);  // its next request may have waited for room
  } else {
    if (connection.written > kMaxUnreadReplies && connection.written > connection.out.size() / 2) {
      connection.out.erase(0, connection.written);
      connection.written = 0;
    }
    if (connection.frames != nullptr && connection.unread() <= kMaxTierUnread && connection.HasMore()) {
      ready_.push_back(connection.id);
    }
  }
  SetInterest(connection);
}

void Server::Charge(Connection& connection) {
  const size_t bytes = connection.doomed ? 0 : connection.bytes();
  buffered_bytes_ += bytes - connection.charged;
  connection.charged = bytes;
  if (connection.doomed) return;
  // A tier or launcher speaks for many: what it has begun to say may go beyond, so that only its client is refused.
  const bool of_many = connection.frames != nullptr;
  const uint64_t limit = options_.memory_limit_bytes + (of_many ? options_.memory_limit_bytes / 4 : 0);
  if (connection.received_bytes() > (of_many ? kSmallTierBytes : kSmallBytes) && this->bytes() > limit) {
    SayFull();
    Doom(connection, "what it sends, for which the store has no memory left");
  }
}

bool Server::MayExecute(const StoreRequest& request) {
  const bool much = request.op == StoreOp::kWait && BytesOf(request.keys) > kSmallBytes;
  const bool list = request.op == StoreOp::kListKeys && core_->list_bytes() > kSmallBytes &&
                    bytes() + core_->list_bytes() > options_.memory_limit_bytes;
  if (!list && !(IsFull() && (much || MayGrow(request.op)))) return true;
  SayFull();
  return false;
}

void Server::SayFull() {
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - said_full_ns_ < kSayAgainNs) return;
  said_full_ns_ = now_ns;
  spdlog::error(
      "store: {} MiB of memory are used and the limit is {} MiB (--memory-limit-mb): connections that write are "
      "closed",
      bytes() >> 20, options_.memory_limit_bytes >> 20);
}

void Server::SetInterest(Connection& connection) {
  if (connection.doomed) return;
  Charge(connection);
  if (connection.doomed) return;
  const bool stop_reading =
      connection.frames == nullptr && connection.parser.buffered_bytes() > kMaxReadAhead &&
      (connection.blocked || connection.busy_with != 0 || connection.unread() > kMaxUnreadReplies);
  uint32_t interest = stop_reading ? 0u : uint32_t{EPOLLIN};
  if (connection.unread() > 0 && !connection.dirty) interest |= EPOLLOUT;
  if (interest == connection.interest) return;
  connection.interest = interest;
  loop_.Change(connection.fd.get(), interest);
}

void Server::Doom(Connection& connection, absl::string_view why) {
  if (connection.doomed) return;
  connection.doomed = true;
  buffered_bytes_ -= std::exchange(connection.charged, 0);
  doomed_.push_back(connection.id);
  loop_.Remove(connection.fd.get());
  if (!why.empty()) {
    ++refused_;
    spdlog::debug("store: closed the connection of {}: {}", PeerAddress(connection.fd.get()), why);
  }
  Schedule();
}

void Server::CloseDoomed() {
  while (!doomed_.empty()) {
    std::vector<uint64_t> ids;
    ids.swap(doomed_);
    for (uint64_t id : ids) {
      auto found = connections_.find(id);
      std::unique_ptr<Connection> connection = std::move(found->second);
      connections_.erase(found);
      core_->Gone(id);
      if (connection->parser.peer() == StoreParser::Peer::kTier) --tiers_;
      if (connection->parser.peer() == StoreParser::Peer::kLauncher && connection->frames != nullptr) {
        options_.launchers.closed(id);
      }
    }
  }
}

void Server::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  loop_.AtRoundEnd([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) RoundEnd();
  });
}

void Server::RoundEnd() {
  scheduled_ = false;
  while (!ready_.empty() || !doomed_.empty()) {
    std::vector<uint64_t> ids;
    ids.swap(ready_);
    for (uint64_t id : ids) {
      if (Connection* connection = Find(id)) Pump(*connection);
    }
    CloseDoomed();
  }
  if (tier_ != nullptr) {
    tier_->BeforeFlush();
    uplink_->Flush();
    if (uplink_->connected()) tier_->Flushed();
    if (!held_back_.empty() && uplink_->unwritten_bytes() <= kMaxUplinkBacklog) {
      std::vector<uint64_t> ids;
      ids.swap(held_back_);
      for (uint64_t id : ids) Resume(id);
    }
  }
  std::vector<uint64_t> ids;
  ids.swap(dirty_);
  for (uint64_t id : ids) {
    if (Connection* connection = Find(id)) Write(*connection);
  }
  ready_.insert(ready_.end(), later_.begin(), later_.end());
  later_.clear();
  if (!ready_.empty() || !doomed_.empty()) Schedule();
}

void Server::Tick() {
  tick_ = loop_.RunAfter(kTickNs, [this] { Tick(); });
  const int64_t now_ns = EventLoop::NowNs();
  sharing_->set_now_ns(now_ns);
  for (uint64_t id : sharing_->Late(now_ns - kAcknowledgeTimeoutNs)) {
    Connection* connection = Find(id);
    if (connection == nullptr) continue;
    spdlog::warn("store: the tier at {} has not answered for 10 s; its connection is closed",
                 PeerAddress(connection->fd.get()));
    Doom(*connection);
  }
  if (!held_back_.empty()) Schedule();
  if (!paused_ && connections_.size() >= max_connections_ - max_connections_ / 4) MakeRoom(/*urgent=*/false);
}

// What clients have asked can never be answered now, and the keys may be other ones when there is a root again.
void Server::UplinkLost() {
  if (!connections_.empty() && !expect_end_)
    spdlog::warn("store: without the store above {} connections are closed", connections_.size());
  for (const auto& [id, connection] : connections_) {
    if (!connection->doomed) Doom(*connection);
  }
  CloseDoomed();
  ready_.clear();
  later_.clear();
  held_back_.clear();
  MakeCore();
}

}  // namespace

uint64_t DefaultStoreMemoryBytes() { return std::min<uint64_t>(uint64_t{4} << 30, AvailableMemoryBytes() / 4); }

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(EventLoop* loop, const Options& options) {
  auto server = std::make_unique<Server>(loop, options);
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace taskd
