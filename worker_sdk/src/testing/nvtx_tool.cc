// Another NVTX tool, as TASKD_NVTX_CHAIN may name one: it fills only some of the slots and notes what it is called
// with. Built as a library of its own.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "nvtx.h"

#define TOOL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace nvtx = taskd::nvtx;

char g_calls[4096];
unsigned long g_next_id = 100;
int g_depth = 0;

void Note(const char* what, const char* detail) {
  const size_t used = strlen(g_calls);
  snprintf(g_calls + used, sizeof(g_calls) - used, "%s(%s) ", what, detail);
}

void MarkA(const char* name) { Note("mark", name); }

nvtx::RangeId RangeStartA(const char* name) {
  Note("start", name);
  return g_next_id++;
}

void RangeEnd(nvtx::RangeId id) {
  char text[24];
  snprintf(text, sizeof(text), "%lu", static_cast<unsigned long>(id));
  Note("end", text);
}

int RangePushA(const char* name) {
  Note("push", name);
  return 10 + g_depth++;
}

int RangePop() {
  Note("pop", "");
  return 10 + --g_depth;
}

int DomainRangePushEx(nvtx::Domain domain, const nvtx::EventAttributes* event) {
  char text[64];
  if (event->message_type == nvtx::kMessageRegistered) {
    snprintf(text, sizeof(text), "%p,%p", domain, event->message.registered);
  } else {
    snprintf(text, sizeof(text), "%p,%s", domain, event->message.ascii);
  }
  Note("domain_push", text);
  return 0;
}

nvtx::Domain DomainCreateA(const char* name) {
  Note("domain", name);
  return reinterpret_cast<nvtx::Domain>(0x1000);
}

nvtx::String DomainRegisterStringA(nvtx::Domain, const char* text) {
  Note("string", text);
  static uintptr_t next = 0x2000;
  return reinterpret_cast<nvtx::String>(next++);
}

template <typename Signature>
void Fill(nvtx::FunctionTable table, unsigned function, Signature* ours) {
  *table[function] = reinterpret_cast<nvtx::Function>(ours);
}

}  // namespace

TOOL_EXPORT const char* tool_calls() { return g_calls; }

TOOL_EXPORT int InitializeInjectionNvtxExtension(void*) {
  Note("extension", "");
  return 1;
}

TOOL_EXPORT int InitializeInjectionNvtx2(nvtx::GetExportTable get_export_table) {
  const auto* callbacks = static_cast<const nvtx::CallbackTable*>(get_export_table(nvtx::kExportCallbacks));
  nvtx::FunctionTable core;
  nvtx::FunctionTable core2;
  unsigned entries;
  if (!callbacks->get_module(nvtx::kModuleCore, &core, &entries)) return 0;
  if (!callbacks->get_module(nvtx::kModuleCore2, &core2, &entries)) return 0;
  Fill(core, nvtx::kMarkA, MarkA);
  Fill(core, nvtx::kRangeStartA, RangeStartA);
  Fill(core, nvtx::kRangeEnd, RangeEnd);
  Fill(core, nvtx::kRangePushA, RangePushA);
  Fill(core, nvtx::kRangePop, RangePop);
  Fill(core2, nvtx::kDomainRangePushEx, DomainRangePushEx);
  Fill(core2, nvtx::kDomainCreateA, DomainCreateA);
  Fill(core2, nvtx::kDomainRegisterStringA, DomainRegisterStringA);
  Note("init", "");
  return 1;
}
