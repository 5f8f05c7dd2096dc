// A program's side of NVTX, for tests and benchmarks. With TASKD_WITH_NVTX_HEADER it is NVIDIA's own header; without it
// a client in our words that does what that header does: at the first call it loads the library that
// NVTX_INJECTION64_PATH names, lets it fill the slots, and then calls what lies in them; nothing where they are empty.
#pragma once

#include <stdint.h>

#if defined(TASKD_WITH_NVTX_HEADER)

#include <nvtx3/nvToolsExt.h>

namespace taskd::testing::nvtx_client {

inline constexpr char kWhose[] = "NVIDIA's header";

using Domain = nvtxDomainHandle_t;
using String = nvtxStringHandle_t;

inline nvtxEventAttributes_t Event() {
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return event;
}
inline nvtxEventAttributes_t Event(const char* name) {
  nvtxEventAttributes_t event = Event();
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name;
  return event;
}
inline nvtxEventAttributes_t Event(String name) {
  nvtxEventAttributes_t event = Event();
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = name;
  return event;
}

inline void Mark(const char* name) { nvtxMarkA(name); }
inline int Push(const char* name) { return nvtxRangePushA(name); }
inline int Pop() { return nvtxRangePop(); }
inline uint64_t Start(const char* name) { return nvtxRangeStartA(name); }
inline void End(uint64_t id) { nvtxRangeEnd(id); }
inline Domain CreateDomain(const char* name) { return nvtxDomainCreateA(name); }
inline String Register(Domain domain, const char* name) { return nvtxDomainRegisterStringA(domain, name); }

template <typename Name>
void DomainMark(Domain domain, Name name) {
  const nvtxEventAttributes_t event = Event(name);
  nvtxDomainMarkEx(domain, &event);
}
template <typename Name>
int DomainPush(Domain domain, Name name) {
  const nvtxEventAttributes_t event = Event(name);
  return nvtxDomainRangePushEx(domain, &event);
}
inline int DomainPop(Domain domain) { return nvtxDomainRangePop(domain); }
template <typename Name>
uint64_t DomainStart(Domain domain, Name name) {
  const nvtxEventAttributes_t event = Event(name);
  return nvtxDomainRangeStartEx(domain, &event);
}
inline void DomainEnd(Domain domain, uint64_t id) { nvtxDomainRangeEnd(domain, id); }

}  // namespace taskd::testing::nvtx_client

#else

#include <dlfcn.h>
#include <stdlib.h>

#include "nvtx.h"

namespace taskd::testing::nvtx_client {

inline constexpr char kWhose[] = "a client of its own";

using Domain = nvtx::Domain;
struct RegisteredString;
using String = RegisteredString*;

struct Slots {
  bool ready = false;
  nvtx::Function core[16] = {};
  nvtx::Function core2[16] = {};
  nvtx::Function* core_table[16] = {};
  nvtx::Function* core2_table[16] = {};
};
inline Slots g_slots;

inline int GetModule(int module, nvtx::FunctionTable* table, unsigned* entries) {
  if (module != nvtx::kModuleCore && module != nvtx::kModuleCore2) return 0;
  *table = module == nvtx::kModuleCore ? g_slots.core_table : g_slots.core2_table;
  *entries = 16;
  return 1;
}

inline const void* GetExportTable(uint32_t table) {
  static const nvtx::CallbackTable callbacks = {sizeof(callbacks), GetModule};
  return table == nvtx::kExportCallbacks ? &callbacks : nullptr;
}

__attribute__((noinline, cold)) inline void Load() {
  g_slots.ready = true;
  for (int i = 1; i < 16; ++i) {
    g_slots.core_table[i] = &g_slots.core[i];
    g_slots.core2_table[i] = &g_slots.core2[i];
  }
  const char* path = getenv("NVTX_INJECTION64_PATH");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY);
  if (library == nullptr) return;
  auto* initialize = reinterpret_cast<nvtx::InitializeInjection>(dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize != nullptr) initialize(GetExportTable);
}

template <typename Result, typename... Arguments>
inline Result Call(const nvtx::Function& slot, Arguments... arguments) {
  if (!g_slots.ready) Load();
  auto* function = reinterpret_cast<Result (*)(Arguments...)>(slot);
  return function == nullptr ? Result() : function(arguments...);
}

inline nvtx::EventAttributes Event() {
  nvtx::EventAttributes event = {};
  event.version = 3;
  event.size = sizeof(event);
  return event;
}
inline nvtx::EventAttributes Event(const char* name) {
  nvtx::EventAttributes event = Event();
  event.message_type = nvtx::kMessageAscii;
  event.message.ascii = name;
  return event;
}
inline nvtx::EventAttributes Event(String name) {
  nvtx::EventAttributes event = Event();
  event.message_type = nvtx::kMessageRegistered;
  event.message.registered = name;
  return event;
}

inline void Mark(const char* name) { Call<void>(g_slots.core[nvtx::kMarkA], name); }
inline int Push(const char* name) { return Call<int>(g_slots.core[nvtx::kRangePushA], name); }
inline int Pop() { return Call<int>(g_slots.core[nvtx::kRangePop]); }
inline uint64_t Start(const char* name) { return Call<uint64_t>(g_slots.core[nvtx::kRangeStartA], name); }
inline void End(uint64_t id) { Call<void>(g_slots.core[nvtx::kRangeEnd], id); }
inline Domain CreateDomain(const char* name) { return Call<Domain>(g_slots.core2[nvtx::kDomainCreateA], name); }
inline String Register(Domain domain, const char* name) {
  return Call<String>(g_slots.core2[nvtx::kDomainRegisterStringA], domain, name);
}

template <typename Name>
void DomainMark(Domain domain, Name name) {
  const nvtx::EventAttributes event = Event(name);
  Call<void>(g_slots.core2[nvtx::kDomainMarkEx], domain, &event);
}
template <typename Name>
int DomainPush(Domain domain, Name name) {
  const nvtx::EventAttributes event = Event(name);
  return Call<int>(g_slots.core2[nvtx::kDomainRangePushEx], domain, &event);
}
inline int DomainPop(Domain domain) { return Call<int>(g_slots.core2[nvtx::kDomainRangePop], domain); }
template <typename Name>
uint64_t DomainStart(Domain domain, Name name) {
  const nvtx::EventAttributes event = Event(name);
  return Call<uint64_t>(g_slots.core2[nvtx::kDomainRangeStartEx], domain, &event);
}
inline void DomainEnd(Domain domain, uint64_t id) { Call<void>(g_slots.core2[nvtx::kDomainRangeEnd], domain, id); }

}  // namespace taskd::testing::nvtx_client

#endif
