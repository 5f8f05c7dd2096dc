// Tells ClusterD of nodes that slow the job down, as public faults (TaskD contract §1.4, §8.1: sub-health, and the end
// of it). Off unless the operator asks for it: a scheduler may act on it.
//
// A fault is reported once a verdict that is worth it has been open for kOpenSteps steps, and its end once it is not
// open any more: each once, also over restarts of the manager. One that was killed between ClusterD's answer and the
// note of it sends the same fault, with the same ids, again.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "diagnosis/verdict.h"
#include "manager/rpc/call_again.h"
#include "manager/switch/core.h"
#include "manager/switch/state_db.h"
#include "pubfault.pb.h"

namespace taskd::manager {

inline constexpr int64_t kOpenSteps = 10;

// Whether the verdict is one to report, by itself: open for kOpenSteps at `last_step`, of a node or of ranks, of a
// cause that is known.
bool IsReportable(const diagnosis::Verdict& verdict, int64_t last_step);

// The nodes of a verdict and their devices, by the scheduler's name of the node. Devices are local ranks where the node's ranks are numbered
// as launchers do it, else all of the node, as ClusterD wants it of faults that cannot be told apart. Empty: a node is
// not known, or has no name that ClusterD takes.
struct FaultPlace {
  std::string node;
  std::vector<int> devices;  // 0 to 31, each once

  friend bool operator==(const FaultPlace&, const FaultPlace&) = default;
};
std::vector<FaultPlace> FaultPlaces(const diagnosis::Verdict& verdict, const JobSnapshot& job);

// A message that keeps all rules of the contract, whatever the names and texts hold. `now_ms`: Unix.
PublicFaultRequest FaultRequest(const diagnosis::Verdict& verdict, const std::vector<FaultPlace>& places,
                                const JobShape& job, int64_t now_ms);
// The end of a fault that was reported with `request`.
PublicFaultRequest RecoveryRequest(const PublicFaultRequest& request, int64_t now_ms);

// Whether ClusterD takes the name as a node's.
bool IsClusterdName(const std::string& name);

// Sends one message to ClusterD at `address`. INVALID_ARGUMENT: it is refused, and would be again. CANCELLED: `calls` were
// stopped. Any other error: it may be taken later.
absl::Status SendPublicFault(const std::string& address, const PublicFaultRequest& request, StoppableCalls& calls);

class FaultReporter {
 public:
  struct Options {
    std::string address;  // HOST:PORT of ClusterD
    JobShape job;
    std::chrono::milliseconds period{1000};
  };

  // Looks at the report once a `period`, in a thread of its own, and sends at most one message a period, with a back-off
  // of one period to 60 s while ClusterD does not take any. `db` may be null: then what was reported is forgotten with the
  // process.
  FaultReporter(Options options, StateDb* db, std::function<std::shared_ptr<const diagnosis::Report>()> report,
                std::function<JobSnapshot()> snapshot);
  ~FaultReporter();  // cancels what is under way and joins the thread
  FaultReporter(const FaultReporter&) = delete;
  FaultReporter& operator=(const FaultReporter&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::manager
