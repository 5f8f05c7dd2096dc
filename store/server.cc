// The server's loop: it turns bytes into requests and frames, and answers into bytes, in a fixed order within a round.
//
// Design:
// 1. Everything runs on the loop's thread. A core never runs other calls from within an answer or a blocked call: it
//    marks connections (Connections), and these are handled when the round ends.
// 2. The output of a round is written at its end, with one send() for each connection.
// 3. A peer may not exceed its own budget (ClientService, TierService), nor all peers the common one (MemoryBudget). A
//    peer gets at most a slice of a round: one answer, kMaxTierSlice of frames or kPumpSliceNs. Each step of a round's
//    end takes at most a TimeSlice; the rest has its turn in the next round.
#include "store/server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/memory_limit.h"
#include "common/observed_clock.h"
#include "common/peer_user.h"
#include "store/acceptor.h"
#include "store/backend.h"
#include "store/client_service.h"
#include "store/connections.h"
#include "store/memory_budget.h"
#include "store/tier_service.h"
#include "taskd/own_user.h"

namespace taskd::store {
namespace {

constexpr size_t kMaxReadAhead = 256 * 1024;  // unread input of a client whose call is under way
constexpr size_t kMaxServiceUnread = 64 * 1024 * 1024;
constexpr int64_t kTickNs = 1'000'000'000;

class Server : public StoreServer {
 public:
  Server(EventLoop* loop, const Options& options);
  ~Server() override { loop_.Cancel(tick_); }

  absl::Status Listen();
  int port() const override { return acceptor_.port(); }
  StoreStats stats() const override;
  void SetUpstream(const HostPort& upstream) override { backend_.SetUpstream(upstream); }
  void SetPeerTimeout(int64_t timeout_ms) override;
  void ExpectEnd() override;
  void SendFrame(uint64_t peer, std::string_view body) override;
  void SetMaxFrameBytes(uint64_t peer, uint32_t bytes) override;
  void ClosePeer(uint64_t peer) override;
  void ForgetTry(bool all) override { backend_.core().ForgetTry(all); }

 private:
  StoreBackend::Callbacks BackendCallbacks();
  void Accepted(UniqueFd fd, const sockaddr_storage& address, const OwnerKey& owner);
  void OnEvent(uint64_t id, uint32_t events);
  void Receive(Connection& connection);
  void ReceiveAsClient(Connection& connection, std::string_view bytes);
  void BeginFrames(Connection& connection, uint32_t max_bytes);
  void TakeFrames(Connection& connection);
  void Pump(Connection& connection);
  void Answer(const StoreCaller& caller, StoreAnswer answer);
  void Resume(uint64_t stream);
  void Write(Connection& connection);
  void SetInterest(Connection& connection);
  void CloseDoomed(const TimeSlice& slice);
  void PumpReady();
  void WriteDirty();
  void RoundEnd();
  void Tick();
  void UplinkLost();

