#include "manager/nodes/node_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "proto/node_messages.h"

namespace taskd::manager {
namespace {

constexpr size_t kMaxCallsBehind = 256;
constexpr size_t kMaxPathBytes = 1024;

MarkFiles ReadMarkFiles(const v1::MarkFiles& message) {
  return {CutUtf8(message.dir(), kMaxPathBytes), CutUtf8(message.error(), kMaxPathBytes),
          CutUtf8(message.task(), kMaxPathBytes)};
}

// Ranks of a node end their steps together: one stands for all.
uint64_t StepsOfOneRank(const FoldBatch& batch) {
  return static_cast<uint64_t>(std::count_if(batch.steps.begin(), batch.steps.end(), [&](const FoldBatch::Step& step) {
    return step.rank == batch.steps.front().rank;
  }));
}

RankPresence PresenceOf(const RankReport& rank) {
  RankPresence present = {rank.rank, rank.attached};
  present.stopped_ms = rank.stopped_ms;
  present.saved = rank.saved;
  if (rank.applied_revision == 0 && rank.applied == 0) return present;  // not switched yet
  present.kinds_on = rank.applied;
  return present;
}

}  // namespace

NodeStream::NodeStream(std::shared_ptr<ManagerCore> core, std::shared_ptr<DiagnosisCore> diagnosis, std::string peer,
                       std::function<void()> ready)
    : core_(std::move(core)), diagnosis_(std::move(diagnosis)), peer_(std::move(peer)), ready_(std::move(ready)) {}

NodeStream::~NodeStream() { Leave(); }

void NodeStream::Wanted(const SwitchState& state) {
  {
    std::lock_guard lock(mutex_);
    wanted_ = state;
  }
  ready_();
}

void NodeStream::Call(const AgentCall& call) {
  {
    std::lock_guard lock(mutex_);
    if (calls_.size() < kMaxCallsBehind) {
      calls_.push_back(call);
    } else if (end_.ok()) {
      end_ = absl::ResourceExhaustedError("too many calls behind");
    }
  }
  ready_();
}

void NodeStream::Close(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (end_.ok()) end_ = absl::AbortedError(reason);
  }
  ready_();
}

absl::Status NodeStream::Take(NodeInput& in) {
  absl::Status taken = in.refusal;
  if (taken.ok() && stream_ == 0) {
    taken = TakeFirst(in);
  } else if (taken.ok()) {
    const SteadyTime now = std::chrono::steady_clock::now();
    core_->Heard(stream_);
    if (in.folds.has_value()) {
      TakeFolds(*std::exchange(in.folds, std::nullopt), now);
    } else if (in.ranks.has_value()) {
      taken = TakeRanks(*std::exchange(in.ranks, std::nullopt), now);
    } else {
      taken = TakeMessage(in.message, now);
    }
    ConfirmFolds(now);
  }
  if (taken.ok()) return taken;
  spdlog::warn("{}: stream of a proxy closed: {}", peer_, taken.message());
  Leave();
  return taken;
}

absl::Status NodeStream::Ended() {
  const bool had_hello = has_hello();
  Leave();
  return had_hello ? absl::OkStatus() : absl::InvalidArgumentError("the stream ended before a hello");
}

void NodeStream::Leave() {
  if (stream_ == 0 || std::exchange(left_, true)) return;
  core_->Disconnect(stream_);
  diagnosis_->Disconnect(stream_);
  spdlog::info("node {} disconnected ({})", node_rank_, peer_);
}

absl::Status NodeStream::TakeFirst(const NodeInput& in) {
  if (!in.message.has_hello()) return absl::InvalidArgumentError("the first message is not a hello");
  return TakeHello(in.message.hello());
}

absl::Status NodeStream::TakeMessage(const v1::NodeMessage& in, SteadyTime now) {
  switch (in.message_case()) {
    case v1::NodeMessage::kHello:
      return absl::InvalidArgumentError("a second hello");
    case v1::NodeMessage::kApplied: {
      std::vector<RankAnswer> answers;
      for (const v1::RankAnswer& answer : in.applied().ranks()) answers.push_back(proto::ReadRankAnswer(answer));
      core_->Applied(stream_, in.applied().revision(), answers, now);
      return absl::OkStatus();
    }
    case v1::NodeMessage::kAgentReply:
      core_->AgentReplied(stream_, in.agent_reply().id(), in.agent_reply().ok(), in.agent_reply().message());
      return absl::OkStatus();
    case v1::NodeMessage::kMarkFiles:
      core_->SetMarkFiles(stream_, ReadMarkFiles(in.mark_files()));
      return absl::OkStatus();
    case v1::NodeMessage::kRanks:  // are not here
    case v1::NodeMessage::kFolds:
    case v1::NodeMessage::kAlive:
    case v1::NodeMessage::MESSAGE_NOT_SET:  // a later release's message
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status NodeStream::TakeHello(const v1::NodeHello& hello) {
  NodeHello node = {hello.node_rank(), hello.host(), hello.identity(), hello.version()};
  node.says_alive = hello.says_alive();
  node.named = {"", CutUtf8(hello.pod(), kMaxTextBytes), CutUtf8(hello.node_name(), kMaxTextBytes),
                CutUtf8(hello.machine(), kMaxTextBytes)};
  if (hello.has_mark_files()) node.mark_files = ReadMarkFiles(hello.mark_files());
  confirms_ = hello.life() != 0;
  {
    std::lock_guard lock(mutex_);
    folds_unsaid_ = confirms_;
  }
  absl::StatusOr<uint64_t> stream = core_->Connect(std::move(node), this);
  if (!stream.ok()) return stream.status();
  stream_ = *stream;
  node_rank_ = hello.node_rank();
  diagnosis_->Connect(stream_, node_rank_, CutUtf8(hello.host(), kMaxTextBytes), hello.life());
  spdlog::info("node {} connected: {} ({})", node_rank_, Printable(hello.host()), peer_);
  return absl::OkStatus();
}

// They are the diagnosis's then, to be judged or to be counted as dropped.
void NodeStream::TakeFolds(FoldBatch folds, SteadyTime now) {
  receipts_.Take(now, StepsOfOneRank(folds));
  diagnosis_->Folds(stream_, std::move(folds));
}

void NodeStream::ConfirmFolds(SteadyTime now) {
  if (!confirms_ || !receipts_.due(now)) return;
  {
    std::lock_guard lock(mutex_);
    folds_said_ = receipts_.Say();
    folds_unsaid_ = true;
  }
  ready_();
}

absl::Status NodeStream::TakeRanks(std::vector<RankReport> ranks, SteadyTime now) {
  FeedDiagnosis(ranks);
  return core_->Report(stream_, std::move(ranks), now);
}

// Reports come every second for the sake of their counters; the diagnosis hears of those with something new.
void NodeStream::FeedDiagnosis(const std::vector<RankReport>& ranks) {
  if (std::equal(ranks.begin(), ranks.end(), presence_.begin(), presence_.end(),
                 [](const RankReport& rank, const RankPresence& before) { return PresenceOf(rank) == before; })) {
    return;
  }
  presence_.clear();
  for (const RankReport& rank : ranks) presence_.push_back(PresenceOf(rank));
  diagnosis_->Ranks(stream_, presence_);
}

absl::StatusOr<bool> NodeStream::Next(v1::ManagerMessage* message) {
  std::lock_guard lock(mutex_);
  if (!end_.ok()) return end_;
  if (std::exchange(folds_unsaid_, false)) {
    message->mutable_folds_taken()->set_sets(folds_said_);
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

}  // namespace taskd::manager
