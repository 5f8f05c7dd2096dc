#include "testing/fake_nccl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl_profiler.h"

// As NCCL's: other libraries may stand in front.
#define NCCL_API extern "C" __attribute__((visibility("default"))) ncclResult_t

namespace {

constexpr ncclResult_t kSuccess = 0;
constexpr ncclResult_t kInvalidArgument = 4;
constexpr ncclResult_t kInvalidUsage = 5;

const taskd::nccl::ProfilerV4* Profiler() {
  static const taskd::nccl::ProfilerV4* const profiler = []() -> const taskd::nccl::ProfilerV4* {
    const char* path = getenv("NCCL_PROFILER_PLUGIN");
    if (FAKE_NCCL_VERSION < 22300 || path == nullptr) return nullptr;
    void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return plugin == nullptr ? nullptr : static_cast<const taskd::nccl::ProfilerV4*>(dlsym(plugin, "ncclProfiler_v4"));
  }();
  return profiler;
}

}  // namespace

struct FakeNcclComm {
  FakeNcclComm(int size, int own_rank) : ranks(size), rank(own_rank) {
    const taskd::nccl::ProfilerV4* profiler = Profiler();
    if (profiler != nullptr) profiler->init(&context, &mask, "fake", 0xfa4e, 1, ranks, rank, nullptr);
  }
  ~FakeNcclComm() {
    if (context != nullptr) Profiler()->finalize(context);
  }
  FakeNcclComm(const FakeNcclComm&) = delete;
  FakeNcclComm& operator=(const FakeNcclComm&) = delete;

  const int ranks;
  const int rank;
  void* context = nullptr;  // the plugin's
  int mask = 0;
};

