// What ClusterD's TrainingDataTrace says and does (TaskD contract §1.1; "The switch" in docs/architecture.md), whatever
// brings its calls.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "manager/switch/core.h"
#include "profiling.pb.h"

namespace taskd::manager {

// How long Modify waits for the ranks' answers. They are only for the message: the state is kept and goes on spreading.
inline constexpr std::chrono::milliseconds kModifyWait{1000};

// Keeps nothing but the core. Thread safe.
class TraceCalls {
 public:
  explicit TraceCalls(std::shared_ptr<ManagerCore> core) : core_(std::move(core)) {}

  // Fills `reply`, which must live until `done` was called: once, in any thread, also at once. What it returns ends the
  // wait early; it may come late or often, never null.
  std::function<void()> Modify(const DataTypeReq& request, DataTypeRes* reply, std::function<void()> done) const;
  void Get(const DataStatusReq& request, DataStatusRes* reply) const;
  // NOT_FOUND: the subscription is to another job.
  absl::Status CheckSubscriber(const ProfilingClientInfo& client) const;
  // What a subscriber is told of a state.
  static void FillChange(const SwitchState& state, DataStatusRes* message);

  const std::shared_ptr<ManagerCore>& core() const { return core_; }

 private:
  bool IsAnotherJob(const std::string& job) const { return !core_->shape().job.empty() && job != core_->shape().job; }
  std::string NotThisJob(const std::string& job) const;

  std::shared_ptr<ManagerCore> core_;
};

// A subscription that must end.
inline absl::Status ManagerIsEnding() { return absl::UnavailableError("the manager is ending"); }

}  // namespace taskd::manager
