// What people read when ranks have failed, and how the end of a rank travels between launchers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/process/worker_exit.h"

namespace taskd::run {

struct RankFailure {
  process::WorkerExit exit;
  std::string host;
  int group_rank = 0;
  std::string log_folder;  // of the rank, on its host; empty: it has none
};

// Of ranks of one node that ended alike, with the same message (its first line); at least one.
using EqualFailures = std::vector<const RankFailure*>;

// All but the first failure, in order. Points into `failures`.
std::vector<EqualFailures> OtherFailures(const std::vector<RankFailure>& failures);

// "rank 7 (local rank 3) on node-b (node 1)", "ranks 4-6, 8 on node-b (node 1)"
std::string DescribeRanks(const EqualFailures& failures);

// Text of several lines, with a newline at its end. `failures`: the first failure first; at least one. `command`: what
// was run, for the headline. What the ranks wrote is shown without control characters.
std::string FailureReport(const std::string& command, const std::vector<RankFailure>& failures);

// Writes the failure's error file to `path` (the launcher's own TORCHELASTIC_ERROR_FILE), with message.errorCode set;
// one is made up where the rank wrote none. UNAVAILABLE names the path and the system's reason.
absl::Status WriteErrorFile(const std::string& path, const RankFailure& failure);

// JSON. Texts are cut so that the whole is at most kMaxEncodedExit bytes; an error file that is too big is left out.
inline constexpr size_t kMaxEncodedExit = 64 << 10;
std::string EncodeExit(const process::WorkerExit& exit);
// INVALID_ARGUMENT: not what EncodeExit makes. Unknown members are ignored.
absl::StatusOr<process::WorkerExit> DecodeExit(std::string_view json);

}  // namespace taskd::run
