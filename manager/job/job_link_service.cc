#include "manager/job/job_link_service.h"

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/printable.h"
#include "grpcpp/grpcpp.h"
#include "manager/job/job_link_core.h"
#include "manager/job/job_messages.h"
#include "manager/job/stream_hub.h"
#include "manager/switch/core.h"
#include "manager/switch/job_name.h"
#include "proto/guarded.h"
#include "taskd/v1/job_link.grpc.pb.h"

namespace taskd::manager {
namespace {

constexpr int kMaxInputBytes = 64 * 1024;
// A caller whose input the node does not take is not read from, long before it is too much.
constexpr size_t kMaxQueuedInputBytes = size_t{1} << 20;

JobEnd ReadEnd(const v1::NodeEnded& message) { return {message.code(), message.reason(), message.signal()}; }

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
void Fill(const RemoteAnswer&, v1::JobNotice*) {}   // only callers are sent those
void Fill(const StreamEnd&, v1::JobNotice*) {}      // is not sent
void Fill(const JobMpirunNews&, v1::JobNotice*) {}  // its calls are

class JobLinkHub : public StreamHub<JobLinkCore, JobMessage> {
 public:
  using StreamHub::StreamHub;

  void Remove(uint64_t peer) {
    {
      std::lock_guard lock(mutex_);
      paused_.erase(peer);
    }
    StreamHub::Remove(peer);
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

 private:
  void Resume(uint64_t caller) {
    if (core_.queued_bytes(caller) > kMaxQueuedInputBytes) return;
    paused_.erase(caller);
    auto found = streams_.find(caller);
    if (found != streams_.end()) found->second->ReadOn();
  }

  std::set<uint64_t> paused_;  // callers that are not read from now
};

// Tells of what has changed of a job.
class Listener {
 public:
  Listener(std::function<void(const std::string&)> on_waiting, std::function<void(const JobEnd&)> on_end)
      : on_waiting_(std::move(on_waiting)), on_end_(std::move(on_end)) {}

  void operator()(JobLinkCore& core) {
    if (std::string waits_for = core.WaitsFor(); waits_for != waits_for_)
      on_waiting_(waits_for_ = std::move(waits_for));
    const JobEnd* end = core.end();
    if (!std::exchange(ended_, end != nullptr) && end != nullptr) on_end_(*end);
  }

 private:
  std::function<void(const std::string&)> on_waiting_;
  std::function<void(const JobEnd&)> on_end_;
  std::string waits_for_;  // as told last
  bool ended_ = false;     // the same
};

// What both kinds of streams do: queue, and report to the hub what was sent.
template <typename In, typename Out>
class Reactor : public HubReactor<JobLinkHub, In, Out> {
 public:
  using HubReactor<JobLinkHub, In, Out>::HubReactor;

  void OnWriteDone(bool ok) override {
    std::optional<std::pair<uint64_t, size_t>> sent;
    {
      std::lock_guard lock(this->mutex_);
      sent = std::exchange(sending_, std::nullopt);
    }
    HubReactor<JobLinkHub, In, Out>::OnWriteDone(ok);
    if (sent) this->hub_->Sent(sent->first, sent->second);
  }

 protected:
  ~Reactor() override = default;

  // With the mutex.
  std::deque<JobMessage> queue_;
  std::optional<std::pair<uint64_t, size_t>> sending_;  // command, bytes of data
};

class NodeStream final : public Reactor<v1::NodeReport, v1::JobNotice> {
 public:
  NodeStream(std::shared_ptr<JobLinkHub> hub, const JobShape* shape) : Reactor(std::move(hub)), shape_(shape) {
    StartOrEnd(grpc::Status::OK);
  }

  void Take(JobMessage message) override {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (auto* end = std::get_if<StreamEnd>(&message)) {
      queue_.clear();  // one that does not read keeps the stream
      EndLocked(proto::RefusalStatus(end->status));
      return;
    }
    if (auto* state = std::get_if<JobState>(&message)) {
      state_ = std::move(*state);  // replaces one that was not sent yet
    } else if (auto* news = std::get_if<JobMpirunNews>(&message)) {
      news_ = std::move(*news);  // likewise
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
    if (!in_.refusal.ok()) return proto::RefusalStatus(in_.refusal);
    const v1::NodeReport& in = in_.message;
    if (IsFirst()) {
      if (!in.has_join()) return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not a join"};
      grpc::Status allowed = CheckJob(in.join().job(), *shape_);
      if (!allowed.ok()) return allowed;
      spdlog::info("job: node {} of {} joins: {}", in.join().index(), in.join().nodes(), Printable(in.join().name()));
      return Join(
          [&](JobLinkCore& core, uint64_t peer, int64_t now) { return core.Join(peer, ReadJoin(in.join()), now); });
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
    if (calls_told_ < news_.count) {
      Fill(news_.calls->at(calls_told_++), message);
      return true;
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
  JobMpirunNews news_;
  size_t calls_told_ = 0;
  bool alive_ = false;
  bool refused_ = false;
};

class CallerStream final : public Reactor<v1::RemoteInput, v1::RemoteOutput> {
 public:
  CallerStream(std::shared_ptr<JobLinkHub> hub, const grpc::Status& refusal) : Reactor(std::move(hub)) {
    StartOrEnd(refusal);
  }

  void Take(JobMessage message) override {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (auto* end = std::get_if<StreamEnd>(&message)) {
      queue_.clear();  // as above
      EndLocked(proto::RefusalStatus(end->status));
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
    if (!in_.refusal.ok()) return proto::RefusalStatus(in_.refusal);
    v1::RemoteInput& in = in_.message;
    if (IsFirst()) {
      if (!in.has_start()) return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not a start"};
      return Join([&](JobLinkCore& core, uint64_t peer, int64_t now) {
        return core.Call(peer, in.start().host(), in.start().command(), now);
      });
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
  JobLinkCallbackService(std::shared_ptr<JobLinkHub> hub, JobShape shape, bool remote)
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

  const std::shared_ptr<JobLinkHub> hub_;
  const JobShape shape_;
  const bool remote_;
};

}  // namespace

JobLinkService MakeJobLinkService(const JobShape& shape, bool hosted, bool remote,
                                  std::function<void(const std::string&)> on_waiting,
                                  std::function<void(const JobEnd&)> on_end) {
  auto hub =
      std::make_shared<JobLinkHub>(Listener(std::move(on_waiting), std::move(on_end)), JobLinkCore::Options{hosted});
  return {std::make_unique<JobLinkCallbackService>(hub, shape, remote), [hub] { hub->Close(); }};
}

}  // namespace taskd::manager
