// Ends streams whose clients open them and send nothing, or do not take what they asked for: each costs memory, and
// there may be thousands.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

namespace taskd::manager {

inline constexpr std::chrono::seconds kFirstMessageTimeout{10};

// A member of the stream's reactor.
class StreamAlarm {
 public:
  ~StreamAlarm() { Stop(); }

  // Once. `ring` is called after `time`, in a thread of gRPC's, unless Stop comes first.
  void Start(std::chrono::milliseconds time, std::function<void()> ring) {
    {
      std::lock_guard lock(waiting_->mutex);
      waiting_->ring = std::move(ring);
    }
    // A cancelled alarm calls back in its own time, when the reactor may be gone.
    alarm_.Set(std::chrono::system_clock::now() + time, [waiting = waiting_](bool rings) {
      std::lock_guard lock(waiting->mutex);
      if (rings && waiting->ring) waiting->ring();
    });
  }
  // `ring` is not called any more, nor under way. Not with a lock that `ring` takes.
  void Stop() {
    {
      std::lock_guard lock(waiting_->mutex);
      if (!waiting_->ring) return;
      waiting_->ring = nullptr;
    }
    alarm_.Cancel();
  }

 private:
  struct Waiting {
    std::mutex mutex;
    std::function<void()> ring;
  };
  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
  grpc::Alarm alarm_;
};

inline grpc::Status NoFirstMessage() { return {grpc::StatusCode::DEADLINE_EXCEEDED, "no first message"}; }

}  // namespace taskd::manager