  EventLoop& loop_;
  const Options options_;
  Connections connections_;
  StoreBackend backend_;
  ObservedClock clock_{kTickNs};
  MemoryBudget budget_;
  ClientService clients_;
  TierService tiers_;
  StoreAcceptor acceptor_;
  int64_t peer_timeout_ms_ = kPeerTimeoutMs;
  uint64_t tier_count_ = 0;
  bool expect_end_ = false;
  EventLoop::TimerId tick_{};
};

Server::Server(EventLoop* loop, const Options& options)
    : loop_(*loop),
      options_(options),
      connections_(loop, {.on_event = [this](uint64_t id, uint32_t events) { OnEvent(id, events); },
                          .on_round_end = [this] { RoundEnd(); }}),
      backend_(loop, options.is_tier || !options.upstream.empty(), options.secret, BackendCallbacks()),
      budget_(options.memory_limit_bytes, &connections_, &backend_, &clock_),
      clients_(&connections_, &backend_, &budget_),
      tiers_(&connections_, &backend_, &budget_, options.secret),
      acceptor_(loop, &connections_, options.serves_user,
                [this](UniqueFd fd, const sockaddr_storage& address, const OwnerKey& owner) {
                  Accepted(std::move(fd), address, owner);
                }) {}

StoreBackend::Callbacks Server::BackendCallbacks() {
  return {
      .host = {.answer = [this](const StoreCaller& caller, StoreAnswer answer) { Answer(caller, std::move(answer)); },
               .resume = [this](uint64_t stream) { Resume(stream); }},
      .send_revoke =
          [this](uint64_t stream, uint64_t batch, const std::vector<std::string>& keys) {
            if (Connection* connection = connections_.Find(stream)) tiers_.SendRevoke(*connection, batch, keys);
          },
      .lost = [this] { UplinkLost(); },
      .schedule = [this] { connections_.Schedule(); },
  };
}

absl::Status Server::Listen() {
  HostPort upstream;
  if (!options_.upstream.empty()) {
    absl::StatusOr<HostPort> parsed = ParseHostPort("--upstream", options_.upstream);
    if (!parsed.ok()) return parsed.status();
    upstream = *parsed;
  }
  if (absl::Status status = acceptor_.Listen(options_.listen, options_.dual_stack); !status.ok()) return status;
  if (!upstream.host.empty()) backend_.SetUpstream(upstream);
  acceptor_.Start();
  Tick();
  return absl::OkStatus();
}

StoreStats Server::stats() const {
  StoreStats stats;
  stats.connections = connections_.size();
  stats.tiers = tier_count_;
  stats.requests = backend_.requests();
  stats.upstream_requests = backend_.upstream_requests();
  stats.upstream_bytes = backend_.upstream_bytes();
  stats.keys = backend_.core().keys();
  stats.waiting = backend_.core().waiting();
  stats.refused = connections_.refused();
  stats.bytes = budget_.bytes();
  return stats;
}

void Server::ExpectEnd() {
  expect_end_ = true;
  backend_.ExpectEnd();
}

// ---- From the sockets

void Server::Accepted(UniqueFd fd, const sockaddr_storage& address, const OwnerKey& owner) {
  auto connection = std::make_unique<Connection>(options_.unvalidated, options_.frame_service.magic);
  connection->fd = std::move(fd);
  connection->peer = KeyOf(address);
  connection->owner = owner;
  connection->accepted_ns = EventLoop::NowNs();
  connections_.Add(std::move(connection));
}

void Server::OnEvent(uint64_t id, uint32_t events) {
  Connection* connection = connections_.Find(id);
  if (connection == nullptr) return;
  if (events & EPOLLOUT) connections_.MarkDirty(*connection);
  if (events & EPOLLIN) {
    Receive(*connection);
  } else if (events & (EPOLLHUP | EPOLLERR)) {
    connections_.Doom(*connection);
  }
}

void Server::Receive(Connection& connection) {
  static thread_local std::array<char, 256 * 1024> buffer;
  const ssize_t size = recv(connection.fd.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return connections_.Doom(connection);
  if (connection.received == Connection::Received::kNothing) connection.received = Connection::Received::kBytes;
  const std::string_view bytes(buffer.data(), static_cast<size_t>(size));
  if (connection.is_client()) return ReceiveAsClient(connection, bytes);
  connection.frames->Append(bytes);
  TakeFrames(connection);
}

// Receives from a client, or from a peer that may still turn out to be of another kind.
void Server::ReceiveAsClient(Connection& connection, std::string_view bytes) {
  if (absl::Status fed = connection.parser.Feed(bytes); !fed.ok()) return connections_.Doom(connection, fed.message());
  const StoreParser::Peer kind = connection.parser.peer();
  if (kind == StoreParser::Peer::kUnknown || kind == StoreParser::Peer::kClient) return Pump(connection);
  const LoopbackPeer peer = FindLoopbackPeer(connection.fd.get());
  if (MayBeStrangers(peer)) {
    if (!peer.user) return connections_.Doom(connection);
    return connections_.Doom(connection, absl::StrCat("user ", *peer.user, " may not join this job over loopback"));
  }
  if (kind == StoreParser::Peer::kTier) {
    BeginFrames(connection, kMaxHelloBytes);
    connection.tier = std::make_unique<TierCalls>();
    ++tier_count_;
  } else {
    BeginFrames(connection, options_.frame_service.max_frame_bytes);
    connection.received = Connection::Received::kWhole;
    options_.frame_service.opened(connection.id, PeerAddress(connection.fd.get()), PeerShare(connection.fd.get()),
                                  peer.user && IsOwnUserOrRoot(*peer.user));
  }
  TakeFrames(connection);
}

void Server::BeginFrames(Connection& connection, uint32_t max_bytes) {
  SetPromptAndWatched(connection.fd.get(), peer_timeout_ms_);
  connection.frames = std::make_unique<FrameBuffer>(max_bytes);
  connection.frames->Append(connection.parser.TakeRest());
}

void Server::TakeFrames(Connection& connection) {
  while (!connection.doomed) {
    std::string_view body;
    absl::StatusOr<bool> whole = connection.frames->Next(body);
    if (!whole.ok()) return connections_.Doom(connection, whole.status().message());
    if (!*whole) break;
    if (connection.tier != nullptr) {
      tiers_.Take(connection, body);
    } else {
      options_.frame_service.received(connection.id, body);
    }
  }
  Pump(connection);
  budget_.Charge(connection);
}

// ---- To the core, and back

void Server::Pump(Connection& connection) {
  if (connection.doomed) return;
  if (connection.is_client()) {
    clients_.Pump(connection);
    SetInterest(connection);
  } else if (connection.tier != nullptr) {
    tiers_.Pump(connection);
  }
  if (backend_.core().has_work()) connections_.Schedule();
}

void Server::Answer(const StoreCaller& caller, StoreAnswer answer) {
  Connection* connection = connections_.Find(caller.stream);
  if (connection == nullptr) return;
  if (caller.tier) {
    tiers_.Answer(*connection, caller, std::move(answer));
  } else {
    clients_.Answer(*connection, caller, std::move(answer));
  }
  if (!connection->doomed) budget_.Answered(*connection);
}

void Server::Resume(uint64_t stream) {
  Connection* connection = connections_.Find(stream);
  if (connection == nullptr) return;
  connection->blocked = false;
  Pump(*connection);
}

// ---- The frame service

void Server::SendFrame(uint64_t peer, std::string_view body) {
  Connection* connection = connections_.Find(peer);
  if (connection == nullptr) return;
  AppendWithLength(body, connection->out);
  connections_.MarkDirty(*connection);
  if (connection->unread() > kMaxServiceUnread) connections_.Doom(*connection, "a peer that does not read");
}

void Server::SetMaxFrameBytes(uint64_t peer, uint32_t bytes) {
  if (Connection* connection = connections_.Find(peer)) connection->frames->set_max_bytes(bytes);
}

void Server::ClosePeer(uint64_t peer) {
  Connection* connection = connections_.Find(peer);
  if (connection == nullptr) return;
  connection->close_when_written = true;
  connections_.MarkDirty(*connection);
}

// ---- Rounds

void Server::RoundEnd() {
  backend_.core().Work();
  PumpReady();
  backend_.Flush();
  if (!backend_.is_full()) {
    budget_.BeginRound();  // held back calls have a share of their own
    const Connections::Ids held_back = connections_.TakeHeldBack();
    auto id = held_back.begin();
    for (const TimeSlice slice; id != held_back.end() && !slice.is_over(); ++id) Resume(*id);
    connections_.LeaveHeldBack(id, held_back.end());
  }
  const size_t unread_before = connections_.unread_bytes();
  WriteDirty();
  if (backend_.core().has_work()) connections_.Schedule();  // closed connections may have left work too
  const bool may_go_on = budget_.round_is_full() || connections_.unread_bytes() < unread_before;
  if (connections_.any_held_back() && !backend_.is_full() && may_go_on) connections_.Schedule();
  budget_.BeginRound();
  connections_.BeginNextRound();
}

void Server::PumpReady() {
  const TimeSlice slice;
  while (connections_.any_ready_or_doomed() && !slice.is_over()) {
    for (uint64_t id : connections_.TakeReady()) {
      if (slice.is_over()) {
        connections_.MarkReadyNextRound(id);
      } else if (Connection* connection = connections_.Find(id)) {
        Pump(*connection);
      }
    }
    CloseDoomed(slice);
  }
}

void Server::WriteDirty() {
  const Connections::Ids dirty = connections_.TakeDirty();
  auto id = dirty.begin();
  for (const TimeSlice slice; id != dirty.end() && !slice.is_over(); ++id) {
    if (Connection* connection = connections_.Find(*id)) Write(*connection);
  }
  connections_.LeaveDirty(id, dirty.end());
}

void Server::Write(Connection& connection) {
  connection.dirty = false;
  if (!connection.Write()) return connections_.Doom(connection);
  const bool all = connection.unread() == 0;
  if (all && connection.close_when_written) return connections_.Doom(connection);
  // The next request or frame may have waited for room.
  const bool has_room = all || (!connection.is_client() && connection.unread() <= kMaxTierUnread);
  if (has_room && connection.HasMore()) connections_.MarkReady(connection);
  SetInterest(connection);
}

void Server::SetInterest(Connection& connection) {
  if (!connection.doomed) budget_.Charge(connection);
  if (connection.doomed) return;
  const bool stop_reading =
      connection.is_client() && connection.parser.buffered_bytes() > kMaxReadAhead &&
      (connection.blocked || connection.client.busy_with != 0 || connection.unread() > kMaxUnreadReplies);
  uint32_t interest = stop_reading ? 0u : uint32_t{EPOLLIN};
  if (connection.unread() > 0 && !connection.dirty) interest |= EPOLLOUT;
  if (interest == connection.interest) return;
  connection.interest = interest;
  loop_.Change(connection.fd.get(), interest);
}

void Server::CloseDoomed(const TimeSlice& slice) {
  while (!slice.is_over()) {
    std::unique_ptr<Connection> connection = connections_.TakeDoomed();
    if (connection == nullptr) return;
    backend_.core().Gone(connection->id);
    if (connection->is_client()) continue;
    if (connection->tier != nullptr) {
      --tier_count_;
    } else {
      options_.frame_service.closed(connection->id);
    }
  }
}

void Server::SetPeerTimeout(int64_t timeout_ms) {
  peer_timeout_ms_ = timeout_ms;
  backend_.SetPeerTimeout(timeout_ms);
}

void Server::Tick() {
  tick_ = loop_.RunAfter(kTickNs, [this] { Tick(); });
  for (uint64_t id : backend_.Tick(clock_.Look(EventLoop::NowNs()))) {
    Connection* connection = connections_.Find(id);
    if (connection == nullptr) continue;
    spdlog::warn("store: the tier at {} has not answered for {:g} s; its connection is closed",
                 PeerAddress(connection->fd.get()), static_cast<double>(backend_.patience_ms()) / 1000);
    connections_.Doom(*connection);
  }
  budget_.CloseIdleReaders();
  if (connections_.any_held_back()) connections_.Schedule();
  acceptor_.Tick();
}

// The present calls of clients can never be answered, and the keys may be different when there is a root again.
void Server::UplinkLost() {
  if (connections_.size() > 0 && !expect_end_) {
    spdlog::warn("store: without the store above {} connections are closed", connections_.size());
  }
  connections_.DoomAll();
  connections_.ForgetReady();
  backend_.Reset();
}

}  // namespace

uint64_t DefaultStoreMemoryBytes() { return std::min<uint64_t>(uint64_t{4} << 30, AvailableMemoryBytes() / 4); }

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(EventLoop* loop, const Options& options) {
  auto server = std::make_unique<Server>(loop, options);
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace taskd::store
