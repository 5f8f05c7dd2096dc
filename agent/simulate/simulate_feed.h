// The proxies of a simulated job: one stream a node to a manager, over which go what a real proxy would send, the
// hello, the ranks every second, and a fold of each rank and step. No files, no sockets, no processes; few threads, for thousands of
// nodes.
//
// Not thread-safe. The streams' own work runs on gRPC's threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/simulate/simulator.h"
#include "proto/channel.h"

namespace taskd::simulate {

class SimulatedProxies {
 public:
  // Waits until the manager has answered each node. INVALID_ARGUMENT: the TLS files cannot be read. UNAVAILABLE: it
  // did not answer. Real proxies have a connection each; simulated ones may share some, which costs fewer descriptors.
  // `keeps`: there may be SendAgain(), for which the folds of all steps are kept.
  static absl::StatusOr<std::unique_ptr<SimulatedProxies>> Connect(const std::string& manager,
                                                                   const proto::Security& security,
                                                                   const simulate::Simulator& simulator,
                                                                   int nodes_per_connection, bool keeps);
  ~SimulatedProxies();

  // Folds the simulator's last step and sends what is whole. Waits while a node has too much that the manager did not
  // take yet. UNAVAILABLE: a stream has ended.
  absl::Status SendStep(simulate::Simulator& simulator);
  // Sends the next one of the steps that came so far as the one after the last: the same again, with later numbers and
  // stamps. Costs far less than to simulate it. FAILED_PRECONDITION: no step has come whole yet. UNAVAILABLE: as above.
  absl::Status SendAgain();
  // Sends what is left and ends the streams.
  absl::Status Finish();

  int nodes() const;
  uint64_t folds() const;  // sent so far

 private:
  SimulatedProxies();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace taskd::simulate
