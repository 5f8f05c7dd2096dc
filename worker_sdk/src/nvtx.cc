// Marks and ranges made with NVTX (torch.cuda.nvtx, nvtx.annotate, NVTX's C and C++ headers): NVTX_INJECTION64_PATH
// names this library.
//
// Design:
// 1. NVTX calls our functions through its table; they are the recorder's own fast path and, for push and pop, a stack
//    of the calling thread's open ranges. Pushes are counted whether or not anything is recorded, so a pop always
//    belongs to its push.
// 2. A domain handle is the recorder's handle of that name; a string handle is an index. Both are looked at before use.
// 3. Another tool (TASKD_NVTX_CHAIN) fills the table first; we put ourselves in front of it and pass every call on.
//    What it gives out (domains, strings, range ids) stays its own, because it also gets calls that we never see; ours
//    is found by it.
// 4. Payloads, colors and categories are not recorded. Nothing here prints, but for one line about a bad variable while
//    NVTX starts.
#include "nvtx.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "handle_map.h"
#include "nvtx_ranges.h"
#include "nvtx_strings.h"
#include "recorder.h"
#include "runtime.h"

namespace taskd::worker {
namespace {

using nvtx::EventAttributes;
using nvtx::RangeId;

constexpr uint32_t kToolVersion = 1;

// ---- The other tool

// While it starts: it may use NVTX itself, and must not meet itself in us.
constinit thread_local bool t_in_other_tool = false;

// Its functions; null where it left the slot alone.
struct NextTool {
  std::atomic<nvtx::Function> core[nvtx::kCoreFunctions];
  std::atomic<nvtx::Function> core2[nvtx::kCore2Functions];
};
constinit NextTool g_next;
constinit HandleMap<1024> g_next_domains;             // its handle: ours
constinit HandleMap<2 * kMaxStrings> g_next_strings;  // its handle: ours
constinit HandleMap<4096> g_next_ranges;              // its id: ours

template <typename Signature>
Signature* NextCore(nvtx::CoreFunction function) {
  return reinterpret_cast<Signature*>(g_next.core[function].load(std::memory_order_acquire));
}
template <typename Signature>
Signature* NextCore2(nvtx::Core2Function function) {
  return reinterpret_cast<Signature*>(g_next.core2[function].load(std::memory_order_acquire));
}

template <bool kFull>
const taskd_domain* DomainOf(nvtx::Domain handle) {
  if (kFull && handle != nullptr) {
    const uint64_t ours = g_next_domains.Find(reinterpret_cast<uint64_t>(handle));
    if (ours != 0) return reinterpret_cast<const taskd_domain*>(ours);
  }
  return static_cast<const taskd_domain*>(handle);
}

// The message of an event, null where it has none.
template <bool kFull>
__attribute__((always_inline)) inline const char* MessageOf(const EventAttributes* event,
                                                            char (&storage)[kMaxUtf8Bytes]) {
  if (event == nullptr || event->size < sizeof(EventAttributes)) return nullptr;
  if (event->message_type == nvtx::kMessageAscii) return event->message.ascii;
  if (event->message_type == nvtx::kMessageRegistered) {
    uint64_t handle = reinterpret_cast<uint64_t>(event->message.registered);
    if (kFull && handle != 0) {
      const uint64_t ours = g_next_strings.Find(handle);
      if (ours != 0) handle = ours;
    }
    return TextOf(handle);
  }
  return event->message_type == nvtx::kMessageUnicode ? ToUtf8(event->message.unicode, storage) : TextOf(0);
}

// ---- What NVTX calls. The other tool is called first at a start and last at an end: its cost is not in our range.

// The other tool's id is the caller's, and ours is found by it.
RangeId JoinIds(RangeId theirs, RangeId ours) {
  if (theirs == 0) return ours;
  if (ours != 0 && !g_next_ranges.Insert(theirs, ours)) RecordRangeEnd(ours);  // too many open: it ends at once
  return theirs;
}

template <bool kFull, nvtx::CoreFunction kFunction, typename Argument>
void MarkNext(Argument argument) {
  if (!kFull) return;
  if (auto* next = NextCore<void(Argument)>(kFunction)) next(argument);
}

template <bool kFull>
void MarkEx(const EventAttributes* event) {
  MarkNext<kFull, nvtx::kMarkEx>(event);
  char storage[kMaxUtf8Bytes];
  Record<ring::kRecordMark>(MessageOf<kFull>(event, storage), false);
}

template <bool kFull>
void MarkA(const char* name) {
  MarkNext<kFull, nvtx::kMarkA>(name);
  Record<ring::kRecordMark>(name, false);
}

template <bool kFull>
void MarkW(const wchar_t* name) {
  MarkNext<kFull, nvtx::kMarkW>(name);
  char storage[kMaxUtf8Bytes];
  Record<ring::kRecordMark>(ToUtf8(name, storage), false);
}

template <bool kFull, nvtx::CoreFunction kFunction, typename Argument>
RangeId StartNext(Argument argument) {
  if (!kFull) return 0;
  auto* next = NextCore<RangeId(Argument)>(kFunction);
  return next == nullptr ? 0 : next(argument);
}

template <bool kFull>
RangeId RangeStartEx(const EventAttributes* event) {
  const RangeId theirs = StartNext<kFull, nvtx::kRangeStartEx>(event);
  char storage[kMaxUtf8Bytes];
  return JoinIds(theirs, Record<ring::kRecordRangeStart>(MessageOf<kFull>(event, storage), false));
}

template <bool kFull>
RangeId RangeStartA(const char* name) {
  const RangeId theirs = StartNext<kFull, nvtx::kRangeStartA>(name);
  return JoinIds(theirs, Record<ring::kRecordRangeStart>(name, false));
}

template <bool kFull>
RangeId RangeStartW(const wchar_t* name) {
  const RangeId theirs = StartNext<kFull, nvtx::kRangeStartW>(name);
  char storage[kMaxUtf8Bytes];
  return JoinIds(theirs, Record<ring::kRecordRangeStart>(ToUtf8(name, storage), false));
}

template <bool kFull>
void RangeEnd(RangeId id) {
  if (!kFull) return RecordRangeEnd(id);
  auto* next = NextCore<void(RangeId)>(nvtx::kRangeEnd);
  const RangeId ours = g_next_ranges.Take(id);
  RecordRangeEnd(ours != 0 || next != nullptr ? ours : id);
  if (next != nullptr) next(id);
}

// The level of who counts: the other tool, if it does.
template <bool kFull, nvtx::CoreFunction kFunction, typename... Arguments>
int LevelNext(bool& asked, Arguments... arguments) {
  if (!kFull) return 0;
  auto* next = NextCore<int(Arguments...)>(kFunction);
  asked = next != nullptr;
  return asked ? next(arguments...) : 0;
}

template <bool kFull>
int RangePushEx(const EventAttributes* event) {
  bool asked = false;
  const int theirs = LevelNext<kFull, nvtx::kRangePushEx>(asked, event);
  char storage[kMaxUtf8Bytes];
  const int ours = Push(MessageOf<kFull>(event, storage));
  return asked ? theirs : ours;
}

template <bool kFull>
int RangePushA(const char* name) {
  bool asked = false;
  const int theirs = LevelNext<kFull, nvtx::kRangePushA>(asked, name);
  const int ours = Push(name);
  return asked ? theirs : ours;
}

template <bool kFull>
int RangePushW(const wchar_t* name) {
  bool asked = false;
  const int theirs = LevelNext<kFull, nvtx::kRangePushW>(asked, name);
  char storage[kMaxUtf8Bytes];
  const int ours = Push(ToUtf8(name, storage));
  return asked ? theirs : ours;
}

template <bool kFull>
int RangePop() {
  const int ours = Pop();
  bool asked = false;
  const int theirs = LevelNext<kFull, nvtx::kRangePop>(asked);
  return asked ? theirs : ours;
}

template <bool kFull>
void DomainMarkEx(nvtx::Domain domain, const EventAttributes* event) {
  if (kFull) {
    if (auto* next = NextCore2<void(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainMarkEx)) next(domain, event);
  }
  char storage[kMaxUtf8Bytes];
  RecordIn<ring::kRecordMark>(DomainOf<kFull>(domain), MessageOf<kFull>(event, storage));
}

template <bool kFull>
RangeId DomainRangeStartEx(nvtx::Domain domain, const EventAttributes* event) {
  RangeId theirs = 0;
  if (kFull) {
    auto* next = NextCore2<RangeId(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainRangeStartEx);
    if (next != nullptr) theirs = next(domain, event);
  }
  char storage[kMaxUtf8Bytes];
  return JoinIds(theirs, RecordIn<ring::kRecordRangeStart>(DomainOf<kFull>(domain), MessageOf<kFull>(event, storage)));
}

template <bool kFull>
void DomainRangeEnd(nvtx::Domain domain, RangeId id) {
  if (!kFull) return RecordRangeEnd(id);
  auto* next = NextCore2<void(nvtx::Domain, RangeId)>(nvtx::kDomainRangeEnd);
  const RangeId ours = g_next_ranges.Take(id);
  RecordRangeEnd(ours != 0 || next != nullptr ? ours : id);
  if (next != nullptr) next(domain, id);
}

template <bool kFull>
int DomainRangePushEx(nvtx::Domain domain, const EventAttributes* event) {
  auto* next = kFull ? NextCore2<int(nvtx::Domain, const EventAttributes*)>(nvtx::kDomainRangePushEx) : nullptr;
  const int theirs = next == nullptr ? 0 : next(domain, event);
  char storage[kMaxUtf8Bytes];
  const int ours = DomainPush(DomainOf<kFull>(domain), MessageOf<kFull>(event, storage));
  return next != nullptr ? theirs : ours;
}

template <bool kFull>
int DomainRangePop(nvtx::Domain domain) {
  const int ours = DomainPop(DomainOf<kFull>(domain));
  auto* next = kFull ? NextCore2<int(nvtx::Domain)>(nvtx::kDomainRangePop) : nullptr;
  return next == nullptr ? ours : next(domain);
}

template <bool kFull>
nvtx::String JoinStrings(nvtx::String theirs, uint64_t ours) {
  if (!kFull || theirs == nullptr) return reinterpret_cast<nvtx::String>(ours);
  // Registered again, it may have the same handle.
  const uint64_t key = reinterpret_cast<uint64_t>(theirs);
  if (ours != 0 && g_next_strings.Find(key) == 0) g_next_strings.Insert(key, ours);
  return theirs;
}

template <bool kFull>
nvtx::String DomainRegisterStringA(nvtx::Domain domain, const char* text) {
  auto* next = kFull ? NextCore2<nvtx::String(nvtx::Domain, const char*)>(nvtx::kDomainRegisterStringA) : nullptr;
  nvtx::String theirs = next == nullptr ? nullptr : next(domain, text);
  return JoinStrings<kFull>(theirs, RegisterText(text));
}

template <bool kFull>
nvtx::String DomainRegisterStringW(nvtx::Domain domain, const wchar_t* text) {
  auto* next = kFull ? NextCore2<nvtx::String(nvtx::Domain, const wchar_t*)>(nvtx::kDomainRegisterStringW) : nullptr;
  nvtx::String theirs = next == nullptr ? nullptr : next(domain, text);
  char storage[kMaxUtf8Bytes];
  return JoinStrings<kFull>(theirs, RegisterText(ToUtf8(text, storage)));
}

nvtx::Domain JoinDomains(nvtx::Domain theirs, taskd_domain* ours) {
  if (theirs == nullptr) return ours;
  const uint64_t key = reinterpret_cast<uint64_t>(theirs);
  // A destroyed domain's handle may come back for another one.
  g_next_domains.Take(key);
  g_next_domains.Insert(key, reinterpret_cast<uint64_t>(ours));
  return theirs;
}

template <bool kFull>
nvtx::Domain DomainCreateA(const char* name) {
  auto* next = kFull ? NextCore2<nvtx::Domain(const char*)>(nvtx::kDomainCreateA) : nullptr;
  nvtx::Domain theirs = next == nullptr ? nullptr : next(name);
  return JoinDomains(theirs, CreateDomain(name));
}

template <bool kFull>
nvtx::Domain DomainCreateW(const wchar_t* name) {
  auto* next = kFull ? NextCore2<nvtx::Domain(const wchar_t*)>(nvtx::kDomainCreateW) : nullptr;
  nvtx::Domain theirs = next == nullptr ? nullptr : next(name);
  char storage[kMaxUtf8Bytes];
  return JoinDomains(theirs, CreateDomain(ToUtf8(name, storage)));
}

// ---- Start

template <typename Signature>
nvtx::Function Erase(Signature* function) {
  return reinterpret_cast<nvtx::Function>(function);
}

// By function number.
template <bool kFull>
void OurFunctions(nvtx::Function (&core)[nvtx::kCoreFunctions], nvtx::Function (&core2)[nvtx::kCore2Functions]) {
  core[nvtx::kMarkEx] = Erase(MarkEx<kFull>);
  core[nvtx::kMarkA] = Erase(MarkA<kFull>);
  core[nvtx::kMarkW] = Erase(MarkW<kFull>);
  core[nvtx::kRangeStartEx] = Erase(RangeStartEx<kFull>);
  core[nvtx::kRangeStartA] = Erase(RangeStartA<kFull>);
  core[nvtx::kRangeStartW] = Erase(RangeStartW<kFull>);
  core[nvtx::kRangeEnd] = Erase(RangeEnd<kFull>);
  core[nvtx::kRangePushEx] = Erase(RangePushEx<kFull>);
  core[nvtx::kRangePushA] = Erase(RangePushA<kFull>);
  core[nvtx::kRangePushW] = Erase(RangePushW<kFull>);
  core[nvtx::kRangePop] = Erase(RangePop<kFull>);
  core2[nvtx::kDomainMarkEx] = Erase(DomainMarkEx<kFull>);
  core2[nvtx::kDomainRangeStartEx] = Erase(DomainRangeStartEx<kFull>);
  core2[nvtx::kDomainRangeEnd] = Erase(DomainRangeEnd<kFull>);
  core2[nvtx::kDomainRangePushEx] = Erase(DomainRangePushEx<kFull>);
  core2[nvtx::kDomainRangePop] = Erase(DomainRangePop<kFull>);
  core2[nvtx::kDomainRegisterStringA] = Erase(DomainRegisterStringA<kFull>);
  core2[nvtx::kDomainRegisterStringW] = Erase(DomainRegisterStringW<kFull>);
  core2[nvtx::kDomainCreateA] = Erase(DomainCreateA<kFull>);
  core2[nvtx::kDomainCreateW] = Erase(DomainCreateW<kFull>);
}

struct ModuleTable {
  nvtx::FunctionTable slots = nullptr;
  unsigned entries = 0;

