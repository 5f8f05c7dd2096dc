#include "proto/tls_relay.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace taskd::proto {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr int kReadsARound = 4;  // of one direction; then others have their turn
// For a peer to take the last bytes and to end its side, once the server has ended its own.
constexpr int64_t kLastBytesNs = 2'000'000'000;
constexpr int64_t kFirstMessageNs = 10'000'000'000;  // of a call

// What of `bytes` the socket takes is removed; memory is not kept. False: the socket is broken.
bool Write(int fd, std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t size = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != EAGAIN) return false;
    if (size < 0) break;
    sent += static_cast<size_t>(size);
  }
  if (sent == bytes.size()) {
    std::string().swap(bytes);
  } else {
    bytes.erase(0, sent);
  }
  return true;
}

// -1: nothing is there now. 0: the end, or `why` it is broken.
ssize_t Read(int fd, char* to, size_t size, int* why) {
  ssize_t count;
  do count = recv(fd, to, size, MSG_DONTWAIT);
  while (count < 0 && errno == EINTR);
  *why = 0;
  if (count >= 0) return count;
  if (errno == EAGAIN) return -1;
  *why = errno;
  return 0;
}

}  // namespace

TlsRelay::TlsRelay(EventLoop* loop, UniqueFd peer, std::unique_ptr<TlsChannel> tls, Callbacks callbacks)
    : loop_(*loop), peer_(std::move(peer)), tls_(std::move(tls)), callbacks_(std::move(callbacks)) {}

void TlsRelay::Start() {
  if (ReadPeer()) Go();
}

bool TlsRelay::WantsFromPeer() const {
  // What TLS itself answers to a peer that does not read is bounded, too.
  return !peer_has_ended_ && to_inner_.empty() && to_peer_.size() < 3 * kMostBytesWaiting;
}

bool TlsRelay::WantsFromInner() const {
  return inner_.valid() && !inner_has_ended_ && to_peer_.size() < kMostBytesWaiting;
}

void TlsRelay::Ready() {
  if (stream_ == nullptr) return;
  stream_->Ready();
  Go();
}

void TlsRelay::OnPeer(uint32_t events) {
  if ((events & EPOLLERR) != 0) {
    End(absl::UnavailableError("the connection is broken"));
    return;
  }
  if (WantsFromPeer()) {
    if ((events & (EPOLLIN | EPOLLHUP)) != 0 && !ReadPeer()) return;
  } else if ((events & EPOLLHUP) != 0) {
    End(absl::OkStatus());
    return;
  }
  Go();
}

void TlsRelay::OnInner(uint32_t events) {
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && WantsFromInner() && !ReadInner()) return;
  Go();
  // It has hung up, and what it wrote before waits for a peer that does not read: only that can change anything.
  if ((events & EPOLLHUP) != 0 && watched_inner_.added && !WantsFromInner()) {
    loop_.Remove(inner_.get());
    watched_inner_ = {};
  }
}

bool TlsRelay::ReadPeer() {
  std::array<char, kReadBytes> buffer;
  for (int i = 0; i < kReadsARound && WantsFromPeer(); ++i) {
    size_t most = buffer.size();
    if (!proven_) most = std::min(most, kMostBytesBeforeProof - received_before_proof_);
    if (most == 0) return End(absl::ResourceExhaustedError("too many bytes before any proof"));
    int why = 0;
    const ssize_t size = Read(peer_.get(), buffer.data(), most, &why);
    if (size < 0) return true;
    if (why != 0) return End(absl::UnavailableError(strerror(why)));
    if (size == 0) {
      peer_has_ended_ = true;
      return proven_ || End(absl::UnavailableError("it was closed before any proof"));
    }
    if (!proven_) received_before_proof_ += static_cast<size_t>(size);
    if (!Take({buffer.data(), static_cast<size_t>(size)})) return false;
    if (!Write(inner_.get(), to_inner_)) to_inner_.clear();  // the server has gone, as its end will show
    if (static_cast<size_t>(size) < most) return true;       // that was all
  }
  return true;
}

bool TlsRelay::Take(std::string_view bytes) {
  // Kept by the thread: what comes with each call is as much as the last time, and more than malloc has at hand.
  thread_local std::string plain;
  plain.clear();
  const bool relays_all = inner_.valid() && ack_.is_out();
  const absl::Status status = tls_->Receive(bytes, relays_all ? to_inner_ : plain, to_peer_);
  const bool ends = absl::IsOutOfRange(status) && proven_;
  if (!status.ok() && !ends) {
    Write(peer_.get(), to_peer_);  // the alert; nobody waits for it to arrive
    return End(status);
  }
  if (ends) peer_has_ended_ = true;
  if (!proven_ && tls_->proven() && !Proven()) return false;
  return TakePlain(plain);
}

bool TlsRelay::Proven() {
  proven_ = true;
  if (!callbacks_.proven()) return End(absl::ResourceExhaustedError("it is one too many"));
  if (callbacks_.open == nullptr) {
    ack_ = SettingsAck::None();
    return Relay();
  }
  // It speaks at once: gRPC's clients make no call before the server has said something.
  stream_ = std::make_unique<StreamConnection>(callbacks_.open, callbacks_.half_said);
  return true;
}

