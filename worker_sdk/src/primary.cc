#include "primary.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include <atomic>

#include "communication_owner.h"
#include "recorder.h"

// This copy's own image begins here (the linker defines it).
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));  // NOLINT(bugprone-reserved-identifier)

namespace taskd::worker {
namespace {

constexpr int kMaxCandidates = 8;

struct Candidates {
  const char* paths[kMaxCandidates];
  int count;
};

bool EndsWith(const char* text, const char* suffix) {
  size_t text_bytes = strlen(text);
  size_t suffix_bytes = strlen(suffix);
  return text_bytes >= suffix_bytes && strcmp(text + text_bytes - suffix_bytes, suffix) == 0;
}

// Collects the copies that were loaded before this one.
int OnObject(dl_phdr_info* info, size_t, void* argument) {
  auto* candidates = static_cast<Candidates*>(argument);
  if (info->dlpi_addr == reinterpret_cast<ElfW(Addr)>(__ehdr_start)) return 1;
  if (info->dlpi_name != nullptr && EndsWith(info->dlpi_name, "libtaskd.so") && candidates->count < kMaxCandidates) {
    candidates->paths[candidates->count++] = info->dlpi_name;
  }
  return 0;
}

const CoreTable* Find() {
  Candidates candidates = {};
  dl_iterate_phdr(OnObject, &candidates);
  for (int i = 0; i < candidates.count; ++i) {
    void* library = dlopen(candidates.paths[i], RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    // The handle stays open: the library cannot be unloaded anyway (-z nodelete).
    auto* table = static_cast<const CoreTable*>(dlsym(library, "taskd_core_v1"));
    if (table != nullptr && table->bytes >= sizeof(CoreTable)) return table;
  }
  return nullptr;
}

void CoreMark(const taskd_domain* domain, const char* name, int stream) {
  DomainRecord<ring::kRecordMark>(domain, name, stream != 0);
}
uint64_t CoreRangeStart(const taskd_domain* domain, const char* name, int stream) {
  return DomainRecord<ring::kRecordRangeStart>(domain, name, stream != 0);
}
void CoreRangeEnd(uint64_t id) { RecordRangeEnd(id); }
int CoreCommunicationBegin(int source, int nccl_version) {
  return BeginCommunication(static_cast<CommunicationSource>(source), nccl_version) ? 1 : 0;
}
void CoreCommunicationEnd(int source) { EndCommunication(static_cast<CommunicationSource>(source)); }

// The exported table is a copy of this: its name means the first copy's table in every copy of the library.
constexpr CoreTable kOwnTable = {
    .bytes = sizeof(CoreTable),
    .reserved = 0,
    .mark = CoreMark,
    .range_start = CoreRangeStart,
    .range_end = CoreRangeEnd,
    .domain_create = CreateDomain,
    .init = Init,
    .start = Start,
    .destroy = Destroy,
    .enabled_kinds = EnabledKinds,
    .get_stats = GetStats,
    .communication_begin = CoreCommunicationBegin,
    .communication_end = CoreCommunicationEnd,
    .nccl_plugin_speaks = NcclPluginSpeaks,
};

// Our own table: nobody else's. Threads that look at the same time find the same; release and acquire, because the
// table of a copy that was just loaded is read behind it.
std::atomic<const CoreTable*> g_primary{nullptr};

}  // namespace

const CoreTable* OtherPrimary() {
  const CoreTable* primary = g_primary.load(std::memory_order_acquire);
  if (primary == nullptr) {
    primary = Find();
    if (primary == nullptr) primary = &kOwnTable;
    g_primary.store(primary, std::memory_order_release);
  }
  return primary == &kOwnTable ? nullptr : primary;
}

}  // namespace taskd::worker

// A declaration first: a const object would be internal.
TASKD_EXPORT const taskd::worker::CoreTable taskd_core_v1;
const taskd::worker::CoreTable taskd_core_v1 = taskd::worker::kOwnTable;
