// NCCL's functions as far as the benchmark calls them, doing nothing: what is measured is what stands in front of them.
#include <stddef.h>

#include "nccl_calls.h"

using taskd::nccl::UniqueId;

extern "C" {
int ncclCommInitRank(void** comm, int, UniqueId, int) {
  static char only;
  *comm = &only;
  return 0;
}
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*) { return 0; }
int ncclSend(const void*, size_t, int, int, void*, void*) { return 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
}
