#include "proxy/node_events.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/foreign_owner.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/unique_fd.h"
#include "grpcpp/grpcpp.h"
#include "nvsentinel.grpc.pb.h"
#include "proto/channel.h"
#include "taskd/own_user.h"

namespace taskd::proxy {
namespace {

constexpr std::chrono::seconds kEventDeadline{10};

// Whoever could replace the socket could have this node's events.
absl::StatusOr<UniqueFd> ConnectToOwn(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("not a path that a socket can have");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return absl::UnavailableError(std::strerror(errno));
  if (!S_ISSOCK(info.st_mode)) return absl::FailedPreconditionError("it is no socket");
  if (!IsOwnUserOrRoot(info.st_uid)) return absl::PermissionDeniedError(ForeignOwner(info.st_uid));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !IsOwnUserOrRoot(peer.uid)) {
    return absl::PermissionDeniedError(ForeignOwner(peer.uid));
  }
  return fd;
}

}  // namespace

NodeEvents::NodeEvents(std::string node_name, Answer on_answer)
    : node_name_(std::move(node_name)), on_answer_(std::move(on_answer)) {}

NodeEvents::~NodeEvents() { Stop(); }

void NodeEvents::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NodeEvents::Send(uint64_t id, const std::string& args_json) {
  absl::StatusOr<proto::NodeEvent> event = proto::ReadNodeEvent(args_json);
  absl::Status refused = event.status();
  for (int i = 0; refused.ok() && i < event->events.events_size(); ++i) {
    const std::string& name = event->events.events(i).nodename();
    if (name != node_name_) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("this node is called '", Printable(node_name_), "', not '", Printable(name), "'"));
    }
  }
  if (refused.ok()) {
    std::lock_guard lock(mutex_);
    if (busy_ || stopped_) {
      refused = absl::ResourceExhaustedError("another event of this node is under way");
    } else {
      busy_ = true;
      next_.emplace(id, *std::move(event));
      if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    }
  }
  if (!refused.ok()) return on_answer_(id, false, std::string(refused.message()));
  changed_.notify_all();
}

void NodeEvents::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || next_.has_value(); });
    if (stopped_) return;
    const auto [id, event] = *std::exchange(next_, std::nullopt);
    lock.unlock();
    const absl::Status sent = Deliver(event);
    const std::string message =
        absl::StrCat("NVSentinel at ", event.socket, ": ", sent.ok() ? "taken" : std::string(sent.message()));
    spdlog::log(sent.ok() ? spdlog::level::info : spdlog::level::warn, "an event of this node: {}", Printable(message));
    lock.lock();
    busy_ = false;
    if (stopped_) return;
    lock.unlock();
    on_answer_(id, sent.ok(), message);
    lock.lock();
  }
}

absl::Status NodeEvents::Deliver(const proto::NodeEvent& event) {
  absl::StatusOr<UniqueFd> socket = ConnectToOwn(event.socket);
  if (!socket.ok()) return socket.status();
  const auto stub = datamodels::PlatformConnector::NewStub(proto::MakePlainChannel("localhost", *std::move(socket)));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kEventDeadline);
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return absl::CancelledError("this proxy ends");
    call_ = &context;
  }
  google::protobuf::Empty reply;
  const grpc::Status status = stub->HealthEventOccurredV1(&context, event.events, &reply);
  std::lock_guard lock(mutex_);
  call_ = nullptr;
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(status.error_message(), " (gRPC status ", static_cast<int>(status.error_code()), ")"));
}

}  // namespace taskd::proxy