  nvtx::Function* slot(unsigned function) const { return function < entries ? slots[function] : nullptr; }
};

ModuleTable GetModule(const nvtx::CallbackTable& callbacks, nvtx::Module module) {
  ModuleTable table;
  if (callbacks.get_module(module, &table.slots, &table.entries) == 0 || table.slots == nullptr) return {};
  return table;
}

// What lies in the slots. Before a tool fills them these are NVTX's own functions that would start it again.
template <size_t kFunctions>
void Read(const ModuleTable& table, nvtx::Function (&out)[kFunctions]) {
  for (unsigned i = 1; i < kFunctions; ++i) {
    const nvtx::Function* slot = table.slot(i);
    out[i] = slot == nullptr ? nullptr : *slot;
  }
}

// What the other tool changed is its own. The first instance's counts: a tool has one set of functions.
template <size_t kFunctions>
void Adopt(const nvtx::Function (&before)[kFunctions], const nvtx::Function (&after)[kFunctions],
           std::atomic<nvtx::Function> (&next)[kFunctions]) {
  for (unsigned i = 1; i < kFunctions; ++i) {
    if (after[i] == before[i] || after[i] == nullptr) continue;
    nvtx::Function none = nullptr;
    next[i].compare_exchange_strong(none, after[i]);
  }
}

template <size_t kFunctions>
void Install(const ModuleTable& table, const nvtx::Function (&ours)[kFunctions]) {
  for (unsigned i = 1; i < kFunctions; ++i) {
    nvtx::Function* slot = table.slot(i);
    // Release: NVTX's other threads wait until it is started, but one that already has a slot's function may call it,
    // and must find the other tool's (Adopt) behind it.
    if (slot != nullptr && ours[i] != nullptr) __atomic_store_n(slot, ours[i], __ATOMIC_RELEASE);
  }
}

// Several NVTX instances ask; one line is enough.
void SayOnce(const char* format, const char* path, const char* reason) {
  static constinit std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  char line[400];
  snprintf(line, sizeof(line), format, path, reason);
  Say(line);
}

// The other tool's library, which stays loaded: slots may point into it. Null: there is none.
void* OpenOtherTool(const char*& path) {
  path = getenv("TASKD_NVTX_CHAIN");
  if (path == nullptr || *path == '\0') return nullptr;
  void* library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) {
    const char* error = dlerror();
    SayOnce("TASKD_NVTX_CHAIN: '%.150s' cannot be loaded: %.200s", path, error == nullptr ? "unknown error" : error);
    return nullptr;
  }
  // Any copy of this library: it would call itself for ever.
  if (dlsym(library, "taskd_core_v1") != nullptr) {
    SayOnce("TASKD_NVTX_CHAIN: '%.150s' is TaskD's own library; name another tool's%s", path, "");
    return nullptr;
  }
  return library;
}

// Lets the other tool fill the tables. False: there is none.
bool StartOtherTool(nvtx::GetExportTable get_export_table) {
  const char* path;
  void* library = OpenOtherTool(path);
  if (library == nullptr) return false;
  auto* initialize = reinterpret_cast<nvtx::InitializeInjection>(dlsym(library, "InitializeInjectionNvtx2"));
  if (initialize == nullptr) {
    SayOnce("TASKD_NVTX_CHAIN: '%.150s' is no NVTX tool: it has no InitializeInjectionNvtx2%s", path, "");
    return false;
  }
  t_in_other_tool = true;
  const bool started = initialize(get_export_table) != 0;
  t_in_other_tool = false;
  if (!started) SayOnce("TASKD_NVTX_CHAIN: '%.150s' did not start%s", path, "");
  return started;
}

}  // namespace
}  // namespace taskd::worker

