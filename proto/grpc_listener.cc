#include "proto/grpc_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/loop_door.h"
#include "common/peer_user.h"
#include "common/printable.h"
#include "proto/tls_relay.h"
#include "taskd/own_user.h"

namespace taskd::proto {
namespace {

constexpr int kAcceptsARound = 64;
constexpr int64_t kAcceptPauseNs = 100'000'000;  // without descriptors; asking again at once would only spin
constexpr int64_t kTickNs = 100'000'000;
constexpr int64_t kLastBytesNs = 1'000'000'000;
constexpr int kHandshakesARound = 8;      // begun; then those who are in have their turn
constexpr size_t kDescriptorsOfTls = 3;   // the connection, and the pair of sockets between it and gRPC
constexpr size_t kDescriptorsOfCall = 1;  // where there is no pair
constexpr int64_t kLookAgainNs = 100'000'000;
constexpr int64_t kReportAgainNs = 60'000'000'000;
constexpr unsigned char kTlsHandshake = 0x16;  // RFC 8446 §5.1
constexpr unsigned char kHttp2Preface = 'P';   // RFC 9113 §3.4: "PRI * HTTP/2.0"

size_t DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return size_t{1} << 20;
  return static_cast<size_t>(limit.rlim_cur);
}

// Which socket a descriptor stands for: numbers are used again, inodes of open sockets are not.
std::optional<ino_t> InodeOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? std::optional(info.st_ino) : std::nullopt;
}

// Who has the other end, for shares and for lines of the log.
struct Ends {
  std::string share;
  std::string address;  // as gRPC writes it, without percent signs
};

Ends EndsOf(int fd, const sockaddr_storage& from) {
  Ends ends;
  char text[INET6_ADDRSTRLEN] = "";
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  const bool is_v6 = from.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6);
  if (is_v6) {
    inet_ntop(AF_INET6, &v6, text, sizeof(text));
    ends.address = absl::StrCat("ipv6:[", text, "]:", ntohs(reinterpret_cast<const sockaddr_in6&>(from).sin6_port));
  } else {
    const bool is_mapped = from.ss_family == AF_INET6;
    const void* v4 = is_mapped ? static_cast<const void*>(v6.s6_addr + 12)
                               : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(from).sin_addr);
    inet_ntop(AF_INET, v4, text, sizeof(text));
    const in_port_t port = is_mapped ? reinterpret_cast<const sockaddr_in6&>(from).sin6_port
                                     : reinterpret_cast<const sockaddr_in&>(from).sin_port;
    ends.address = absl::StrCat("ipv4:", text, ":", ntohs(port));
  }
  ends.share = PeerShare(fd);
  return ends;
}

constexpr char kNamePrefix[] = "taskd-";
constexpr size_t kNamePrefixSize = sizeof(kNamePrefix) - 1;
constexpr size_t kNameRandomDigits = 16;

// A pair of sockets for one connection; ours has a name that says who the peer is: gRPC tells its services nothing else
// of a connection. Nobody can connect to it, as it does not listen, and nobody can know it before, so as to have it.
std::pair<UniqueFd, UniqueFd> NamedPair(const std::string& address) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return {};
  std::pair<UniqueFd, UniqueFd> ends{UniqueFd(pair[0]), UniqueFd(pair[1])};
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return {};
  const std::string name = absl::StrCat(kNamePrefix, absl::Hex(random, absl::kZeroPad16), "-", address);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  if (name.size() >= sizeof(where.sun_path)) return {};
  name.copy(where.sun_path + 1, name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(ends.first.get(), reinterpret_cast<const sockaddr*>(&where), length) != 0) return {};
  return ends;
}

}  // namespace

