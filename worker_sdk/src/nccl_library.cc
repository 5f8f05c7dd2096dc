#include "nccl_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>

// This library's own image begins here (the linker defines it).
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));  // NOLINT(bugprone-reserved-identifier)

namespace taskd::worker {
namespace {

#define TASKD_NCCL_NAME(name, ...) "nccl" #name,
constexpr const char* kNames[] = {
    TASKD_NCCL_OPERATIONS(TASKD_NCCL_NAME) TASKD_NCCL_FRAME(TASKD_NCCL_NAME) "ncclCommCount", "ncclCommUserRank"};
#undef TASKD_NCCL_NAME

constinit std::atomic<size_t> g_bindings_taken{0};

struct Object {
  uintptr_t address;  // in it
  uintptr_t begin;
  uintptr_t bytes;
  const char* path;
};

// Finds the object that has the address.
int OnObject(dl_phdr_info* info, size_t, void* argument) {
  auto* object = static_cast<Object*>(argument);
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const uintptr_t first = info->dlpi_addr + header.p_vaddr;
    if (first < begin) begin = first;
    if (first + header.p_memsz > end) end = first + header.p_memsz;
  }
  if (object->address < begin || object->address >= end) return 0;
  object->begin = begin;
  object->bytes = end - begin;
  object->path = info->dlpi_name;
  return 1;
}

void* Look(NcclFunction function, void* object) {
  void* found = dlsym(RTLD_NEXT, kNames[function]);
  if (found == nullptr && object != nullptr) found = dlsym(object, kNames[function]);
  if (found == nullptr) dlerror();  // not for the program to find
  return found;
}

struct NumberedObject {
  size_t before;  // it in the dynamic linker's order
  char path[PATH_MAX];
};

int OnNumberedObject(dl_phdr_info* info, size_t, void* argument) {
  auto* object = static_cast<NumberedObject*>(argument);
  if (object->before-- > 0) return 0;
  snprintf(object->path, sizeof(object->path), "%s", info->dlpi_name == nullptr ? "" : info->dlpi_name);
  return 1;
}

// The first object that has NCCL or needs it. For a caller that does neither: it was given a pointer to the function, or
// the function's last act was to call on.
void* AnyObjectWithNccl() {
  NumberedObject object;
  for (size_t i = 0; object.before = i, dl_iterate_phdr(OnNumberedObject, &object) != 0; ++i) {
    void* handle = object.path[0] == '\0' ? nullptr : dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    if (Look(kNcclCommInitRank, handle) != nullptr) return handle;
    dlclose(handle);
  }
  return nullptr;
}

NcclBinding* BindingOf(uintptr_t address) {
  for (NcclBinding& binding : g_nccl_bindings) {
    if (binding.ready.load(std::memory_order_acquire) && address - binding.begin < binding.bytes) return &binding;
  }
  return nullptr;
}

// Two threads may take one each for the same object; either will do. Null: no more can be taken.
NcclBinding* TakeBinding(const Object& object, void* handle) {
  if (g_bindings_taken.load(std::memory_order_relaxed) >= kMaxNcclBindings) return nullptr;
  const size_t index = g_bindings_taken.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMaxNcclBindings) return nullptr;
  NcclBinding& binding = g_nccl_bindings[index];
  binding.begin = object.begin;
  binding.bytes = object.bytes;
  binding.object = handle;
  binding.ready.store(true, std::memory_order_release);
  return &binding;
}

}  // namespace

constinit NcclBinding g_nccl_bindings[kMaxNcclBindings] = {};
constinit thread_local NcclBinding* t_nccl_binding = nullptr;

const char* NameOf(NcclFunction function) { return kNames[function] + 4; }

void* FindNcclFunction(NcclFunction function, uintptr_t caller) {
  NcclBinding* binding = BindingOf(caller);
  if (binding == nullptr) {
    Object object = {.address = caller, .begin = 0, .bytes = 0, .path = nullptr};
    dl_iterate_phdr(OnObject, &object);
    if (object.begin == reinterpret_cast<uintptr_t>(__ehdr_start) && t_nccl_binding != nullptr) {
      binding = t_nccl_binding;  // NCCL's ncclBcast ends in ncclBroadcast, which then returns to us
    } else {
      const bool is_library = object.path != nullptr && *object.path != '\0';
      void* handle = is_library ? dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
      if (Look(kNcclCommInitRank, handle) == nullptr) handle = AnyObjectWithNccl();
      if (object.bytes != 0) binding = TakeBinding(object, handle);  // else it is in no object
      if (binding == nullptr) return Look(function, handle);
    }
  }
  t_nccl_binding = binding;
  void* found = binding->functions[function].load(std::memory_order_acquire);
  if (found == nullptr) {
    found = Look(function, binding->object);
    binding->functions[function].store(found, std::memory_order_release);
  }
  return found;
}

}  // namespace taskd::worker
