// The receivers of orders about slow nodes, as --order-to lists them (docs/acting.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/environment.h"

namespace taskd {

struct OrderTo {
  enum class Kind : uint8_t { kCommand, kNvrx, kClusterd, kNvsentinel };
  Kind kind = Kind::kCommand;
  std::string path = {};  // absolute; empty: this kind has none
  bool executes = false;  // of kNvsentinel: it may act on the event

  friend bool operator==(const OrderTo&, const OrderTo&) = default;
};

// Returns the receiver's name in orders: "command", "nvrx", "clusterd", "nvsentinel".
const char* Name(OrderTo::Kind kind);

// A list with commas; "": none. Each kind may stand there once. INVALID_ARGUMENT, in one line: the receiver and the rule.
absl::StatusOr<std::vector<OrderTo>> ParseOrderTo(const std::string& list);

// Whether all of them are there and may be used by this process, on this machine. `environment` is that of the manager;
// `knows_clusterd`: it has ClusterD's address. INVALID_ARGUMENT as above. Takes as long as the storage does.
absl::Status CheckOrderTo(const std::vector<OrderTo>& receivers, const Environment& environment, bool knows_clusterd);

// A plain file that this process can execute and only this user and root can change or replace. INVALID_ARGUMENT or
// FAILED_PRECONDITION name it and the rule.
absl::Status CheckCommand(const std::string& path);

// The file of NVRx's segment health check (ft_launcher --ft-segment-health-check-dir) for this Slurm job:
// segment_health_check.<job>.<task>, of an array job's task <array job>.<array task>. Empty: no Slurm job.
std::string NvrxFileName(const Environment& environment);

}  // namespace taskd
