#include "manager/nodes/node_service.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "grpcpp/grpcpp.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/verdicts/diagnosis_core.h"
#include "proto/fold_messages.h"
#include "proto/grpc_listener.h"
#include "proto/guarded.h"
#include "proto/node_messages.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr size_t kMaxCallsBehind = 256;
// Of one message. A proxy sends every second or more often; 4,096 ranks at 10 steps a second are far below.
constexpr int kMaxFolds = 65536;
constexpr size_t kMaxPathBytes = 1024;

MarkFiles ReadMarkFiles(const v1::MarkFiles& message) {
  return {CutUtf8(message.dir(), kMaxPathBytes), CutUtf8(message.error(), kMaxPathBytes)};
}

// What cannot be read is left out and counted: it costs the rank a step, not the node its stream.
FoldBatch ReadFolds(const v1::FoldSet& message) {
  FoldBatch batch;
  batch.proxy_dropped = message.dropped();
  int groups = std::min(message.groups_size(), kMaxRanksPerNode);
  batch.groups.reserve(static_cast<size_t>(groups));
  for (int i = 0; i < groups; ++i) {
    const v1::RankGroups& in = message.groups(i);
    FoldBatch::Groups& rank = batch.groups.emplace_back();
    rank.rank = in.rank();
    for (const v1::Group& group : in.groups()) {
      if (rank.groups.size() >= DiagnosisFeed::kMaxGroups) {
        batch.bad_groups += static_cast<uint64_t>(in.groups_size()) - DiagnosisFeed::kMaxGroups;
        break;
      }
      absl::StatusOr<GroupInfo> read = proto::ReadGroup(group);
      if (!read.ok()) {
        ++batch.bad_groups;
        // Its members cannot be used, but its name may be, and it keeps its place: the others go by their index.
        v1::Group named;
        named.set_name(group.name());
        named.set_label(group.label());
        read = proto::ReadGroup(named);
      }
      rank.groups.push_back(read.ok() ? *std::move(read) : GroupInfo{});
    }
  }
  int steps = std::min(message.steps_size(), kMaxFolds);
  batch.unreadable = static_cast<uint64_t>(message.steps_size() - steps);
  batch.steps.reserve(static_cast<size_t>(steps));
  for (int i = 0; i < steps; ++i) {
    absl::StatusOr<StepFold> fold = proto::ReadFold(message.steps(i));
    if (fold.ok()) {
      batch.steps.push_back({message.steps(i).rank(), *std::move(fold), message.steps(i).number()});
    } else {
      ++batch.unreadable;
    }
  }
  return batch;
}

using NodeStream = grpc::ServerBidiReactor<proto::Guarded<v1::NodeMessage>, v1::ManagerMessage>;

// One proxy's stream. A proxy that does not read holds nobody up: what it was not sent yet is one newest state and a
// bounded number of calls.
class NodeReactor final : public WritingReactor<NodeStream, v1::ManagerMessage>, public NodeSink {
 public:
  NodeReactor(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis, std::string peer)
      : core_(std::move(core)), diagnosis_(std::move(diagnosis)), peer_(std::move(peer)) {
    hello_alarm_.Start(kFirstMessageTimeout, [this] { End(NoFirstMessage()); });
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
    in_.Clear();  // or each stream would keep the largest message that it ever had
    std::lock_guard lock(mutex_);
    if (!ended_) StartRead(&in_);
  }

  void OnDone() override {
    if (stream_ != 0) {
      core_->Disconnect(stream_);
      diagnosis_->Disconnect(stream_);
    }
    delete this;
  }

 private:
  ~NodeReactor() override = default;

