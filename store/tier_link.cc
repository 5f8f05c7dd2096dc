#include "store/tier_link.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_secret.h"
#include "common/listen.h"
#include "common/log.h"
#include "store/wire.h"

namespace taskd::store {
namespace {

constexpr int64_t kFirstPauseNs = 20'000'000;
constexpr int64_t kLongestPauseNs = 1'000'000'000;
constexpr size_t kCompactBytes = 1024 * 1024;
constexpr int64_t kGreetingTimeoutNs = 5'000'000'000;

}  // namespace

TierLink::TierLink(EventLoop* loop, std::string secret, Callbacks callbacks)
    : loop_(*loop), secret_(std::move(secret)), callbacks_(std::move(callbacks)), pause_ns_(kFirstPauseNs) {}

void TierLink::SetTarget(const HostPort& upstream) {
  if (upstream.host == upstream_.host && upstream.port == upstream_.port) return;
  upstream_ = upstream;
  Leave();
  Connect();
}

TierLink::~TierLink() {
  loop_.Cancel(timer_);
  if (fd_.valid()) loop_.Remove(fd_.get());
}

void TierLink::Send(const TierFrame& frame) {
  AppendFrame(frame, out_);
  if (frame.type == TierFrame::Type::kRequest) ++requests_;
}

void TierLink::Connect() {
  state_ = State::kConnecting;
  broken_ = false;
  in_ = FrameBuffer(kMaxFrameBytes);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  // Resolving a name blocks the loop, but without an upstream there is no other work that could be delayed.
  const int failure = getaddrinfo(upstream_.host.c_str(), std::to_string(upstream_.port).c_str(), &hints, &found);
  if (failure != 0) return Retry(gai_strerror(failure));
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    fd_.reset(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) {
      error = errno;
      continue;
    }
    SetPromptAndWatched(fd_.get(), peer_timeout_ms_);
    if (connect(fd_.get(), at->ai_addr, at->ai_addrlen) == 0 || errno == EINPROGRESS) {
      loop_.Add(fd_.get(), EPOLLIN | EPOLLOUT, [this](uint32_t events) { OnEvent(events); });
      timer_ = loop_.RunAfter(kGreetingTimeoutNs, [this] {
        Retry(state_ == State::kConnecting ? "no answer" : "what answers there is no taskd store");
      });
      return;
    }
    error = errno;
  }
  fd_.reset();
  Retry(strerror(error));
}

void TierLink::Leave() {
  const bool stood = state_ == State::kConnected;
  loop_.Cancel(timer_);
  if (fd_.valid()) loop_.Remove(fd_.get());
  fd_.reset();
  state_ = State::kApart;
  if (!stood) return;
  pause_ns_ = kFirstPauseNs;
  callbacks_.lost();
  out_.clear();
  written_ = 0;
}

void TierLink::Retry(const std::string& reason) {
  if (reason != said_ && !expect_end_)
    spdlog::warn("the store at {} cannot be reached: {}; trying again", FormatHostPort(upstream_), reason);
  said_ = reason;
  Leave();
  timer_ = loop_.RunAfter(pause_ns_, [this] { Connect(); });
  pause_ns_ = std::min(2 * pause_ns_, kLongestPauseNs);
}

void TierLink::OnEvent(uint32_t events) {
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return Retry(strerror(error));
    if (!(events & EPOLLOUT)) return;
    Greet();
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) Receive();
  if (fd_.valid() && (events & EPOLLOUT)) Flush();
  if (fd_.valid() && broken_) Retry("connection lost");
}

void TierLink::Greet() {
  state_ = State::kGreeting;
  greeting_.assign(1, '\0');
  greeting_.append(reinterpret_cast<const char*>(&kTierMagic), sizeof(kTierMagic));
  TierFrame hello;
  hello.number = kTierProtocol;
  AppendFrame(hello, greeting_);
  greeting_written_ = 0;
}

// Returns false if the connection is gone.
bool TierLink::Prove(const std::string& challenge) {
  if (secret_.empty()) {
    Retry("the upstream store requires TASKD_TOKEN, which is not set here");
    return false;
  }
  TierFrame hello;
  hello.number = kTierProtocol;
  hello.values = {SecretProof(secret_, challenge)};
  AppendFrame(hello, greeting_);
  Flush();
  return true;
}

void TierLink::Receive() {
  // The thread shares one buffer, because its bytes are copied on at once.
  static thread_local std::array<char, 256 * 1024> buffer;
  const ssize_t size = recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {
    Retry(size == 0 ? "it closed the connection" : strerror(errno));
    return;
  }
  in_.Append({buffer.data(), static_cast<size_t>(size)});
  while (fd_.valid()) {
    std::string_view body;
    absl::StatusOr<bool> whole = in_.Next(body);
    if (whole.ok() && !*whole) return;
    absl::StatusOr<TierFrame> frame = whole.ok() ? ParseFrame(body) : whole.status();
    if (!frame.ok()) return Retry(std::string(frame.status().message()));
    if (state_ == State::kConnected) {
      callbacks_.received(*std::move(frame));
      continue;
    }
    if (frame->type != TierFrame::Type::kHello || frame->number != kTierProtocol) {
      return Retry("it speaks another version of the protocol");
    }
    if (!frame->values.empty()) {
      if (!Prove(frame->values[0])) return;
      continue;
    }
    loop_.Cancel(timer_);
    state_ = State::kConnected;
    if (frame->id > 0 && frame->id <= INT64_MAX) patience_ms_ = static_cast<int64_t>(frame->id);
    pause_ns_ = kFirstPauseNs;
    if (!said_.empty()) spdlog::info("the store at {} is there", FormatHostPort(upstream_));
    said_.clear();
    Flush();
  }
}

void TierLink::Write(std::string& out, size_t& written) {
  while (written < out.size()) {
    const ssize_t size = send(fd_.get(), out.data() + written, out.size() - written, MSG_NOSIGNAL);
    if (size < 0) {
      broken_ = errno != EAGAIN && errno != EINTR;
      if (written > kCompactBytes) {
        out.erase(0, written);
        written = 0;
      }
      return;
    }
    written += size;
    bytes_ += size;
  }
  out.clear();
  written = 0;
}

void TierLink::Flush() {
  if (state_ != State::kGreeting && state_ != State::kConnected) return;
  Write(greeting_, greeting_written_);
  if (state_ == State::kConnected && greeting_.empty()) Write(out_, written_);
  const bool more = !greeting_.empty() || (state_ == State::kConnected && !out_.empty());
  loop_.Change(fd_.get(), more ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

}  // namespace taskd::store
