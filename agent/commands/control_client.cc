#include "agent/commands/control_client.h"

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/job_file.h"
#include "grpcpp/channel.h"

namespace taskd::commands {
namespace {

constexpr std::chrono::milliseconds kAgain{200};

struct NamedKind {
  const char* name;   // in JSON
  const char* words;  // for people
  bool (v1::KindStates::*get)() const;
};
// In the order of the interface.
constexpr NamedKind kKinds[] = {{"step", "step", &v1::KindStates::step},
                                {"fp", "forward", &v1::KindStates::fp},
                                {"dataloader", "dataloader", &v1::KindStates::dataloader},
                                {"save_checkpoint", "checkpoint", &v1::KindStates::save_checkpoint},
                                {"communication", "communication", &v1::KindStates::communication}};

// gRPC's chain of words, cut to its cause where that is known.
std::string CauseOf(const std::string& message) {
  if (absl::StrContains(message, "Connection refused")) return "Connection refused: is the job running?";
  for (const char* cause : {"Network is unreachable", "No route to host", "Connection timed out"}) {
    if (absl::StrContains(message, cause)) return cause;
  }
  return absl::StrContains(message, "DNS resolution failed") ? "its host name is not known" : message;
}

}  // namespace

absl::StatusOr<ControlClient> ControlClient::Make(const std::string& given, const std::string& job,
                                                  proto::Security security) {
  std::string manager = given, found_job;
  if (manager.empty()) {
    absl::StatusOr<JobFile> chosen = ChooseJob(job);
    if (!chosen.ok()) return chosen.status();
    manager = JobAddress(*chosen);
    found_job = chosen->job;
    // TASKD_TOKEN is of another job, if it differs.
    if (security.tls_dir.empty()) security.secret = chosen->secret;
  }
  auto dial = std::make_unique<proto::ManagerDial>(manager, std::move(security));
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = dial->Channel();
  if (!channel.ok()) return channel.status();
  ControlClient client(manager, std::move(dial), *std::move(channel));
  client.found_job_ = std::move(found_job);
  return client;
}

absl::StatusOr<ControlClient> ControlClient::Await(const std::string& manager, const std::string& job,
                                                   const proto::Security& security,
                                                   std::chrono::steady_clock::time_point until) {
  while (true) {
    absl::StatusOr<ControlClient> client = Make(manager, job, security);
    if (client.ok() || !absl::IsNotFound(client.status()) || std::chrono::steady_clock::now() >= until) return client;
    std::this_thread::sleep_for(kAgain);
  }
}

void ControlClient::SetTimeout(grpc::ClientContext& context, std::chrono::milliseconds timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

std::string ControlClient::Describe(const grpc::Status& status) const {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return absl::StrCat("manager ", manager_, " cannot be reached: ",
                          Printable(CauseOf(std::string(
                              dial_->Explain(absl::StatusCode::kUnavailable, status.error_message()).message()))));
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
    absl::StrAppend(&text, text.empty() ? "" : ", ", kind.words, (kinds.*kind.get)() ? " on" : " off");
  }
  return text;
}

}  // namespace taskd::commands
