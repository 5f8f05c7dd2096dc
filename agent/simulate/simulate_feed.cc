#include "agent/simulate/simulate_feed.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/simulate/folds_again.h"
#include "grpcpp/generic/generic_stub.h"
#include "marks/mark_fold.h"
#include "proto/fold_messages.h"
#include "proto/stream_connection.h"
#include "taskd/v1/node.grpc.pb.h"

namespace taskd::simulate {
namespace {

constexpr size_t kMaxQueued = 8;  // messages of a node
// A message of many ranks is cut up long before gRPC's limit.
constexpr size_t kFoldBytes = 1'000'000;
constexpr auto kAnswerTimeout = std::chrono::seconds(30);
// As a proxy's reports while counters move, behind folds and in one write with them.
constexpr auto kReportInterval = std::chrono::milliseconds(500);
// A manager takes a stream without a word for 20 s for that of a proxy that was stopped. Of a large job connecting, and
// the folds of a step, take longer.
constexpr auto kAliveInterval = std::chrono::seconds(2);
// Handshakes at a time: a manager refuses those of one host beyond its budget.
constexpr size_t kConnecting = 8;

// What all streams wait for each other with.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
};

// As v1::NodeLink::Stub, for messages that are serialized already.
using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::ManagerMessage>;
constexpr char kConnect[] = "/taskd.v1.NodeLink/Connect";

grpc::ByteBuffer BufferOf(const std::string& message) {
  const grpc::Slice slice(message);
  return {&slice, 1};
}

// One node's stream. Writes go one after another; what the manager sends is answered.
class NodeStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::ManagerMessage> {
 public:
  NodeStream(Shared* shared, int node) : shared_(shared), node_(node) {}

  // `alone`: the only stream of its connection, as real ones are.
  void Open(Stub* stub, bool alone) {
    if (alone) context_.AddMetadata(proto::kOnlyCall, "1");
    context_.set_wait_for_ready(true);  // a manager under load may refuse a handshake
    stub->PrepareBidiStreamingCall(&context_, kConnect, {}, this);
    // Writes start on other threads: the call must not be over between a look at `ended_` and a write.
    AddHold();
    StartRead(&in_);
    StartCall();
  }

  void Send(const v1::NodeMessage& message) { Send(message.SerializeAsString()); }
  // A v1::NodeMessage.
  void Send(const std::string& message) {
    const grpc::ByteBuffer buffer = BufferOf(message);
    std::lock_guard<std::mutex> lock(shared_->mutex);
    Push(buffer);
  }

  // With the lock; called every kAliveInterval.
  void SayAlive() {
    if (!std::exchange(silent_, true) || !queue_.empty()) return;
    v1::NodeMessage message;
    message.mutable_alive();
    Push(BufferOf(message.SerializeAsString()));
  }

  void Close() {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    closing_ = true;
    if (!writing_) WriteNext();
  }
  void Cancel() { context_.TryCancel(); }

  void SetRanks(v1::RankSet ranks) {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    *report_.mutable_ranks() = std::move(ranks);
  }

  // Folds, and behind them how far the ranks have come, as a proxy says it every second.
  void SendWithReport(const std::string& folds, int64_t step) {
    const grpc::ByteBuffer buffer = BufferOf(folds);
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (ended_ || closing_) return;
    queue_.push_back(buffer);
    for (v1::RankStatus& rank : *report_.mutable_ranks()->mutable_ranks()) {
      rank.set_step(step);
      rank.mutable_marks()->set_step(static_cast<uint64_t>(step + 1));
    }
    queue_.push_back(BufferOf(report_.SerializeAsString()));
    if (!writing_) WriteNext();
  }

