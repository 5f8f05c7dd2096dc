// What a profiler plugin needs of NCCL's plugin interface, written down from NCCL's public headers and its guide for
// plugin authors; no header of NCCL is used.
//
// Sources (github.com/NVIDIA/nccl): src/include/plugin/nccl_profiler.h and profiler/profiler_v1.h to profiler_v7.h for
// the layouts, src/plugin/profiler.cc for what is called when, plugins/profiler/README.md for the rules.
//
// How it works: NCCL loads libnccl-profiler-<NCCL_PROFILER_PLUGIN>.so, looks for ncclProfiler_v7, then _v6, and so on,
// and takes the first that is there. It calls init for each communicator, and startEvent and stopEvent for the events
// whose bits the plugin set in the mask that init got. The mask is NCCL's own variable: the plugin may change it at any
// time, and an operation follows the mask of its call. Only init may fail.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace taskd::nccl {

enum Result : int { kSuccess = 0, kSystemError = 2 };

enum EventType : uint32_t {
  kEventGroup = 1u << 0,
  kEventCollective = 1u << 1,
  kEventPointToPoint = 1u << 2,
  kEventKernelChannel = 1u << 6,  // since v3; one channel of an operation in its kernel
  kEventGroupApi = 1u << 8,       // since v5, as the two below
  kEventCollectiveApi = 1u << 9,
  kEventPointToPointApi = 1u << 10,
  kEventCopyEngineCollective = 1u << 12,  // since v6
};

enum LogLevel : int { kLogWarning = 2 };
enum LogSubsystem : unsigned long { kLogInit = 1 };
using LogFunction = void (*)(int level, unsigned long subsystem, const char* file, int line, const char* format, ...);

// The descriptors have many more forms; these are the ones read here. Texts are static strings of NCCL's.

// Of v1, which has numbers for what the others have texts for: ncclFunc_t (nccl_common.h), ncclDataType_t (nccl.h).
struct CollectiveV1 {
  const char* name;
  uint64_t communicator;
  uint64_t sequence;
  uint8_t function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  uint8_t data_type;
};

struct PointToPointV1 {
  const char* name;
  uint64_t communicator;
  uint8_t function;
  void* buffer;
  uint8_t data_type;
  size_t count;
  int peer;
};

struct CollectiveV2 {
  const char* name;  // of the communicator
  uint64_t communicator;
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* data_type;
  size_t traffic_bytes;
  uint8_t max_channels;
};

struct CollectiveV3 {
  const char* name;
  uint64_t communicator;
  uint64_t sequence;
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;
  int root;
  const char* data_type;
  uint8_t max_channels;
};

struct PointToPointV2 {  // and v3
  const char* name;
  uint64_t communicator;
  const char* function;
  void* buffer;
  const char* data_type;
  size_t count;
  int peer;
};

struct CollectiveV4 {  // to v7, also of copy engines but for `channels`
  uint64_t sequence;   // counts the function's calls on the communicator
  const char* function;
  const void* send_buffer;
  void* receive_buffer;
  size_t count;  // elements
  int root;
  const char* data_type;
  uint8_t channels;  // kernel channels that will have an event each
};

struct PointToPointV4 {  // to v7
  const char* function;
  void* buffer;
  const char* data_type;
  size_t count;
  int peer;  // rank in the communicator
  uint8_t channels;
};

// v1 to v4 have an 8 bit type, v5 to v7 one of 64 bits; what follows is at the same place.
struct Descriptor {
  union {
    uint8_t type8;
    uint64_t type64;
  };
  void* parent;  // of a kernel channel: the handle of its operation
  int rank;
  union {
    CollectiveV1 collective_v1;
    PointToPointV1 point_to_point_v1;
    CollectiveV2 collective_v2;
    CollectiveV3 collective_v3;
    PointToPointV2 point_to_point_v2;
    CollectiveV4 collective;
    PointToPointV4 point_to_point;
  };
};
static_assert(offsetof(Descriptor, parent) == 8 && offsetof(Descriptor, collective) == 24);

using StartEvent = int (*)(void* context, void** handle, Descriptor* descriptor);
using StopEvent = int (*)(void* handle);
using RecordEventState = int (*)(void* handle, int state, void* arguments);
using Finalize = int (*)(void* context);

struct ProfilerV2 {  // also v1 and v3
  const char* name;
  int (*init)(void** context, int* mask);
  StartEvent start_event;
  StopEvent stop_event;
  RecordEventState record_event_state;
  Finalize finalize;
};

struct ProfilerV4 {
  const char* name;
  int (*init)(void** context, int* mask, const char* name, uint64_t communicator, int nodes, int ranks, int rank,
              LogFunction log);
  StartEvent start_event;
  StopEvent stop_event;
  RecordEventState record_event_state;
  Finalize finalize;
};

struct ProfilerV5 {  // to v7
  const char* name;
  int (*init)(void** context, uint64_t communicator, int* mask, const char* name, int nodes, int ranks, int rank,
              LogFunction log);
  StartEvent start_event;
  StopEvent stop_event;
  RecordEventState record_event_state;
  Finalize finalize;
};

}  // namespace taskd::nccl
