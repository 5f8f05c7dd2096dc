#include "agent/run/rendezvous_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "agent/run/launcher_frames.h"
#include "common/listen.h"
#include "common/log.h"
#include "fmt/format.h"

namespace taskd::run {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kFirstBackOffNs = 50 * kNsPerMs;
constexpr int64_t kMaxBackOffNs = 2000 * kNsPerMs;
constexpr int64_t kConnectNs = 5000 * kNsPerMs;  // for one address
constexpr int64_t kLookNs = 500 * kNsPerMs;
constexpr uint32_t kMaxPlainBytes = 16 << 20;
constexpr uint32_t kMaxFrameBytes = 2 * kMaxPlainBytes;  // some messages, with what TLS adds

// The first bytes that a peer sent, for an error message.
std::string Excerpt(std::string_view bytes) {
  std::string text;
  for (char c : bytes.substr(0, 40)) {
    if (c == '\r' || c == '\n') break;
    text += c >= ' ' && c <= '~' ? c : '.';
  }
  return text;
}

uint16_t* PortIn(sockaddr_storage* storage) {
  return storage->ss_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6*>(storage)->sin6_port
                                        : &reinterpret_cast<sockaddr_in*>(storage)->sin_port;
}

process::SocketAddress WithPort(process::SocketAddress address, int port) {
  *PortIn(&address.storage) = htons(static_cast<uint16_t>(port));
  return address;
}

int PortOf(process::SocketAddress address) { return ntohs(*PortIn(&address.storage)); }

// Repeated connects to a local port without a listener end in a self-connection: the kernel picks that port as source.
bool ConnectedToItself(int fd) {
  process::SocketAddress own;
  process::SocketAddress peer;
  own.length = peer.length = sizeof(sockaddr_storage);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) == 0 && own.length == peer.length &&
         std::memcmp(&own.storage, &peer.storage, own.length) == 0;
}

}  // namespace

RendezvousClient::RendezvousClient(EventLoop* loop, HostPort address, NodeInfo info, std::string secret,
                                   int64_t timeout_ns, int64_t silence_ns, Callbacks callbacks, int ports)
    : loop_(loop),
      address_(std::move(address)),
      info_(std::move(info)),
      secret_(std::move(secret)),
      timeout_ns_(timeout_ns),
      silence_ns_(silence_ns),
      callbacks_(std::move(callbacks)),
      ports_(ports),
      port_(address_.port),
      resolver_(loop),
      clock_(kLookNs),
      in_(kMaxFrameBytes),
      plain_(kMaxPlainBytes) {}

RendezvousClient::~RendezvousClient() { Close(); }

void RendezvousClient::Close() {
  closed_ = true;
  resolver_.Cancel();
  ClearTimer();
  if (proved_) Write();
  Disconnect();
}

void RendezvousClient::Disconnect() {
  if (!fd_.valid()) return;
  loop_->Remove(fd_.get());
  fd_.reset();
  proved_ = false;
  channel_.reset();
  in_.Clear();
  plain_.Clear();
  out_.clear();
}

void RendezvousClient::SetTimer(int64_t delay_ns, void (RendezvousClient::*method)()) {
  ClearTimer();
  timer_set_ = true;
  timer_ = loop_->RunAfter(delay_ns, [this, method] {
    timer_set_ = false;
    (this->*method)();
  });
}

void RendezvousClient::ClearTimer() {
  if (timer_set_) loop_->Cancel(timer_);
  timer_set_ = false;
}

std::string RendezvousClient::Peer() const { return FormatHostPort({address_.host, port_}); }

void RendezvousClient::Start() {
  deadline_ns_ = EventLoop::NowNs() + timeout_ns_;
  back_off_ns_ = kFirstBackOffNs;
  Look();
}

// ---- Connecting

void RendezvousClient::Look() {
  // Names are asked for again each time: a pod's comes and changes.
  SetTimer(std::max<int64_t>(deadline_ns_ - EventLoop::NowNs(), 0), &RendezvousClient::OnConnecting);
  resolver_.Resolve(address_, [this](absl::StatusOr<std::vector<process::SocketAddress>> addresses) {
    if (!addresses.ok()) {
      closing_since_ns_ = 0;
      TryAgain(std::string(addresses.status().message()));
      return;
    }
    addresses_.clear();
    for (int port = address_.port; port < address_.port + ports_; ++port) {
      for (const process::SocketAddress& address : *addresses) addresses_.push_back(WithPort(address, port));
    }
    next_address_ = 0;
    passed_over_.clear();
    TryNext();
  });
}

// The time of the name's resolution or of one address is over.
void RendezvousClient::OnConnecting() {
  if (!fd_.valid()) {
    resolver_.Cancel();
    TryAgain(last_error_.empty() ? "the name is not resolved in time" : std::string(last_error_));
    return;
  }
  // The error of an attempt that the overall timeout cut short is less useful than those before it.
  if (last_error_.empty() || EventLoop::NowNs() < deadline_ns_) last_error_ = std::strerror(ETIMEDOUT);
  closing_since_ns_ = 0;
  TryNext();
}