TASKD_EXPORT int InitializeInjectionNvtx2(taskd::nvtx::GetExportTable get_export_table) {
  namespace nvtx = taskd::nvtx;
  using namespace taskd::worker;
  if (get_export_table == nullptr || t_in_other_tool) return 0;
  const auto* callbacks = static_cast<const nvtx::CallbackTable*>(get_export_table(nvtx::kExportCallbacks));
  if (callbacks == nullptr || callbacks->bytes < sizeof(*callbacks) || callbacks->get_module == nullptr) return 0;
  const ModuleTable core = GetModule(*callbacks, nvtx::kModuleCore);
  const ModuleTable core2 = GetModule(*callbacks, nvtx::kModuleCore2);
  if (core.slots == nullptr) return 0;
  const auto* version = static_cast<const nvtx::VersionTable*>(get_export_table(nvtx::kExportVersion));
  if (version != nullptr && version->bytes >= sizeof(*version) && version->set_tool_version != nullptr) {
    version->set_tool_version(kToolVersion);
  }

  nvtx::Function core_before[nvtx::kCoreFunctions] = {};
  nvtx::Function core2_before[nvtx::kCore2Functions] = {};
  Read(core, core_before);
  Read(core2, core2_before);
  nvtx::Function our_core[nvtx::kCoreFunctions] = {};
  nvtx::Function our_core2[nvtx::kCore2Functions] = {};
  const bool chained = StartOtherTool(get_export_table);
  if (chained) {
    nvtx::Function core_after[nvtx::kCoreFunctions] = {};
    nvtx::Function core2_after[nvtx::kCore2Functions] = {};
    Read(core, core_after);
    Read(core2, core2_after);
    Adopt(core_before, core_after, g_next.core);
    Adopt(core2_before, core2_after, g_next.core2);
  }
  // Whoever has no other tool does not pay for it.
  if (chained) {
    OurFunctions<true>(our_core, our_core2);
  } else {
    OurFunctions<false>(our_core, our_core2);
  }
  Install(core, our_core);
  Install(core2, our_core2);
  return 1;
}

TASKD_EXPORT int InitializeInjectionNvtxExtension(void* module) {
  using namespace taskd::worker;
  if (t_in_other_tool) return 0;
  const char* path;
  void* library = OpenOtherTool(path);
  if (library == nullptr) return 0;
  auto* initialize =
      reinterpret_cast<taskd::nvtx::InitializeExtension>(dlsym(library, "InitializeInjectionNvtxExtension"));
  if (initialize == nullptr) return 0;
  t_in_other_tool = true;
  const int result = initialize(module);
  t_in_other_tool = false;
  return result;
}
