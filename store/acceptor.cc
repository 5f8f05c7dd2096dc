#include "store/acceptor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/peer_user.h"

namespace taskd::store {
namespace {

constexpr int kAcceptsARound = 256;
constexpr int64_t kPauseNs = 100'000'000;  // pause when descriptors are used up; asking again at once would only spin

// Other parts of this process need descriptors too.
constexpr size_t kLeastSpareDescriptors = 32;
constexpr size_t kMostSpareDescriptors = 256;

constexpr size_t kSilentSlack = 64;
constexpr int64_t kFirstByteNs = 10'000'000'000;
constexpr int64_t kFirstByteUrgentNs = 1'000'000'000;
constexpr int64_t kFirstRequestUrgentNs = 2'000'000'000;
constexpr int64_t kMakeRoomPauseNs = 1'000'000'000;

size_t MostConnections() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  const size_t most = limit.rlim_cur;
  const size_t spare = std::clamp(most / 8, kLeastSpareDescriptors, kMostSpareDescriptors);
  return most > 2 * spare ? most - spare : spare;
}

}  // namespace

StoreAcceptor::~StoreAcceptor() {
  loop_.Cancel(resume_);
  if (listener_.valid() && !paused_) loop_.Remove(listener_.get());
}

absl::Status StoreAcceptor::Listen(const HostPort& address, bool everywhere) {
  absl::StatusOr<UniqueFd> listener = ListenTcp(address, everywhere);
  if (!listener.ok()) return listener.status();
  listener_ = *std::move(listener);
  port_ = LocalPort(listener_.get());
  max_connections_ = MostConnections();
  return absl::OkStatus();
}

void StoreAcceptor::Start() {
  paused_ = false;
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void StoreAcceptor::Accept() {
  for (int i = 0; i < kAcceptsARound; ++i) {
    if (connections_.size() >= max_connections_) return Pause("that is what the limit of open files allows");
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    UniqueFd fd(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      return Pause(strerror(errno));
    }
    if (serves_user_ && !IsServed(fd.get())) continue;
    OwnerKey owner = OwnerOf(address, std::nullopt);
    if (connections_.size() >= max_connections_ / 4 && !MayHaveMore(fd.get(), address, owner)) continue;
    SetPrompt(fd.get());
    accepted_(std::move(fd), address, owner);
  }
}

bool StoreAcceptor::IsServed(int fd) {
  const LoopbackPeer peer = FindLoopbackPeer(fd);
  if (!MayBeStrangers(peer)) return true;
  if (!peer.user) return false;
  if (serves_user_(*peer.user)) return true;
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - strangers_logged_ns_ >= kLogIntervalNs) {
    strangers_logged_ns_ = now_ns;
    spdlog::warn(
        "store: refused a loopback connection of user {}: only this user, root and the ranks' users are served",
        *peer.user);
  }
  return false;
}

// Once a quarter of the connections is in use, an owner may not have more than are still free. So one owner always
// leaves room for others, whatever its connections send. On loopback this user and root may have all.
bool StoreAcceptor::MayHaveMore(int fd, const sockaddr_storage& address, OwnerKey& owner) {
  if (const std::optional<uid_t> user = UserOfLoopbackPeer(fd)) {
    if (*user == geteuid() || *user == 0) return true;
    owner = OwnerOf(address, user);
  }
  if (connections_.of(owner) < max_connections_ - std::min(max_connections_, connections_.size())) return true;
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - refused_logged_ns_ >= kLogIntervalNs) {
    refused_logged_ns_ = now_ns;
    spdlog::warn("store: {}{} has {} connections, as many as there is room for now; further ones are closed",
                 PeerAddress(fd), owner.user ? absl::StrCat(", user ", *owner.user, ",") : "", connections_.of(owner));
  }
  return false;
}

void StoreAcceptor::Pause(absl::string_view why) {
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns - paused_logged_ns_ >= kLogIntervalNs) {
    paused_logged_ns_ = now_ns;
    spdlog::warn("store: no more than {} connections for now: {}", connections_.size(), why);
  }
  if (now_ns - made_room_ns_ >= kMakeRoomPauseNs) MakeRoom(/*urgent=*/true);
  paused_ = true;
  loop_.Remove(listener_.get());
  resume_ = loop_.RunAfter(kPauseNs, [this] { Start(); });
}

void StoreAcceptor::Tick() {
  if (!paused_ && connections_.size() >= max_connections_ - max_connections_ / 4) MakeRoom(/*urgent=*/false);
}

// Closes connections that have not sent anything, when descriptors are short (`urgent`: when they are used up). An
// address may keep as many silent connections, the oldest ones, as it has connections that speak, and kSilentSlack
// more. So PyTorch's pairs stay, even on a machine whose many ranks have one address, and on one that is flooded later.
// `urgent`: an incomplete request counts as silence too, and there is no slack.
void StoreAcceptor::MakeRoom(bool urgent) {
  made_room_ns_ = EventLoop::NowNs();
  absl::flat_hash_map<PeerKey, Silent> peers;
  for (const auto& [id, connection] : connections_.all()) {
    if (connection->doomed) continue;
    Silent& peer = peers[connection->peer];
    if (connection->received >= (urgent ? Connection::Received::kWhole : Connection::Received::kBytes)) {
      ++peer.speaking;
    } else {
      peer.silent.push_back(connection.get());
    }
  }
  size_t closed = 0;
  for (auto& [address, peer] : peers) closed += CloseSilent(peer, urgent);
  if (closed > 0) spdlog::debug("store: closed {} connections that asked nothing", closed);
}

// Closes silent connections of one address. Returns their number.
size_t StoreAcceptor::CloseSilent(Silent& peer, bool urgent) {
  const size_t share = peer.speaking + (urgent ? 0 : kSilentSlack);
  if (peer.silent.size() <= share) return 0;
  std::sort(peer.silent.begin(), peer.silent.end(),
            [](const Connection* a, const Connection* b) { return a->id < b->id; });
  size_t closed = 0;
  for (size_t i = share; i < peer.silent.size(); ++i) {
    Connection& connection = *peer.silent[i];
    const bool spoke = connection.received != Connection::Received::kNothing;
    const int64_t patience_ns = spoke ? kFirstRequestUrgentNs : urgent ? kFirstByteUrgentNs : kFirstByteNs;
    if (made_room_ns_ - connection.accepted_ns < patience_ns) continue;
    connections_.Doom(connection, "it asks nothing, and connections are short");
    ++closed;
  }
  return closed;
}

}  // namespace taskd::store
