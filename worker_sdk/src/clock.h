// The recorder's clock: the CPU's counter where it ticks evenly on all cores, CLOCK_MONOTONIC elsewhere.
//
// Thread-safe after ChooseClock. None of these changes errno or makes a system call, but for ChooseClock.
#pragma once

#include <time.h>

#include <cstdint>

#include "taskd/ring.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace taskd::worker {

// What was read together at one moment. The counter and the monotonic time are both kept: which of them the ticks are
// is only known once somebody records.
struct ClockReading {
  uint64_t counter;
  uint64_t monotonic_ns;
  uint64_t realtime_ns;
};

// TSC or cntvct_el0; 0 on other processors. Not ordered against the instructions around it (lfence, isb): that would cost
// more than the whole rest of a mark. A thread's own stamps are kept in order by KeepOrder (recorder.h), those of a range
// that another thread ends by the reader (proxy/range_order.h).
inline uint64_t ReadCounter() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return 0;
#endif
}

inline uint64_t ReadClockNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// The tightest of a few readings: a preemption between the clocks would shift every time stamp of the process.
ClockReading ReadClocks();

// Decides for the process; the answer never changes. Reads a file in /sys on x86-64.
ring::ClockKind ChooseClock();

}  // namespace taskd::worker
