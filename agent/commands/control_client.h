// What the commands that ask a manager share: how to reach a manager, and JSON of its answers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/printable.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "proto/channel.h"
#include "proto/read_parts.h"
#include "taskd/v1/control.grpc.pb.h"

namespace taskd::commands {

class ControlClient {
 public:
  // `manager`: HOST:PORT; empty: that of the only job that this user runs on this machine, or of the one named `job`
  // (ChooseJob in common/job_file.h). INVALID_ARGUMENT: a bad address or TLS folder, or several jobs. NOT_FOUND: no
  // job.
  static absl::StatusOr<ControlClient> Make(const std::string& manager, const std::string& job,
                                            proto::Security security);

  // As Make(); waits until `until` for a job that is not there yet.
  static absl::StatusOr<ControlClient> Await(const std::string& manager, const std::string& job,
                                             const proto::Security& security,
                                             std::chrono::steady_clock::time_point until);

  static void SetTimeout(grpc::ClientContext& context, std::chrono::milliseconds timeout);
  v1::Control::Stub& stub() const { return *stub_; }
  const std::string& manager() const { return manager_; }      // HOST:PORT
  const std::string& found_job() const { return found_job_; }  // where no manager was given; else empty
  // For stubs of other services.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // One line for people: which manager, what went wrong.
  std::string Describe(const grpc::Status& status) const;

 private:
  ControlClient(std::string manager, std::unique_ptr<proto::ManagerDial> dial, std::shared_ptr<grpc::Channel> channel)
      : manager_(std::move(manager)),
        dial_(std::move(dial)),
        channel_(std::move(channel)),
        stub_(v1::Control::NewStub(channel_)) {}

  std::string manager_, found_job_;
  std::unique_ptr<proto::ManagerDial> dial_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
};

using proto::ReadParts;

// {"step":"on","fp":"on","dataloader":"on","save_checkpoint":"on","communication":"off"}
nlohmann::ordered_json KindsJson(const v1::KindStates& kinds);
// The same for people: "step on, forward on, ...".
std::string KindsText(const v1::KindStates& kinds);

}  // namespace taskd::commands
