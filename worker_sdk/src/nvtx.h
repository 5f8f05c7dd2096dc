// What a tool needs of NVTX's binary interface (version 3), written down from NVIDIA's public headers; no header of
// NVTX is used: programs bring theirs.
//
// Sources (github.com/NVIDIA/NVTX, c/include/nvtx3): nvtxDetail/nvtxInit.h for who loads whom, nvtxDetail/nvtxTypes.h
// for the tables and numbers, nvToolsExt.h for the event attributes and for what a level is.
//
// How it works: every library that was built with NVTX has a set of function pointers of its own. At the first NVTX
// call of each, NVTX loads the library that NVTX_INJECTION64_PATH names, calls its InitializeInjectionNvtx2 with a
// function that hands out tables, and from then on calls what the tool left in the slots. A slot that nobody changed
// becomes null.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

namespace taskd::nvtx {

// What GetExportTable knows.
enum ExportTable : uint32_t { kExportCallbacks = 1, kExportVersion = 3 };

enum Module : int { kModuleCore = 1, kModuleCore2 = 5 };

// Function numbers of the module core; slot 0 is no function.
enum CoreFunction : unsigned {
  kMarkEx = 1,
  kMarkA = 2,
  kMarkW = 3,
  kRangeStartEx = 4,
  kRangeStartA = 5,
  kRangeStartW = 6,
  kRangeEnd = 7,
  kRangePushEx = 8,
  kRangePushA = 9,
  kRangePushW = 10,
  kRangePop = 11,
  kCoreFunctions = 12,  // those after it name categories and threads
};

// Of the module core2, which has the functions with a domain.
enum Core2Function : unsigned {
  kDomainMarkEx = 1,
  kDomainRangeStartEx = 2,
  kDomainRangeEnd = 3,
  kDomainRangePushEx = 4,
  kDomainRangePop = 5,
  kDomainRegisterStringA = 10,
  kDomainRegisterStringW = 11,
  kDomainCreateA = 12,
  kDomainCreateW = 13,
  kCore2Functions = 14,
};

enum MessageType : int32_t { kMessageAscii = 1, kMessageUnicode = 2, kMessageRegistered = 3 };

// What push and pop return where nobody keeps levels.
inline constexpr int kNoPushPopTracking = -2;

using Domain = void*;  // a handle that the tool gave out; null is the default domain
using String = void*;  // likewise
using RangeId = uint64_t;

struct EventAttributes {
  uint16_t version;
  uint16_t size;  // of what the caller filled
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type;
  int32_t reserved;
  uint64_t payload;
  int32_t message_type;
  union {
    const char* ascii;
    const wchar_t* unicode;
    String registered;
  } message;
};
static_assert(sizeof(EventAttributes) == 48 && offsetof(EventAttributes, message) == 40);

using Function = void (*)();
using FunctionTable = Function**;  // entry i points at the slot of function i, or is null

struct CallbackTable {
  size_t bytes;
  int (*get_module)(int module, FunctionTable* table, unsigned* entries);  // 1: found
};

struct VersionTable {
  size_t bytes;
  uint32_t version;
  uint32_t reserved;
  void (*set_tool_version)(uint32_t version);
};

using GetExportTable = const void* (*)(uint32_t table);
using InitializeInjection = int (*)(GetExportTable);  // 1: the tool is there, 0: it is not
using InitializeExtension = int (*)(void* module);    // likewise

}  // namespace taskd::nvtx

extern "C" {
// Takes over the marks and ranges of one NVTX instance. TASKD_NVTX_CHAIN may name another tool's injection library,
// which then gets every call as well. Returns 1, or 0 where NVTX offers no table to fill.
int InitializeInjectionNvtx2(taskd::nvtx::GetExportTable get_export_table);

// NVTX's extensions (payload schemas, counters, memory) are not recorded: they are the other tool's, if there is one.
int InitializeInjectionNvtxExtension(void* module);
}
