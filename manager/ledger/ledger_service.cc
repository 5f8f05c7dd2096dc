#include "manager/ledger/ledger_service.h"

#include <utility>

#include "grpcpp/grpcpp.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/ledger.grpc.pb.h"

namespace taskd::manager {
namespace {

class LedgerService final : public v1::Ledger::CallbackService {
 public:
  LedgerService(std::shared_ptr<const JobLedger> ledger, JobShape shape)
      : ledger_(std::move(ledger)), shape_(std::move(shape)) {
    MarkMethodCallback(
        0, proto::GuardedUnary<v1::GetLedgerRequest, v1::LedgerReply>(
               [this](auto* context, auto* request, auto* reply) { return GetLedger(context, request, reply); }));
  }

  grpc::ServerUnaryReactor* GetLedger(grpc::CallbackServerContext* context, const v1::GetLedgerRequest* request,
                                      v1::LedgerReply* reply) override {
    const grpc::Status allowed = CheckJob(request->job(), shape_);
    if (allowed.ok()) reply->set_json(ledger_->Json());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(allowed);
    return reactor;
  }

 private:
  const std::shared_ptr<const JobLedger> ledger_;
  const JobShape shape_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeLedgerService(std::shared_ptr<const JobLedger> ledger, const JobShape& shape) {
  return std::make_unique<LedgerService>(std::move(ledger), shape);
}

}  // namespace taskd::manager
