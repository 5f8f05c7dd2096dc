// libnccl-profiler-taskd.so: NCCL's operations as communication marks. NCCL_PROFILER_PLUGIN=taskd, or a path to it.
//
// Design:
// 1. A mark is a range in the domain communication with the fields that torch_npu gives HCCL's operations (TaskD
//    contract §4.4), and besides `ranks`, `rank` and, for collectives, `seq`: the operation's number on its
//    communicator.
// 2. NCCL's stopEvent of an operation means that it was enqueued, not that it ended. With kernel events (NCCL 2.26 and
//    later) the range begins when its first channel is seen running and ends when its last one has ended, both as
//    NCCL's progress thread notices them. Without them it is the call's time on the host.
// 3. Kernel events cost NCCL work. They are asked for only while communication marks are on, so an operation that was
//    called at the very moment of a change may be left out.
// 4. NCCL keeps our handles as long as it likes. So a handle is a number: the slot of an operation and the slot's life.
//    What comes for an earlier life is ignored; nothing is allocated or freed for an operation.
// 5. Nothing is linked: libtaskd.so is found in the process (preloaded, or loaded by the Python API), else beside this
//    file. Without it init fails, and NCCL goes on without us.
#include "nccl_profiler.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <iterator>

#include "nccl_mark_name.h"
#include "taskd/taskd.h"

#define PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace taskd::nccl {
namespace {

// ---- libtaskd.so

struct Taskd {
  uint32_t (*enabled_kinds)();
  taskd_domain* (*domain_create)(const char* name);
  // mstx's, because it can show that there is a stream: readers expect operations to have one.
  uint64_t (*range_start)(taskd_domain* domain, const char* name, void* stream);
  void (*range_end)(uint64_t id);
  void (*plugin_speaks)();  // null: an older libtaskd.so, which does not ask
  taskd_domain* communication;
};
Taskd g_taskd;
std::atomic<uint32_t> g_taskd_state{0};  // 0: not looked for, 1: being looked for, 2: there, 3: not to be had

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool FindAll(void* library, Taskd& taskd) {
  return Find(library, "taskd_enabled_kinds", taskd.enabled_kinds) &&
         Find(library, "taskd_domain_create", taskd.domain_create) &&
         Find(library, "taskd_range_end", taskd.range_end) && Find(library, "mstxDomainRangeStartA", taskd.range_start);
}

// The name of a file beside this library; false: too long or not to be had.
bool PathBeside(const char* file, char (&path)[PATH_MAX]) {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&PathBeside), &info) == 0 || info.dli_fname == nullptr) return false;
  const char* slash = strrchr(info.dli_fname, '/');
  const int folder_bytes = slash == nullptr ? 0 : static_cast<int>(slash - info.dli_fname + 1);
  const int bytes = snprintf(path, sizeof(path), "%.*s%s", folder_bytes, info.dli_fname, file);
  return bytes > 0 && static_cast<size_t>(bytes) < sizeof(path);
}

