#include "manager/trace_service.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/bearer.h"
#include "common/switch.h"
#include "grpcpp/grpcpp.h"
#include "manager/trace_messages.h"
#include "manager/wait_reactor.h"
#include "manager/writing_reactor.h"
#include "profiling.grpc.pb.h"
#include "proto/guarded.h"

namespace taskd::manager {
namespace {

// ClusterD's body codes.
constexpr int kCodeOk = 200;
constexpr int kCodeInvalid = 300;
constexpr int kCodeNotFound = 404;

// How long Modify waits for the ranks' answers. They are only for the message: the state is kept and goes on spreading.
constexpr std::chrono::milliseconds kModifyWait{1000};
// A subscriber that is this many changes behind does not read; it is sent away and may come again.
constexpr size_t kMaxBehind = 1024;

constexpr char kAuthorization[] = "authorization";

class SubscribeReactor final : public PushReactor<DataStatusRes>, public ChangeSink {
 public:
  SubscribeReactor(std::shared_ptr<ManagerCore> core, const grpc::Status& refusal) : core_(std::move(core)) {
    if (!refusal.ok()) {
      End(refusal);
    } else if (!core_->Subscribe(this)) {
      Close();
    }
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
  void Close() override { End({grpc::StatusCode::UNAVAILABLE, "the manager is ending"}); }
  void OnDone() override {
    core_->Unsubscribe(this);
    delete this;
  }

 private:
  bool FillNext(DataStatusRes* message) override {
    if (pending_.empty()) return false;
    message->set_code(kCodeOk);
    message->set_message("update profiling switch");
    FillSwitch(pending_.front(), message->mutable_profilingswitch());
    pending_.pop_front();
    return true;
  }

  const std::shared_ptr<ManagerCore> core_;
  std::deque<SwitchState> pending_;
};

class TraceService final : public TrainingDataTrace::CallbackService {
 public:
  TraceService(std::shared_ptr<ManagerCore> core, TraceAccess access)
      : core_(std::move(core)), access_(std::move(access)) {
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

  grpc::ServerUnaryReactor* ModifyTrainingDataTraceSwitch(grpc::CallbackServerContext* context,
                                                          const DataTypeReq* request, DataTypeRes* reply) override {
    grpc::Status allowed = Check(*context);
    if (!allowed.ok()) return Answer(context, allowed);
    auto refuse = [&](int code, absl::string_view why) {
      reply->set_code(code);
      reply->set_message(std::string(why));
      return Answer(context, grpc::Status::OK);
    };
    absl::Status name = CheckJobName(request->jobnsname());
    if (!name.ok()) return refuse(kCodeInvalid, name.message());
    absl::StatusOr<SwitchChange> change = ReadSwitch(request->profilingswitch());
    if (!change.ok()) return refuse(kCodeInvalid, change.status().message());
    if (IsAnotherJob(request->jobnsname())) return refuse(kCodeNotFound, NotThisJob(request->jobnsname()));

    SteadyTime since = std::chrono::steady_clock::now();
    SwitchState state = core_->ChangeDomains(*change);
    reply->set_code(kCodeOk);
    return new WaitReactor(kModifyWait, [&](WaitReactor* reactor) -> WaitReactor::Expire {
      uint64_t waiter = core_->Wait(state.revision, [core = core_, reply, reactor, since, revision = state.revision] {
        std::vector<RankAnswer> answers =
            core->Answers(revision, since, std::chrono::duration<double>(kModifyWait).count());
        auto applied = std::count_if(answers.begin(), answers.end(), [](const RankAnswer& answer) {
          return answer.state == RankAnswer::State::kApplied;
        });
        reply->set_message(absl::StrCat("switched; applied by ", applied, " of ", answers.size(), " ranks",
                                        static_cast<size_t>(applied) == answers.size()
                                            ? ""
                                            : ", the others follow as soon as they can be reached"));
        reactor->Done(grpc::Status::OK);
      });
      return [core = core_, waiter] { core->Expire(waiter); };
    });
  }

  grpc::ServerUnaryReactor* GetTrainingDataTraceSwitch(grpc::CallbackServerContext* context,
                                                       const DataStatusReq* request, DataStatusRes* reply) override {
    grpc::Status allowed = Check(*context);
    if (!allowed.ok()) return Answer(context, allowed);
    absl::Status name = CheckJobName(request->jobnsname());
    if (!name.ok()) {
      reply->set_code(kCodeInvalid);
      reply->set_message(std::string(name.message()));
    } else if (IsAnotherJob(request->jobnsname())) {
      reply->set_code(kCodeNotFound);
      reply->set_message(NotThisJob(request->jobnsname()));
    } else {
      SwitchState state = core_->wanted();
      reply->set_code(kCodeOk);
      reply->set_message(absl::StrCat("wanted state of ", request->jobnsname(), ", revision ", state.revision));
      FillSwitch(state, reply->mutable_profilingswitch());
    }
    return Answer(context, grpc::Status::OK);
  }

  grpc::ServerWriteReactor<DataStatusRes>* SubscribeDataTraceSwitch(grpc::CallbackServerContext* context,
                                                                    const ProfilingClientInfo* request) override {
    grpc::Status status = Check(*context);
    const std::string& task_id = core_->shape().task_id;
    if (status.ok() && !task_id.empty() && request->jobid() != task_id) {
      status = {grpc::StatusCode::NOT_FOUND, absl::StrCat("jobId: '", request->jobid().substr(0, 64),
                                                          "' is not this manager's job, '", task_id, "'")};
    }
    return new SubscribeReactor(core_, status);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
    return reactor;
  }
  // UNAUTHENTICATED without a token, PERMISSION_DENIED with a wrong one.
  grpc::Status Check(const grpc::ServerContextBase& context) const {
    if (access_.open) return grpc::Status::OK;
    auto [begin, end] = context.client_metadata().equal_range(kAuthorization);
    if (begin == end || access_.token.empty()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "in plain text this is for the user of the manager, on its machine, alone: use `taskd switch`, a bearer "
              "token (`taskd token switch`), or start the manager with --allow-plaintext"};
    }
    const std::string_view value(begin->second.data(), begin->second.size());
    if (!value.starts_with(kBearer)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "authorization is not 'Bearer <token>'"};
    }
    if (std::next(begin) != end || !SameToken(value.substr(kBearer.size()), access_.token)) {
      return {grpc::StatusCode::PERMISSION_DENIED, "the token is wrong: `taskd token switch` prints the right one"};
    }
    return grpc::Status::OK;
  }
  bool IsAnotherJob(const std::string& job) const { return !core_->shape().job.empty() && job != core_->shape().job; }
  std::string NotThisJob(const std::string& job) const {
    return absl::StrCat("job ", job, " is not this manager's, ", core_->shape().job);
  }

  const std::shared_ptr<ManagerCore> core_;
  const TraceAccess access_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTraceService(std::shared_ptr<ManagerCore> core, const TraceAccess& access) {
  return std::make_unique<TraceService>(std::move(core), access);
}

}  // namespace taskd::manager
