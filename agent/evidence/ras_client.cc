#include "agent/evidence/ras_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/foreign_owner.h"
#include "common/peer_user.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "taskd/own_user.h"

namespace taskd::evidence {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kDefaultAddress[] = "localhost:28028";
constexpr size_t kMaxLineBytes = 1024;
// For processes that do not answer: less than what is left to us.
constexpr char kTimeout[] = "TIMEOUT 2\n";

struct Addresses {
  addrinfo* list = nullptr;

  Addresses() = default;
  ~Addresses() {
    if (list != nullptr) freeaddrinfo(list);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
};

absl::Status Failed(const std::string& what) { return absl::UnavailableError(what); }

// The connection, with one deadline for all of it.
class Talk {
 public:
  explicit Talk(Clock::time_point deadline) : deadline_(deadline) {}

  // NOT_FOUND: nobody listens.
  absl::Status Connect(const addrinfo& to) {
    fd_.reset(socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd_.valid() && errno == EAFNOSUPPORT) return absl::NotFoundError("nobody listens there");
    if (!fd_.valid()) return Failed(std::strerror(errno));
    int error = connect(fd_.get(), to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (absl::Status status = Wait(POLLOUT); !status.ok()) return status;
      socklen_t size = sizeof(error);
      if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    }
    if (error == 0) return absl::OkStatus();
    // EADDRNOTAVAIL, as EAFNOSUPPORT: this machine has no IPv6.
    const bool nobody = error == ECONNREFUSED || error == EADDRNOTAVAIL;
    return nobody ? absl::NotFoundError("nobody listens there") : Failed(std::strerror(error));
  }

  absl::Status Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        text.remove_prefix(static_cast<size_t>(sent));
      } else if (errno != EAGAIN && errno != EINTR) {
        return Failed(std::strerror(errno));
      } else if (absl::Status status = Wait(POLLOUT); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  // One line, without its end.
  absl::StatusOr<std::string> Line() {
    while (true) {
      if (const size_t end = read_.find('\n'); end != std::string::npos) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      if (read_.size() > kMaxLineBytes) return Failed("it sends no lines");
      absl::StatusOr<bool> more = ReadMore();
      if (!more.ok()) return more.status();
      if (!*more) return Failed("it closes the connection");
    }
  }

  absl::StatusOr<std::string> Rest(size_t max_bytes) {
    while (read_.size() <= max_bytes) {
      absl::StatusOr<bool> more = ReadMore();
      if (!more.ok()) return more.status();
      if (!*more) return std::move(read_);
    }
    return Failed(absl::StrCat("its answer is longer than ", max_bytes >> 10, " KiB"));
  }

  // What listens there is ours. Only known once it has taken the connection, and while it holds it.
  absl::Status CheckUser(const addrinfo& to) const {
    std::array<char, NI_MAXHOST> host{};
    if (getnameinfo(to.ai_addr, to.ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0 ||
        !IsLoopback({host.data(), 0})) {
      return absl::OkStatus();  // an address that the job's user has named
    }
    const std::optional<uid_t> user = UserOfLoopbackPeer(fd_.get());
    if (!user) return Failed("the kernel does not say whose it is");
    return IsOwnUserOrRoot(*user) ? absl::OkStatus() : Failed(absl::StrCat("it ", ForeignOwner(*user)));
  }

 private:
  absl::Status Wait(short events) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd polled{fd_.get(), events, 0};
    if (left > 0 && poll(&polled, 1, static_cast<int>(left)) != 0) return absl::OkStatus();
    return Failed("it does not answer in time");
  }

  // False: that was the end.
  absl::StatusOr<bool> ReadMore() {
    std::array<char, size_t{16} << 10> buffer;
    while (true) {
      // Not only where there is nothing to read: one that never stops has the same deadline.
      if (absl::Status status = Wait(POLLIN); !status.ok()) return status;
      const ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (got >= 0) {
        read_.append(buffer.data(), static_cast<size_t>(got));
        return got > 0;
      }
      if (errno != EAGAIN && errno != EINTR) return Failed(std::strerror(errno));
    }
  }

  const Clock::time_point deadline_;
  UniqueFd fd_;
  std::string read_;
};

// The answer to what was asked first.
absl::StatusOr<std::string> Ask(Talk& talk, const addrinfo& to, size_t max_bytes) {
  if (absl::Status sent = talk.Send("CLIENT PROTOCOL 2\n"); !sent.ok()) return sent;
  absl::StatusOr<std::string> greeting = talk.Line();
  if (!greeting.ok()) return greeting;
  if (!absl::StartsWithIgnoreCase(*greeting, "SERVER PROTOCOL ")) return Failed("it is no RAS of NCCL");
  if (absl::Status own = talk.CheckUser(to); !own.ok()) return own;
  for (const char* wish : {kTimeout, "SET FORMAT json\n"}) {
    if (absl::Status sent = talk.Send(wish); !sent.ok()) return sent;
    absl::StatusOr<std::string> reply = talk.Line();
    if (!reply.ok()) return reply;
    if (absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(*reply), "OK")) continue;
    const std::string asked(absl::StripAsciiWhitespace(wish));
    return Failed(
        absl::StrCat("to '", asked, "' it says '", Printable(*reply), "' (NCCL before 2.28.7 gives no JSON)"));
  }
  if (absl::Status sent = talk.Send("STATUS\n"); !sent.ok()) return sent;
  absl::StatusOr<std::string> answer = talk.Rest(max_bytes);
  if (!answer.ok() || absl::StartsWith(absl::StripLeadingAsciiWhitespace(*answer), "{")) return answer;
  return Failed(answer->empty() ? "its answer is empty" : "its answer is no JSON");
}

}  // namespace

absl::StatusOr<HostPort> RasAddress(const Environment& environment) {
  if (ValueOf(environment, "NCCL_RAS_ENABLE") == "0") return absl::NotFoundError("NCCL_RAS_ENABLE is 0");
  const std::string given = ValueOf(environment, "NCCL_RAS_ADDR");
  return ParseHostPort("NCCL_RAS_ADDR", given.empty() ? kDefaultAddress : given);
}

absl::StatusOr<std::string> AskRas(const HostPort& address, size_t max_bytes, std::chrono::milliseconds timeout) {
  // Of a name NCCL takes the first address that it finds, of either family.
  const std::vector<std::string> hosts =
      address.host == "localhost" ? std::vector<std::string>{"127.0.0.1", "::1"} : std::vector{address.host};
  const auto deadline = Clock::now() + timeout;
  absl::Status failed = absl::NotFoundError("nobody listens there");
  for (const std::string& host : hosts) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    Addresses found;
    const int error = getaddrinfo(host.c_str(), std::to_string(address.port).c_str(), &hints, &found.list);
    if (error != 0) failed = Failed(gai_strerror(error));
    for (const addrinfo* to = found.list; to != nullptr; to = to->ai_next) {
      Talk talk(deadline);
      const absl::Status connected = talk.Connect(*to);
      if (connected.ok()) return Ask(talk, *to, max_bytes);
      if (!absl::IsNotFound(connected)) failed = connected;
    }
  }
  return failed;
}

}  // namespace taskd::evidence