// By the library's own handle, not by RTLD_DEFAULT: mstx's functions may be another library's in this process.
void* OpenTaskd() {
  Dl_info info;
  const void* preloaded = dlsym(RTLD_DEFAULT, "taskd_enabled_kinds");
  if (preloaded != nullptr && dladdr(preloaded, &info) != 0) {
    if (void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  char path[PATH_MAX];
  if (PathBeside("libtaskd.so", path)) {
    if (void* library = dlopen(path, RTLD_LAZY)) return library;
  }
  return dlopen("libtaskd.so", RTLD_LAZY);
}

bool LoadTaskd() {
  void* library = OpenTaskd();  // stays open
  if (library == nullptr || !FindAll(library, g_taskd)) return false;
  Find(library, "taskd_nccl_plugin_speaks", g_taskd.plugin_speaks);
  g_taskd.communication = g_taskd.domain_create("communication");
  return true;
}

// The first communicator's init does it; one that comes at the same time waits.
bool HasTaskd() {
  uint32_t unknown = 0;
  if (g_taskd_state.compare_exchange_strong(unknown, 1)) g_taskd_state.store(LoadTaskd() ? 2 : 3);
  while (g_taskd_state.load() == 1) sched_yield();
  return g_taskd_state.load() == 2;
}

bool IsOn() { return (g_taskd.enabled_kinds() & TASKD_KIND_COMMUNICATION) != 0; }

// ---- Communicators

constexpr int kGroupNameBytes = 64;

// NCCL's context of a communicator.
struct Communicator {
  char group[kGroupNameBytes];  // "": not known yet
  int ranks;                    // 0: not known
  int rank;
  int* mask;     // NCCL's mask of events
  int mask_off;  // operations: else nobody would ever notice that marks are on again
  int mask_on;
};

// "name:hash", since several may have one name.
void SetGroup(Communicator& communicator, const char* name, uint64_t hash) {
  char* out = communicator.group;
  const char* end = out + kGroupNameBytes - 20;
  for (const char* p = name == nullptr || *name == '\0' ? "nccl" : name; *p != '\0' && out < end; ++p) {
    *out++ = *p == '"' || *p == '\\' || static_cast<unsigned char>(*p) < 0x20 ? '_' : *p;
  }
  snprintf(out, static_cast<size_t>(communicator.group + kGroupNameBytes - out), ":%016llx",
           static_cast<unsigned long long>(hash));
}

// True: kernel events are asked for. One compare where nothing changes. Relaxed: NCCL reads its mask as a plain number,
// and a thread that sees it late leaves out an operation of that moment (design point 3).
bool AskForKernels(const Communicator& communicator, bool on) {
  const int wanted = on ? communicator.mask_on : communicator.mask_off;
  if (__builtin_expect(__atomic_load_n(communicator.mask, __ATOMIC_RELAXED) != wanted, false)) {
    __atomic_store_n(communicator.mask, wanted, __ATOMIC_RELAXED);
  }
  return (wanted & kEventKernelChannel) != 0;
}

// ---- Operations

struct Operation {
  // 1: somebody works on it. Taken with acquire, given back with release: all below is the holder's.
  std::atomic<uint32_t> held{0};
  bool kernel_timed = false;
  uint8_t channels = 0;  // that will come; 0: not known
  uint64_t life = 0;     // of the slot, from 1
  uint64_t range = 0;    // open, 0: none
  uint32_t started = 0;  // channels
  uint32_t stopped = 0;
  char name[kNameBytes];
};

// In flight at once; a slot is reused after so many operations.
constexpr uint64_t kOperations = 4096;
Operation g_operations[kOperations];
std::atomic<uint64_t> g_next_operation{0};

// A handle: the slot's life | the slot | 1 for a kernel channel. Never 0, since lives begin at 1.
constexpr int kSlotBits = 12;
static_assert(kOperations == uint64_t{1} << kSlotBits);

void* HandleOf(uint64_t life, uint64_t slot, bool channel) {
  return reinterpret_cast<void*>(life << (kSlotBits + 1) | slot << 1 | (channel ? 1 : 0));
}

// The handle of an event that is an operation's parent: some versions of NCCL leave out what has no parent. No slot's
// life is 0.
void* const kParent = HandleOf(0, 1, false);
constexpr uint32_t kParents = kEventGroup | kEventGroupApi | kEventCollectiveApi | kEventPointToPointApi;

bool TryHold(Operation& operation) {
  uint32_t free = 0;
  return operation.held.compare_exchange_strong(free, 1, std::memory_order_acquire);
}

void Release(Operation& operation) { operation.held.store(0, std::memory_order_release); }

// Holds the operation of a handle; null: the slot is another operation's by now.
Operation* Hold(uint64_t handle) {
  Operation& operation = g_operations[handle >> 1 & (kOperations - 1)];
  // Held for the time of a mark, by another channel's thread.
  while (!TryHold(operation)) sched_yield();
  if (operation.life == handle >> (kSlotBits + 1)) return &operation;
  Release(operation);
  return nullptr;
}

// ---- What NCCL calls

// What all versions of a descriptor hold about an operation.
struct Call {
  bool collective;
  int rank;
  const char* group;  // null: given at init
  uint64_t hash;
  const char* function;
  const char* data_type;
  size_t count;
  uint64_t sequence;
  int peer;
  uint8_t channels;
};

void* StartOperation(const Communicator& communicator, const Call& call, bool kernel_timed) {
  // A slot that a late channel holds is passed over: this thread waits for nobody.
  for (int tries = 0; tries < 8; ++tries) {
    const uint64_t slot = g_next_operation.fetch_add(1, std::memory_order_relaxed) & (kOperations - 1);
    Operation& operation = g_operations[slot];
    if (!TryHold(operation)) continue;
    ++operation.life;
    operation.kernel_timed = kernel_timed;
    operation.channels = call.channels;
    operation.started = 0;
    operation.stopped = 0;
    {
      NameWriter out(operation.name);
      AppendSize(out, call.count, TypeNameOf(call.data_type));
      out.Text(communicator.group);
      AppendFunction(out, call.function == nullptr ? "Unknown" : call.function);
      AppendRanks(out, communicator.ranks, communicator.rank);
      if (call.collective) {
        out.Field("seq", call.sequence);
      } else if (call.function != nullptr) {
        AppendPeer(out, strcmp(call.function, "Send") == 0, communicator.rank, call.peer);
      }
      out.Text("}");
    }
    operation.range = kernel_timed ? 0 : g_taskd.range_start(g_taskd.communication, operation.name, &operation);
    void* handle = HandleOf(operation.life, slot, false);
    Release(operation);
    return handle;
  }
  return nullptr;
}

void* StartChannel(void* parent) {
  const uint64_t handle = reinterpret_cast<uint64_t>(parent);
  Operation* operation = Hold(handle);
  if (operation == nullptr) return nullptr;
  void* channel = nullptr;
  if (operation->kernel_timed) {
    if (operation->started++ == 0) {
      operation->range = g_taskd.range_start(g_taskd.communication, operation->name, operation);
    }
    channel = reinterpret_cast<void*>(handle | 1);
  }
  Release(*operation);
  return channel;
}

void EndRange(Operation& operation) {
  g_taskd.range_end(operation.range);
  operation.range = 0;
}

int StopEventOf(void* handle) {
  const uint64_t number = reinterpret_cast<uint64_t>(handle);
  if (number >> (kSlotBits + 1) == 0) return kSuccess;  // null or a parent's
  Operation* operation = Hold(number);
  if (operation == nullptr) return kSuccess;
  if ((number & 1) == 0) {
    if (!operation->kernel_timed) EndRange(*operation);
  } else if (++operation->stopped == operation->started && operation->stopped >= operation->channels) {
    EndRange(*operation);
  }
  Release(*operation);
  return kSuccess;
}

// NCCL's functions by the number that v1 has (ncclFunc_t).
constexpr const char* kFunctions[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                      "AllReduce", "SendRecv", "Send",      "Recv"};

// NCCL's descriptors of version kVersion.
template <int kVersion>
bool ReadCall(uint32_t type, const Descriptor& descriptor, Call& call) {
  call = {};
  call.peer = -1;
  call.collective = type != kEventPointToPoint;
  call.rank = descriptor.rank;
  auto collective = [&call](const auto& from) {
    call.function = from.function;
    call.data_type = from.data_type;
    call.count = from.count;
    call.sequence = from.sequence;
  };
  auto point_to_point = [&call](const auto& from) {
    call.function = from.function;
    call.data_type = from.data_type;
    call.count = from.count;
    call.peer = from.peer;
  };
  auto communicator = [&call](const auto& from) {  // before v4 it comes with every operation
    call.group = from.name == nullptr ? "" : from.name;
    call.hash = from.communicator;
  };
  auto numbered = [&call, &communicator](const auto& from) {
    call.function = from.function < std::size(kFunctions) ? kFunctions[from.function] : nullptr;
    call.data_type = from.data_type < std::size(kTypeNames) ? kTypeNames[from.data_type].nccl : nullptr;
    call.count = from.count;
    communicator(from);
  };
  if (type == kEventCollective) {
    if constexpr (kVersion == 1) {
      numbered(descriptor.collective_v1);
      call.sequence = descriptor.collective_v1.sequence;
    } else if constexpr (kVersion == 2) {
      collective(descriptor.collective_v2);
      communicator(descriptor.collective_v2);
    } else if constexpr (kVersion == 3) {
      collective(descriptor.collective_v3);
      communicator(descriptor.collective_v3);
    } else {
      collective(descriptor.collective);
      call.channels = descriptor.collective.channels;
    }
    return true;
  }
  if (type == kEventPointToPoint) {
    if constexpr (kVersion == 1) {
      numbered(descriptor.point_to_point_v1);
      call.peer = descriptor.point_to_point_v1.peer;
    } else if constexpr (kVersion <= 3) {
      point_to_point(descriptor.point_to_point_v2);
      communicator(descriptor.point_to_point_v2);
    } else {
      point_to_point(descriptor.point_to_point);
      call.channels = descriptor.point_to_point.channels;
    }
    return true;
  }
  if (kVersion >= 6 && type == kEventCopyEngineCollective) {
    collective(descriptor.collective);
    return true;
  }
  return false;
}

template <int kVersion>
uint32_t TypeOf(const Descriptor& descriptor) {
  return kVersion >= 5 ? static_cast<uint32_t>(descriptor.type64) : descriptor.type8;
}

// A communicator whose init failed has no context, and NCCL goes on with the events of all.
bool IsWhole(const void* context, void** handle, const Descriptor* descriptor) {
  if (handle != nullptr) *handle = nullptr;
  return context != nullptr && handle != nullptr && descriptor != nullptr;
}

// Channels of operations that were called before go on; nothing else begins.
template <int kVersion>
__attribute__((noinline)) int StartEventWhileOff(void* context, void** handle, Descriptor* descriptor) {
  if (!IsWhole(context, handle, descriptor)) return kSuccess;
  if (TypeOf<kVersion>(*descriptor) == kEventKernelChannel) {
    if (descriptor->parent != nullptr) *handle = StartChannel(descriptor->parent);
    return kSuccess;
  }
  AskForKernels(*static_cast<const Communicator*>(context), false);
  return kSuccess;
}

template <int kVersion>
int StartEventOf(void* context, void** handle, Descriptor* descriptor) {
  if (!IsOn()) return StartEventWhileOff<kVersion>(context, handle, descriptor);
  if (!IsWhole(context, handle, descriptor)) return kSuccess;
  const uint32_t type = TypeOf<kVersion>(*descriptor);
  if (type == kEventKernelChannel) {
    if (descriptor->parent != nullptr) *handle = StartChannel(descriptor->parent);
    return kSuccess;
  }
  auto& communicator = *static_cast<Communicator*>(context);
  const bool kernels = AskForKernels(communicator, true);
  Call call;
  if (!ReadCall<kVersion>(type, *descriptor, call)) {
    if ((type & kParents) != 0) *handle = kParent;
    return kSuccess;
  }
  if (call.group != nullptr) {
    if (communicator.group[0] == '\0') SetGroup(communicator, call.group, call.hash);
    communicator.rank = call.rank;
  }
  *handle = StartOperation(communicator, call, kernels && type != kEventCopyEngineCollective);
  return kSuccess;
}

int RecordEventStateOf(void*, int, void*) { return kSuccess; }

int FinalizeOf(void* context) {
  free(context);
  return kSuccess;
}

int Init(void** context, int* mask, int version, const char* name, uint64_t hash, int ranks, int rank,
         LogFunction log) {
  if (context == nullptr || mask == nullptr) return kSystemError;
  if (!HasTaskd()) {
    if (log != nullptr) {
      log(kLogWarning, kLogInit, "nccl_profiler.cc", 0, "%s",
          "taskd: libtaskd.so is neither in this process nor beside the plugin; no communication marks");
    }
    return kSystemError;
  }
  auto* communicator = static_cast<Communicator*>(calloc(1, sizeof(Communicator)));
  if (communicator == nullptr) return kSystemError;
  // The older ones give it with every operation.
  if (version >= 4) SetGroup(*communicator, name, hash);
  communicator->ranks = ranks;
  communicator->rank = rank;
  communicator->mask = mask;
  communicator->mask_off = kEventCollective | kEventPointToPoint;
  if (version >= 6) communicator->mask_off |= kEventCopyEngineCollective;
  communicator->mask_on = communicator->mask_off;
  if (version >= 3) communicator->mask_on |= kEventKernelChannel;
  AskForKernels(*communicator, IsOn());
  if (g_taskd.plugin_speaks != nullptr) g_taskd.plugin_speaks();
  *context = communicator;
  return kSuccess;
}

template <int kVersion>
int InitV2(void** context, int* mask) {
  return Init(context, mask, kVersion, nullptr, 0, 0, 0, nullptr);
}

int InitV4(void** context, int* mask, const char* name, uint64_t hash, int /*nodes*/, int ranks, int rank,
           LogFunction log) {
  return Init(context, mask, 4, name, hash, ranks, rank, log);
}

template <int kVersion>
int InitV5(void** context, uint64_t hash, int* mask, const char* name, int /*nodes*/, int ranks, int rank,
           LogFunction log) {
  return Init(context, mask, kVersion, name, hash, ranks, rank, log);
}

constexpr char kPluginName[] = "TaskD";

template <typename Profiler, int kVersion, typename InitFunction>
constexpr Profiler Table(InitFunction* init) {
  return {kPluginName, init, StartEventOf<kVersion>, StopEventOf, RecordEventStateOf, FinalizeOf};
}

}  // namespace
}  // namespace taskd::nccl

// NCCL takes the newest that it knows. Declared first: const objects would be internal.
#define TASKD_PROFILER(number, type, init)                      \
  PLUGIN_EXPORT const taskd::nccl::type ncclProfiler_v##number; \
  const taskd::nccl::type ncclProfiler_v##number = taskd::nccl::Table<taskd::nccl::type, number>(taskd::nccl::init)

TASKD_PROFILER(1, ProfilerV2, InitV2<1>);
TASKD_PROFILER(2, ProfilerV2, InitV2<2>);
TASKD_PROFILER(3, ProfilerV2, InitV2<3>);
TASKD_PROFILER(4, ProfilerV4, InitV4);
TASKD_PROFILER(5, ProfilerV5, InitV5<5>);
TASKD_PROFILER(6, ProfilerV5, InitV5<6>);
TASKD_PROFILER(7, ProfilerV5, InitV5<7>);
