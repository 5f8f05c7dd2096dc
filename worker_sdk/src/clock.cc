#include "clock.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace taskd::worker {
namespace {

#if defined(__x86_64__)
// The processor's promise alone is not enough: the kernel gives the TSC up when it finds that the cores (or the
// hypervisor's hosts) disagree.
bool KernelTrustsTsc() {
  int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char name[8] = {};
  ssize_t bytes = read(fd, name, sizeof(name) - 1);
  close(fd);
  return bytes >= 3 && strncmp(name, "tsc", 3) == 0 && (name[3] == '\n' || name[3] == '\0');
}

bool TscIsInvariant() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & 1u << 8) != 0;
}
#endif

}  // namespace

ClockReading ReadClocks() {
  ClockReading best = {};
  uint64_t best_ns = UINT64_MAX;
  for (int i = 0; i < 3; ++i) {
    // The counter is read between two of libc's clocks, each of which waits for what is before it (isb, or the kernel).
    uint64_t before_ns = ReadClockNs(CLOCK_MONOTONIC);
    uint64_t counter = ReadCounter();
    uint64_t realtime_ns = ReadClockNs(CLOCK_REALTIME);
    uint64_t after_ns = ReadClockNs(CLOCK_MONOTONIC);
    if (after_ns - before_ns < best_ns) {
      best_ns = after_ns - before_ns;
      best = {counter, before_ns + best_ns / 2, realtime_ns};
    }
  }
  return best;
}

ring::ClockKind ChooseClock() {
#if defined(__x86_64__)
  return TscIsInvariant() && KernelTrustsTsc() ? ring::kClockCounter : ring::kClockMonotonic;
#elif defined(__aarch64__)
  return ring::kClockCounter;  // the architecture promises one even, system-wide count
#else
  return ring::kClockMonotonic;
#endif
}

}  // namespace taskd::worker
