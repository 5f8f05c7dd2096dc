#include "agent/commands/act.h"

#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/job_flags.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "policy/render.h"
#include "proto/channel.h"
#include "taskd/v1/actions.grpc.pb.h"

namespace taskd::commands {
namespace {

constexpr std::chrono::milliseconds kActTimeout{5000};
constexpr size_t kMaxSentence = 1000;
constexpr int kMaxNode = 65535;

// Asks the job's manager one thing.
class ActCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--manager", manager_, kManagerHelp);
    flags.Add("--job", job_, "NAMESPACE/NAME; refuses a manager of another job").JobName();
    AddTlsFlags(flags, security_);
  }

 protected:
  using Call = grpc::Status (v1::Actions::Stub::*)(grpc::ClientContext*, const v1::ActionsRequest&, v1::ActionsReply*);

  absl::StatusOr<std::string> Ask(Call call, v1::ActionsRequest request) {
    security_.secret = TokenOfEnvironment();
    absl::StatusOr<ControlClient> client = ControlClient::Make(manager_, job_, security_);
    if (!client.ok()) return client.status();
    request.set_job(ValidUtf8(job_));
    v1::ActionsReply reply;
    grpc::ClientContext context;
    client->SetTimeout(context, kActTimeout);
    const auto stub = v1::Actions::NewStub(client->channel());
    const grpc::Status called = (stub.get()->*call)(&context, request, &reply);
    if (called.ok()) {
      found_job_ = client->found_job();
      return reply.text();
    }
    if (called.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
      return absl::FailedPreconditionError(Printable(called.error_message(), kMaxSentence));
    }
    return absl::UnavailableError(client->Describe(called));
  }

  static absl::StatusOr<bool> Print(const std::string& text) {
    std::cout << text << std::flush;
    if (!std::cout) return absl::UnavailableError("stdout cannot be written");
    return true;
  }

  const std::string& job() const { return job_; }
  // Names the job that was found where no manager was given.
  std::string Heading() const { return found_job_.empty() ? "" : absl::StrCat("job ", Printable(found_job_), "\n"); }

 private:
  std::string manager_, job_, found_job_;
  proto::Security security_;
};

class ActListCommand final : public ActCommand {
 public:
  void AddFlags(Flags& flags) override {
    ActCommand::AddFlags(flags);
    flags.Add("--json", json_, "print one JSON object");
  }

  absl::StatusOr<bool> Run() override {
    absl::StatusOr<std::string> list = Ask(&v1::Actions::Stub::ListActions, {});
    if (std::optional<v1::EndedJob> ended = AskEndedJob(list.status(), job(), json_ ? std::cerr : std::cout)) {
      list = ended->actions();
    }
    if (!list.ok()) return list.status();
    if (json_) return Print(*list + "\n");
    const absl::StatusOr<std::string> text = policy::RenderText(*list);
    if (!text.ok()) return absl::UnavailableError(text.status().message());
    return Print(Heading() + *text);
  }

 private:
  bool json_ = false;
};

class ActWhyCommand final : public ActCommand {
 public:
  void AddFlags(Flags& flags) override {
    ActCommand::AddFlags(flags);
    flags.AddPositional("node", node_, "the node's rank, as in taskd status").Required().Range(0, kMaxNode);
  }

  absl::StatusOr<bool> Run() override {
    v1::ActionsRequest request;
    request.set_node(node_);
    const absl::StatusOr<std::string> why = Ask(&v1::Actions::Stub::WhyNode, request);
    if (!why.ok()) return why.status();
    return Print(absl::StrCat(Heading(), Printable(*why, kMaxSentence), "\n"));
  }

 private:
  int node_ = 0;
};

class ActEvictCommand final : public ActCommand {
 public:
  void AddFlags(Flags& flags) override {
    ActCommand::AddFlags(flags);
    flags.AddPositional("node", node_, "the node's rank, as in taskd status").Required().Range(0, kMaxNode);
    flags.Add("--now", now_, "do not wait for a checkpoint save; an order never waits for one");
  }

  absl::StatusOr<bool> Run() override {
    v1::ActionsRequest request;
    request.set_node(node_);
    const absl::StatusOr<std::string> action = Ask(&v1::Actions::Stub::EvictNode, request);
    if (!action.ok()) return action.status();
    const absl::StatusOr<std::string> text = policy::RenderActionText(*action);
    if (!text.ok()) return absl::UnavailableError(text.status().message());
    return Print(*text);
  }

 private:
  int node_ = 0;
  bool now_ = false;
};

class ActCancelCommand final : public ActCommand {
 public:
  void AddFlags(Flags& flags) override {
    ActCommand::AddFlags(flags);
    flags.AddPositional("id", id_, "the action, as in taskd act list").Required();
  }

  absl::StatusOr<bool> Run() override {
    v1::ActionsRequest request;
    request.set_id(ValidUtf8(id_));
    const absl::StatusOr<std::string> done = Ask(&v1::Actions::Stub::CancelAction, request);
    if (!done.ok()) return done.status();
    return Print(absl::StrCat("called off: ", Printable(id_), "\n"));
  }

 private:
  std::string id_;
};

class ActPauseCommand final : public ActCommand {
 public:
  absl::StatusOr<bool> Run() override {
    const absl::StatusOr<std::string> done = Ask(&v1::Actions::Stub::PauseActions, {});
    if (!done.ok()) return done.status();
    return Print("paused: nothing is decided until taskd act allow\n");
  }
};

class ActAllowCommand final : public ActCommand {
 public:
  absl::StatusOr<bool> Run() override {
    const absl::StatusOr<std::string> done = Ask(&v1::Actions::Stub::AllowActions, {});
    if (!done.ok()) return done.status();
    return Print("allowed: decisions are made again\n");
  }
};

}  // namespace

std::unique_ptr<Command> MakeActListCommand() { return std::make_unique<ActListCommand>(); }
std::unique_ptr<Command> MakeActWhyCommand() { return std::make_unique<ActWhyCommand>(); }
std::unique_ptr<Command> MakeActEvictCommand() { return std::make_unique<ActEvictCommand>(); }
std::unique_ptr<Command> MakeActCancelCommand() { return std::make_unique<ActCancelCommand>(); }
std::unique_ptr<Command> MakeActPauseCommand() { return std::make_unique<ActPauseCommand>(); }
std::unique_ptr<Command> MakeActAllowCommand() { return std::make_unique<ActAllowCommand>(); }

}  // namespace taskd::commands
