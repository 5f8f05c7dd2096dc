// The mstx functions that libtaskd.so has, as callers see them (mstx calls domains mstxDomainHandle_t and streams
// aclrtStream). The library itself offers no mstx header: callers have theirs.
#pragma once

#include <stdint.h>

#include "taskd/taskd.h"

extern "C" {
void mstxMarkA(const char* message, void* stream);
uint64_t mstxRangeStartA(const char* message, void* stream);
void mstxRangeEnd(uint64_t id);
int mstxGetToolId(uint64_t* id);
taskd_domain* mstxDomainCreateA(const char* name);
void mstxDomainDestroy(taskd_domain* domain);
void mstxDomainMarkA(taskd_domain* domain, const char* message, void* stream);
uint64_t mstxDomainRangeStartA(taskd_domain* domain, const char* message, void* stream);
void mstxDomainRangeEnd(taskd_domain* domain, uint64_t id);

// mstx's injection: entry i of a table points at the slot of function i, which begin at 1.
using MstxFunction = void (*)();
using MstxFunctionTable = MstxFunction**;
using MstxGetModuleTable = int (*)(int module, MstxFunctionTable* table, unsigned* entries);
int InitInjectionMstx(MstxGetModuleTable get_table);
}