class GrpcListener::Impl {
 public:
  Impl(std::vector<UniqueFd> listeners, const Limits& limits, std::shared_ptr<const TlsContext> tls, Take take,
       GrpcListener::Open open)
      : listeners_(std::move(listeners)),
        limits_(WithDescriptors(limits)),
        tls_(std::move(tls)),
        take_(std::move(take)),
        open_(std::move(open)),
        port_(LocalPort(listeners_.front().get())),
        door_(std::make_shared<LoopDoor>(&loop_)),
        budget_(limits_.unproven) {
    Accepting(true);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~Impl() {
    Stop();
    loop_.Post([this] {
      ending_ = true;
      if (relays_.empty()) return loop_.Stop();
      loop_.RunAfter(kLastBytesNs, [this] { loop_.Stop(); });
    });
    thread_.join();
    door_->Close();
    relays_.clear();
  }

  void Stop() {
    std::promise<void> done;
    loop_.Post([this, &done] {
      StopAccepting();
      done.set_value();
    });
    done.get_future().wait();
  }

  int port() const { return port_; }

 private:
  using Id = HandshakeBudget::Id;

  // Accepted, and silent or waiting for its handshake.
  struct Waiting {
    UniqueFd fd;
    Ends ends;
  };
  struct Held {
    std::unique_ptr<TlsRelay> relay;
    Ends ends;
    size_t descriptors = 0;  // once it is proven
  };
  // In plain text, handed over: another one's, who closes it when he likes. It is looked at whether it is still there.
  struct Handed {
    int fd = -1;
    ino_t inode = 0;
    std::string share;
  };
  using Shares = std::map<std::string, size_t>;

  static Limits WithDescriptors(Limits limits) {
    if (limits.descriptors == 0) {
      limits.descriptors = std::max(DescriptorLimit(), 2 * kSpareDescriptors) - kSpareDescriptors;
    }
    limits.unproven.connections = std::min(limits.unproven.connections, std::max<size_t>(limits.descriptors / 2, 1));
    return limits;
  }

  void Accepting(bool on) {
    if (stopped_) return;
    for (const UniqueFd& listener : listeners_) {
      if (on) {
        loop_.Add(listener.get(), EPOLLIN, [this, fd = listener.get()](uint32_t) { Accept(fd); });
      } else {
        loop_.Remove(listener.get());
      }
    }
    if (!on) loop_.RunAfter(kAcceptPauseNs, [this] { Accepting(true); });
  }

  void StopAccepting() {
    if (std::exchange(stopped_, true)) return;
    for (UniqueFd& listener : listeners_) {
      loop_.Remove(listener.get());
      listener.reset();
    }
    while (const std::optional<Id> id = budget_.MakeRoom(EventLoop::NowNs())) Close(*id);
  }

  void Accept(int listener) {
    for (int i = 0; i < kAcceptsARound; ++i) {
      sockaddr_storage from{};
      socklen_t length = sizeof(from);
      UniqueFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!std::exchange(paused_, true)) {
          spdlog::warn("port {}: no more connections can be taken now: {}", port_, strerror(errno));
        }
        // Who has proven nothing yet makes room for those that will.
        if (const std::optional<Id> id = budget_.MakeRoom(EventLoop::NowNs())) Close(*id);
        Accepting(false);
        return;
      }
      if (std::exchange(paused_, false)) spdlog::info("port {}: connections are taken again", port_);
      Add(std::move(fd), from);
    }
  }

  void Add(UniqueFd fd, const sockaddr_storage& from) {
    const Id id = next_id_++;
    Ends ends = EndsOf(fd.get(), from);
    if (const std::optional<Id> victim = budget_.Add(id, ends.share, EventLoop::NowNs())) Close(*victim);
    loop_.Add(fd.get(), EPOLLIN, [this, id](uint32_t) { Speak(id); });
    waiting_.emplace(id, Waiting{std::move(fd), std::move(ends)});
    if (!std::exchange(ticking_, true)) SetTick();
  }

  // The budget knows it no more.
  void Close(Id id) {
    if (const auto found = waiting_.find(id); found != waiting_.end()) {
      loop_.Remove(found->second.fd.get());
      waiting_.erase(found);
    } else if (const auto relayed = relays_.find(id); relayed != relays_.end()) {
      Bury(relayed);
    }
  }

  void SetTick() {
    loop_.RunAfter(kTickNs, [this] {
      for (const Id id : budget_.Expire(EventLoop::NowNs())) Close(id);
      BeginHandshakes();
      ticking_ = !budget_.idle();
      if (ticking_) SetTick();
    });
  }

  // There is something to be read, or it has gone.
  void Speak(Id id) {
    Waiting& one = waiting_.at(id);
    unsigned char first = 0;
    const ssize_t size = recv(one.fd.get(), &first, 1, MSG_PEEK);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    loop_.Remove(one.fd.get());
    if (size == 1 && first == kTlsHandshake && tls_ != nullptr) {
      budget_.Wants(id);
      BeginHandshakesSoon();
      return;
    }
    Waiting plain = std::move(one);
    waiting_.erase(id);
    budget_.Failed(id, EventLoop::NowNs());
    if (size == 1 && first == kHttp2Preface) TakePlain(std::move(plain));
  }

  void TakePlain(Waiting plain) {
    const std::optional<ino_t> inode = InodeOf(plain.fd.get());
    if (!inode) return;
    const std::string& share = plain.ends.share;
    const char* full = WhatIsFull(share);
    if (full != nullptr && (!ForgetClosed() || WhatIsFull(share) != nullptr)) return ReportFull(share, full);
    ++plain_of_peer_[share];
    handed_.push_back({plain.fd.get(), *inode, share});
    if (handed_.size() > 2 * left_after_look_ + 1024) ForgetClosed();
    const std::optional<uid_t> user = UserOfLoopbackPeer(plain.fd.get());
    const bool is_own = user && IsOwnUserOrRoot(*user);
    take_(is_own ? Speaks::kPlainOwn : Speaks::kPlain, std::move(plain.fd));
  }

  void BeginHandshakesSoon() {
    if (!std::exchange(beginning_, true)) {
      loop_.AtRoundEnd([this] {
        beginning_ = false;
        BeginHandshakes();
      });
    }
  }

  void BeginHandshakes() {
    for (int i = 0; i < kHandshakesARound; ++i) {
      const std::optional<HandshakeBudget::Turn> turn = budget_.Next(EventLoop::NowNs());
      if (!turn) return;
      if (turn->drop) Close(*turn->drop);
      Begin(turn->begin);
    }
    BeginHandshakesSoon();
  }

  void Begin(Id id) {
    Waiting one = std::move(waiting_.at(id));
    waiting_.erase(id);
    std::unique_ptr<TlsChannel> channel = tls_->Open();
    if (channel == nullptr) {
      budget_.Failed(id, EventLoop::NowNs());
      return;
    }
    SetPrompt(one.fd.get());
    TlsRelay::Callbacks callbacks;
    callbacks.proven = [this, id] { return Proven(id); };
    callbacks.relayed = [this, id] { return Relayed(id); };
    if (open_ != nullptr) callbacks.open = [this, id](std::string_view path) { return OpenCall(id, path); };
    callbacks.half_said = &half_said_;
    callbacks.ended = [this, id](const absl::Status& why) { Ended(id, why); };
    auto relay = std::make_unique<TlsRelay>(&loop_, std::move(one.fd), std::move(channel), std::move(callbacks));
    TlsRelay* started = relay.get();
    relays_.emplace(id, Held{std::move(relay), std::move(one.ends)});
    started->Start();
  }

  bool Proven(Id id) {
    budget_.Proven(id);
    BeginHandshakesSoon();
    Held& one = relays_.at(id);
    const std::string& share = one.ends.share;
    const char* full = WhatIsFullOfTls(share);
    if (full != nullptr && (!ForgetClosed() || WhatIsFullOfTls(share) != nullptr)) {
      ReportFull(share, full);
      return false;
    }
    SetDescriptors(one, kDescriptorsOfTls);
    return true;
  }

  UniqueFd Relayed(Id id) {
    std::pair<UniqueFd, UniqueFd> ends = NamedPair(relays_.at(id).ends.address);  // ours, the server's
    if (!ends.second.valid()) return {};
    take_(Speaks::kTls, std::move(ends.second));
    return std::move(ends.first);
  }

  std::unique_ptr<StreamCall> OpenCall(Id id, std::string_view path) {
    Held& one = relays_.at(id);
    auto is_told = std::make_shared<std::atomic<bool>>(false);
    std::unique_ptr<StreamCall> call = open_(path, one.ends.address, [this, door = door_, id, is_told] {
      if (is_told->exchange(true)) return;
      door->Post([this, id, is_told] {
        *is_told = false;
        if (const auto found = relays_.find(id); found != relays_.end()) found->second.relay->Ready();
      });
    });
    if (call != nullptr) SetDescriptors(one, kDescriptorsOfCall);
    return call;
  }

  void Ended(Id id, const absl::Status& why) {
    const auto found = relays_.find(id);
    const Held& one = found->second;
    budget_.Failed(id, EventLoop::NowNs());
    if (one.descriptors == 0) {
      spdlog::debug("port {}: {} has not proven itself: {}", port_, one.ends.address,
                    Printable(std::string(why.message())));
      BeginHandshakesSoon();
    }
    Bury(found);
  }

  // The relay may be in the middle of a call.
  void Bury(std::unordered_map<Id, Held>::iterator found) {
    Held& one = found->second;
    SetDescriptors(one, 0);
    if (buried_.empty()) loop_.AtRoundEnd([this] { buried_.clear(); });
    one.relay->Close();  // an event of this round may still be about it
    buried_.push_back(std::move(one.relay));
    relays_.erase(found);
    if (ending_ && relays_.empty()) loop_.Stop();
  }

  void SetDescriptors(Held& one, size_t count) {
    if (one.descriptors == count) return;
    tls_descriptors_ += count - one.descriptors;
    size_t& of_peer = tls_of_peer_[one.ends.share];
    of_peer += count - one.descriptors;
    if (of_peer == 0) tls_of_peer_.erase(one.ends.share);
    one.descriptors = count;
  }

  size_t DescriptorsInUse() const { return budget_.size() + handed_.size() + tls_descriptors_; }

  // Which budget a connection in plain text does not fit into; null: it fits into all.
  const char* WhatIsFull(const std::string& share) const {
    const auto found = plain_of_peer_.find(share);
    if (DescriptorsInUse() >= limits_.descriptors) return "connections";
    if (handed_.size() >= limits_.plain) return "connections in plain text";
    if (found != plain_of_peer_.end() && found->second >= limits_.plain_of_peer) {
      return "one peer's connections in plain text";
    }
    return nullptr;
  }
  // The same of TLS.
  const char* WhatIsFullOfTls(const std::string& share) const {
    const auto found = tls_of_peer_.find(share);
    const size_t more = kDescriptorsOfTls + (found == tls_of_peer_.end() ? 0 : found->second);
    if (DescriptorsInUse() + kDescriptorsOfTls > limits_.descriptors) return "connections";
    if (more > std::max(limits_.descriptors / 2, kDescriptorsOfTls)) return "one peer's connections";
    return nullptr;
  }

  // A server does not report when it closes a connection in plain text. False: that was looked at a moment ago.
  bool ForgetClosed() {
    const int64_t now_ns = EventLoop::NowNs();
    if (now_ns - looked_ns_ < kLookAgainNs) return false;
    looked_ns_ = now_ns;
    std::erase_if(handed_, [](const Handed& one) { return InodeOf(one.fd) != one.inode; });
    left_after_look_ = handed_.size();
    plain_of_peer_.clear();
    for (const Handed& one : handed_) ++plain_of_peer_[one.share];
    return true;
  }

  void ReportFull(const std::string& share, const char* what) {
    const int64_t now_ns = EventLoop::NowNs();
    if (reported_full_ns_ != 0 && now_ns - reported_full_ns_ < kReportAgainNs) return;
    reported_full_ns_ = now_ns;
    spdlog::warn("port {}: a connection of {} is refused: the budget for {} is used up", port_, share, what);
  }

  std::vector<UniqueFd> listeners_;
  const Limits limits_;
  const std::shared_ptr<const TlsContext> tls_;
  const Take take_;
  const GrpcListener::Open open_;
  const int port_;
  EventLoop loop_;
  const std::shared_ptr<LoopDoor> door_;
  // On the loop's thread:
  HandshakeBudget budget_;
  std::unordered_map<Id, Waiting> waiting_;
  StreamConnection::HalfSaid half_said_;
  std::unordered_map<Id, Held> relays_;
  std::vector<std::unique_ptr<TlsRelay>> buried_;  // until this round ends
  Id next_id_ = 1;
  std::vector<Handed> handed_;
  Shares plain_of_peer_;  // of handed_
  Shares tls_of_peer_;    // descriptors of proven ones
  size_t tls_descriptors_ = 0;
  size_t left_after_look_ = 0;
  int64_t looked_ns_ = 0;
  bool ticking_ = false;
  bool beginning_ = false;
  bool paused_ = false;
  bool stopped_ = false;
  bool ending_ = false;
  int64_t reported_full_ns_ = 0;
  std::thread thread_;  // last: it uses the others
};

