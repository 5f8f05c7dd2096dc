#include "manager/switch/trace_calls.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/switch.h"
#include "common/utf8.h"
#include "manager/switch/trace_messages.h"

namespace taskd::manager {
namespace {

// ClusterD's body codes.
constexpr int kCodeOk = 200;
constexpr int kCodeInvalid = 300;
constexpr int kCodeNotFound = 404;

}  // namespace

std::function<void()> TraceCalls::Modify(const DataTypeReq& request, DataTypeRes* reply,
                                         std::function<void()> done) const {
  auto refuse = [&](int code, absl::string_view why) {
    reply->set_code(code);
    reply->set_message(std::string(why));
    done();
    return [] {};
  };
  absl::Status name = CheckJobName(request.jobnsname());
  if (!name.ok()) return refuse(kCodeInvalid, name.message());
  absl::StatusOr<SwitchChange> change = ReadSwitch(request.profilingswitch());
  if (!change.ok()) return refuse(kCodeInvalid, change.status().message());
  if (IsAnotherJob(request.jobnsname())) return refuse(kCodeNotFound, NotThisJob(request.jobnsname()));

  SteadyTime since = std::chrono::steady_clock::now();
  SwitchState state = core_->ChangeDomains(*change);
  reply->set_code(kCodeOk);
  uint64_t waiter = core_->Wait(state.revision, [core = core_, reply, since, revision = state.revision,
                                                 done = std::move(done)] {
    std::vector<RankAnswer> answers =
        core->Answers(revision, since, std::chrono::duration<double>(kModifyWait).count());
    auto applied = std::count_if(answers.begin(), answers.end(),
                                 [](const RankAnswer& answer) { return answer.state == RankAnswer::State::kApplied; });
    reply->set_message(absl::StrCat(
        "switched; applied by ", applied, " of ", answers.size(), " ranks",
        static_cast<size_t>(applied) == answers.size() ? "" : ", the others follow as soon as they can be reached"));
    done();
  });
  return [core = core_, waiter] { core->Expire(waiter); };
}

void TraceCalls::Get(const DataStatusReq& request, DataStatusRes* reply) const {
  absl::Status name = CheckJobName(request.jobnsname());
  if (!name.ok()) {
    reply->set_code(kCodeInvalid);
    reply->set_message(std::string(name.message()));
  } else if (IsAnotherJob(request.jobnsname())) {
    reply->set_code(kCodeNotFound);
    reply->set_message(NotThisJob(request.jobnsname()));
  } else {
    SwitchState state = core_->wanted();
    reply->set_code(kCodeOk);
    reply->set_message(absl::StrCat("wanted state of ", request.jobnsname(), ", revision ", state.revision));
    FillSwitch(state, reply->mutable_profilingswitch());
  }
}

absl::Status TraceCalls::CheckSubscriber(const ProfilingClientInfo& client) const {
  const std::string& task_id = core_->shape().task_id;
  if (task_id.empty() || client.jobid() == task_id) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("jobId: '", CutUtf8(client.jobid(), 64), "' is not this manager's job, '", task_id, "'"));
}

void TraceCalls::FillChange(const SwitchState& state, DataStatusRes* message) {
  message->set_code(kCodeOk);
  message->set_message("update profiling switch");
  FillSwitch(state, message->mutable_profilingswitch());
}

std::string TraceCalls::NotThisJob(const std::string& job) const {
  return absl::StrCat("job ", job, " is not this manager's, ", core_->shape().job);
}

}  // namespace taskd::manager
