#include "manager/actions/action_service.h"

#include <string>
#include <utility>

#include "grpcpp/grpcpp.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/actions.grpc.pb.h"

namespace taskd::manager {
namespace {

using v1::ActionsReply;
using v1::ActionsRequest;

class ActionService final : public v1::Actions::CallbackService {
 public:
  ActionService(std::shared_ptr<ActionCore> actions, JobShape shape)
      : actions_(std::move(actions)), shape_(std::move(shape)) {
    using Method = grpc::ServerUnaryReactor* (ActionService::*)(grpc::CallbackServerContext*, const ActionsRequest*,
                                                                ActionsReply*);
    int number = 0;
    for (Method method : {&ActionService::ListActions, &ActionService::WhyNode, &ActionService::EvictNode,
                          &ActionService::CancelAction, &ActionService::PauseActions, &ActionService::AllowActions}) {
      MarkMethodCallback(number++, proto::GuardedUnary<ActionsRequest, ActionsReply>(
                                       [this, method](auto* context, auto* request, auto* reply) {
                                         return (this->*method)(context, request, reply);
                                       }));
    }
  }

  grpc::ServerUnaryReactor* ListActions(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                        ActionsReply* reply) override {
    return Answer(context, request, reply, [&]() -> absl::StatusOr<std::string> { return actions_->Json(); });
  }
  grpc::ServerUnaryReactor* WhyNode(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                    ActionsReply* reply) override {
    return Answer(context, request, reply, [&] { return actions_->Why(request->node()); });
  }
  grpc::ServerUnaryReactor* EvictNode(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                      ActionsReply* reply) override {
    return Answer(context, request, reply, [&] { return actions_->Evict(request->node()); });
  }
  grpc::ServerUnaryReactor* CancelAction(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                         ActionsReply* reply) override {
    return Answer(context, request, reply, [&] { return Empty(actions_->Cancel(request->id())); });
  }
  grpc::ServerUnaryReactor* PauseActions(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                         ActionsReply* reply) override {
    return Answer(context, request, reply, [&] { return Empty(actions_->Pause()); });
  }
  grpc::ServerUnaryReactor* AllowActions(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                         ActionsReply* reply) override {
    return Answer(context, request, reply, [&] { return Empty(actions_->Allow()); });
  }

 private:
  static absl::StatusOr<std::string> Empty(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }

  template <typename Call>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const ActionsRequest* request,
                                   ActionsReply* reply, Call call) {
    grpc::Status status = CheckJob(request->job(), shape_);
    if (status.ok()) {
      absl::StatusOr<std::string> text = call();
      status = proto::RefusalStatus(text.status());
      if (text.ok()) reply->set_text(*std::move(text));
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }

  const std::shared_ptr<ActionCore> actions_;
  const JobShape shape_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeActionService(std::shared_ptr<ActionCore> actions, const JobShape& shape) {
  return std::make_unique<ActionService>(std::move(actions), shape);
}

}  // namespace taskd::manager
