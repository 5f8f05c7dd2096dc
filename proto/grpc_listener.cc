#include "proto/grpc_listener.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/event_loop.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/peer_user.h"
#include "taskd/own_user.h"

namespace taskd::proto {
namespace {

constexpr int kAcceptsARound = 64;
constexpr int64_t kAcceptPauseNs = 100'000'000;  // without descriptors; asking again at once would only spin
constexpr int64_t kNsPerMs = 1'000'000;
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

}  // namespace

class GrpcListener::Impl {
 public:
  Impl(std::vector<UniqueFd> listeners, const Limits& limits, Take take)
      : listeners_(std::move(listeners)),
        limits_(limits),
        take_(std::move(take)),
        port_(LocalPort(listeners_.front().get())) {
    const size_t descriptors = DescriptorLimit();
    if (limits_.connections == 0) {
      limits_.connections = std::max(descriptors, 2 * kSpareDescriptors) - kSpareDescriptors;
    }
    Accepting(true);
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~Impl() {
    loop_.Stop();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  // Accepted, and silent so far.
  struct Silent {
    UniqueFd fd;
    int64_t since_ns = 0;
  };
  using SilentList = std::list<Silent>;  // the oldest first

  struct Peer {
    bool plain = false;
    std::string name;  // an address, or a user of this machine

    friend auto operator<=>(const Peer&, const Peer&) = default;  // NOLINT(modernize-use-nullptr): it errs
  };

  // Handed over: another one's, who closes it when he likes. It is looked at whether it is still there.
  struct Handed {
    int fd = -1;
    ino_t inode = 0;
    Peer peer;
  };

  void Accepting(bool on) {
    for (const UniqueFd& listener : listeners_) {
      if (on) {
        loop_.Add(listener.get(), EPOLLIN, [this, fd = listener.get()](uint32_t) { Accept(fd); });
      } else {
        loop_.Remove(listener.get());
      }
    }
    if (!on) loop_.RunAfter(kAcceptPauseNs, [this] { Accepting(true); });
  }

  void Accept(int listener) {
    for (int i = 0; i < kAcceptsARound; ++i) {
      UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!std::exchange(paused_, true)) {
          spdlog::warn("port {}: no more connections can be taken now: {}", port_, strerror(errno));
        }
        // Who has sent nothing yet makes room for those that will.
        if (!silent_.empty()) Drop(silent_.begin());
        Accepting(false);
        return;
      }
      if (std::exchange(paused_, false)) spdlog::info("port {}: connections are taken again", port_);
      Add(std::move(fd));
    }
  }

  void Add(UniqueFd fd) {
    if (silent_.size() >= limits_.silent) Drop(silent_.begin());
    silent_.push_back({std::move(fd), EventLoop::NowNs()});
    const auto one = std::prev(silent_.end());
    loop_.Add(one->fd.get(), EPOLLIN, [this, one](uint32_t) { Speak(one); });
    if (!tick_set_) SetTick();
  }

  void Drop(SilentList::iterator one) {
    loop_.Remove(one->fd.get());
    silent_.erase(one);
  }

  void SetTick() {
    tick_set_ = !silent_.empty();
    if (!tick_set_) return;
    const int64_t due_ns = silent_.front().since_ns + limits_.first_byte_ms * kNsPerMs;
    loop_.RunAfter(std::max<int64_t>(due_ns - EventLoop::NowNs(), 0), [this] {
      const int64_t late_ns = EventLoop::NowNs() - limits_.first_byte_ms * kNsPerMs;
      while (!silent_.empty() && silent_.front().since_ns <= late_ns) Drop(silent_.begin());
      SetTick();
    });
  }

