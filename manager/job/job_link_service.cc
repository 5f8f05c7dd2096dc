#include "manager/job/job_link_service.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "grpcpp/grpcpp.h"
#include "manager/job/job_link_core.h"
#include "manager/job/job_messages.h"
#include "manager/rpc/stream_alarm.h"
#include "manager/rpc/writing_reactor.h"
#include "manager/switch/core.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/job_link.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr int kMaxInputBytes = 64 * 1024;
// A caller whose input the node does not take is not read from, long before it is too much.
constexpr size_t kMaxQueuedInputBytes = size_t{1} << 20;

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

JobEnd ReadEnd(const v1::NodeEnded& message) { return {message.code(), message.reason()}; }

JobJoin ReadJoin(const v1::JoinJob& message) {
  JobJoin join;
  join.index = message.index();
  join.nodes = message.nodes();
  join.name = message.name();
  join.addresses.assign(message.addresses().begin(), message.addresses().end());
  join.serves = message.serves();
  join.run_id = message.run_id();
  join.plan = message.plan();
  join.remote_start = message.remote_start();
  join.node_timeout_ms = message.node_timeout_ms();
  join.ready = message.ready();
  if (message.has_ended()) join.ended = ReadEnd(message.ended());
  return join;
}

std::optional<RemoteAnswer> ReadAnswer(const v1::RemoteReport& message) {
  RemoteAnswer answer;
  answer.id = message.id();
  switch (message.output().kind_case()) {
    case v1::RemoteOutput::kOut:
      answer.kind = RemoteAnswer::Kind::kOut;
      answer.data = message.output().out();
      return answer;
    case v1::RemoteOutput::kErr:
      answer.kind = RemoteAnswer::Kind::kErr;
      answer.data = message.output().err();
      return answer;
    case v1::RemoteOutput::kEnded:
      answer.kind = RemoteAnswer::Kind::kEnded;
      answer.code = message.output().ended();
      return answer;
    case v1::RemoteOutput::KIND_NOT_SET:  // a later release's
      break;
  }
  return std::nullopt;
}

void Fill(const JobState& state, v1::JobNotice* notice) {
  v1::JobState* out = notice->mutable_state();
  out->set_first_joined(state.first_joined);
  out->set_all_joined(state.all_joined);
  out->set_all_ready(state.all_ready);
  out->set_missing_count(state.missing_count);
  out->mutable_missing()->Add(state.missing.begin(), state.missing.end());
  out->set_hosted(state.hosted);
  out->set_connected(state.connected);
  out->set_node_timeout_ms(state.node_timeout_ms);
}

void Fill(const JobEnd& end, v1::JobNotice* notice) {
  notice->mutable_end()->set_code(end.code);
  notice->mutable_end()->set_reason(end.reason);
}

void Fill(const JobRefusal& refusal, v1::JobNotice* notice) { notice->set_refused(refusal.text); }

void Fill(const JobMpirunCall& call, v1::JobNotice* notice) {
  notice->mutable_mpirun()->set_number(call.number);
  notice->mutable_mpirun()->set_ended(call.ended);
  notice->mutable_mpirun()->set_code(call.code);
}

void Fill(const RemoteOrder& order, v1::JobNotice* notice) {
  v1::RemoteCommand* out = notice->mutable_remote();
  out->set_id(order.id);
  switch (order.kind) {
    case RemoteOrder::Kind::kStart:
      out->set_start(order.data);
      break;
    case RemoteOrder::Kind::kInput:
      out->set_input(order.data);
      break;
    case RemoteOrder::Kind::kInputEnd:
      out->set_input_end(true);
      break;
    case RemoteOrder::Kind::kCancel:
      out->set_cancel(true);
      break;
  }
}

void Fill(const JobAlive&, v1::JobNotice* notice) { notice->mutable_alive(); }
void Fill(const RemoteAnswer&, v1::JobNotice*) {}  // only callers are sent those
void Fill(const StreamEnd&, v1::JobNotice*) {}     // is not sent

// The core with its clock, its lock and the streams.
class Hub {
 public:
  // A stream. Called under the hub's lock: takes note, never calls the hub.
  class Stream {
   public:
    virtual void Take(JobMessage message) = 0;
    virtual void ReadOn() = 0;
    virtual void End(const grpc::Status& status) = 0;

   protected:
    ~Stream() = default;
  };

  Hub(JobLinkCore::Options options, std::function<void(const std::string&)> on_waiting,
      std::function<void(int, const std::string&)> on_end)
      : core_(options), on_waiting_(std::move(on_waiting)), on_end_(std::move(on_end)), ticker_([this] { Run(); }) {}
  ~Hub() { Close(); }

