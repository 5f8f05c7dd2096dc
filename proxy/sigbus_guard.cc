#include "proxy/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>

namespace taskd::proxy {
namespace {

struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: free
  std::atomic<bool> hit{false};
};

// Read by the signal handler, hence no lock and no allocation. The slots of live guards never move. A slot that is given
// to another guard meanwhile shows as its end changes: that is 0 before the new beginning is stored, which is why the
// handler looks at it twice.
Range ranges[SigbusGuard::kMax];
std::atomic<int> high_water{0};
std::mutex allocation;

uintptr_t page_bytes = 4096;  // set before the handler is there; arm64 kernels may have pages of 64 KiB

void OnSigbus(int signal, siginfo_t* info, void*) {
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  int count = high_water.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    Range& range = ranges[i];
    uintptr_t end = range.end.load(std::memory_order_acquire);
    if (end == 0 || address >= end || address < range.begin.load(std::memory_order_acquire)) continue;
    if (range.end.load(std::memory_order_relaxed) != end) continue;
    void* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
    if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      break;
    range.hit.store(true, std::memory_order_release);
    return;
  }
  // Not ours: let it end the process the way it would have.
  ::signal(signal, SIG_DFL);
}

}  // namespace

SigbusGuard::SigbusGuard(void* begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(allocation);
  static const bool installed = [] {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = OnSigbus;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  if (!installed) return;
  for (int i = 0; i < kMax; ++i) {
    if (ranges[i].end.load(std::memory_order_relaxed) != 0) continue;
    ranges[i].hit.store(false, std::memory_order_relaxed);
    ranges[i].begin.store(reinterpret_cast<uintptr_t>(begin), std::memory_order_release);
    ranges[i].end.store(reinterpret_cast<uintptr_t>(begin) + bytes, std::memory_order_release);
    if (i >= high_water.load(std::memory_order_relaxed)) high_water.store(i + 1, std::memory_order_release);
    slot_ = i;
    return;
  }
}

SigbusGuard::~SigbusGuard() {
  if (slot_ >= 0) ranges[slot_].end.store(0, std::memory_order_release);
}

bool SigbusGuard::hit() const { return slot_ >= 0 && ranges[slot_].hit.load(std::memory_order_acquire); }

}  // namespace taskd::proxy
