// A library as a framework's is: linked against NCCL, or with one of its own inside. Loaded by nccl_caller.cc.
#include <stdint.h>

#include <string>

#include "testing/fake_nccl.h"

#define USER_API extern "C" __attribute__((visibility("default")))

// The version of the NCCL that it is linked with, what that NCCL did, and the sum of the results.
USER_API const char* UseNccl() {
  static std::string said;
  int version = 0;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  int sum = ncclGetVersion(&version) + ncclGetUniqueId(&id) + ncclCommInitRank(&comm, 2, id, 1);
  sum += ncclAllReduce(nullptr, nullptr, static_cast<size_t>(version), 7, 0, comm, nullptr);
  sum += ncclGroupStart() + ncclSend(nullptr, 3, 7, 0, comm, nullptr) + ncclRecv(nullptr, 3, 7, 0, comm, nullptr);
  sum += ncclGroupEnd() + ncclBcast(nullptr, 9, 7, 0, comm, nullptr) + ncclCommDestroy(comm);
  said = "NCCL " + std::to_string(version) + ": " + FakeNcclTakeLog() + " " + std::to_string(sum);
  return said.c_str();
}

// What the library calls when it calls ncclAllReduce, for others to call.
USER_API decltype(&ncclAllReduce) AllReducePointer() { return &ncclAllReduce; }

#ifdef USES_NEWER_NCCL
// The same with functions that an older NCCL has not.
USER_API const char* UseNewerNccl() {
  static std::string said;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ncclComm_t child = nullptr;
  ncclGetUniqueId(&id);
  said = std::to_string(ncclCommInitRankConfig(&comm, 2, id, 1, nullptr));
  ncclCommInitRank(&comm, 2, id, 1);
  for (int i = 0; i < 2; ++i) said += " " + std::to_string(ncclCommSplit(comm, 0, 0, &child, nullptr));
  said += " " + std::to_string(ncclAlltoAll(nullptr, nullptr, 1, 7, comm, nullptr));
  said += " " + std::to_string(ncclAllReduce(nullptr, nullptr, 1, 7, 0, comm, nullptr));
  ncclCommAbort(comm);
  said += child == nullptr ? " none" : " child";
  return said.c_str();
}
#endif