  // There is something to be read, or it has gone.
  void Speak(SilentList::iterator one) {
    unsigned char first = 0;
    const ssize_t size = recv(one->fd.get(), &first, 1, MSG_PEEK);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    UniqueFd fd = std::move(one->fd);
    loop_.Remove(fd.get());
    silent_.erase(one);
    if (size != 1 || (first != kTlsHandshake && first != kHttp2Preface)) return;
    Speaks speaks = Speaks::kTls;
    std::optional<uid_t> user;
    if (first == kHttp2Preface) {
      user = UserOfLoopbackPeer(fd.get());
      speaks = user && IsOwnUserOrRoot(*user) ? Speaks::kPlainOwn : Speaks::kPlain;
    }
    const std::optional<HostPort> address = AddressOf(fd.get());
    const std::optional<ino_t> inode = InodeOf(fd.get());
    if (!address || !inode) return;  // it has gone
    Peer peer{speaks != Speaks::kTls, user ? absl::StrCat("user ", *user) : address->host};
    if (const char* full = WhatIsFull(peer); full != nullptr && (!ForgetClosed() || WhatIsFull(peer) != nullptr)) {
      return ReportFull(peer, full);
    }
    Count(peer);
    handed_.push_back({fd.get(), *inode, std::move(peer)});
    if (handed_.size() > 2 * left_after_look_ + 1024) ForgetClosed();
    take_(speaks, std::move(fd));
  }

  static std::optional<HostPort> AddressOf(int fd) {
    absl::StatusOr<HostPort> address = ParseHostPort("peer", PeerAddress(fd));
    return address.ok() ? std::optional(*std::move(address)) : std::nullopt;
  }

  void Count(const Peer& peer) {
    ++of_peer_[peer];
    plain_ += peer.plain;
  }

  // Which budget a connection of this peer does not fit into; null: it fits into all.
  const char* WhatIsFull(const Peer& peer) const {
    const auto found = of_peer_.find(peer);
    const size_t of_peer = found == of_peer_.end() ? 0 : found->second;
    if (silent_.size() + handed_.size() >= limits_.connections) return "connections";
    if (peer.plain && plain_ >= limits_.plain) return "connections in plain text";
    if (peer.plain && of_peer >= limits_.plain_of_peer) return "one peer's connections in plain text";
    if (!peer.plain && of_peer >= std::max<size_t>(limits_.connections / 2, 1)) return "one peer's connections";
    return nullptr;
  }

  // gRPC does not report when it closes a connection. False: that was looked at a moment ago.
  bool ForgetClosed() {
    const int64_t now_ns = EventLoop::NowNs();
    if (now_ns - looked_ns_ < kLookAgainNs) return false;
    looked_ns_ = now_ns;
    std::erase_if(handed_, [](const Handed& one) { return InodeOf(one.fd) != one.inode; });
    left_after_look_ = handed_.size();
    of_peer_.clear();
    plain_ = 0;
    for (const Handed& one : handed_) Count(one.peer);
    return true;
  }

  void ReportFull(const Peer& peer, const char* what) {
    const int64_t now_ns = EventLoop::NowNs();
    if (reported_full_ns_ != 0 && now_ns - reported_full_ns_ < kReportAgainNs) return;
    reported_full_ns_ = now_ns;
    spdlog::warn("port {}: a connection of {} is refused: the budget for {} is used up", port_, peer.name, what);
  }

  const std::vector<UniqueFd> listeners_;
  Limits limits_;
  const Take take_;
  const int port_;
  EventLoop loop_;
  // On the loop's thread:
  SilentList silent_;
  std::vector<Handed> handed_;
  std::map<Peer, size_t> of_peer_;  // of handed_
  size_t plain_ = 0;                // of handed_
  size_t left_after_look_ = 0;
  int64_t looked_ns_ = 0;
  bool tick_set_ = false;
  bool paused_ = false;
  int64_t reported_full_ns_ = 0;
  std::thread thread_;  // last: it uses the others
};

GrpcListener::GrpcListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcListener::~GrpcListener() = default;
int GrpcListener::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Listen(const HostPort& address, const Limits& limits,
                                                                   Take take,
                                                                   const std::function<void(int port)>& bound) {
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
  return std::unique_ptr<GrpcListener>(
      new GrpcListener(std::make_unique<Impl>(std::move(listeners), limits, std::move(take))));
}

}  // namespace taskd::proto
