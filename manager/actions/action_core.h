// The job's decisions on slow nodes (policy/policy.h): fed by what the manager's other parts know, logged and kept.
// Without transport. Safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/realtime.h"
#include "policy/policy.h"

namespace taskd::manager {

class ActionCore {
 public:
  using SharedReport = std::shared_ptr<const diagnosis::Report>;
  struct Options {
    policy::Options policy;
    uint64_t seed = 0;  // makes the actions' ids differ between jobs
    // Keeps the state. Must not wait for storage that hangs. May be empty: then decisions end with the process.
    std::function<absl::Status(const std::string& state)> save;
    std::function<SharedReport()> report;  // the newest; never null
    // Nodes, price and times. The core fills in `report` and `unix_ns`.
    std::function<policy::View(const diagnosis::Report& report)> look;
    // `kind`: "action_decided", "action_done" (its orders were taken or have failed) or "action_called_off". Called without
    // the lock that readers take.
    std::function<void(const char* kind, const policy::Action& action)> on_event;
    std::function<int64_t()> unix_ns = RealtimeNs;
  };
  struct Counts {
    std::array<uint64_t, policy::kDecisions> decisions{};  // since the manager began
    std::array<uint64_t, policy::kRefusals> refusals{};
    uint64_t orders_taken = 0, orders_failed = 0;
    uint64_t orders_waiting = 0;  // now: sent, and not taken yet
  };
  // What a receiver has to be told.
  struct DueOrder {
    policy::Action action;
    bool withdraw = false;
  };

  // `kept`: the last state that Save was given; empty: there is none. If it cannot be read, decisions are paused: without
  // its history the policy could go beyond its budget.
  ActionCore(Options options, const std::string& kept);
  ActionCore(const ActionCore&) = delete;
  ActionCore& operator=(const ActionCore&) = delete;

  // Judges the open verdicts. To be called once a second. Returns at once with `--on-slow report`.
  void KeepUp();

  // False: `--on-slow report`, nothing is ever decided.
  bool decides() const { return options_.policy.on_slow != policy::OnSlow::kReport; }
  std::string Json() const;                 // as /api/v1/actions
  std::deque<policy::Action> List() const;  // oldest first
  Counts counts() const;

  // As Policy's functions of these names.
  absl::StatusOr<std::string> Why(int node) const;
  // The action, as JSON. FAILED_PRECONDITION: nobody takes orders.
  absl::StatusOr<std::string> Evict(int node);
  absl::Status Cancel(const std::string& id);
  absl::Status Pause();
  absl::Status Allow();

  // For the sender to the receiver that is called `to`: an order that is due, which a restarted manager will know to have
  // been sent. Empty: none is. Any error: that cannot be kept, so nothing may be sent now.
  absl::StatusOr<std::optional<DueOrder>> TakeOrder(const std::string& to);
  // What became of it. kSent: it has to be tried again.
  void EndOrder(const std::string& to, const DueOrder& due, policy::Outcome outcome, const std::string& text);

 private:
  policy::View Look(const SharedReport& report) const;
  // With change_mutex_. Keeps the present state; logs the first failure and the recovery.
  absl::Status SaveNow();

  const Options options_;
  std::mutex change_mutex_;  // held over a change and its save; taken before mutex_
  bool save_failed_ = false;
  mutable std::mutex mutex_;  // guards from here
  policy::Policy policy_;
  Counts counts_;
};

}  // namespace taskd::manager
