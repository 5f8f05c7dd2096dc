// What of a training process on GPUs makes marks, without a GPU: ranges by NVTX, and NCCL's operations as NCCL hands
// them to its profiler plugin. Nothing here knows of TaskD; the environment alone brings it in.
//
// One iteration is a training step: "step N" around dataloader, forward, a range of its own, ranges in a domain "lib"
// with registered strings and, every 5th, a checkpoint; then "note N", which proves that nothing is lost or doubled. In
// it an all-reduce and a pair of send and receive on each of two communicators, "dp" and "tp".
//   --count N        iterations, 0: until SIGTERM     --rate N     iterations a second, 0: as fast as it can
//   --counter FILE   iterations done, for others to read
//   --versions N     the newest plugin interface that this "NCCL" knows (7)
// At its end it prints what the library TASKD_NVTX_CHAIN noted, if that is the tests' own tool.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "nccl_profiler.h"
#include "testing/nvtx_client.h"

namespace {

namespace client = taskd::testing::nvtx_client;
namespace nccl = taskd::nccl;

volatile std::sig_atomic_t stop_requested = 0;

int EnvironmentNumber(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

// The profiler plugin, in the order in which NCCL looks for its interfaces.
class Nccl {
 public:
  void Load(int newest) {
    const char* name = std::getenv("NCCL_PROFILER_PLUGIN");
    if (name == nullptr || *name == '\0') return;
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      library = dlopen(("libnccl-profiler-" + std::string(name) + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    for (version_ = newest; library != nullptr && version_ > 0; --version_) {
      if ((symbol_ = dlsym(library, ("ncclProfiler_v" + std::to_string(version_)).c_str())) != nullptr) break;
    }
    if (symbol_ == nullptr) std::fprintf(stderr, "no profiler plugin in %s\n", name);
  }

  class Communicator {
   public:
    Communicator(Nccl& owner, const char* name, uint64_t hash) : owner_(owner), name_(name), hash_(hash) {
      if (owner.symbol_ == nullptr) return;
      ranks_ = EnvironmentNumber("WORLD_SIZE");
      rank_ = EnvironmentNumber("RANK");
      int result;
      if (owner.version_ >= 5) {
        const auto* profiler = static_cast<const nccl::ProfilerV5*>(owner.symbol_);
        result = profiler->init(&context_, hash, &owner.mask_, name, 1, ranks_, rank_, nullptr);
        start_ = profiler->start_event, stop_ = profiler->stop_event, finalize_ = profiler->finalize;
      } else if (owner.version_ == 4) {
        const auto* profiler = static_cast<const nccl::ProfilerV4*>(owner.symbol_);
        result = profiler->init(&context_, &owner.mask_, name, hash, 1, ranks_, rank_, nullptr);
        start_ = profiler->start_event, stop_ = profiler->stop_event, finalize_ = profiler->finalize;
      } else {
        const auto* profiler = static_cast<const nccl::ProfilerV2*>(owner.symbol_);
        result = profiler->init(&context_, &owner.mask_);
        start_ = profiler->start_event, stop_ = profiler->stop_event, finalize_ = profiler->finalize;
      }
      if (result != 0) std::fprintf(stderr, "init of the profiler failed with %d; on without it\n", result);
    }
    ~Communicator() {
      if (context_ != nullptr) finalize_(context_);
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    void AllReduce() {
      nccl::Descriptor descriptor = {};
      if (owner_.version_ >= 4) {
        descriptor.collective = {sequence_++, "AllReduce", nullptr, nullptr, 4096, 0, "ncclBfloat16", 2};
      } else if (owner_.version_ == 3) {
        descriptor.collective_v3 = {name_,   hash_, sequence_++, "AllReduce",    nullptr,
                                    nullptr, 4096,  0,           "ncclBfloat16", 2};
      } else if (owner_.version_ == 2) {
        descriptor.collective_v2 = {name_, hash_, sequence_++,    "AllReduce", nullptr, nullptr,
                                    4096,  0,     "ncclBfloat16", 0,           2};
      } else {
        descriptor.collective_v1 = {name_, hash_, sequence_++, 4, nullptr, nullptr, 4096, 0, 9};
      }
      Run(nccl::kEventCollective, descriptor, 2);
    }
    void PointToPoint(bool sends) {
      const int peer = (rank_ + 1) % (ranks_ > 0 ? ranks_ : 1);
      const char* function = sends ? "Send" : "Recv";
      nccl::Descriptor descriptor = {};
      if (owner_.version_ >= 4) {
        descriptor.point_to_point = {function, nullptr, "ncclFloat32", 1024, peer, 1};
      } else if (owner_.version_ >= 2) {
        descriptor.point_to_point_v2 = {name_, hash_, function, nullptr, "ncclFloat32", 1024, peer};
      } else {
        descriptor.point_to_point_v1 = {name_, hash_, static_cast<uint8_t>(sends ? 6 : 7), nullptr, 7, 1024, peer};
      }
      Run(nccl::kEventPointToPoint, descriptor, 1);
    }

   private:
    void* Start(uint32_t type, nccl::Descriptor& descriptor) {
      descriptor.rank = rank_;
      if (owner_.version_ >= 5) {
        descriptor.type64 = type;
      } else {
        descriptor.type8 = static_cast<uint8_t>(type);
      }
      void* handle = nullptr;
      start_(context_, &handle, &descriptor);
      return handle;
    }
    // An operation follows the mask of its call.
    void Run(uint32_t type, nccl::Descriptor& descriptor, int channels) {
      if (context_ == nullptr) return;
      const uint32_t mask = static_cast<uint32_t>(owner_.mask_);
      if ((mask & (type | nccl::kEventKernelChannel)) == 0) return;
      nccl::Descriptor group = {};
      group.parent = nullptr;
      void* group_handle = Start(nccl::kEventGroup, group);
      descriptor.parent = group_handle;
      void* handle = Start(type, descriptor);
      if (handle != nullptr) stop_(handle);
      if (group_handle != nullptr) stop_(group_handle);
      for (int channel = 0; channel < channels && handle != nullptr && (mask & nccl::kEventKernelChannel) != 0;
           ++channel) {
        nccl::Descriptor running = {};
        running.parent = handle;
        void* channel_handle = Start(nccl::kEventKernelChannel, running);
        if (channel_handle != nullptr) stop_(channel_handle);
      }
    }

    Nccl& owner_;
    const char* const name_;
    const uint64_t hash_;
    void* context_ = nullptr;
    nccl::StartEvent start_ = nullptr;
    nccl::StopEvent stop_ = nullptr;
    nccl::Finalize finalize_ = nullptr;
    int ranks_ = 0;
    int rank_ = 0;
    uint64_t sequence_ = 0;
  };

 private:
  int version_ = 0;
  const void* symbol_ = nullptr;
  int mask_ = 0;  // one for all communicators, as NCCL has it
};

struct Lib {
  client::Domain domain = client::CreateDomain("lib");
  client::String attention = client::Register(domain, "attention");
  client::String prefetch = client::Register(domain, "prefetch");
};

void TrainingStep(uint64_t number, const Lib& lib, Nccl::Communicator& dp, Nccl::Communicator& tp) {
  client::Push(("step " + std::to_string(number)).c_str());
  client::Push("dataloader");
  client::Pop();
  client::Push("forward");
  client::DomainPush(lib.domain, lib.attention);
  client::DomainPush(lib.domain, "plain");
  client::DomainPop(lib.domain);
  client::DomainPop(lib.domain);
  client::Pop();
  const uint64_t backward = client::Start("backward");
  for (Nccl::Communicator* communicator : {&dp, &tp}) {
    communicator->AllReduce();
    communicator->PointToPoint(true);
    communicator->PointToPoint(false);
  }
  client::End(backward);
  const uint64_t prefetch = client::DomainStart(lib.domain, lib.prefetch);
  client::DomainMark(lib.domain, "flushed");
  client::DomainEnd(lib.domain, prefetch);
  if (number % 5 == 0) {
    client::Push("save_checkpoint");
    client::Pop();
  }
  client::Pop();
  client::Mark(("note " + std::to_string(number)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"--count", "0"}, {"--rate", "100"}, {"--counter", ""}, {"--versions", "7"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 >= argc || !flags.contains(argv[i])) {
      std::fprintf(stderr, "e2e_gpu_rank: what is %s?\n", argv[i]);
      return 2;
    }
    flags[argv[i]] = argv[i + 1];
  }
  const auto number = [&flags](const char* flag) { return std::strtoull(flags[flag].c_str(), nullptr, 10); };
  const uint64_t count = number("--count");
  const uint64_t rate = number("--rate");

  std::signal(SIGTERM, [](int) { stop_requested = 1; });
  std::atomic<uint64_t> unseen{0};
  std::atomic<uint64_t>* done = &unseen;
  if (!flags["--counter"].empty()) {
    const int fd = open(flags["--counter"].c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, 64) != 0) {
      std::perror("e2e_gpu_rank: --counter");
      return 2;
    }
    void* memory = mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return 2;
    done = static_cast<std::atomic<uint64_t>*>(memory);
  }
  std::printf("NVTX is %s\n", client::kWhose);
  std::fflush(stdout);

  const Lib lib;
  Nccl nccl;
  nccl.Load(static_cast<int>(number("--versions")));
  {
    Nccl::Communicator dp(nccl, "dp", 0xd0);
    Nccl::Communicator tp(nccl, "tp", 0x10 + static_cast<uint64_t>(EnvironmentNumber("RANK")) / 2);
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; (count == 0 || i < count) && stop_requested == 0; ++i) {
      TrainingStep(i, lib, dp, tp);
      done->store(i + 1, std::memory_order_release);
      if (rate != 0) std::this_thread::sleep_until(begin + std::chrono::nanoseconds(1'000'000'000 / rate) * (i + 1));
    }
  }
  const char* chain = std::getenv("TASKD_NVTX_CHAIN");
  void* tool = chain == nullptr || *chain == '\0' ? nullptr : dlopen(chain, RTLD_LAZY | RTLD_NOLOAD);
  auto* calls = tool == nullptr ? nullptr : reinterpret_cast<const char* (*)()>(dlsym(tool, "tool_calls"));
  if (calls != nullptr) std::printf("%s\n", calls());
  return 0;
}
