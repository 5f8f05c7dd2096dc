// A program that TaskD is preloaded into. Prints its process id, and then
//
//   (no argument)          whether dlsym finds ncclAllReduce
//   LIBRARY...             what UseNccl of each library returns, loaded for itself alone as Python loads its modules
//   dlsym LIBRARY          does an all-reduce with what dlsym finds in an NCCL
//   newer LIBRARY          what UseNewerNccl returns
//   pointer LIBRARY        what the library's pointer to ncclAllReduce gives for no communicator
//
// Built with LINKED_WITH_NCCL it is linked with NCCL itself, and begins with its own UseNccl.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "testing/fake_nccl.h"

#ifdef LINKED_WITH_NCCL
extern "C" const char* UseNccl();
#endif

namespace {

void* Load(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  std::printf("%s\n", dlerror());
  std::exit(3);
}

void SayWhat(const char* function, const char* path) {
  auto* what = reinterpret_cast<const char* (*)()>(dlsym(Load(path), function));
  std::printf("%s\n", what == nullptr ? "?" : what());
}

template <typename Function>
Function* Symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void UseByDlsym(const char* path) {
  void* library = Load(path);
  ncclUniqueId id = {};
  ncclComm_t comm = nullptr;
  Symbol<decltype(ncclCommInitRank)>(library, "ncclCommInitRank")(&comm, 2, id, 1);
  Symbol<decltype(ncclAllReduce)>(library, "ncclAllReduce")(nullptr, nullptr, 1, 7, 0, comm, nullptr);
  std::printf("%s\n", Symbol<decltype(FakeNcclTakeLog)>(library, "FakeNcclTakeLog")());
  Symbol<decltype(ncclCommDestroy)>(library, "ncclCommDestroy")(comm);
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%d\n", getpid());
#ifdef LINKED_WITH_NCCL
  std::printf("%s\n", UseNccl());
#endif
  if (argc == 1) {
    std::printf("ncclAllReduce is %s\n", dlsym(RTLD_DEFAULT, "ncclAllReduce") == nullptr ? "absent" : "there");
  } else if (std::strcmp(argv[1], "dlsym") == 0) {
    UseByDlsym(argv[2]);
  } else if (std::strcmp(argv[1], "newer") == 0) {
    SayWhat("UseNewerNccl", argv[2]);
  } else if (std::strcmp(argv[1], "pointer") == 0) {
    auto* pointer = reinterpret_cast<decltype (&ncclAllReduce) (*)()>(dlsym(Load(argv[2]), "AllReducePointer"));
    std::printf("%d\n", pointer()(nullptr, nullptr, 1, 7, 0, nullptr, nullptr));
  } else {
    for (int i = 1; i < argc; ++i) SayWhat("UseNccl", argv[i]);
  }
  return 0;
}