void RendezvousClient::TryNext() {
  for (;;) {
    Disconnect();
    if (next_address_ >= addresses_.size()) {
      port_ = address_.port;
      TryAgain(passed_over_.empty() ? last_error_ : passed_over_);
      return;
    }
    const process::SocketAddress& address = addresses_[next_address_++];
    port_ = PortOf(address);
    fd_ = UniqueFd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_.valid()) {
      last_error_ = std::strerror(errno);
      continue;
    }
    SetPromptAndWatched(fd_.get(), silence_ns_ / kNsPerMs);
    const int result = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length);
    if (result != 0 && errno != EINPROGRESS) {
      last_error_ = std::strerror(errno);
      closing_since_ns_ = 0;
      continue;
    }
    const int64_t left_ns = deadline_ns_ - EventLoop::NowNs();
    SetTimer(std::clamp<int64_t>(left_ns, 0, kConnectNs), &RendezvousClient::OnConnecting);
    loop_->Add(fd_.get(), EPOLLOUT, [this](uint32_t) {
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error == 0 && ConnectedToItself(fd_.get())) error = ECONNREFUSED;
      if (error == 0) {
        OnConnected();
        return;
      }
      last_error_ = std::strerror(error);
      closing_since_ns_ = 0;
      TryNext();
    });
    return;
  }
}

void RendezvousClient::TryAgain(const std::string& why) {
  last_error_ = why;
  Disconnect();
  const int64_t now_ns = EventLoop::NowNs();
  if (now_ns >= deadline_ns_) {
    Fail(fmt::format("no launcher to be reached at {} within {:g} s: {}", Peer(),
                     static_cast<double>(timeout_ns_) / 1e9, why));
    return;
  }
  // Spread: thousands of nodes look for the same launcher.
  static thread_local std::minstd_rand random{std::random_device{}()};
  const int64_t delay_ns = std::uniform_int_distribution<int64_t>(back_off_ns_ / 2, back_off_ns_)(random);
  back_off_ns_ = std::min(back_off_ns_ * 3 / 2, kMaxBackOffNs);
  SetTimer(std::min(delay_ns, deadline_ns_ - now_ns), &RendezvousClient::Look);
}

// False: there is one port only.
bool RendezvousClient::PassOver(const std::string& why) {
  if (ports_ <= 1 || proved_) return false;
  passed_over_ = why;
  Disconnect();
  SetTimer(0, &RendezvousClient::TryNext);  // not from here: who calls is still reading
  return true;
}

void RendezvousClient::OnConnected() {
  connected_ns_ = heard_ns_ = clock_.Look(EventLoop::NowNs());
  loop_->Remove(fd_.get());
  loop_->Add(fd_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
  out_.assign(1, '\0');
  const uint32_t magic = kLauncherMagic;
  out_.append(reinterpret_cast<const char*>(&magic), sizeof(magic));
  SetTimer(kLookNs, &RendezvousClient::CheckSilence);
  if (tls_ == nullptr) {
    absl::StatusOr<std::shared_ptr<const TlsContext>> tls = TlsContext::Client(secret_);
    if (!tls.ok()) {
      Fail(std::string(tls.status().message()));
      return;
    }
    tls_ = *std::move(tls);
  }
  channel_ = tls_->Open();
  if (channel_ == nullptr) {
    Fail("no memory for TLS");
    return;
  }
  Send(JoinMessage{info_});
}

// ---- Connected

void RendezvousClient::Send(const NodeMessage& message) {
  if (channel_ == nullptr || out_.size() > 4 * size_t{kMaxPlainBytes}) return;
  std::string plain;
  AppendWithLength(Encode(message), plain);
  std::string sealed;
  channel_->Send(plain, sealed);
  SendFrame(sealed);
}

// The root takes small frames from whoever has not joined yet; a big message of TLS is cut anywhere.
void RendezvousClient::SendFrame(std::string_view body) {
  for (; !body.empty(); body.remove_prefix(std::min<size_t>(body.size(), kMaxStrangersFrameBytes))) {
    AppendWithLength(body.substr(0, kMaxStrangersFrameBytes), out_);
  }
  Write();
}

void RendezvousClient::Write() {
  while (!out_.empty()) {
    const ssize_t written = send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;  // a lost connection shows when it is read
    out_.erase(0, written);
  }
  loop_->Change(fd_.get(), out_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void RendezvousClient::OnReady(uint32_t events) {
  if ((events & EPOLLOUT) != 0) Write();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) OnReadable();
}

void RendezvousClient::OnReadable() {
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      ConnectionEnded(count == 0 ? "it closed the connection" : std::strerror(errno));
      return;
    }
    heard_ns_ = clock_.Look(EventLoop::NowNs());
    in_.Append({buffer.data(), static_cast<size_t>(count)});
    TakeFrames();
    if (!fd_.valid()) return;
  }
}

