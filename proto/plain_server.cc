#include "proto/plain_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/event_loop.h"
#include "common/listen.h"
#include "common/log.h"
#include "common/loop_door.h"
#include "proto/plain_connection.h"

namespace taskd::proto {
namespace {

constexpr size_t kReadBytes = 16 << 10;  // of one connection before the next one's turn

}  // namespace

class PlainServer::Impl {
 public:
  Impl(Methods methods, absl::Status otherwise)
      : methods_(std::move(methods)), otherwise_(std::move(otherwise)), door_(std::make_shared<LoopDoor>(&loop_)) {}
  ~Impl() {
    if (!thread_.joinable()) return;
    loop_.Post([this] {
      while (!connections_.empty()) {
        const std::shared_ptr<Connection> connection = connections_.begin()->second;
        connection->http2.Shut(absl::UnavailableError("the server is ending"), EventLoop::NowNs());
        Flush(connection);
        End(connection, "the server is ending");
      }
      loop_.Stop();
    });
    thread_.join();
    door_->Close();
  }

  absl::Status Start() {
    if (!loop_.valid()) return absl::UnavailableError("no descriptors are left for a server in plain text");
    thread_ = std::thread([this] { loop_.Run(); });
    return absl::OkStatus();
  }

  void Take(UniqueFd fd) {
    auto taken = std::make_shared<UniqueFd>(std::move(fd));  // a callback can be copied, a descriptor cannot
    door_->Post([this, taken] { Add(std::move(*taken)); });
  }

 private:
  class Call;

  struct Connection final : PlainConnection::Calls {
    Connection(Impl* of, UniqueFd its) : impl(of), fd(std::move(its)), http2(this, EventLoop::NowNs()) {}

    absl::Status Check(std::string_view path) override {
      return impl->methods_.contains(path) ? absl::OkStatus() : impl->otherwise_;
    }
    void Begin(int32_t stream, const std::string& path, std::string message) override;
    void Over(int32_t stream) override;

    struct Running {
      std::shared_ptr<Call> call;
      PlainServer::Over over;
    };

    Impl* const impl;
    const UniqueFd fd;
    PlainConnection http2;
    std::weak_ptr<Connection> self;
    std::map<int32_t, Running> running;  // by stream
    uint32_t events = EPOLLIN;
    size_t held_bytes = 0;  // its part of held_bytes_
    int64_t timer_ns = std::numeric_limits<int64_t>::max();
    EventLoop::TimerId timer;
  };
  using Held = std::shared_ptr<Connection>;

  class Call final : public PlainCall, public std::enable_shared_from_this<Call> {
   public:
    Call(const Held& connection, int32_t stream)
        : impl_(connection->impl), door_(impl_->door_), connection_(connection), stream_(stream) {}

    void Write(std::string message) override {
      std::lock_guard lock(mutex_);
      if (over_ || status_.has_value()) return;
      if (messages_.size() < kPlainWaitingMessages) {
        messages_.push_back(std::move(message));
      } else {
        status_ = absl::ResourceExhaustedError("the client does not take its answers");
      }
      Post();
    }
    void Finish(const absl::Status& status) override {
      std::lock_guard lock(mutex_);
      if (over_ || status_.has_value()) return;
      status_ = status;
      Post();
    }
    void After(std::chrono::milliseconds delay, std::function<void()> then) override {
      impl_->loop_.RunAfter(std::chrono::nanoseconds(delay).count(), std::move(then));
    }

    void SetOver() {
      std::lock_guard lock(mutex_);
      over_ = true;
      messages_.clear();
    }

   private:
    void Post() {  // with the mutex
      if (!std::exchange(posted_, true)) door_->Post([call = shared_from_this()] { call->Deliver(); });
    }
    void Deliver() {
      std::vector<std::string> messages;
      std::optional<absl::Status> status;
      {
        std::lock_guard lock(mutex_);
        posted_ = false;
        if (over_) return;
        messages.swap(messages_);
        status = status_;
      }
      const Held connection = connection_.lock();
      if (connection == nullptr) return;
      for (std::string& message : messages) connection->http2.Write(stream_, std::move(message), EventLoop::NowNs());
      if (status.has_value()) connection->http2.Finish(stream_, *status);
      impl_->Flush(connection);
    }

    Impl* const impl_;  // for the loop's thread
    const std::shared_ptr<LoopDoor> door_;
    const std::weak_ptr<Connection> connection_;  // locked on the loop's thread alone, so that it ends there
    const int32_t stream_;
    std::mutex mutex_;  // guards all below
    bool posted_ = false;
    bool over_ = false;
    std::vector<std::string> messages_;
    std::optional<absl::Status> status_;
  };

  void Add(UniqueFd fd) {
    SetPrompt(fd.get());
    const int number = fd.get();
    auto connection = std::make_shared<Connection>(this, std::move(fd));
    connection->self = connection;
    connections_[number] = connection;
    loop_.Add(number, connection->events, [this, connection](uint32_t events) { Serve(connection, events); });
    Flush(connection);
  }

