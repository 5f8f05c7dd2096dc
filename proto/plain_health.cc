#include "proto/plain_health.h"

#include <memory>
#include <utility>

#include "health.pb.h"
#include "proto/plain_messages.h"

namespace taskd::proto {

void AddHealth(std::set<std::string> services, PlainServer::Methods* methods) {
  using grpc::health::v1::HealthCheckRequest;
  using grpc::health::v1::HealthCheckResponse;
  services.insert("");
  auto handler = [&](bool watches) {
    return [services, watches](const std::shared_ptr<PlainCall>& call, const std::string& bytes) -> PlainServer::Over {
      HealthCheckRequest request;
      const absl::Status sound = ParsePlain(bytes, &request);
      const bool known = services.contains(request.service());
      if (!sound.ok()) {
        call->Finish(sound);
      } else if (!known && !watches) {
        call->Finish(absl::NotFoundError("there is no such service"));
      } else {
        HealthCheckResponse response;
        response.set_status(known ? HealthCheckResponse::SERVING : HealthCheckResponse::SERVICE_UNKNOWN);
        call->Write(response.SerializeAsString());
        if (!watches) call->Finish(absl::OkStatus());
      }
      return [] {};
    };
  };
  (*methods)["/grpc.health.v1.Health/Check"] = handler(false);
  (*methods)["/grpc.health.v1.Health/Watch"] = handler(true);
}

}  // namespace taskd::proto