void RendezvousClient::TakeFrames() {
  std::string_view body;
  for (;;) {
    const absl::StatusOr<bool> whole = in_.Next(body);
    if (!whole.ok()) return Fail(fmt::format("{} is no taskd launcher: it says '{}'", Peer(), Excerpt(in_.rest())));
    if (!*whole || !TakeFrame(body)) return;
  }
}

// False: the connection is gone.
bool RendezvousClient::TakeFrame(std::string_view body) {
  std::string plain;
  std::string answer;
  const absl::Status status = channel_->Receive(body, plain, answer);
  SendFrame(answer);
  if (absl::IsPermissionDenied(status)) {
    Fail(fmt::format(
        "the launcher at {} has another TASKD_TOKEN than this one, or {}; the same has to be set on every node", Peer(),
        secret_.empty() ? "one where none is set here" : "none"));
    return false;
  }
  if (!status.ok()) {
    Fail(fmt::format("{} is no taskd launcher: {} in '{}'", Peer(), status.message(), Excerpt(body)));
    return false;
  }
  plain_.Append(plain);
  return TakeMessages();
}

// False: the connection is gone.
bool RendezvousClient::TakeMessages() {
  std::string_view body;
  for (;;) {
    const absl::StatusOr<bool> whole = plain_.Next(body);
    if (!whole.ok()) {
      Fail(fmt::format("{} is no taskd launcher: a message of {} bytes", Peer(), plain_.next_length()));
      return false;
    }
    if (!*whole) return true;
    absl::StatusOr<RootMessage> message = DecodeRootMessage(body);
    if (!message.ok()) {
      Fail(fmt::format("{} is no taskd launcher: {}", Peer(), message.status().message()));
      return false;
    }
    if (!TakeMessage(*std::move(message))) return false;
  }
}

// False: the connection is gone.
bool RendezvousClient::TakeMessage(RootMessage message) {
  if (const auto* refused = std::get_if<RefusedMessage>(&message); refused != nullptr && refused->another_job) {
    if (PassOver(fmt::format("{} is another job's launcher: {}", Peer(), refused->text))) return false;
  }
  proved_ = true;
  closing_since_ns_ = 0;
  last_error_.clear();
  if (const auto* ping = std::get_if<PingMessage>(&message)) {
    Send(PongMessage{ping->id});
    return true;
  }
  if (const auto* start = std::get_if<StartMessage>(&message)) {
    started_ = true;
    SetSilence(start->assignment.node_timeout_ms * kNsPerMs);
  }
  const bool is_last = std::holds_alternative<RefusedMessage>(message);
  callbacks_.received(std::move(message));
  if (is_last) Close();
  return fd_.valid();
}

void RendezvousClient::SetSilence(int64_t silence_ns) {
  if (silence_ns == silence_ns_) return;
  silence_ns_ = silence_ns;
  SetPromptAndWatched(fd_.get(), silence_ns_ / kNsPerMs);
}

void RendezvousClient::CheckSilence() {
  const int64_t now_ns = clock_.Look(EventLoop::NowNs());
  if (!proved_ && now_ns - connected_ns_ >= kMuteNs) {
    Fail(fmt::format("{} is no taskd launcher: it accepts the connection and says nothing", Peer()));
    return;
  }
  if (proved_ && now_ns - heard_ns_ >= silence_ns_) {
    ConnectionEnded(fmt::format("silent for {:g} s", static_cast<double>(silence_ns_) / 1e9));
    return;
  }
  SetTimer(kLookNs, &RendezvousClient::CheckSilence);
}

void RendezvousClient::ConnectionEnded(const std::string& why) {
  ClearTimer();
  const int64_t now_ns = EventLoop::NowNs();
  if (started_) {
    Fail(fmt::format("node 0's launcher at {} is gone: {}", Peer(), why));
    return;
  }
  if (PassOver(fmt::format("{}: {}", Peer(), why))) return;
  if (proved_) {
    deadline_ns_ = now_ns + timeout_ns_;
    back_off_ns_ = kFirstBackOffNs * 4;
  } else {
    if (closing_since_ns_ == 0) closing_since_ns_ = now_ns;
    if (now_ns - closing_since_ns_ >= kClosingNs) {
      Fail(fmt::format("{} is no taskd launcher: {} without a word", Peer(), why));
      return;
    }
    back_off_ns_ = std::min<int64_t>(back_off_ns_, 500 * kNsPerMs);
  }
  TryAgain(why);
}

void RendezvousClient::Fail(const std::string& why) {
  if (EventLoop::NowNs() < deadline_ns_ && PassOver(why)) return;
  Close();
  callbacks_.failed(why);
}

}  // namespace taskd::run
