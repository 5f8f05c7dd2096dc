#include <limits.h>

#include "legacy_api.h"
#include "recorder.h"

namespace {

// Kept as given. Nothing calls them yet: recovery orders go to the agent, not to a rank.
std::atomic<uintptr_t> g_switch_callback;
std::atomic<uintptr_t> g_stress_test_callback;
std::atomic<uintptr_t> g_backend_callback;

}  // namespace

TASKD_EXPORT int InitWorker(intptr_t global_rank, intptr_t /*node_rank*/, intptr_t upper_limit_mb) {
  if (global_rank < 0 || global_rank > INT_MAX || upper_limit_mb < 0 || upper_limit_mb > INT_MAX) return -1;
  return taskd::worker::Init(static_cast<int>(global_rank), -1, static_cast<int>(upper_limit_mb));
}

TASKD_EXPORT int StartMonitorClient() { return taskd::worker::Start(); }

TASKD_EXPORT void DestroyTaskdWorker() { taskd::worker::Destroy(); }

TASKD_EXPORT void AtExitAction() { taskd::worker::Destroy(); }

TASKD_EXPORT void RegisterSwitchCallback(uintptr_t function) { g_switch_callback.store(function); }

TASKD_EXPORT void RegisterStressTestCallback(uintptr_t function) { g_stress_test_callback.store(function); }

TASKD_EXPORT void RegisterBackendCallback(uintptr_t function) { g_backend_callback.store(function); }