GrpcListener::GrpcListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcListener::~GrpcListener() = default;
int GrpcListener::port() const { return impl_->port(); }
void GrpcListener::Stop() { impl_->Stop(); }

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Listen(const HostPort& address, const Limits& limits,
                                                                   std::shared_ptr<const TlsContext> tls, Take take,
                                                                   const std::function<void(int port)>& bound,
                                                                   Open open) {
  const bool is_localhost = address.host == "localhost";
  absl::StatusOr<UniqueFd> listener = ListenTcp(is_localhost ? HostPort{"127.0.0.1", address.port} : address,
                                                address.host == "0.0.0.0" || address.host == "::");
  if (!listener.ok()) return listener.status();
  std::vector<UniqueFd> listeners;
  listeners.push_back(*std::move(listener));
  if (is_localhost) {
    // The name's other address, where the machine has it: clients may try either.
    listener = ListenTcp({"::1", LocalPort(listeners.front().get())}, false);
    if (listener.ok()) listeners.push_back(*std::move(listener));
  }
  if (bound) bound(LocalPort(listeners.front().get()));
  return std::unique_ptr<GrpcListener>(new GrpcListener(
      std::make_unique<Impl>(std::move(listeners), limits, std::move(tls), std::move(take), std::move(open))));
}

std::string PeerOf(const std::string& peer) {
  constexpr std::string_view kScheme = "unix-abstract:";
  std::string_view rest = peer;
  if (!rest.starts_with(kScheme)) return peer;
  rest.remove_prefix(kScheme.size());
  if (!rest.starts_with(kNamePrefix) || rest.size() <= kNamePrefixSize + kNameRandomDigits + 1) return peer;
  rest.remove_prefix(kNamePrefixSize + kNameRandomDigits + 1);
  std::string address;
  while (!rest.empty()) {
    unsigned value = 0;
    if (rest.size() >= 3 && rest[0] == '%' && absl::SimpleHexAtoi(absl::string_view(rest.data() + 1, 2), &value)) {
      address += static_cast<char>(value);
      rest.remove_prefix(3);
    } else {
      address += rest[0];
      rest.remove_prefix(1);
    }
  }
  return address;
}

}  // namespace taskd::proto
