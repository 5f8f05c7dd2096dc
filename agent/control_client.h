// What `taskd switch` and `taskd status` share: how to reach a manager, and JSON of its answers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "proto/channel.h"
#include "taskd/v1/control.grpc.pb.h"

namespace taskd {

class ControlClient {
 public:
  // INVALID_ARGUMENT: a bad address or TLS folder.
  static absl::StatusOr<ControlClient> Make(const std::string& manager, const Security& security);

  // Token and deadline.
  void Prepare(grpc::ClientContext& context, std::chrono::milliseconds timeout) const;
  v1::Control::Stub& stub() const { return *stub_; }
  // One line for people: which manager, what went wrong.
  std::string Describe(const grpc::Status& status) const;

 private:
  ControlClient(std::string manager, Security security, std::unique_ptr<v1::Control::Stub> stub)
      : manager_(std::move(manager)), security_(std::move(security)), stub_(std::move(stub)) {}

  std::string manager_;
  Security security_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

// {"step":"on","fp":"on","dataloader":"on","save_checkpoint":"on","communication":"off"}
nlohmann::ordered_json KindsJson(const v1::KindStates& kinds);
// The same for people: "step on, fp on, ...".
std::string KindsText(const v1::KindStates& kinds);

// Text that came over the network, made harmless for a terminal.
std::string Printable(const std::string& text);

}  // namespace taskd
