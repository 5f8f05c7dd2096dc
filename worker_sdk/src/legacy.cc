#include <limits.h>
#include <stdlib.h>

#include "legacy_api.h"
#include "recorder.h"
#include "runtime.h"

TASKD_EXPORT int InitWorker(intptr_t global_rank, intptr_t /*node_rank*/, intptr_t upper_limit_mb) {
  if (global_rank < 0 || global_rank > INT_MAX || upper_limit_mb < 0 || upper_limit_mb > INT_MAX) return -1;
  return taskd::worker::Init(static_cast<int>(global_rank), -1, static_cast<int>(upper_limit_mb));
}

TASKD_EXPORT int StartMonitorClient() { return taskd::worker::Start(); }

TASKD_EXPORT void DestroyTaskdWorker() { taskd::worker::Destroy(); }

TASKD_EXPORT void AtExitAction() { taskd::worker::Destroy(); }

TASKD_EXPORT void RegisterSwitchCallback(uintptr_t) {
  taskd::worker::Say("RegisterSwitchCallback: network cards and nodes are not switched; nothing will call it");
}
TASKD_EXPORT void RegisterStressTestCallback(uintptr_t) {
  taskd::worker::Say("RegisterStressTestCallback: there are no stress tests; nothing will call it");
}
TASKD_EXPORT void RegisterBackendCallback(uintptr_t) {}

TASKD_EXPORT int InitTaskdManager(const char*) { return 1; }
TASKD_EXPORT int StartTaskdManager() { return 1; }
TASKD_EXPORT int InitTaskdProxy(const char*) { return 1; }
TASKD_EXPORT void DestroyTaskdProxy() {}
TASKD_EXPORT uintptr_t CreateTaskdLog(const char*) { return 0; }
TASKD_EXPORT uintptr_t InitNetwork(const char*, uintptr_t) { return 0; }
TASKD_EXPORT int SyncSendMessage(uintptr_t, const char*) { return -1; }
TASKD_EXPORT int AsyncSendMessage(uintptr_t, const char*) { return -1; }
TASKD_EXPORT void* ReceiveMessageC(uintptr_t) { return nullptr; }
TASKD_EXPORT void DestroyNetTool(uintptr_t) {}
TASKD_EXPORT int SendMessageToBackend(const char*) { return -1; }
TASKD_EXPORT void FreeCMemory(void* memory) { free(memory); }
