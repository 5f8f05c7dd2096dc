#include "proxy/health_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "proto/grpc_listener.h"
#include "proto/plain_health.h"
#include "proto/plain_server.h"

namespace taskd::proxy {

class HealthServer::Impl {
 public:
  absl::Status Start(const HostPort& listen) {
    proto::PlainServer::Methods methods;
    proto::AddHealth({}, &methods);
    absl::StatusOr<std::unique_ptr<proto::PlainServer>> server =
        proto::PlainServer::Start(std::move(methods), absl::UnimplementedError("a proxy serves its health alone"));
    if (!server.ok())
      return absl::Status(server.status().code(), absl::StrCat("--listen: ", server.status().message()));
    server_ = *std::move(server);
    absl::StatusOr<std::unique_ptr<proto::GrpcListener>> listener = proto::GrpcListener::Listen(
        listen, {}, nullptr, [server = server_.get()](proto::GrpcListener::Speaks speaks, UniqueFd connection) {
          if (speaks != proto::GrpcListener::Speaks::kTls) server->Take(std::move(connection));
        });
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat("--listen: ", listener.status().message()));
    }
    listener_ = *std::move(listener);
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<proto::PlainServer> server_;
  std::unique_ptr<proto::GrpcListener> listener_;  // gone before the server, to which it brings connections
};

HealthServer::HealthServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HealthServer::~HealthServer() = default;

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const std::string& address) {
  absl::StatusOr<HostPort> listen = ParseHostPort("--listen", address);
  if (!listen.ok()) return listen.status();
  auto impl = std::make_unique<Impl>();
  if (absl::Status started = impl->Start(*listen); !started.ok()) return started;
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(impl)));
}

}  // namespace taskd::proxy
