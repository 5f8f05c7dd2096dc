// The C names of MindCluster's libtaskd.so (TaskD contract §6.3), for its Python wheel and whoever else looks them up.
#pragma once

#include <stdint.h>

extern "C" {
// Returns 0, or -1 for what taskd_worker_init refuses. The node rank is the proxy's to know.
int InitWorker(intptr_t global_rank, intptr_t node_rank, intptr_t upper_limit_mb);
int StartMonitorClient();
void DestroyTaskdWorker();
void AtExitAction();

// Taken and never called: there is no NIC switch, stress test or process recovery here (docs/install.md).
void RegisterSwitchCallback(uintptr_t function);
void RegisterStressTestCallback(uintptr_t function);
void RegisterBackendCallback(uintptr_t function);

// Manager and proxy are programs of their own (`taskd manager`, `taskd proxy`; the Python API starts them), and this
// library has no network. Each answers at once what upstream's answers when it failed: 1, -1, 0 or null.
int InitTaskdManager(const char* config_json);
int StartTaskdManager();
int InitTaskdProxy(const char* config_json);
void DestroyTaskdProxy();
uintptr_t CreateTaskdLog(const char* name);
uintptr_t InitNetwork(const char* config_json, uintptr_t log);
int SyncSendMessage(uintptr_t network, const char* message_json);
int AsyncSendMessage(uintptr_t network, const char* message_json);
void* ReceiveMessageC(uintptr_t network);
void DestroyNetTool(uintptr_t network);
int SendMessageToBackend(const char* message_json);
// free().
void FreeCMemory(void* memory);
}
