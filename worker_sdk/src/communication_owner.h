// Who marks an operation of communication that several sources of marks see: the one place that decides. Never two.
//
//   source                                   marks it
//   NCCL's profiler plugin                   always: it has the kernel's times
//   a framework's hooks (taskd.torch)        where the plugin does not: they know the process group
//   NCCL's C functions (nccl_calls.h)        where no framework has begun it on this thread
//   a range that the user's rules rename     outside all of these; within one it keeps its own name (NCCL has NVTX ranges
//                                            of its own, which a rule may fit)
//
// The plugin is asked for by NCCL, once for each communicator, before anything is done with it. So once it speaks it
// marks all that NCCL does in this process. The others are distinguished by thread: they surround each other's calls.
//
// Any thread; no lock, no allocation.
#pragma once

namespace taskd::worker {

enum class CommunicationSource : int { kFramework, kNcclCall };

// Whether `source` marks the operation that this thread is about to make. If so it calls EndCommunication on this thread
// once the call that makes it has returned; until then nobody below it marks. nccl_version: as ncclGetVersion gives it
// (22304), of an operation that goes through NCCL; else 0. It is looked at for a framework only, whose first operation
// comes before NCCL's first communicator and so before the plugin has spoken.
bool BeginCommunication(CommunicationSource source, int nccl_version);
void EndCommunication(CommunicationSource source);

// NCCL's profiler plugin has a communicator.
void NcclPluginSpeaks();

// Whether a range of the domain `domain` that begins on this thread is a part of an operation that has a mark.
bool IsPartOfCommunication(const char* domain);

}  // namespace taskd::worker
