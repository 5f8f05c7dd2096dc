// The wall clock, for times that people read.
#pragma once

#include <chrono>
#include <cstdint>

namespace taskd {

// Nanoseconds since 1970 (CLOCK_REALTIME); it may jump.
inline int64_t RealtimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace taskd
