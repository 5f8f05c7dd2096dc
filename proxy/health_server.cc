#include "proxy/health_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/address.h"
#include "proto/channel.h"
#include "proto/grpc_listener.h"

namespace taskd::proxy {
namespace {

constexpr size_t kHealthBufferBytes = size_t{4} << 20;

}  // namespace

class HealthServer::Impl {
 public:
  ~Impl() {
    listener_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  absl::Status Start(const HostPort& listen) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    proto::SetServerLimits(builder, kHealthBufferBytes);
    fed_ = std::make_unique<proto::FedServer>(builder);
    builder.RegisterCallbackGenericService(&nothing_else_);  // without a service gRPC does not start
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("--listen: gRPC does not start");
    absl::StatusOr<std::unique_ptr<proto::GrpcListener>> listener = proto::GrpcListener::Listen(
        listen, {}, nullptr, [fed = fed_.get()](proto::GrpcListener::Speaks speaks, UniqueFd connection) {
          if (speaks != proto::GrpcListener::Speaks::kTls) fed->Take(std::move(connection));
        });
    if (!listener.ok()) {
      return absl::Status(listener.status().code(), absl::StrCat("--listen: ", listener.status().message()));
    }
    listener_ = *std::move(listener);
    return absl::OkStatus();
  }

 private:
  grpc::CallbackGenericService nothing_else_;
  std::unique_ptr<proto::FedServer> fed_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<proto::GrpcListener> listener_;
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
