#include "proto/plain_link.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "common/listen.h"
#include "common/unique_fd.h"
#include "proto/channel.h"
#include "proto/frame_heads.h"

namespace taskd::proto {
namespace {

constexpr int kPlainConnectTimeoutMs = 5'000;  // to one address
constexpr size_t kReadBytes = size_t{16} << 10;
// Frames that are neither data nor headers, most of which gRPC answers, and keeps the answers for a server that does not
// read: so many at once, and then so many a second.
constexpr double kMostFrames = 1'000;
constexpr double kFramesPerSecond = 100;

// One direction: what was read and is not written yet.
class Way {
 public:
  Way(int from, int to) : from_(from), to_(to) {}

  bool has_ended() const { return ended_; }
  bool is_empty() const { return rest_.empty(); }
  // False: the connection is broken. True also where there was nothing, and at the end.
  bool Read() {
    const ssize_t size = recv(from_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    ended_ = size == 0;
    rest_ = {buffer_.data(), static_cast<size_t>(size)};
    return true;
  }
  bool Write() {
    const ssize_t size = send(to_, rest_.data(), rest_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    rest_.remove_prefix(static_cast<size_t>(size));
    return true;
  }
  std::string_view rest() const { return rest_; }  // what is not written yet

 private:
  const int from_;
  const int to_;
  std::array<char, kReadBytes> buffer_;
  std::string_view rest_;  // of buffer_
  bool ended_ = false;
};

// CANCELLED: gRPC does not want it any more.
absl::StatusOr<UniqueFd> Connect(const addrinfo& address, int grpc) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "no socket");
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::ErrnoToStatus(errno, "cannot connect");
  }
  std::array<pollfd, 2> polled = {{{fd.get(), POLLOUT, 0}, {grpc, 0, 0}}};
  int ready;
  do ready = poll(polled.data(), polled.size(), kPlainConnectTimeoutMs);
  while (ready < 0 && errno == EINTR);
  if (polled[1].revents != 0) return absl::CancelledError("");
  if (ready == 0) return absl::DeadlineExceededError("cannot connect: no answer");
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::ErrnoToStatus(error, "cannot connect");
  SetPrompt(fd.get());
  return fd;
}

absl::StatusOr<UniqueFd> Dial(const HostPort& address, int grpc) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  absl::StatusOr<UniqueFd> connected = absl::UnavailableError("the name has no address");
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    connected = Connect(*one, grpc);
    if (connected.ok() || absl::IsCancelled(connected.status())) break;
  }
  freeaddrinfo(found);
  return connected;
}

// What a server sends, against the limits.
class Answers {
 public:
  absl::Status Count(std::string_view bytes) {
    const auto now = std::chrono::steady_clock::now();
    const double passed_s = std::chrono::duration<double>(now - counted_at_).count();
    counted_at_ = now;
    frames_ = std::min(kMostFrames, frames_ + passed_s * kFramesPerSecond);
    while (const std::optional<FrameHead> head = heads_.Next(bytes)) {
      if (!blocks_.Take(*head)) return absl::ResourceExhaustedError("it sends too many header bytes");
      if (head->type != FrameHead::kData && head->type != FrameHead::kHeaders) frames_ -= 1;
      if (frames_ < 0) return absl::ResourceExhaustedError("it sends too many frames");
    }
    return absl::OkStatus();
  }

 private:
  FrameHeads heads_{0};
  HeaderBlocks blocks_;
  double frames_ = kMostFrames;
  std::chrono::steady_clock::time_point counted_at_ = std::chrono::steady_clock::now();
};

// Until either side has ended. Not OK: the server has sent what is not passed on.
absl::Status Relay(int server, int grpc) {
  Answers counted;
  Way answers(server, grpc), calls(grpc, server);
  while (!(answers.has_ended() && answers.is_empty()) && !(calls.has_ended() && calls.is_empty())) {
    const auto events = [](const Way& in, const Way& out) {
      return static_cast<short>((in.is_empty() && !in.has_ended() ? POLLIN : 0) | (out.is_empty() ? 0 : POLLOUT));
    };
    std::array<pollfd, 2> polled = {{{server, events(answers, calls), 0}, {grpc, events(calls, answers), 0}}};
    if (polled[0].events == 0) polled[0].fd = -1;  // it may have hung up behind what gRPC has not taken yet
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if ((polled[1].revents & (POLLHUP | POLLERR)) != 0) break;
    if (answers.is_empty() && polled[0].revents != 0) {
      if (!answers.Read()) break;
      if (absl::Status status = counted.Count(answers.rest()); !status.ok()) return status;
    }
    if (calls.is_empty() && polled[1].revents != 0 && !calls.Read()) break;
    if (!answers.is_empty() && !answers.Write()) break;
    if (!calls.is_empty() && !calls.Write()) break;
  }
  return absl::OkStatus();
}

}  // namespace

struct PlainLink::Shared {
  std::mutex mutex;
  absl::Status why;  // of the end, where it was not gRPC or the server who ended it
};

PlainLink::PlainLink(std::shared_ptr<Shared> shared, std::shared_ptr<grpc::Channel> channel)
    : shared_(std::move(shared)), channel_(std::move(channel)) {}

absl::StatusOr<PlainLink> PlainLink::Begin(const std::string& address) {
  absl::StatusOr<HostPort> parsed = ParseHostPort("the server", address);
  if (!parsed.ok()) return parsed.status();
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no socket: ", std::strerror(errno)));
  }
  auto shared = std::make_shared<Shared>();
  std::shared_ptr<grpc::Channel> channel = MakePlainChannel(address, UniqueFd(ends[0]));
  // A name's resolution cannot be interrupted, so nobody waits for the thread: it touches nothing but what it owns, and
  // ends when gRPC closes its end.
  try {
    std::thread([shared, to = *parsed, inner = UniqueFd(ends[1])] {
      absl::StatusOr<UniqueFd> server = Dial(to, inner.get());
      absl::Status why = server.ok() ? Relay(server->get(), inner.get()) : server.status();
      std::lock_guard lock(shared->mutex);
      shared->why = std::move(why);
    }).detach();
  } catch (const std::system_error& error) {  // a limit of processes
    return absl::ResourceExhaustedError(absl::StrCat("no thread: ", error.what()));
  }
  return PlainLink(std::move(shared), std::move(channel));
}

grpc::Status PlainLink::Explain(const grpc::Status& status) const {
  if (status.ok()) return status;
  std::lock_guard lock(shared_->mutex);
  if (shared_->why.ok()) return status;
  return {grpc::StatusCode::UNAVAILABLE, std::string(shared_->why.message())};
}

}  // namespace taskd::proto
