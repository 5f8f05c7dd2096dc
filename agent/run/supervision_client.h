// The launcher's link to the manager: events up, hangs down. Neither ever holds the launcher up: training goes on
// without a manager, and a manager that comes back gets what is still in the queue.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "agent/evidence/node_evidence.h"
#include "agent/run/launcher_event.h"
#include "grpcpp/client_context.h"
#include "proto/channel.h"
#include "taskd/v1/supervision.grpc.pb.h"

namespace taskd::run {

// For Report(), which makes its text fit.
v1::SupervisionEvent ToSupervisionEvent(const LauncherEvent& event);
// Of the hang with this number. Texts that are no UTF-8 are replaced, and long ones cut.
v1::HangEvidence ToEvidence(uint64_t hang, const evidence::Finding& finding);

// Thread safety: any thread. Starts threads, so not before the launcher has forked what it forks.
class SupervisionClient {
 public:
  struct Options {
    std::string manager;  // HOST:PORT
    proto::Security security;
    // 0: the manager's own; below 0: never a hang (WatchRequest).
    double hang_factor = 0;
    double hang_floor_s = 0;
    double first_steps_grace_s = 0;
  };
  using OnNotice = std::function<void(const v1::HangNotice&)>;  // in a thread of the client's

  static constexpr size_t kMaxQueued = 32768;  // the ends of the ranks of a large job

  // INVALID_ARGUMENT: a bad address or TLS folder. A manager that does not answer is no error.
  static absl::StatusOr<std::unique_ptr<SupervisionClient>> Start(const Options& options, OnNotice on_notice);
  // Gives what is queued `kFlush` to be sent. No notice comes afterwards.
  ~SupervisionClient();
  SupervisionClient(const SupervisionClient&) = delete;
  SupervisionClient& operator=(const SupervisionClient&) = delete;

  // Returns at once. Where kMaxQueued wait, the oldest is dropped; how many were is logged. What of the message is not
  // UTF-8 is replaced, and what is beyond 64 KiB left out.
  void Report(v1::SupervisionEvent event);
  // Whom the rendezvous waits for now (ReportEventsRequest). Returns at once; the newest is sent.
  void SetWaitsFor(const std::string& waits_for);

  // Whether ranks may be ended because of the hang with this number, as the manager sees the job now. Blocks for at most
  // kConfirmTimeout. UNAVAILABLE: the manager does not answer.
  absl::StatusOr<v1::ConfirmActionReply> ConfirmAction(uint64_t hang);

 private:
  static constexpr std::chrono::milliseconds kConfirmTimeout{2000};
  static constexpr std::chrono::milliseconds kFlush{1000};

  SupervisionClient(const Options& options, std::unique_ptr<proto::ManagerDial> dial, OnNotice on_notice);
  std::unique_ptr<v1::Supervision::Stub> Stub() const;
  void SendAll();
  // Those under mutex_, which Send() releases for the call.
  v1::ReportEventsRequest TakeBatch();
  void PutBack(v1::ReportEventsRequest request);
  grpc::Status Send(const v1::ReportEventsRequest& request, std::chrono::milliseconds timeout,
                    std::unique_lock<std::mutex>& lock);
  void Watch();
  bool WatchOnce();  // true: something came

  const Options options_;
  const OnNotice on_notice_;
  const std::unique_ptr<proto::ManagerDial> dial_;

  std::mutex mutex_;  // guards from here
  std::condition_variable wake_;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point stop_at_;
  std::deque<v1::SupervisionEvent> queue_;
  std::optional<std::string> waits_for_;  // not sent yet
  uint64_t dropped_ = 0;
  grpc::ClientContext* watching_ = nullptr;  // to be cancelled
  grpc::ClientContext* sending_ = nullptr;   // to be cancelled once kFlush is over
  bool sender_done_ = false;
  uint64_t last_number_ = 0;  // the last notice that was handed on
  bool last_hung_ = false;

  std::thread sender_, watcher_;  // last: they use the others
};

}  // namespace taskd::run