  // With the lock.
  bool done() const { return done_; }
  bool answered() const { return answered_; }
  bool full() const { return !done_ && queue_.size() >= kMaxQueued; }
  const grpc::Status& status() const { return status_; }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    writing_ = false;
    if (!queue_.empty()) queue_.pop_front();
    if (ok) WriteNext();
    shared_->changed.notify_all();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      if (in_.has_wanted()) Answer(in_.wanted());
      StartRead(&in_);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(shared_->mutex);
      ended_ = true;
    }
    RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    status_ = status;
    done_ = true;
    shared_->changed.notify_all();
  }

 private:
  void Push(const grpc::ByteBuffer& message) {
    if (ended_ || closing_) return;
    queue_.push_back(message);
    if (!writing_) WriteNext();
  }

  void WriteNext() {
    if (ended_) return;
    if (!queue_.empty()) {
      writing_ = true;
      silent_ = false;
      StartWrite(&queue_.front(), queue_.size() > 1 ? grpc::WriteOptions().set_buffer_hint() : grpc::WriteOptions());
    } else if (closing_ && !closed_) {
      closed_ = true;
      StartWritesDone();
    }
  }

  // As a proxy whose ranks all switch at once.
  void Answer(const v1::WantedState& wanted) {
    v1::NodeMessage message;
    message.mutable_applied()->set_revision(wanted.revision());
    std::lock_guard<std::mutex> lock(shared_->mutex);
    for (v1::RankStatus& rank : *report_.mutable_ranks()->mutable_ranks()) {
      rank.set_applied_revision(wanted.revision());
      *rank.mutable_applied() = wanted.kinds();
      v1::RankAnswer* answer = message.mutable_applied()->add_ranks();
      answer->set_rank(rank.rank());
      answer->set_node(node_);
      answer->set_state(v1::RankAnswer::APPLIED);
    }
    Push(BufferOf(message.SerializeAsString()));
    Push(BufferOf(report_.SerializeAsString()));
    answered_ = true;
    shared_->changed.notify_all();
  }

  Shared* const shared_;
  const int node_;
  grpc::ClientContext context_;
  v1::ManagerMessage in_;
  v1::NodeMessage report_;              // of its ranks
  std::deque<grpc::ByteBuffer> queue_;  // a deque keeps its front in place while more is added
  bool writing_ = false, closing_ = false, closed_ = false;
  bool answered_ = false, ended_ = false, done_ = false;
  bool silent_ = false;  // since the last SayAlive()
  grpc::Status status_;
};

}  // namespace

class SimulatedProxies::Impl {
 public:
  ~Impl() { End(); }

  absl::Status Connect(const std::string& manager, const proto::Security& security,
                       const simulate::Simulator& simulator, int nodes_per_connection, bool keeps) {
    manager_ = manager;
    security_ = security;
    nodes_per_connection_ = nodes_per_connection;
    keeps_ = keeps;
    absl::Status status = Begin(simulator);
    if (!status.ok()) return status;
    return AwaitAnswers(0);
  }

  absl::Status SendStep(simulate::Simulator& simulator) {
    if (simulator.restarted()) {
      FinishFolds();
      absl::Status status = SendFolds();
      if (!status.ok()) return status;
      Grow(simulator);
    }
    for (int rank = 0; rank < simulator.ranks(); ++rank) {
      Rank& folded = *ranks_[static_cast<size_t>(rank)];
      for (const MarkRecord& mark : simulator.Marks(rank)) folded.fold.Add(mark);
    }
    step_ = simulator.step();
    BeginReports();
    return SendFolds();
  }

