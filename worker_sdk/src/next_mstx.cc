#include "next_mstx.h"

#include <dlfcn.h>

#include "recorder.h"

namespace taskd::worker {
namespace {

enum Place : uint32_t { kUndecided = 0, kInFront = 1, kAside = 2 };

NextMstx g_next;
std::atomic<uint32_t> g_place{kUndecided};
std::atomic<void*> g_handles[ring::kMaxDomains];

template <typename Function>
bool FindFunction(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

constinit std::atomic<const NextMstx*> g_next_mstx{nullptr};

bool NextMstx::FindIn(void* library) {
  return FindFunction(library, mark_, "mstxMarkA") && FindFunction(library, range_start_, "mstxRangeStartA") &&
         FindFunction(library, range_end_, "mstxRangeEnd") &&
         FindFunction(library, domain_create_, "mstxDomainCreateA") &&
         FindFunction(library, domain_mark_, "mstxDomainMarkA") &&
         FindFunction(library, domain_range_start_, "mstxDomainRangeStartA") &&
         FindFunction(library, domain_range_end_, "mstxDomainRangeEnd");
}

bool NextMstx::Find() {
  if (FindIn(RTLD_NEXT)) return true;
  // What a Python module needs is not in the global scope that RTLD_NEXT searches.
  void* library = dlopen("libms_tools_ext.so", RTLD_LAZY | RTLD_NOLOAD);
  return library != nullptr && FindIn(library);
}

void* NextMstx::Handle(const taskd_domain* domain) const {
  const uint32_t index = DomainIndex(domain);
  if (index == ring::kDomainDefault) {
    // Not ours: mstx's own, from a call inside its library that the linker led back to us.
    const bool ours = domain == nullptr || domain == reinterpret_cast<const taskd_domain*>(g_domain_handles);
    return ours ? nullptr : const_cast<taskd_domain*>(domain);
  }
  void* handle = g_handles[index].load(std::memory_order_acquire);
  if (handle == nullptr) {
    handle = domain_create_(header_->domain_names[index]);
    g_handles[index].store(handle, std::memory_order_release);
  }
  return handle;
}

void NextMstx::Mark(const taskd_domain* domain, const char* message, void* stream) const {
  if (void* handle = Handle(domain)) return domain_mark_(handle, message, stream);
  mark_(message, stream);
}

uint64_t NextMstx::RangeStart(const taskd_domain* domain, const char* message, void* stream) const {
  if (void* handle = Handle(domain)) return domain_range_start_(handle, message, stream);
  return range_start_(message, stream);
}

void NextMstx::RangeEnd(const taskd_domain* domain, uint64_t id) const {
  if (id >= ring::kFirstOwnId) return RecordRangeEnd(id);  // it began before we stepped aside
  if (void* handle = Handle(domain)) return domain_range_end_(handle, id);
  range_end_(id);
}

void StepAside(ring::SegmentHeader& header) {
  if (g_place.load(std::memory_order_relaxed) != kUndecided) return;
  uint32_t place = kUndecided;
  g_next.header_ = &header;
  if (!g_next.Find() || !g_place.compare_exchange_strong(place, kAside)) return;
  g_next_mstx.store(&g_next, std::memory_order_release);
}

bool StayInFront() {
  uint32_t place = kUndecided;
  return g_place.compare_exchange_strong(place, kInFront) || place == kInFront;
}

}  // namespace taskd::worker
