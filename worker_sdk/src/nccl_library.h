// What stands behind NCCL's functions where this library stands in front of them (nccl_calls.h).
//
// Not every caller's NCCL is the same one: a wheel may have NCCL linked into a library of its own, beside another
// package's libnccl.so.2. So a function is looked for as the dynamic linker would have for the object that calls: in the
// libraries behind ours that all objects see, then in the caller and what it needs; where that is no NCCL at all, in the
// first object that has one. The object that it was found by stays loaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "nccl_calls.h"

namespace taskd::worker {

#define TASKD_NCCL_FUNCTION(name, ...) kNccl##name,
enum NcclFunction : int {
  TASKD_NCCL_OPERATIONS(TASKD_NCCL_FUNCTION) TASKD_NCCL_FRAME(TASKD_NCCL_FUNCTION)
  // Asked by ourselves, not stood in front of.
  kNcclCommCount,
  kNcclCommUserRank,
  kNcclFunctions,
};
#undef TASKD_NCCL_FUNCTION

// Without "nccl".
const char* NameOf(NcclFunction function);

// The functions that one object's calls lead to.
struct NcclBinding {
  std::atomic<bool> ready;  // all of it but the functions is there
  uintptr_t begin;          // of the object
  uintptr_t bytes;
  void* object;  // where to look, of dlopen; null: only behind this library
  std::atomic<void*> functions[kNcclFunctions];
};

#pragma GCC visibility push(hidden)
inline constexpr size_t kMaxNcclBindings = 16;
extern NcclBinding g_nccl_bindings[kMaxNcclBindings];
// The thread's last one: NCCL's functions call each other, and then we may be the caller.
extern constinit thread_local NcclBinding* t_nccl_binding;
#pragma GCC visibility pop

// Takes the dynamic linker's lock.
void* FindNcclFunction(NcclFunction function, uintptr_t caller);

// The function itself for a call that returns to `caller`; null: there is none.
template <typename Signature>
__attribute__((always_inline)) inline Signature* NcclFunctionFor(NcclFunction function, const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (NcclBinding& binding : g_nccl_bindings) {
    if (!binding.ready.load(std::memory_order_acquire)) break;
    if (address - binding.begin >= binding.bytes) continue;
    void* found = binding.functions[function].load(std::memory_order_acquire);
    if (found == nullptr) break;
    t_nccl_binding = &binding;
    return reinterpret_cast<Signature*>(found);
  }
  return reinterpret_cast<Signature*>(FindNcclFunction(function, address));
}

}  // namespace taskd::worker