  absl::Status SendAgain() {
    if (kept_.empty()) return absl::FailedPreconditionError("there is no whole step that could be sent again");
    if (sent_again_++ % kept_.size() == 0) MoveOn();
    ++step_;
    BeginReports();
    for (auto& [node, folds] : kept_[(sent_again_ - 1) % kept_.size()]) {
      absl::Status status = Send(node, folds.Message(folds_ + 1));
      if (!status.ok()) return status;
      folds_ += folds.size();
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (sent_again_ == 0) FinishFolds();  // else that step has come already
    absl::Status status = SendFolds();
    if (!status.ok()) return status;
    for (const auto& stream : streams_) stream->Close();  // after which nothing is sent
    std::unique_lock<std::mutex> lock(shared_.mutex);
    shared_.changed.wait_for(lock, kAnswerTimeout, [&] {
      for (const auto& stream : streams_) {
        if (!stream->done()) return false;
      }
      return true;
    });
    for (const auto& stream : streams_) {
      if (!stream->done() || !stream->status().ok()) return Ended(*stream);
    }
    return absl::OkStatus();
  }

  int nodes() const { return static_cast<int>(streams_.size()); }
  uint64_t folds() const { return folds_; }

 private:
  struct Rank {
    Rank() : fold([this](StepFold&& step) { ready.push_back(std::move(step)); }) {}
    MarkFold fold;
    std::vector<StepFold> ready;
    uint64_t groups_version = 0;  // sent
    int node = 0;
  };
  using StepAgain = std::vector<std::pair<int, FoldsAgain>>;  // by node

  void BeginReports() {
    const auto now = std::chrono::steady_clock::now();
    reports_ = now >= reported_at_ + kReportInterval;
    if (reports_) reported_at_ = now;
  }

  // The steps that are kept become those behind the last one that was sent.
  void MoveOn() {
    const FoldsAgain& first = kept_.front().front().second;
    const FoldsAgain& last = kept_.back().front().second;
    const uint64_t length_ns = last.end_ns() - first.end_ns() + first.period_ns();
    const int64_t steps = last.step() - first.step() + 1;
    for (StepAgain& step : kept_) {
      for (auto& [node, folds] : step) folds.MoveOn(steps, length_ns);
    }
  }

  absl::Status Begin(const simulate::Simulator& simulator) {
    Grow(simulator);
    nodes_ = simulator.node(simulator.ranks() - 1) + 1;
    std::vector<v1::RankSet> ranks(static_cast<size_t>(nodes_));
    for (int rank = 0; rank < simulator.ranks(); ++rank) {
      v1::RankStatus* status = ranks[static_cast<size_t>(simulator.node(rank))].add_ranks();
      status->set_rank(rank);
      status->set_pid(1000 + rank);
      status->set_attached(true);
      status->set_step(-1);
    }
    alive_ = std::thread([this] { SayAlive(); });
    for (int node = 0; node < nodes_; ++node) {
      if (node % nodes_per_connection_ == 0) {
        absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = proto::ManagerDial(manager_, security_).Channel();
        if (!channel.ok()) return channel.status();
        stubs_.push_back(std::make_unique<Stub>(*std::move(channel)));
      }
      NodeStream& stream = AddStream(node);
      v1::NodeMessage hello;
      hello.mutable_hello()->set_node_rank(node);
      hello.mutable_hello()->set_host(absl::StrCat("node", node));
      hello.mutable_hello()->set_identity(absl::StrCat("simulated-", simulator.job().seed, "-", node));
      hello.mutable_hello()->set_version(TASKD_VERSION);
      hello.mutable_hello()->set_life(simulator.job().seed * 2 + 1);
      hello.mutable_hello()->set_says_alive(true);
      stream.SetRanks(std::move(ranks[static_cast<size_t>(node)]));
      stream.Open(stubs_.back().get(), nodes_per_connection_ == 1);
      stream.Send(hello);
      absl::Status status = AwaitAnswers(kConnecting * static_cast<size_t>(nodes_per_connection_));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  NodeStream& AddStream(int node) {
    std::lock_guard<std::mutex> lock(shared_.mutex);
    return *streams_.emplace_back(std::make_unique<NodeStream>(&shared_, node));
  }

  // A thread of its own: until End().
  void SayAlive() {
    std::unique_lock<std::mutex> lock(shared_.mutex);
    while (!ending_changed_.wait_for(lock, kAliveInterval, [this] { return ending_; })) {
      for (const auto& stream : streams_) stream->SayAlive();
    }
  }

  // Until at most so many of the newest streams have had no answer.
  absl::Status AwaitAnswers(size_t open) {
    std::unique_lock<std::mutex> lock(shared_.mutex);
    for (; answered_ + open < streams_.size(); ++answered_) {
      const NodeStream& stream = *streams_[answered_];
      shared_.changed.wait_for(lock, kAnswerTimeout, [&] { return stream.answered() || stream.done(); });
      if (!stream.answered() || stream.done()) return Ended(stream);
    }
    return absl::OkStatus();
  }

  // A restarted job may have more ranks; where those have no node yet they send nothing.
  void Grow(const simulate::Simulator& simulator) {
    while (ranks_.size() < static_cast<size_t>(simulator.ranks())) ranks_.push_back(std::make_unique<Rank>());
    for (int rank = 0; rank < simulator.ranks(); ++rank) {
      Rank& folded = *ranks_[static_cast<size_t>(rank)];
      folded.node = simulator.node(rank);
      folded.fold.SetGroups(simulator.groups(rank));
    }
  }

  void FinishFolds() {
    for (const auto& rank : ranks_) rank->fold.Finish();
  }

  absl::Status SendFolds() {
    v1::NodeMessage message;
    int node = -1;
    size_t bytes = 0;
    const uint64_t before = folds_;
    absl::Status status;
    StepAgain kept;
    auto send = [&] {
      if (node < 0 || bytes == 0) return;
      if (status.ok()) status = Send(node, message.SerializeAsString());
      if (keeps_) kept.emplace_back(node, FoldsAgain(std::move(*message.mutable_folds())));
      message.Clear();
      bytes = 0;
    };
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = *ranks_[i];
      if (rank.node != node || bytes > kFoldBytes) send();
      node = rank.node;
      if (rank.ready.empty() || node >= nodes_) {
        rank.ready.clear();
        continue;
      }
      if (rank.fold.groups_version() != rank.groups_version) {
        rank.groups_version = rank.fold.groups_version();
        v1::RankGroups* groups = message.mutable_folds()->add_groups();
        groups->set_rank(static_cast<int>(i));
        for (const GroupInfo& group : rank.fold.groups()) proto::FillGroup(group, groups->add_groups());
      }
      for (const StepFold& step : rank.ready) {
        v1::RankStep* sent = message.mutable_folds()->add_steps();
        proto::FillFold(static_cast<int>(i), step, sent);
        sent->set_number(folds_ + 1);
        bytes += sent->ByteSizeLong();
        ++folds_;
      }
      rank.ready.clear();
    }
    send();
    const bool is_whole = keeps_ && folds_ - before == ranks_.size();
    if (is_whole && kept.front().second.period_ns() > 0) kept_.push_back(std::move(kept));
    return status;
  }

  // Waits while the node has too much that the manager did not take yet.
  absl::Status Send(int node, const std::string& message) {
    absl::Status status = WaitFor(node);
    if (!status.ok()) return status;
    NodeStream& stream = *streams_[static_cast<size_t>(node)];
    if (reports_) {
      stream.SendWithReport(message, step_);
    } else {
      stream.Send(message);
    }
    return absl::OkStatus();
  }

  absl::Status WaitFor(int node) {
    NodeStream& stream = *streams_[static_cast<size_t>(node)];
    std::unique_lock<std::mutex> lock(shared_.mutex);
    if (!shared_.changed.wait_for(lock, kAnswerTimeout, [&] { return !stream.full(); }) || stream.done()) {
      return Ended(stream);
    }
    return absl::OkStatus();
  }

  // With the lock.
  absl::Status Ended(const NodeStream& stream) const {
    if (!stream.done()) return absl::UnavailableError(absl::StrCat("manager ", manager_, " does not answer"));
    const std::string why = stream.status().error_message();
    return absl::UnavailableError(absl::StrCat("manager ", manager_, ": ", why.empty() ? "closed a stream" : why));
  }

  void End() {
    {
      std::lock_guard<std::mutex> lock(shared_.mutex);
      ending_ = true;
    }
    ending_changed_.notify_one();
    if (alive_.joinable()) alive_.join();
    for (const auto& stream : streams_) stream->Cancel();
    std::unique_lock<std::mutex> lock(shared_.mutex);
    shared_.changed.wait(lock, [&] {
      for (const auto& stream : streams_) {
        if (!stream->done()) return false;
      }
      return true;
    });
  }

  std::string manager_;
  proto::Security security_;
  Shared shared_;
  int nodes_ = 0;
  size_t answered_ = 0;  // streams, from the first on
  std::vector<std::unique_ptr<Stub>> stubs_;
  std::vector<std::unique_ptr<NodeStream>> streams_;  // grows with the lock
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint64_t folds_ = 0;
  int nodes_per_connection_ = 1;
  bool keeps_ = false;
  std::vector<StepAgain> kept_;  // whole ones, with a step before them
  uint64_t sent_again_ = 0;      // steps
  int64_t step_ = -1;
  bool reports_ = false;  // with the folds of this step
  std::chrono::steady_clock::time_point reported_at_;
  bool ending_ = false;  // with the lock
  std::condition_variable ending_changed_;
  std::thread alive_;
};

SimulatedProxies::SimulatedProxies() : impl_(std::make_unique<Impl>()) {}
SimulatedProxies::~SimulatedProxies() = default;

absl::StatusOr<std::unique_ptr<SimulatedProxies>> SimulatedProxies::Connect(const std::string& manager,
                                                                            const proto::Security& security,
                                                                            const simulate::Simulator& simulator,
                                                                            int nodes_per_connection, bool keeps) {
  std::unique_ptr<SimulatedProxies> proxies(new SimulatedProxies());
  absl::Status status = proxies->impl_->Connect(manager, security, simulator, nodes_per_connection, keeps);
  if (!status.ok()) return status;
  return proxies;
}

absl::Status SimulatedProxies::SendStep(simulate::Simulator& simulator) { return impl_->SendStep(simulator); }
absl::Status SimulatedProxies::SendAgain() { return impl_->SendAgain(); }
absl::Status SimulatedProxies::Finish() { return impl_->Finish(); }
int SimulatedProxies::nodes() const { return impl_->nodes(); }
uint64_t SimulatedProxies::folds() const { return impl_->folds(); }

}  // namespace taskd::simulate
