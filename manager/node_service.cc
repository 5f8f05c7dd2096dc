#include <atomic>
#include <deque>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "manager/convert.h"
#include "manager/services.h"
#include "proto/channel.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr std::chrono::seconds kHelloTimeout{10};
constexpr size_t kMaxCallsBehind = 256;

RankReport ReadReport(const v1::RankStatus& message) {
  RankReport report;
  report.rank = message.rank();
  report.pid = message.pid();
  report.attached = message.attached();
  report.reason = message.reason();
  report.applied_revision = message.applied_revision();
  report.applied = ReadKinds(message.applied());
  report.step = message.step();
  report.step_ms = message.step_ms();
  const v1::MarkCounts& marks = message.marks();
  report.marks = {marks.step(),       marks.save_checkpoint(), marks.fp(),
                  marks.dataloader(), marks.communication(),   marks.other()};
  report.lost = message.lost();
  report.overhead_ns_per_mark = message.overhead_ns_per_mark();
  return report;
}

RankAnswer ReadAnswer(const v1::RankAnswer& message) {
  RankAnswer answer;
  answer.rank = message.rank();
  answer.reason = message.reason();
  if (message.state() == v1::RankAnswer::APPLIED) answer.state = RankAnswer::State::kApplied;
  if (message.state() == v1::RankAnswer::FAILED) answer.state = RankAnswer::State::kFailed;
  return answer;
}

// One proxy's stream. A proxy that does not read holds nobody up: what it was not told yet is one newest state and a
// bounded number of calls.
class NodeReactor final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::ManagerMessage>, public NodeSink {
 public:
  NodeReactor(std::shared_ptr<ManagerCore> core, std::string peer, const grpc::Status& refusal)
      : core_(std::move(core)), peer_(std::move(peer)) {
    if (!refusal.ok()) {
      End(refusal);
      return;
    }
    holders_ = 2;
    hello_alarm_.Set(std::chrono::system_clock::now() + kHelloTimeout, [this](bool fired) {
      if (fired) End({grpc::StatusCode::DEADLINE_EXCEEDED, "no hello"});
      Release();
    });
    StartRead(&in_);
  }

  void Wanted(const SwitchState& state) override {
    std::lock_guard lock(mutex_);
    wanted_ = state;
    WriteNext();
  }
  void Call(const AgentCall& call) override {
    std::lock_guard lock(mutex_);
    if (calls_.size() >= kMaxCallsBehind) {
      EndLocked({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls behind"});
      return;
    }
    calls_.push_back(call);
    WriteNext();
  }
  void Close(const std::string& reason) override { End({grpc::StatusCode::ABORTED, reason}); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Leave(stream_ != 0 ? grpc::Status::OK
                         : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the stream ended before a hello"));
      return;
    }
    absl::Status status = Take();
    if (!status.ok()) {
      spdlog::warn("{}: stream of a proxy closed: {}", peer_, status.message());
      Leave({static_cast<grpc::StatusCode>(status.code()), std::string(status.message())});
      return;
    }
    std::lock_guard lock(mutex_);
    if (!ended_) StartRead(&in_);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) WriteNext();  // else the read fails too, and ends the stream
  }

  void OnDone() override {
    if (stream_ != 0) core_->Disconnect(stream_);
    hello_alarm_.Cancel();
    Release();
  }

 private:
  ~NodeReactor() = default;

  // A cancelled alarm still calls back, in its own time.
  void Release() {
    if (--holders_ == 0) delete this;
  }

  absl::Status Take() {
    SteadyTime now = std::chrono::steady_clock::now();
    if (stream_ == 0) {
      if (!in_.has_hello()) return absl::InvalidArgumentError("the first message is not a hello");
      hello_alarm_.Cancel();
      const v1::NodeHello& hello = in_.hello();
      absl::StatusOr<uint64_t> stream =
          core_->Connect({hello.node_rank(), hello.host(), hello.identity(), hello.version()}, this);
      if (!stream.ok()) return stream.status();
      stream_ = *stream;
      node_rank_ = hello.node_rank();
      spdlog::info("node {} connected: {} ({})", node_rank_, hello.host(), peer_);
      return absl::OkStatus();
    }
    switch (in_.message_case()) {
      case v1::NodeMessage::kHello:
        return absl::InvalidArgumentError("a second hello");
      case v1::NodeMessage::kRanks: {
        if (in_.ranks().ranks_size() > kMaxRanksPerNode) {
          return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxRanksPerNode, " ranks"));
        }
        std::vector<RankReport> ranks;
        ranks.reserve(static_cast<size_t>(in_.ranks().ranks_size()));
        for (const v1::RankStatus& rank : in_.ranks().ranks()) ranks.push_back(ReadReport(rank));
        return core_->Report(stream_, std::move(ranks), now);
      }
      case v1::NodeMessage::kApplied: {
        std::vector<RankAnswer> answers;
        for (const v1::RankAnswer& answer : in_.applied().ranks()) answers.push_back(ReadAnswer(answer));
        core_->Applied(stream_, in_.applied().revision(), answers, now);
        return absl::OkStatus();
      }
      case v1::NodeMessage::kAgentReply:
        core_->AgentReplied(stream_, in_.agent_reply().id(), in_.agent_reply().ok(), in_.agent_reply().message());
        return absl::OkStatus();
      case v1::NodeMessage::MESSAGE_NOT_SET:  // a later release's message
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  void Leave(const grpc::Status& status) {
    if (stream_ != 0) {
      core_->Disconnect(stream_);
      spdlog::info("node {} disconnected ({})", node_rank_, peer_);
    }
    End(status);
  }

  void WriteNext() {
    if (writing_ || ended_) return;
    out_.Clear();
    if (wanted_.has_value()) {
      FillWanted(*wanted_, out_.mutable_wanted());
      wanted_.reset();
    } else if (!calls_.empty()) {
      v1::AgentCall* call = out_.mutable_agent_call();
      call->set_id(calls_.front().id);
      call->set_operator_(calls_.front().operation);
      call->set_args_json(calls_.front().args_json);
      calls_.pop_front();
    } else {
      return;
    }
    writing_ = true;
    StartWrite(&out_);
  }

  void End(const grpc::Status& status) {
    std::lock_guard lock(mutex_);
    EndLocked(status);
  }
  void EndLocked(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  const std::shared_ptr<ManagerCore> core_;
  const std::string peer_;
  v1::NodeMessage in_;
  uint64_t stream_ = 0;  // 0: no hello yet
  int node_rank_ = 0;
  grpc::Alarm hello_alarm_;
  std::atomic<int> holders_{1};  // the call, and the alarm once it is set

  std::mutex mutex_;  // taken after the core's, never before it
  bool writing_ = false;
  bool ended_ = false;
  std::optional<SwitchState> wanted_;
  std::deque<AgentCall> calls_;
  v1::ManagerMessage out_;
};

class NodeService final : public v1::NodeLink::CallbackService {
 public:
  NodeService(std::shared_ptr<ManagerCore> core, Security security)
      : core_(std::move(core)), security_(std::move(security)) {}

  grpc::ServerBidiReactor<v1::NodeMessage, v1::ManagerMessage>* Connect(grpc::CallbackServerContext* context) override {
    return new NodeReactor(core_, context->peer(), CheckToken(*context, security_));
  }

 private:
  const std::shared_ptr<ManagerCore> core_;
  const Security security_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core, const Security& security) {
  return std::make_unique<NodeService>(std::move(core), security);
}

}  // namespace taskd::manager
