// Signals of a launcher as events of its loop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/event_loop.h"
#include "common/unique_fd.h"

namespace taskd::process {

// "SIGTERM"; "signal 34" for those without a name.
std::string SignalName(int signal);

// Calls back on the loop's thread for each of these signals, instead of its default action. Blocks them, and SIGCHLD
// for the WorkerGroup, in this thread and in those that it starts from now on. Until the loop ends; keep the descriptor
// as long.
absl::StatusOr<UniqueFd> WatchSignals(EventLoop* loop, const std::vector<int>& signals,
                                      std::function<void(int signal)> callback);

}  // namespace taskd::process
