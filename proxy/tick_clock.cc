#include "proxy/tick_clock.h"

#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace taskd::proxy {

uint64_t ReadCounter() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  // Without isb it may be read before the clock that precedes it, with which it is to be one reading.
  asm volatile("isb; mrs %0, cntvct_el0" : "=r"(value) : : "memory");
  return value;
#else
  return ReadMonotonicNs();
#endif
}

uint64_t ReadMonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

TickAnchor ReadAnchor() {
  TickAnchor best;
  uint64_t best_width = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    uint64_t before = ReadCounter();
    uint64_t ns = ReadMonotonicNs();
    uint64_t width = ReadCounter() - before;
    if (width < best_width) {
      best_width = width;
      best = {before + width / 2, ns};
    }
  }
  return best;
}

TickLine::TickLine(TickAnchor left, TickAnchor right) {
  if (right.ticks > left.ticks && right.monotonic_ns > left.monotonic_ns) {
    origin_ticks_ = left.ticks;
    origin_ns_ = left.monotonic_ns;
    ns_per_tick_ =
        static_cast<double>(right.monotonic_ns - left.monotonic_ns) / static_cast<double>(right.ticks - left.ticks);
  } else {
    origin_ticks_ = right.ticks;
    origin_ns_ = right.monotonic_ns;
    ns_per_tick_ = 0;
  }
}

}  // namespace taskd::proxy
