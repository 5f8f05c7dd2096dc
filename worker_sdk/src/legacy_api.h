// The C names that MindCluster's Python wheel looks up in libtaskd.so (TaskD contract §6.3).
#pragma once

#include <stdint.h>

extern "C" {
// Returns 0, or -1 for what taskd_worker_init refuses. The node rank is the proxy's to know.
int InitWorker(intptr_t global_rank, intptr_t node_rank, intptr_t upper_limit_mb);
int StartMonitorClient();
void DestroyTaskdWorker();
void AtExitAction();
void RegisterSwitchCallback(uintptr_t function);
void RegisterStressTestCallback(uintptr_t function);
void RegisterBackendCallback(uintptr_t function);
}