  // There is something to be read, or room to write.
  void Serve(const Held& connection, uint32_t events) {
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      std::array<char, kReadBytes> buffer;
      const ssize_t size = recv(connection->fd.get(), buffer.data(), buffer.size(), 0);
      if (size == 0) return End(connection, "the client has gone");
      if (size < 0 && errno != EAGAIN && errno != EINTR) return End(connection, strerror(errno));
      if (size > 0) connection->http2.Receive({buffer.data(), static_cast<size_t>(size)}, EventLoop::NowNs());
    }
    Flush(connection);
  }

  // After everything that may have changed a connection.
  void Flush(const Held& connection) {
    if (!Lives(connection)) return;
    PlainConnection& http2 = connection->http2;
    uint32_t events = EPOLLIN;
    for (std::string_view output = http2.Output(); !output.empty(); output = http2.Output()) {
      const ssize_t size = send(connection->fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno != EAGAIN) return End(connection, strerror(errno));
      if (size < 0) {
        events |= EPOLLOUT;
        break;
      }
      http2.Sent(static_cast<size_t>(size), EventLoop::NowNs());
    }
    if (http2.closed()) return End(connection, http2.why_closed());
    if (events != connection->events) loop_.Change(connection->fd.get(), connection->events = events);
    SetTimer(connection);
    held_bytes_ += http2.held_bytes() - connection->held_bytes;
    connection->held_bytes = http2.held_bytes();
    while (held_bytes_ > kPlainHeldBytes) {
      const auto most = std::max_element(connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
        return a.second->held_bytes < b.second->held_bytes;
      });
      End(Held(most->second), "all connections hold too much, and it most");
    }
  }

  bool Lives(const Held& connection) const {
    const auto found = connections_.find(connection->fd.get());
    return found != connections_.end() && found->second == connection;
  }

  void SetTimer(const Held& connection) {
    const int64_t due_ns = connection->http2.due_ns();
    if (due_ns == connection->timer_ns) return;
    // A timer that is too early finds nothing due: one that moves on with each byte is left where it is.
    if (due_ns > connection->timer_ns) return;
    loop_.Cancel(connection->timer);
    StartTimer(connection, due_ns);
  }
  void StartTimer(const Held& connection, int64_t due_ns) {
    connection->timer_ns = due_ns;
    connection->timer = loop_.RunAfter(std::max<int64_t>(due_ns - EventLoop::NowNs(), 0),
                                       [this, weak = std::weak_ptr<Connection>(connection)] {
                                         const Held connection = weak.lock();
                                         if (connection == nullptr || !Lives(connection)) return;
                                         connection->timer_ns = std::numeric_limits<int64_t>::max();
                                         connection->http2.Tick(EventLoop::NowNs());
                                         Flush(connection);
                                       });
  }

  void End(const Held& given, const char* why) {
    // The caller's may be the map's. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
    const Held connection = given;
    if (!Lives(connection)) return;
    if (spdlog::should_log(spdlog::level::debug)) {
      spdlog::debug("plain text: the connection of {} is closed: {}", PeerAddress(connection->fd.get()), why);
    }
    loop_.Remove(connection->fd.get());
    if (connection->timer_ns != std::numeric_limits<int64_t>::max()) loop_.Cancel(connection->timer);
    connections_.erase(connection->fd.get());
    held_bytes_ -= connection->held_bytes;
    while (!connection->running.empty()) connection->Over(connection->running.begin()->first);
  }

  const Methods methods_;
  const absl::Status otherwise_;
  EventLoop loop_;
  const std::shared_ptr<LoopDoor> door_;
  // On the loop's thread:
  std::map<int, Held> connections_;  // by descriptor
  size_t held_bytes_ = 0;            // of all connections
  std::thread thread_;               // last: it uses the others
};

void PlainServer::Impl::Connection::Begin(int32_t stream, const std::string& path, std::string message) {
  auto call = std::make_shared<Call>(self.lock(), stream);
  running[stream] = {call, impl->methods_.find(path)->second(call, message)};
}

void PlainServer::Impl::Connection::Over(int32_t stream) {
  const auto found = running.find(stream);
  if (found == running.end()) return;
  const Running one = std::move(found->second);
  running.erase(found);
  one.call->SetOver();
  one.over();
}

PlainServer::PlainServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PlainServer::~PlainServer() = default;
void PlainServer::Take(UniqueFd connection) { impl_->Take(std::move(connection)); }

absl::StatusOr<std::unique_ptr<PlainServer>> PlainServer::Start(Methods methods, absl::Status otherwise) {
  auto impl = std::make_unique<Impl>(std::move(methods), std::move(otherwise));
  if (absl::Status started = impl->Start(); !started.ok()) return started;
  return std::unique_ptr<PlainServer>(new PlainServer(std::move(impl)));
}

}  // namespace taskd::proto