  absl::Status Take() {
    if (!in_.refusal.ok()) return in_.refusal;
    const v1::NodeMessage& in = in_.message;
    SteadyTime now = std::chrono::steady_clock::now();
    if (stream_ == 0) {
      if (!in.has_hello()) return absl::InvalidArgumentError("the first message is not a hello");
      hello_alarm_.Stop();
      return TakeHello(in.hello());
    }
    core_->Heard(stream_);
    switch (in.message_case()) {
      case v1::NodeMessage::kHello:
        return absl::InvalidArgumentError("a second hello");
      case v1::NodeMessage::kRanks:
        return TakeRanks(in.ranks(), now);
      case v1::NodeMessage::kApplied: {
        std::vector<RankAnswer> answers;
        for (const v1::RankAnswer& answer : in.applied().ranks()) answers.push_back(proto::ReadRankAnswer(answer));
        core_->Applied(stream_, in.applied().revision(), answers, now);
        return absl::OkStatus();
      }
      case v1::NodeMessage::kAgentReply:
        core_->AgentReplied(stream_, in.agent_reply().id(), in.agent_reply().ok(), in.agent_reply().message());
        return absl::OkStatus();
      case v1::NodeMessage::kFolds:
        diagnosis_->Folds(stream_, ReadFolds(in.folds()));
        AcknowledgeFolds();
        return absl::OkStatus();
      case v1::NodeMessage::kMarkFiles:
        core_->SetMarkFiles(stream_, ReadMarkFiles(in.mark_files()));
        return absl::OkStatus();
      case v1::NodeMessage::kAlive:
      case v1::NodeMessage::MESSAGE_NOT_SET:  // a later release's message
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::Status TakeHello(const v1::NodeHello& hello) {
    NodeHello node = {hello.node_rank(), hello.host(), hello.identity(), hello.version()};
    node.says_alive = hello.says_alive();
    if (hello.has_mark_files()) node.mark_files = ReadMarkFiles(hello.mark_files());
    {
      std::lock_guard lock(mutex_);
      confirms_ = folds_unsaid_ = hello.life() != 0;
    }
    absl::StatusOr<uint64_t> stream = core_->Connect(std::move(node), this);
    if (!stream.ok()) return stream.status();
    stream_ = *stream;
    node_rank_ = hello.node_rank();
    diagnosis_->Connect(stream_, node_rank_, CutUtf8(hello.host(), kMaxTextBytes), hello.life());
    spdlog::info("node {} connected: {} ({})", node_rank_, Printable(hello.host()), peer_);
    return absl::OkStatus();
  }

  // They are the diagnosis's now, to be judged or to be counted as dropped.
  void AcknowledgeFolds() {
    std::lock_guard lock(mutex_);
    ++fold_sets_;
    folds_unsaid_ = confirms_;
    WriteNext();
  }

  absl::Status TakeRanks(const v1::RankSet& set, SteadyTime now) {
    if (set.ranks_size() > kMaxRanksPerNode) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxRanksPerNode, " ranks"));
    }
    std::vector<RankReport> ranks;
    ranks.reserve(static_cast<size_t>(set.ranks_size()));
    for (const v1::RankStatus& rank : set.ranks()) ranks.push_back(proto::ReadRankReport(rank));
    FeedDiagnosis(ranks);
    return core_->Report(stream_, std::move(ranks), now);
  }

  // Reports come every second for the sake of their counters; the diagnosis hears of those with something new.
  void FeedDiagnosis(const std::vector<RankReport>& ranks) {
    std::vector<RankPresence> presence;
    presence.reserve(ranks.size());
    for (const RankReport& rank : ranks) {
      RankPresence& present = presence.emplace_back(RankPresence{rank.rank, rank.attached});
      present.stopped_ms = rank.stopped_ms;
      if (rank.applied_revision == 0) continue;
      present.communication_on = (rank.applied & MaskOf(SwitchKind::kCommunication)) != 0;
      present.steps_on = (rank.applied & MaskOf(SwitchKind::kStep)) != 0;
    }
    if (presence == presence_) return;
    presence_ = presence;
    diagnosis_->Ranks(stream_, std::move(presence));
  }

  void Leave(const grpc::Status& status) {
    if (stream_ != 0) {
      core_->Disconnect(stream_);
      diagnosis_->Disconnect(stream_);
      spdlog::info("node {} disconnected ({})", node_rank_, peer_);
    }
    End(status);
  }

  bool FillNext(v1::ManagerMessage* message) override {
    if (std::exchange(folds_unsaid_, false)) {
      message->mutable_folds_taken()->set_sets(fold_sets_);
      return true;
    }
    if (wanted_.has_value()) {
      proto::FillWanted(*wanted_, message->mutable_wanted());
      wanted_.reset();
      return true;
    }
    if (calls_.empty()) return false;
    v1::AgentCall* call = message->mutable_agent_call();
    call->set_id(calls_.front().id);
    call->set_operator_(calls_.front().operation);
    call->set_args_json(calls_.front().args_json);
    calls_.pop_front();
    return true;
  }

  const std::shared_ptr<ManagerCore> core_;
  const std::shared_ptr<DiagnosisCore> diagnosis_;
  const std::string peer_;
  proto::Guarded<v1::NodeMessage> in_;
  std::vector<RankPresence> presence_;  // as reported last
  uint64_t stream_ = 0;                 // 0: no hello yet
  int node_rank_ = 0;
  StreamAlarm hello_alarm_;

  // With the mutex.
  uint64_t fold_sets_ = 0;
  bool confirms_ = false;      // the proxy wants to know how many
  bool folds_unsaid_ = false;  // the count; 0 goes before all else
  std::optional<SwitchState> wanted_;
  std::deque<AgentCall> calls_;
};

class NodeService final : public v1::NodeLink::CallbackService {
 public:
  NodeService(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis)
      : core_(std::move(core)), diagnosis_(std::move(diagnosis)) {
    MarkMethodCallback(
        0, proto::GuardedStream<v1::NodeMessage, v1::ManagerMessage>([this](grpc::CallbackServerContext* context) {
          return new NodeReactor(core_, diagnosis_, proto::PeerOf(context->peer()));
        }));
  }

 private:
  const std::shared_ptr<ManagerCore> core_;
  const std::shared_ptr<DiagnosisCore> diagnosis_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeNodeService(std::shared_ptr<ManagerCore> core,
                                               std::shared_ptr<DiagnosisCore> diagnosis) {
  return std::make_unique<NodeService>(std::move(core), std::move(diagnosis));
}

}  // namespace taskd::manager
