// A store client for tests that blocks: one connection, as PyTorch's own client keeps it, in any dialect.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/testing/deadline.h"
#include "common/unique_fd.h"
#include "store/request.h"
#include "store/wire.h"

namespace taskd::testing {

// Not thread safe. Whatever waits for the server gives up after kHangLimit with DEADLINE_EXCEEDED; UNAVAILABLE: the
// server has closed the connection.
class StoreClient {
 public:
  // The connection to 127.0.0.1:`port`; a client of 2.2 also sends VALIDATE.
  static absl::StatusOr<StoreClient> Connect(int port, store::StoreDialect dialect) {
    StoreClient client(dialect);
    client.fd_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(client.fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return absl::UnavailableError(std::string("connect: ") + strerror(errno));
    }
    const int on = 1;
    setsockopt(client.fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (dialect == store::StoreDialect::k22) {
      std::string hello(1, '\0');
      hello.append(reinterpret_cast<const char*>(&store::kValidateMagic), sizeof(store::kValidateMagic));
      if (auto status = client.Write(hello); !status.ok()) return status;
    }
    return client;
  }

  store::StoreDialect dialect() const { return dialect_; }

  static bool HasReply(store::StoreOp op) {
    return op != store::StoreOp::kSet && op != store::StoreOp::kAppend && op != store::StoreOp::kMultiSet &&
           op != store::StoreOp::kQueuePush;
  }

  absl::Status Send(const store::StoreRequest& request) {
    std::string bytes;
    if (auto status = store::AppendRequest(dialect_, request, bytes); !status.ok()) return status;
    return Write(bytes);
  }

  // Several bytes at once, e.g. requests one after the other.
  absl::Status Write(const std::string& bytes) {
    size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t count = send(fd_.get(), bytes.data() + written, bytes.size() - written, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return absl::UnavailableError(std::string("send: ") + strerror(errno));
      written += static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }

  // The reply to `request`, sent before. kWait, kBarrier and kCancelWait: the one byte as number (0 the wait is over, 1
  // cancelled).
  absl::StatusOr<store::StoreReply> Receive(const store::StoreRequest& request) {
    store::StoreReply reply;
    absl::Status status = ReceiveInto(request, reply);
    if (!status.ok()) return status;
    return reply;
  }

  // Nothing to receive for requests without a reply.
  absl::StatusOr<store::StoreReply> Call(const store::StoreRequest& request) {
    if (auto status = Send(request); !status.ok()) return status;
    if (!HasReply(request.op)) return store::StoreReply{};
    return Receive(request);
  }

  // Whether there is something to receive (also the end of the connection) within so long.
  bool Readable(std::chrono::milliseconds within = std::chrono::milliseconds(0)) {
    pollfd poll_fd{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return poll(&poll_fd, 1, static_cast<int>(within.count())) > 0;
  }

 private:
  explicit StoreClient(store::StoreDialect dialect) : dialect_(dialect) {}

  absl::Status ReceiveInto(const store::StoreRequest& request, store::StoreReply& reply) {
    switch (request.op) {
      case store::StoreOp::kSet:
      case store::StoreOp::kAppend:
      case store::StoreOp::kMultiSet:
      case store::StoreOp::kQueuePush:
      case store::StoreOp::kWatchKey:
        return absl::InvalidArgumentError("no reply to receive");
      case store::StoreOp::kCheck: {
        uint8_t state;
        absl::Status status = Read(&state, sizeof(state));
        reply.number = state == 0;
        return status;
      }
      case store::StoreOp::kWait:
      case store::StoreOp::kBarrier:
      case store::StoreOp::kCancelWait: {
        uint8_t state;
        absl::Status status = Read(&state, sizeof(state));
        reply.number = state;
        return status;
      }
      case store::StoreOp::kPing: {
        uint32_t nonce;
        absl::Status status = Read(&nonce, sizeof(nonce));
        reply.number = nonce;
        return status;
      }
      case store::StoreOp::kAdd:
      case store::StoreOp::kNumKeys:
      case store::StoreOp::kDelete:
      case store::StoreOp::kQueueLen:
        return Read(&reply.number, sizeof(reply.number));
      case store::StoreOp::kGet:
      case store::StoreOp::kCompareSet:
        return ReadValues(1, reply);
      case store::StoreOp::kMultiGet:
        return ReadValues(request.keys.size(), reply);
      case store::StoreOp::kQueuePop: {
        absl::Status status = Read(&reply.number, sizeof(reply.number));
        if (!status.ok() || reply.number <= 0) return status;
        return ReadValues(1, reply);
      }
      case store::StoreOp::kListKeys: {
        int64_t count = 0;
        absl::Status status = Read(&count, sizeof(count));
        if (!status.ok()) return status;
        return ReadValues(static_cast<size_t>(count), reply);
      }
    }
    return absl::InvalidArgumentError("unknown operation");
  }

  absl::Status ReadValues(size_t count, store::StoreReply& reply) {
    for (size_t i = 0; i < count; ++i) {
      uint64_t length = 0;
      if (auto status = Read(&length, sizeof(length)); !status.ok()) return status;
      if (length > store::kMaxRequestBytes)
        return absl::DataLossError("a reply of " + std::to_string(length) + " bytes");
      reply.values.emplace_back(length, '\0');
      if (auto status = Read(reply.values.back().data(), length); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Read(void* to, size_t size) {
    char* next = static_cast<char*>(to);
    while (size > 0) {
      if (!Readable(kHangLimit)) return absl::DeadlineExceededError("no reply");
      const ssize_t count = recv(fd_.get(), next, size, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return absl::UnavailableError("the connection was closed");
      next += count;
      size -= static_cast<size_t>(count);
    }
    return absl::OkStatus();
  }

  store::StoreDialect dialect_;
  UniqueFd fd_;
};

}  // namespace taskd::testing
