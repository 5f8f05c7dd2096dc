#include "manager/switch/clusterd_client.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "grpcpp/grpcpp.h"
#include "manager/rpc/call_again.h"
#include "manager/switch/trace_messages.h"
#include "profiling.grpc.pb.h"
#include "proto/plain_link.h"

namespace taskd::manager {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstBackOff{500};
constexpr milliseconds kLastBackOff{30'000};
// A server that replays its state does so at once. What comes later is a command, even if it repeats what is wanted.
constexpr milliseconds kReplayWindow{2'000};
constexpr int kClusterdOk = 200;
// What a server may send of commands, which people give: so many at once, and then so many a second. Every one is a
// revision for all ranks.
constexpr double kMostMessages = 256;
constexpr double kMessagesPerSecond = 10;
constexpr std::chrono::minutes kLogInterval{1};

}  // namespace

class ClusterdClient::Impl {
 public:
  Impl(std::string address, std::string job_id, OnSwitch on_switch)
      : address_(std::move(address)),
        job_id_(std::move(job_id)),
        on_switch_(std::move(on_switch)),
        thread_([this] { Run(); }) {}

  ~Impl() {
    calls_.Stop();
    thread_.join();
  }

 private:
  void Run() {
    BackOff back_off(kFirstBackOff, kLastBackOff);
    bool failure_reported = false;
    while (true) {
      auto begin = steady_clock::now();
      grpc::Status status = Try(failure_reported);
      // A subscription that held for a while begins the back-off anew; one that ends at once does not, whatever it
      // said.
      if (steady_clock::now() - begin > kLastBackOff) back_off.Reset();
      if (calls_.stopped()) return;
      if (!failure_reported) spdlog::warn("ClusterD at {}: {}; trying again", address_, status.error_message());
      failure_reported = true;
      if (!calls_.Pause(back_off.Next())) return;
    }
  }

  // ClusterD speaks plain text only (docs/security-model.md).
  grpc::Status Try(bool& failure_reported) {
    absl::StatusOr<proto::PlainLink> link = proto::PlainLink::Begin(address_);
    if (!link.ok()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, std::string(link.status().message())};
    std::unique_ptr<TrainingDataTrace::Stub> stub = TrainingDataTrace::NewStub(link->channel());
    return link->Explain(Subscribe(*stub, failure_reported));
  }

  // Until the stream ends. Reports that it is up, and clears `failure_reported`, once the server has answered.
  grpc::Status Subscribe(TrainingDataTrace::Stub& stub, bool& failure_reported) {
    grpc::ClientContext context;  // no deadline: the stream is for ever, keep-alive notices a dead peer
    if (!calls_.Begin(&context)) return grpc::Status::CANCELLED;
    ProfilingClientInfo request;
    request.set_jobid(job_id_);
    request.set_role("taskd");
    auto reader = stub.SubscribeDataTraceSwitch(&context, request);
    auto begin = steady_clock::now();
    bool first = true;
    DataStatusRes message;
    bool too_many = false;
    while (reader->Read(&message)) {
      too_many = !MayTake();
      if (too_many) break;
      if (first) {
        spdlog::info("ClusterD at {} has answered", address_);
        failure_reported = false;
      }
      Take(message, first && steady_clock::now() - begin < kReplayWindow);
      first = false;
    }
    if (too_many) context.TryCancel();
    grpc::Status status = reader->Finish();
    calls_.End();
    if (too_many) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "it sends more than 10 messages a second"};
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it has ended the subscription") : status;
  }

  // Counts a message. Over all subscriptions: one that is ended for it begins with what is left.
  bool MayTake() {
    const auto now = steady_clock::now();
    const double passed_s = std::chrono::duration<double>(now - counted_at_).count();
    counted_at_ = now;
    may_take_ = std::min(kMostMessages, may_take_ + passed_s * kMessagesPerSecond);
    if (may_take_ < 1) return false;
    may_take_ -= 1;
    return true;
  }

  void Take(const DataStatusRes& message, bool may_be_replay) {
    if (message.code() != kClusterdOk || !message.has_profilingswitch()) {
      Ignored(absl::StrCat("code ", message.code(), message.has_profilingswitch() ? "" : ", no switch"));
      return;
    }
    absl::StatusOr<SwitchChange> change = ReadSwitch(message.profilingswitch());
    if (!change.ok()) {
      Ignored(change.status().message());
      return;
    }
    on_switch_(*change, may_be_replay);
  }

  void Ignored(absl::string_view why) {
    ++ignored_;
    const auto now = steady_clock::now();
    if (ignored_logged_at_ && now - *ignored_logged_at_ < kLogInterval) return;
    ignored_logged_at_ = now;
    spdlog::warn("ClusterD at {}: messages ignored: {}; the newest: {}", address_, std::exchange(ignored_, 0), why);
  }

  const std::string address_;
  const std::string job_id_;
  const OnSwitch on_switch_;

  // Of the thread alone.
  double may_take_ = kMostMessages;
  steady_clock::time_point counted_at_ = steady_clock::now();
  uint64_t ignored_ = 0;  // since that was logged
  std::optional<steady_clock::time_point> ignored_logged_at_;

  StoppableCalls calls_;
  std::thread thread_;  // last: it uses the others
};

ClusterdClient::ClusterdClient(std::string address, std::string job_id, OnSwitch on_switch)
    : impl_(std::make_unique<Impl>(std::move(address), std::move(job_id), std::move(on_switch))) {}

ClusterdClient::~ClusterdClient() = default;

}  // namespace taskd::manager
