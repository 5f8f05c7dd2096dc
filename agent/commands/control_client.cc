#include "agent/commands/control_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_file.h"
#include "grpcpp/channel.h"

namespace taskd::commands {
namespace {

struct NamedKind {
  const char* name;
  bool (v1::KindStates::*get)() const;
};
// In the order of the interface.
constexpr NamedKind kKinds[] = {{"step", &v1::KindStates::step},
                                {"fp", &v1::KindStates::fp},
                                {"dataloader", &v1::KindStates::dataloader},
                                {"save_checkpoint", &v1::KindStates::save_checkpoint},
                                {"communication", &v1::KindStates::communication}};

}  // namespace

absl::StatusOr<ControlClient> ControlClient::Make(const std::string& given, const std::string& job,
                                                  proto::Security security) {
  std::string manager = given;
  if (manager.empty()) {
    absl::StatusOr<JobFile> chosen = ChooseJob(job);
    if (!chosen.ok()) return chosen.status();
    manager = JobAddress(*chosen);
    // TASKD_TOKEN is of another job, if it differs.
    if (security.tls_dir.empty()) security.secret = chosen->secret;
  }
  auto dial = std::make_unique<proto::ManagerDial>(manager, std::move(security));
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = dial->Channel();
  if (!channel.ok()) return channel.status();
  return ControlClient(manager, std::move(dial), *std::move(channel));
}

void ControlClient::SetTimeout(grpc::ClientContext& context, std::chrono::milliseconds timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

std::string ControlClient::Describe(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return absl::StrCat(
          "manager ", manager_, " cannot be reached: ",
          Printable(std::string(dial_->Explain(absl::StatusCode::kUnavailable, status.error_message()).message())));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::StrCat("manager ", manager_, " has not answered in time");
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::StrCat(manager_, " is not a manager");
    default:
      return absl::StrCat("manager ", manager_, ": ", Printable(status.error_message()));
  }
}

nlohmann::ordered_json KindsJson(const v1::KindStates& kinds) {
  nlohmann::ordered_json json;
  for (const NamedKind& kind : kKinds) json[kind.name] = (kinds.*kind.get)() ? "on" : "off";
  return json;
}

std::string KindsText(const v1::KindStates& kinds) {
  std::string text;
  for (const NamedKind& kind : kKinds) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", kind.name, (kinds.*kind.get)() ? " on" : " off");
  }
  return text;
}

}  // namespace taskd::commands