namespace {

struct Thread {
  int depth = 0;
  std::vector<std::function<void()>> queued;
  ncclResult_t fail = kSuccess;
  void (*during)() = nullptr;
  std::string log;
  std::string taken;
};
thread_local Thread t_thread;

void Run(std::function<void()> work) {
  if (t_thread.depth == 0) return work();
  t_thread.queued.push_back(std::move(work));
}

// True: this call is to give `result`.
bool Fails(ncclResult_t& result) {
  result = std::exchange(t_thread.fail, kSuccess);
  return result != kSuccess;
}

std::string Number(const void* pointer) { return std::to_string(reinterpret_cast<uintptr_t>(pointer)); }

void AskPlugin(ncclComm_t comm, const std::string& function, size_t count) {
  const taskd::nccl::ProfilerV4* profiler = Profiler();
  if (profiler == nullptr || comm->context == nullptr) return;
  const bool point_to_point = function == "Send" || function == "Recv";
  taskd::nccl::Descriptor descriptor = {};
  descriptor.type8 = point_to_point ? taskd::nccl::kEventPointToPoint : taskd::nccl::kEventCollective;
  descriptor.rank = comm->rank;
  if (point_to_point) {
    descriptor.point_to_point = {function.c_str(), nullptr, "ncclFloat32", count, 0, 1};
  } else {
    descriptor.collective = {0, function.c_str(), nullptr, nullptr, count, 0, "ncclFloat32", 1};
  }
  void* operation = nullptr;
  profiler->start_event(comm->context, &operation, &descriptor);
  if (operation == nullptr) return;
  profiler->stop_event(operation);
  taskd::nccl::Descriptor channel = {};
  channel.type8 = taskd::nccl::kEventKernelChannel;
  channel.parent = operation;
  void* handle = nullptr;
  profiler->start_event(comm->context, &handle, &channel);
  if (handle != nullptr) profiler->stop_event(handle);
}

ncclResult_t Operate(const char* name, const std::string& arguments, ncclComm_t comm, size_t count) {
  ncclResult_t result;
  if (Fails(result)) return result;
  if (comm == nullptr) return kInvalidArgument;
  Run([=, text = std::string(name)] {
    if (t_thread.during != nullptr) t_thread.during();
    t_thread.log += text + "(" + arguments + ");";
    AskPlugin(comm, text, count);
  });
  return kSuccess;
}

template <typename... Numbers>
std::string Join(const void* send, const void* receive, cudaStream_t stream, size_t count, Numbers... numbers) {
  return Number(send) + "," + Number(receive) + "," + std::to_string(count) +
         (std::string() + ... + ("," + std::to_string(numbers))) + "," + Number(stream);
}

ncclResult_t Make(ncclComm_t* slot, int ranks, int rank) {
  ncclResult_t result;
  if (Fails(result)) return result;
  if (slot == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  Run([=] { *slot = new FakeNcclComm(ranks, rank); });
  return kSuccess;
}

ncclResult_t EndGroup(bool simulated) {
  if (t_thread.depth == 0) return kInvalidUsage;
  if (--t_thread.depth > 0) return kSuccess;
  std::vector<std::function<void()>> queued = std::exchange(t_thread.queued, {});
  ncclResult_t result;
  if (Fails(result)) return result;
  for (auto& work : queued) {
    if (!simulated) work();
  }
  return kSuccess;
}

ncclResult_t Destroy(ncclComm_t comm) {
  ncclResult_t result;
  if (Fails(result)) return result;
  delete comm;
  return kSuccess;
}

}  // namespace

NCCL_API ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}
NCCL_API ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  memset(id->internal, 0, sizeof(id->internal));
  id->internal[1] = static_cast<char>(++count);
  return kSuccess;
}
NCCL_API ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId, int rank) { return Make(comm, nranks, rank); }
NCCL_API ncclCommInitAll(ncclComm_t* comm, int ndev, const int*) {
  ncclResult_t result = kSuccess;
  for (int i = 0; i < ndev && result == kSuccess; ++i) result = Make(&comm[i], ndev, i);
  return result;
}
NCCL_API ncclCommDestroy(ncclComm_t comm) { return Destroy(comm); }
NCCL_API ncclCommAbort(ncclComm_t comm) { return Destroy(comm); }
NCCL_API ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return kSuccess;
}
NCCL_API ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}
NCCL_API ncclGroupStart() {
  ++t_thread.depth;
  return kSuccess;
}
NCCL_API ncclGroupEnd() { return EndGroup(false); }
NCCL_API ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                       ncclComm_t comm, cudaStream_t stream) {
  return Operate("AllReduce", Join(sendbuff, recvbuff, stream, count, datatype, op), comm, count);
}
NCCL_API ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  return Operate("Broadcast", Join(sendbuff, recvbuff, stream, count, datatype, root), comm, count);
}
NCCL_API ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}
NCCL_API ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                    int root, ncclComm_t comm, cudaStream_t stream) {
  return Operate("Reduce", Join(sendbuff, recvbuff, stream, count, datatype, op, root), comm, count);
}
NCCL_API ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                       cudaStream_t stream) {
  return Operate("AllGather", Join(sendbuff, recvbuff, stream, sendcount, datatype), comm, sendcount);
}
NCCL_API ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Operate("ReduceScatter", Join(sendbuff, recvbuff, stream, recvcount, datatype, op), comm, recvcount);
}
NCCL_API ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return Operate("Send", Join(sendbuff, nullptr, stream, count, datatype, peer), comm, count);
}
NCCL_API ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return Operate("Recv", Join(nullptr, recvbuff, stream, count, datatype, peer), comm, count);
}
#if FAKE_NCCL_VERSION >= 21400
NCCL_API ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId, int rank, void*) {
  return Make(comm, nranks, rank);
}
#endif
#if FAKE_NCCL_VERSION >= 21800
// There are no other ranks to agree with: the child is as large as its parent.
NCCL_API ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* newcomm, void*) {
  if (color < 0) {
    *newcomm = nullptr;
    return kSuccess;
  }
  return Make(newcomm, comm->ranks, comm->rank);
}
#endif
#if FAKE_NCCL_VERSION >= 22200
NCCL_API ncclGroupSimulateEnd(void*) { return EndGroup(true); }
#endif
#if FAKE_NCCL_VERSION >= 22300
NCCL_API ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int, ncclUniqueId*, void*) {
  return Make(newcomm, nranks, myrank);
}
#endif
#if FAKE_NCCL_VERSION >= 22700
NCCL_API ncclCommShrink(ncclComm_t comm, int*, int excludeRanksCount, ncclComm_t* newcomm, void*, int) {
  return Make(newcomm, comm->ranks - excludeRanksCount, 0);
}
#endif
#if FAKE_NCCL_VERSION >= 22800
NCCL_API ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                      cudaStream_t stream) {
  return Operate("AlltoAll", Join(sendbuff, recvbuff, stream, count, datatype), comm, count);
}
NCCL_API ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                    ncclComm_t comm, cudaStream_t stream) {
  return Operate("Gather", Join(sendbuff, recvbuff, stream, count, datatype, root), comm, count);
}
NCCL_API ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                     ncclComm_t comm, cudaStream_t stream) {
  return Operate("Scatter", Join(sendbuff, recvbuff, stream, count, datatype, root), comm, count);
}
#endif

extern "C" __attribute__((visibility("default"))) void FakeNcclFail(ncclResult_t result) { t_thread.fail = result; }
extern "C" __attribute__((visibility("default"))) void FakeNcclDuring(void (*function)()) {
  t_thread.during = function;
}
extern "C" __attribute__((visibility("default"))) const char* FakeNcclTakeLog() {
  t_thread.taken = std::exchange(t_thread.log, "");
  return t_thread.taken.c_str();
}
