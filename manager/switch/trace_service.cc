#include "manager/switch/trace_service.h"

#include <deque>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "manager/rpc/wait_reactor.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/switch/trace_calls.h"
#include "profiling.grpc.pb.h"
#include "proto/guarded.h"
#include "proto/plain_messages.h"

namespace taskd::manager {
namespace {

// A subscriber that is this many changes behind does not read; it is sent away and may come again.
constexpr size_t kMaxBehind = 1024;

class SubscribeReactor final : public WatcherReactor<DataStatusRes, ManagerCore, ChangeSink> {
 public:
  SubscribeReactor(std::shared_ptr<ManagerCore> core, const absl::Status& refusal) : WatcherReactor(std::move(core)) {
    Start(refusal.ok() ? grpc::Status::OK : proto::RefusalStatus(refusal));
  }

  void Changed(const SwitchState& state) override {
    std::lock_guard lock(mutex_);
    if (pending_.size() >= kMaxBehind) {
      EndLocked({grpc::StatusCode::RESOURCE_EXHAUSTED, absl::StrCat("more than ", kMaxBehind, " changes behind")});
      return;
    }
    pending_.push_back(state);
    WriteNext();
  }
  void Close() override { End(proto::RefusalStatus(ManagerIsEnding())); }

 private:
  bool FillNext(DataStatusRes* message) override {
    if (pending_.empty()) return false;
    TraceCalls::FillChange(pending_.front(), message);
    pending_.pop_front();
    return true;
  }

  std::deque<SwitchState> pending_;
};

class TraceService final : public TrainingDataTrace::CallbackService {
 public:
  explicit TraceService(std::shared_ptr<ManagerCore> core) : calls_(std::move(core)) {
    MarkMethodCallback(0,
                       proto::GuardedUnary<DataTypeReq, DataTypeRes>([this](auto* context, auto* request, auto* reply) {
                         return ModifyTrainingDataTraceSwitch(context, request, reply);
                       }));
    MarkMethodCallback(
        1, proto::GuardedUnary<DataStatusReq, DataStatusRes>([this](auto* context, auto* request, auto* reply) {
          return GetTrainingDataTraceSwitch(context, request, reply);
        }));
    MarkMethodCallback(
        2, proto::GuardedServerStream<ProfilingClientInfo, DataStatusRes>(
               [this](auto* context, auto* request) { return SubscribeDataTraceSwitch(context, request); }));
  }

  grpc::ServerUnaryReactor* ModifyTrainingDataTraceSwitch(grpc::CallbackServerContext*, const DataTypeReq* request,
                                                          DataTypeRes* reply) override {
    return new WaitReactor(kModifyWait, [&](WaitReactor* reactor) -> WaitReactor::Expire {
      return calls_.Modify(*request, reply, [reactor] { reactor->Done(grpc::Status::OK); });
    });
  }

  grpc::ServerUnaryReactor* GetTrainingDataTraceSwitch(grpc::CallbackServerContext* context,
                                                       const DataStatusReq* request, DataStatusRes* reply) override {
    calls_.Get(*request, reply);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<DataStatusRes>* SubscribeDataTraceSwitch(grpc::CallbackServerContext*,
                                                                    const ProfilingClientInfo* request) override {
    return new SubscribeReactor(calls_.core(), calls_.CheckSubscriber(*request));
  }

 private:
  const TraceCalls calls_;
};

class PlainSubscriber final : public ChangeSink {
 public:
  explicit PlainSubscriber(std::shared_ptr<proto::PlainCall> call) : call_(std::move(call)) {}
  void Changed(const SwitchState& state) override {
    DataStatusRes message;
    TraceCalls::FillChange(state, &message);
    call_->Write(message.SerializeAsString());
  }
  void Close() override { call_->Finish(ManagerIsEnding()); }

 private:
  const std::shared_ptr<proto::PlainCall> call_;
};

using Call = std::shared_ptr<proto::PlainCall>;

// `handle` gets the request as a message, of the type that it names.
template <typename Request, typename Handle>
proto::PlainServer::Handler Parsed(Handle handle) {
  return [handle = std::move(handle)](const Call& call, const std::string& bytes) -> proto::PlainServer::Over {
    Request request;
    if (absl::Status sound = proto::ParsePlain(bytes, &request); !sound.ok()) {
      call->Finish(sound);
      return [] {};
    }
    return handle(call, request);
  };
}

}  // namespace

std::unique_ptr<grpc::Service> MakeTraceService(std::shared_ptr<ManagerCore> core) {
  return std::make_unique<TraceService>(std::move(core));
}

proto::PlainServer::Methods MakePlainTraceMethods(std::shared_ptr<ManagerCore> core) {
  const TraceCalls calls(std::move(core));
  proto::PlainServer::Methods methods;
  methods["/TrainingDataTrace/ModifyTrainingDataTraceSwitch"] =
      Parsed<DataTypeReq>([calls](const Call& call, const DataTypeReq& request) {
        auto reply = std::make_shared<DataTypeRes>();
        const auto expire = calls.Modify(request, reply.get(), [call, reply] {
          call->Write(reply->SerializeAsString());
          call->Finish(absl::OkStatus());
        });
        call->After(kModifyWait, expire);
        return expire;
      });
  methods["/TrainingDataTrace/GetTrainingDataTraceSwitch"] =
      Parsed<DataStatusReq>([calls](const Call& call, const DataStatusReq& request) -> proto::PlainServer::Over {
        DataStatusRes reply;
        calls.Get(request, &reply);
        call->Write(reply.SerializeAsString());
        call->Finish(absl::OkStatus());
        return [] {};
      });
  methods["/TrainingDataTrace/SubscribeDataTraceSwitch"] = Parsed<ProfilingClientInfo>(
      [calls](const Call& call, const ProfilingClientInfo& request) -> proto::PlainServer::Over {
        if (absl::Status allowed = calls.CheckSubscriber(request); !allowed.ok()) {
          call->Finish(allowed);
          return [] {};
        }
        auto subscriber = std::make_shared<PlainSubscriber>(call);
        if (!calls.core()->Subscribe(subscriber.get())) subscriber->Close();
        return [core = calls.core(), subscriber] { core->Unsubscribe(subscriber.get()); };
      });
  return methods;
}

}  // namespace taskd::manager