  // The number of the stream, which `event(core, peer, now_ns)` has let the core know; 0: closed. Until Remove. At once,
  // so that a stream which goes meanwhile is removed from both.
  template <typename Event>
  uint64_t Add(Stream* stream, const Event& event) {
    std::lock_guard lock(mutex_);
    if (closed_) return 0;
    const uint64_t peer = next_peer_++;
    streams_[peer] = stream;
    Deliver(event(core_, peer, Now()));
    return peer;
  }
  void Remove(uint64_t peer) {
    std::lock_guard lock(mutex_);
    if (streams_.erase(peer) == 0) return;
    paused_.erase(peer);
    Deliver(core_.Lost(peer, Now()));
  }

  // `event(core, now_ns)` returns what the core wants done.
  template <typename Event>
  void Feed(const Event& event) {
    std::lock_guard lock(mutex_);
    if (!closed_) Deliver(event(core_, Now()));
  }
  // Reads on once there is room for more.
  void ReadOn(uint64_t caller) {
    std::lock_guard lock(mutex_);
    paused_.insert(caller);
    Resume(caller);
  }
  void Sent(uint64_t id, size_t data_bytes) {
    std::lock_guard lock(mutex_);
    const uint64_t caller = core_.Sent(id, data_bytes);
    if (paused_.count(caller) > 0) Resume(caller);
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      closed_ = true;
      for (auto& [peer, stream] : streams_) stream->End({grpc::StatusCode::UNAVAILABLE, "the manager is ending"});
    }
    wake_.notify_all();
    ticker_.join();
  }

 private:
  static int64_t Now() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

  void Resume(uint64_t caller) {
    if (core_.queued_bytes(caller) > kMaxQueuedInputBytes) return;
    paused_.erase(caller);
    auto found = streams_.find(caller);
    if (found != streams_.end()) found->second->ReadOn();
  }

  void Deliver(JobOutputs outputs) {
    for (JobOutput& output : outputs) {
      auto found = streams_.find(output.peer);
      if (found != streams_.end()) found->second->Take(std::move(output.message));
    }
    if (std::string waits_for = core_.WaitsFor(); waits_for != waits_for_)
      on_waiting_(waits_for_ = std::move(waits_for));
    const JobEnd* end = core_.end();
    if (!std::exchange(ended_, end != nullptr) && end != nullptr) on_end_(end->code, end->reason);
    const int64_t next = core_.next_tick_ns();
    if (next < next_tick_ns_) wake_.notify_all();
    next_tick_ns_ = next;
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
      const int64_t now = Now();
      next_tick_ns_ = core_.next_tick_ns();
      if (next_tick_ns_ <= now) {
        Deliver(core_.Tick(now));
      } else if (next_tick_ns_ == std::numeric_limits<int64_t>::max()) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, std::chrono::nanoseconds(next_tick_ns_ - now));
      }
    }
  }

  std::mutex mutex_;  // guards all
  std::condition_variable wake_;
  bool closed_ = false;
  JobLinkCore core_;
  const std::function<void(const std::string&)> on_waiting_;
  const std::function<void(int, const std::string&)> on_end_;
  std::string waits_for_;  // as told last
  bool ended_ = false;     // the same
  int64_t next_tick_ns_ = std::numeric_limits<int64_t>::max();
  uint64_t next_peer_ = 1;
  std::map<uint64_t, Stream*> streams_;
  std::set<uint64_t> paused_;  // callers that are not read from now
  std::thread ticker_;         // last: it uses the others
};

// What both kinds of streams do: queue, and report to the hub what was sent.
template <typename In, typename Out>
class Reactor : public WritingReactor<grpc::ServerBidiReactor<proto::Guarded<In>, Out>, Out>, public Hub::Stream {
 public:
  explicit Reactor(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

  void ReadOn() override {
    std::lock_guard lock(this->mutex_);
    if (this->ended_) return;
    in_.Clear();  // or each stream would keep the largest message that it ever had
    this->StartRead(&in_);
  }
  void End(const grpc::Status& status) override { Writing::End(status); }
  void OnWriteDone(bool ok) override {
    std::optional<std::pair<uint64_t, size_t>> sent;
    {
      std::lock_guard lock(this->mutex_);
      sent = std::exchange(sending_, std::nullopt);
    }
    Writing::OnWriteDone(ok);
    if (sent) hub_->Sent(sent->first, sent->second);
  }
  void OnCancel() override { Leave({grpc::StatusCode::CANCELLED, "the other side has gone"}); }
  void OnDone() override {
    hub_->Remove(peer_);
    delete this;
  }

 protected:
  ~Reactor() override = default;

  void StartOrEnd(const grpc::Status& refusal) {
    if (!refusal.ok()) {
      End(refusal);
      return;
    }
    first_message_.Start(kFirstMessageTimeout, [this] { End(NoFirstMessage()); });
    this->StartRead(&in_);
  }
  // The first message, or none any more.
  bool IsFirst() {
    if (peer_ != 0) return false;
    first_message_.Stop();
    return true;
  }

  void Leave(const grpc::Status& status) {
    hub_->Remove(peer_);
    End(status);
  }

  const std::shared_ptr<Hub> hub_;
  proto::Guarded<In> in_;
  std::atomic<uint64_t> peer_ = 0;  // 0: the first message has not come; OnCancel asks beside it

  // With the mutex, which is taken after the hub's, never before it.
  std::deque<JobMessage> queue_;
  std::optional<std::pair<uint64_t, size_t>> sending_;  // command, bytes of data

 private:
  StreamAlarm first_message_;
  using Writing = WritingReactor<grpc::ServerBidiReactor<proto::Guarded<In>, Out>, Out>;
};

class NodeStream final : public Reactor<v1::NodeReport, v1::JobNotice> {
 public:
  NodeStream(std::shared_ptr<Hub> hub, const JobShape* shape) : Reactor(std::move(hub)), shape_(shape) {
    StartOrEnd(grpc::Status::OK);
  }

