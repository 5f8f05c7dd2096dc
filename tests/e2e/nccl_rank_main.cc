// A training process that uses NCCL's C functions and nothing else: 20 times an all-reduce and, in a group, a send and a
// receive; then it prints what they gave and waits for SIGTERM. Nothing here knows of TaskD; the environment alone brings
// it in. NCCL is the tests' own (testing/fake_nccl.h).
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "testing/fake_nccl.h"

namespace {

int Number(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set\n", variable);
    std::exit(2);
  }
  return std::atoi(value);
}

}  // namespace

int main() {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  const int ranks = Number("WORLD_SIZE");
  const int rank = Number("RANK");
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  int results =
      ncclGetUniqueId(&id) + ncclCommInitRank(&comm, ranks, id, rank);  // the first one is the same everywhere
  for (int i = 0; i < 20; ++i) {
    results += ncclAllReduce(nullptr, nullptr, 4096, 9, 0, comm, nullptr);
    results += ncclGroupStart();
    results += ncclSend(nullptr, 1024, 7, (rank + 1) % ranks, comm, nullptr);
    results += ncclRecv(nullptr, 1024, 7, (rank + ranks - 1) % ranks, comm, nullptr);
    results += ncclGroupEnd();
  }
  results += ncclCommDestroy(comm);
  std::printf("sum of the results: %d\n", results);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&end, &signal);
  return 0;
}