bool TlsRelay::Relay() {
  inner_ = callbacks_.relayed();
  return inner_.valid() || End(absl::ResourceExhaustedError("it is one too many"));
}

bool TlsRelay::TakePlain(const std::string& plain) {
  if (plain.empty()) return true;
  if (stream_ == nullptr) {
    ack_.Pass(plain, to_inner_);
    return true;
  }
  const bool was_known = stream_->serves() == StreamConnection::Serves::kCall;
  const absl::Status status = stream_->Receive(plain);
  if (stream_->serves() == StreamConnection::Serves::kNothing) {
    ack_.Pass(stream_->TakeReceived(), to_inner_);
    stream_.reset();
    return Relay();
  }
  if (!was_known && stream_->serves() == StreamConnection::Serves::kCall) {
    timer_set_ = true;
    timer_ = loop_.RunAfter(kFirstMessageNs, [this] {
      timer_set_ = false;
      if (!stream_->has_message()) stream_->Finish(absl::DeadlineExceededError("no first message"));
      Go();
    });
  }
  return status.ok() || End(status);
}

// A part of what there is. False: that is all for now.
bool TlsRelay::SendOfStream() {
  if (stream_ == nullptr || inner_has_ended_ || to_peer_.size() >= kMostBytesWaiting) return false;
  std::string out;
  stream_->Output(kMostBytesWaiting - to_peer_.size(), out);
  if (!out.empty()) tls_->Send(out, to_peer_);
  if (stream_->over()) InnerHasEnded();
  return !out.empty();
}

bool TlsRelay::ReadInner() {
  std::array<char, kReadBytes> buffer;
  for (int i = 0; i < kReadsARound && WantsFromInner(); ++i) {
    int why = 0;
    const ssize_t size = Read(inner_.get(), buffer.data(), buffer.size(), &why);
    if (size < 0) return true;
    if (size == 0) return InnerHasEnded();
    tls_->Send({buffer.data(), static_cast<size_t>(size)}, to_peer_);
    if (!Write(peer_.get(), to_peer_)) return End(absl::UnavailableError("the connection is broken"));
    if (static_cast<size_t>(size) < buffer.size()) return true;  // that was all
  }
  return true;
}

bool TlsRelay::InnerHasEnded() {
  inner_has_ended_ = true;
  to_inner_.clear();
  tls_->End(to_peer_);
  if (std::exchange(timer_set_, true)) loop_.Cancel(timer_);
  timer_ = loop_.RunAfter(kLastBytesNs, [this] {
    timer_set_ = false;
    End(absl::OkStatus());
  });
  return true;
}

bool TlsRelay::Go() {
  bool has_more = false;
  do {
    has_more = SendOfStream();
    if (!Write(peer_.get(), to_peer_)) return End(absl::UnavailableError("the connection is broken"));
  } while (has_more && to_peer_.empty());
  // What was held back while the peer did not read.
  if (!watched_inner_.added && WantsFromInner() && !ReadInner()) return false;
  if (inner_has_ended_ || !Write(inner_.get(), to_inner_)) to_inner_.clear();
  if (peer_has_ended_ && stream_ != nullptr) return End(absl::OkStatus());
  if (peer_has_ended_ && to_inner_.empty() && !std::exchange(told_inner_, true)) shutdown(inner_.get(), SHUT_WR);
  if (inner_has_ended_ && to_peer_.empty()) {
    if (peer_has_ended_) return End(absl::OkStatus());
    // Whoever closes with bytes unread takes back what he wrote last.
    if (!std::exchange(told_peer_, true)) shutdown(peer_.get(), SHUT_WR);
  }
  if (inner_has_ended_) {
    if (watched_inner_.added) loop_.Remove(inner_.get());
    watched_inner_ = {};
  } else if (inner_.valid()) {
    Watch(inner_.get(), (WantsFromInner() ? EPOLLIN : 0u) | (to_inner_.empty() ? 0u : EPOLLOUT), &watched_inner_,
          [this](uint32_t events) { OnInner(events); });
  }
  Watch(peer_.get(), (WantsFromPeer() ? EPOLLIN : 0u) | (to_peer_.empty() ? 0u : EPOLLOUT), &watched_peer_,
        [this](uint32_t events) { OnPeer(events); });
  return true;
}

void TlsRelay::Watch(int fd, uint32_t events, Watched* watched, EventLoop::FdCallback callback) {
  if (!watched->added) {
    loop_.Add(fd, events, std::move(callback));
  } else if (watched->events != events) {
    loop_.Change(fd, events);
  }
  *watched = {events, true};
}

bool TlsRelay::End(const absl::Status& why) {
  if (!peer_.valid()) return false;
  Close();
  callbacks_.ended(why);
  return false;
}

void TlsRelay::Close() {
  if (watched_peer_.added) loop_.Remove(peer_.get());
  if (watched_inner_.added) loop_.Remove(inner_.get());
  watched_peer_ = watched_inner_ = {};
  if (std::exchange(timer_set_, false)) loop_.Cancel(timer_);
  peer_.reset();
  inner_.reset();
  stream_.reset();
}

}  // namespace taskd::proto