  void Take(JobMessage message) override {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (auto* end = std::get_if<StreamEnd>(&message)) {
      queue_.clear();  // one that does not read keeps the stream
      EndLocked(ToGrpc(end->status));
      return;
    }
    if (auto* state = std::get_if<JobState>(&message)) {
      state_ = std::move(*state);  // replaces one that was not sent yet
    } else if (std::holds_alternative<JobAlive>(message)) {
      alive_ = true;  // likewise
    } else {
      // What its caller has given up need not be sent.
      auto* order = std::get_if<RemoteOrder>(&message);
      if (order != nullptr && order->kind == RemoteOrder::Kind::kCancel) {
        bool never_started = false;
        std::erase_if(queue_, [&](const JobMessage& one) {
          const auto* queued = std::get_if<RemoteOrder>(&one);
          if (queued == nullptr || queued->id != order->id) return false;
          never_started |= queued->kind == RemoteOrder::Kind::kStart;
          return true;
        });
        if (never_started) return;  // or the cancellations would pile up at a node that does not read
      }
      queue_.push_back(std::move(message));
    }
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Leave(grpc::Status::OK);
      return;
    }
    grpc::Status status = Handle();
    if (status.ok()) {
      ReadOn();
    } else {
      Leave(status);
    }
  }

 private:
  grpc::Status Handle() {
    if (!in_.refusal.ok()) return ToGrpc(in_.refusal);
    const v1::NodeReport& in = in_.message;
    if (IsFirst()) {
      if (!in.has_join()) return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not a join"};
      grpc::Status allowed = CheckJob(in.join().job(), *shape_);
      if (!allowed.ok()) return allowed;
      spdlog::info("job: node {} of {} joins: {}", in.join().index(), in.join().nodes(), Printable(in.join().name()));
      peer_ = hub_->Add(this, [&](JobLinkCore& core, uint64_t peer, int64_t now) {
        return core.Join(peer, ReadJoin(in.join()), now);
      });
      if (peer_ == 0) return {grpc::StatusCode::UNAVAILABLE, "the manager is ending"};
      return grpc::Status::OK;
    }
    hub_->Feed([&](JobLinkCore& core, int64_t now) -> JobOutputs {
      switch (in.kind_case()) {
        case v1::NodeReport::kReady:
          return core.Ready(peer_, now);
        case v1::NodeReport::kEnded:
          return core.Ended(peer_, ReadEnd(in.ended()), now);
        case v1::NodeReport::kMpirun:
          return core.Mpirun(peer_, {in.mpirun().number(), in.mpirun().ended(), in.mpirun().code()}, now);
        case v1::NodeReport::kRemote: {
          std::optional<RemoteAnswer> answer = ReadAnswer(in.remote());
          if (answer) return core.Answer(peer_, *std::move(answer), now);
          return {};
        }
        case v1::NodeReport::kAlive:
          return core.Alive(peer_, now);
        case v1::NodeReport::kJoin:
        case v1::NodeReport::KIND_NOT_SET:  // a later release's
          return {};
      }
      return {};
    });
    return grpc::Status::OK;
  }

  bool FillNext(v1::JobNotice* message) override {
    if (state_) {
      Fill(*state_, message);
      state_.reset();
      return true;
    }
    if (std::exchange(alive_, false)) {
      Fill(JobAlive{}, message);
      return true;
    }
    if (refused_) {
      EndLocked(grpc::Status::OK);
      return false;
    }
    if (queue_.empty()) return false;
    const JobMessage& next = queue_.front();
    std::visit([&](const auto& one) { Fill(one, message); }, next);
    if (const auto* order = std::get_if<RemoteOrder>(&next)) sending_ = {order->id, order->data.size()};
    refused_ = std::holds_alternative<JobRefusal>(next);
    queue_.pop_front();
    return true;
  }

