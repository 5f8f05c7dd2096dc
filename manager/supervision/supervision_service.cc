#include "manager/supervision/supervision_service.h"

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/realtime.h"
#include "grpcpp/grpcpp.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/supervision/supervision_core.h"
#include "manager/supervision/supervision_messages.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/supervision.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr int kMaxEventsPerCall = 1024;
// A watcher that is this many notices behind does not read; the oldest go, the newest has the present state.
constexpr size_t kMaxBehind = 16;

class HangReactor final : public WatcherReactor<v1::HangNotice, SupervisionCore, HangSink> {
 public:
  HangReactor(std::shared_ptr<SupervisionCore> core, const HangOptions& options, const grpc::Status& refusal)
      : WatcherReactor(std::move(core)) {
    if (refusal.ok()) SayHello();
    Start(refusal, options);
  }

  void OnVerdict(const HangVerdict& verdict) override {
    std::lock_guard lock(mutex_);
    if (pending_.size() >= kMaxBehind) pending_.pop_front();
    pending_.push_back(verdict);
    WriteNext();
  }

 private:
  bool FillNext(v1::HangNotice* message) override {
    if (pending_.empty()) return false;
    FillNotice(pending_.front(), message);
    pending_.pop_front();
    return true;
  }

  std::deque<HangVerdict> pending_;
};

class SupervisionService final : public v1::Supervision::CallbackService {
 public:
  SupervisionService(std::shared_ptr<SupervisionCore> core, JobShape shape)
      : core_(std::move(core)), shape_(std::move(shape)) {
    MarkMethodCallback(
        0, proto::GuardedUnary<v1::ReportEventsRequest, v1::ReportEventsReply>(
               [this](auto* context, auto* request, auto* reply) { return Report(context, request, reply); }));
    MarkMethodCallback(1, proto::GuardedServerStream<v1::WatchRequest, v1::HangNotice>(
                              [this](auto* context, auto* request) { return Watch(context, request); }));
    MarkMethodCallback(
        2, proto::GuardedUnary<v1::ConfirmActionRequest, v1::ConfirmActionReply>(
               [this](auto* context, auto* request, auto* reply) { return ConfirmAction(context, request, reply); }));
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context, const v1::ReportEventsRequest* request,
                                   v1::ReportEventsReply*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Take(*request));
    return reactor;
  }

  grpc::ServerWriteReactor<v1::HangNotice>* Watch(grpc::CallbackServerContext*,
                                                  const v1::WatchRequest* request) override {
    HangOptions options;
    if (request->hang_factor() != 0) options.factor = request->hang_factor();
    if (request->hang_floor_s() > 0) options.floor = std::chrono::duration<double>(request->hang_floor_s());
    if (request->first_steps_grace_s() > 0) {
      options.first_steps_grace = std::chrono::duration<double>(request->first_steps_grace_s());
    }
    return new HangReactor(core_, options, CheckJob(request->job(), shape_));
  }

  grpc::ServerUnaryReactor* ConfirmAction(grpc::CallbackServerContext* context, const v1::ConfirmActionRequest* request,
                                          v1::ConfirmActionReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    grpc::Status allowed = CheckJob(request->job(), shape_);
    if (allowed.ok()) {
      using Reply = v1::ConfirmActionReply;
      const SupervisionCore::Confirmation now =
          core_->ConfirmAction(request->number(), std::chrono::steady_clock::now(), RealtimeNs());
      reply->set_answer(!now.is_open ? Reply::OVER : now.why_not.empty() ? Reply::ACT : Reply::WAIT);
      reply->set_reason(now.why_not);
    }
    reactor->Finish(allowed);
    return reactor;
  }

 private:
  grpc::Status Take(const v1::ReportEventsRequest& request) const {
    grpc::Status allowed = CheckJob(request.job(), shape_);
    if (!allowed.ok()) return allowed;
    if (request.events_size() > kMaxEventsPerCall) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("events: ", request.events_size(), " are more than ", kMaxEventsPerCall)};
    }
    std::vector<SupervisionEvent> events;
    events.reserve(static_cast<size_t>(request.events_size()));
    for (const v1::SupervisionEvent& event : request.events()) events.push_back(ReadEvent(event));
    const SteadyTime now = std::chrono::steady_clock::now();
    absl::Status taken = core_->Report(std::move(events), now);
    if (taken.ok() && request.has_waits_for()) core_->SetWaitsFor(request.waits_for(), now);
    if (taken.ok()) return grpc::Status::OK;
    return proto::RefusalStatus(taken);
  }

  const std::shared_ptr<SupervisionCore> core_;
  const JobShape shape_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSupervisionService(std::shared_ptr<SupervisionCore> core, const JobShape& shape) {
  return std::make_unique<SupervisionService>(std::move(core), shape);
}

}  // namespace taskd::manager
