// Several copies of this library in one process (one preloaded, another one loaded by the Python API from its own path)
// act as one: the copy that was loaded first records, the others hand their calls to it.
#pragma once

#include <cstdint>

#include "taskd/taskd.h"

namespace taskd::worker {

// What a copy offers to the others, found by name. Copies may be of different releases: fields are only ever added at
// the end, and a copy uses another one only if that one's table is at least as long as its own.
struct CoreTable {
  uint32_t bytes;  // sizeof(CoreTable)
  uint32_t reserved;
  void (*mark)(const taskd_domain* domain, const char* name, int stream);
  uint64_t (*range_start)(const taskd_domain* domain, const char* name, int stream);
  void (*range_end)(uint64_t id);
  taskd_domain* (*domain_create)(const char* name);
  int (*init)(int rank, int local_rank, int disk_limit_mb);
  int (*start)();
  int (*destroy)();
  uint32_t (*enabled_kinds)();
  int (*get_stats)(taskd_worker_stats* stats);
  int (*communication_begin)(int source, int nccl_version);
  void (*communication_end)(int source);
  void (*nccl_plugin_speaks)();
};

// The table of the copy that records, null where this copy is the one. Found at the first call; takes the dynamic
// linker's lock, so no lock of ours may be held.
const CoreTable* OtherPrimary();

}  // namespace taskd::worker