  const JobShape* const shape_;  // the service's
  std::optional<JobState> state_;
  bool alive_ = false;
  bool refused_ = false;
};

class CallerStream final : public Reactor<v1::RemoteInput, v1::RemoteOutput> {
 public:
  CallerStream(std::shared_ptr<Hub> hub, const grpc::Status& refusal) : Reactor(std::move(hub)) { StartOrEnd(refusal); }

  void Take(JobMessage message) override {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (auto* end = std::get_if<StreamEnd>(&message)) {
      queue_.clear();  // as above
      EndLocked(ToGrpc(end->status));
      return;
    }
    queue_.push_back(std::move(message));
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // It sends no more, or it has gone: then the call is cancelled. Only `input_end` ends the input, or a command
      // whose caller was killed would take what it has for all of it.
      if (peer_ == 0) End({grpc::StatusCode::INVALID_ARGUMENT, "the stream ended before a start"});
      return;
    }
    grpc::Status status = Handle();
    if (status.ok()) {
      hub_->ReadOn(peer_);
    } else {
      Leave(status);
    }
  }

 private:
  grpc::Status Handle() {
    if (!in_.refusal.ok()) return ToGrpc(in_.refusal);
    v1::RemoteInput& in = in_.message;
    if (IsFirst()) {
      if (!in.has_start()) return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not a start"};
      peer_ = hub_->Add(this, [&](JobLinkCore& core, uint64_t peer, int64_t now) {
        return core.Call(peer, in.start().host(), in.start().command(), now);
      });
      if (peer_ == 0) return {grpc::StatusCode::UNAVAILABLE, "the manager is ending"};
      return grpc::Status::OK;
    }
    if (in.has_start()) return {grpc::StatusCode::INVALID_ARGUMENT, "a second start"};
    if (in.input().size() > kMaxInputBytes) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("input: ", in.input().size(), " bytes are more than ", kMaxInputBytes)};
    }
    hub_->Feed([&](JobLinkCore& core, int64_t now) {
      return in.input_end() ? core.InputEnd(peer_, now) : core.Input(peer_, std::move(*in.mutable_input()), now);
    });
    return grpc::Status::OK;
  }

  bool FillNext(v1::RemoteOutput* message) override {
    if (over_) {
      EndLocked(grpc::Status::OK);
      return false;
    }
    if (queue_.empty()) return false;
    auto& answer = std::get<RemoteAnswer>(queue_.front());
    sending_ = {answer.id, answer.data.size()};
    switch (answer.kind) {
      case RemoteAnswer::Kind::kOut:
        message->set_out(std::move(answer.data));
        break;
      case RemoteAnswer::Kind::kErr:
        message->set_err(std::move(answer.data));
        break;
      case RemoteAnswer::Kind::kEnded:
        message->set_ended(answer.code);
        over_ = true;
        break;
    }
    queue_.pop_front();
    return true;
  }

  bool over_ = false;
};

class JobLinkCallbackService final : public v1::JobLink::CallbackService {
 public:
  JobLinkCallbackService(std::shared_ptr<Hub> hub, JobShape shape, bool remote)
      : hub_(std::move(hub)), shape_(std::move(shape)), remote_(remote) {
    MarkMethodCallback(0, proto::GuardedStream<v1::NodeReport, v1::JobNotice>(
                              [this](grpc::CallbackServerContext*) { return new NodeStream(hub_, &shape_); }));
    MarkMethodCallback(1, proto::GuardedStream<v1::RemoteInput, v1::RemoteOutput>(
                              [this](grpc::CallbackServerContext*) { return Call(); }));
  }

 private:
  CallerStream* Call() const {
    // Or whoever can look the job's id up could have any command run on every node.
    return new CallerStream(
        hub_, remote_ ? grpc::Status::OK
                      : grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                                     "commands on other nodes need a job with a secret of its own or TLS: set the same "
                                     "TASKD_TOKEN on every node"));
  }

  const std::shared_ptr<Hub> hub_;
  const JobShape shape_;
  const bool remote_;
};

}  // namespace

JobLinkService MakeJobLinkService(const JobShape& shape, bool hosted, bool remote,
                                  std::function<void(const std::string&)> on_waiting,
                                  std::function<void(int, const std::string&)> on_end) {
  auto hub = std::make_shared<Hub>(JobLinkCore::Options{hosted}, std::move(on_waiting), std::move(on_end));
  return {std::make_unique<JobLinkCallbackService>(hub, shape, remote), [hub] { hub->Close(); }};
}

}  // namespace taskd::manager
