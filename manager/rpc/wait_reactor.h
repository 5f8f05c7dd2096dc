// A unary call that is answered later: when something in the core is over, when its time is up, or when the caller has
// gone. No thread waits for it.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "grpcpp/alarm.h"
#include "grpcpp/support/server_callback.h"

namespace taskd::manager {

class WaitReactor final : public grpc::ServerUnaryReactor {
 public:
  // `begin` starts the wait and gives the reactor its way to end (Done, exactly once, in any thread, also at once);
  // the function that it returns ends the wait early, may come late or often, and must not refer to the reactor.
  using Expire = std::function<void()>;
  using Begin = std::function<Expire(WaitReactor*)>;

  WaitReactor(std::chrono::milliseconds timeout, const Begin& begin) : expire_(begin(this)) {
    alarm_.Set(std::chrono::system_clock::now() + timeout, [expire = expire_](bool fired) {
      if (fired) expire();
    });
  }

  void Done(const grpc::Status& status) { Finish(status); }
  void OnCancel() override { expire_(); }
  void OnDone() override { delete this; }

 private:
  const Expire expire_;
  grpc::Alarm alarm_;
};

}  // namespace taskd::manager
