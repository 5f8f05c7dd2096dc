// The mstx interface: marks as torch_npu and mstx_torch_plugin make them, by symbol or through mstx's injection
// (MSTX_INJECTION_PATH names this library, mstx calls InitInjectionMstx).
//
// A stream is only ever compared with null: device side records are not ours to give. Where MSPTI gives them, the calls
// go on to it (next_mstx.h).
#include <stddef.h>

#include "mstx_api.h"
#include "next_mstx.h"
#include "recorder.h"

using taskd::worker::DomainRecord;
using taskd::worker::NextMstx;
using taskd::worker::Record;
using taskd::worker::RecordRangeEnd;

namespace {

inline const NextMstx* Next() { return taskd::worker::g_next_mstx.load(std::memory_order_acquire); }

}  // namespace

// "TD". mstx tells the tools apart by it.
constexpr uint64_t kToolId = 0x5444;

TASKD_EXPORT void mstxMarkA(const char* message, void* stream) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false))
    return next->Mark(nullptr, message, stream);
  Record<taskd::ring::kRecordMark>(message, stream != nullptr);
}

TASKD_EXPORT uint64_t mstxRangeStartA(const char* message, void* stream) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false))
    return next->RangeStart(nullptr, message, stream);
  return Record<taskd::ring::kRecordRangeStart>(message, stream != nullptr);
}

TASKD_EXPORT void mstxRangeEnd(uint64_t id) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false)) return next->RangeEnd(nullptr, id);
  RecordRangeEnd(id);
}

TASKD_EXPORT int mstxGetToolId(uint64_t* id) {
  if (id == nullptr) return -1;
  *id = kToolId;
  return 0;
}

TASKD_EXPORT taskd_domain* mstxDomainCreateA(const char* name) { return taskd::worker::CreateDomain(name); }

// A domain lives as long as the process: its name is in records that are yet to be read.
TASKD_EXPORT void mstxDomainDestroy(taskd_domain*) {}

TASKD_EXPORT void mstxDomainMarkA(taskd_domain* domain, const char* message, void* stream) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false))
    return next->Mark(domain, message, stream);
  DomainRecord<taskd::ring::kRecordMark>(domain, message, stream != nullptr);
}

TASKD_EXPORT uint64_t mstxDomainRangeStartA(taskd_domain* domain, const char* message, void* stream) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false))
    return next->RangeStart(domain, message, stream);
  return DomainRecord<taskd::ring::kRecordRangeStart>(domain, message, stream != nullptr);
}

TASKD_EXPORT void mstxDomainRangeEnd(taskd_domain* domain, uint64_t id) {
  if (const NextMstx* next = Next(); __builtin_expect(next != nullptr, false)) return next->RangeEnd(domain, id);
  RecordRangeEnd(id);
}

namespace {

enum MstxModule { kModuleCore = 1, kModuleCoreDomain = 2 };

// In the order of mstx's function numbers, which begin at 1.
template <size_t kCount>
bool FillModule(MstxGetModuleTable get_table, int module, const MstxFunction (&functions)[kCount]) {
  MstxFunctionTable table = nullptr;
  unsigned entries = 0;
  if (get_table(module, &table, &entries) != 0 || table == nullptr) return false;
  for (size_t i = 0; i < kCount && i + 1 < entries; ++i) {
    if (table[i + 1] != nullptr) *table[i + 1] = functions[i];
  }
  return true;
}

template <typename Function>
MstxFunction Erase(Function* function) {
  return reinterpret_cast<MstxFunction>(function);
}

}  // namespace

// Returns 0, or 1 where mstx offers no table to fill or its calls go past us to MSPTI. An older mstx without domains is
// fine.
TASKD_EXPORT int InitInjectionMstx(MstxGetModuleTable get_table) {
  if (get_table == nullptr || !taskd::worker::StayInFront()) return 1;
  const MstxFunction core[] = {Erase(mstxMarkA), Erase(mstxRangeStartA), Erase(mstxRangeEnd), Erase(mstxGetToolId)};
  const MstxFunction core_domain[] = {Erase(mstxDomainCreateA), Erase(mstxDomainDestroy), Erase(mstxDomainMarkA),
                                      Erase(mstxDomainRangeStartA), Erase(mstxDomainRangeEnd)};
  if (!FillModule(get_table, kModuleCore, core)) return 1;
  FillModule(get_table, kModuleCoreDomain, core_domain);
  return 0;
}
