// What is needed of NCCL's C functions to stand in front of them, written down from NCCL's user guide (API reference) and
// its public header; no header of NCCL is used. Enumerations are passed as int, handles as void*.
//
// Sources: docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/{comms,colls,group,p2p,types}.html for the functions and
// their parameters, github.com/NVIDIA/nccl, src/nccl.h.in, for the numbers. sdk_nccl_real_test compares them with NCCL's
// own library where the machine has it.
#pragma once

#include <stddef.h>

namespace taskd::nccl {

// ncclResult_t.
enum CallResult : int { kCallSuccess = 0, kCallInvalidUsage = 5, kCallInProgress = 7 };

// ncclUniqueId, which is passed by value.
struct UniqueId {
  char bytes[128];
};

}  // namespace taskd::nccl

// Operations that become marks: name, parameters, arguments, and the other rank. Since NCCL 2.0 unless noted.
#define TASKD_NCCL_OPERATIONS(CALL)                                                                                    \
  CALL(AllReduce, (const void* send, void* receive, size_t count, int type, int sum, void* comm, void* stream),        \
       (send, receive, count, type, sum, comm, stream), -1)                                                            \
  CALL(Broadcast, (const void* send, void* receive, size_t count, int type, int root, void* comm, void* stream),       \
       (send, receive, count, type, root, comm, stream), -1)                                                           \
  CALL(Bcast, (void* buffer, size_t count, int type, int root, void* comm, void* stream),                              \
       (buffer, count, type, root, comm, stream), -1)                                                                  \
  CALL(Reduce, (const void* send, void* receive, size_t count, int type, int sum, int root, void* comm, void* stream), \
       (send, receive, count, type, sum, root, comm, stream), -1)                                                      \
  CALL(AllGather, (const void* send, void* receive, size_t count, int type, void* comm, void* stream),                 \
       (send, receive, count, type, comm, stream), -1)                                                                 \
  CALL(ReduceScatter, (const void* send, void* receive, size_t count, int type, int sum, void* comm, void* stream),    \
       (send, receive, count, type, sum, comm, stream), -1)                                                            \
  /* 2.7 */                                                                                                            \
  CALL(Send, (const void* send, size_t count, int type, int peer, void* comm, void* stream),                           \
       (send, count, type, peer, comm, stream), peer)                                                                  \
  CALL(Recv, (void* receive, size_t count, int type, int peer, void* comm, void* stream),                              \
       (receive, count, type, peer, comm, stream), peer)                                                               \
  /* 2.28 */                                                                                                           \
  CALL(AlltoAll, (const void* send, void* receive, size_t count, int type, void* comm, void* stream),                  \
       (send, receive, count, type, comm, stream), -1)                                                                 \
  CALL(Gather, (const void* send, void* receive, size_t count, int type, int root, void* comm, void* stream),          \
       (send, receive, count, type, root, comm, stream), -1)                                                           \
  CALL(Scatter, (const void* send, void* receive, size_t count, int type, int root, void* comm, void* stream),         \
       (send, receive, count, type, root, comm, stream), -1)

// Functions that state what an operation belongs to: name, parameters.
#define TASKD_NCCL_FRAME(CALL)                                                                                        \
  CALL(GroupStart, ())                                                                                                \
  CALL(GroupEnd, ())                                                                                                  \
  /* 2.22 */                                                                                                          \
  CALL(GroupSimulateEnd, (void* information))                                                                         \
  CALL(CommInitRank, (void** comm, int ranks, taskd::nccl::UniqueId id, int rank))                                    \
  CALL(CommInitAll, (void** comms, int devices, const int* list))                                                     \
  CALL(CommDestroy, (void* comm))                                                                                     \
  /* 2.4 */                                                                                                           \
  CALL(CommAbort, (void* comm))                                                                                       \
  /* 2.14 */                                                                                                          \
  CALL(CommInitRankConfig, (void** comm, int ranks, taskd::nccl::UniqueId id, int rank, void* config))                \
  /* 2.18 */                                                                                                          \
  CALL(CommSplit, (void* comm, int color, int key, void** made, void* config))                                        \
  /* 2.23 */                                                                                                          \
  CALL(CommInitRankScalable, (void** comm, int ranks, int rank, int count, taskd::nccl::UniqueId* ids, void* config)) \
  /* 2.27 */                                                                                                          \
  CALL(CommShrink, (void* comm, int* excluded, int count, void** made, void* config, int flags))
