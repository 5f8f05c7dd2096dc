// From ring ticks to time on disk.
//
// A rank stamps with the CPU's counter; the proxy, on the same machine, reads counter and CLOCK_MONOTONIC together now
// and then and interpolates. So the rank pays nothing for the conversion, and the result follows the kernel's own clock
// for as long as the job runs instead of drifting away with a frequency that was measured once.
#pragma once

#include <cstdint>

namespace taskd::proxy {

// Counter and CLOCK_MONOTONIC, read together.
struct TickAnchor {
  uint64_t ticks = 0;
  uint64_t monotonic_ns = 0;
};

// The CPU's counter: TSC on x86-64, cntvct_el0 on arm64.
uint64_t ReadCounter();
uint64_t ReadMonotonicNs();

// The tightest of a few readings; within some 100 ns.
TickAnchor ReadAnchor();

// Straight line through two anchors, extended on both sides. Where `right` is not after `left` it is constant at
// right.monotonic_ns: such anchors only come from a broken segment.
class TickLine {
 public:
  TickLine(TickAnchor left, TickAnchor right);

  uint64_t MonotonicNs(uint64_t ticks) const {
    return origin_ns_ + static_cast<uint64_t>(static_cast<int64_t>(
                            static_cast<double>(static_cast<int64_t>(ticks - origin_ticks_)) * ns_per_tick_));
  }

 private:
  uint64_t origin_ticks_;
  uint64_t origin_ns_;
  double ns_per_tick_;
};

}  // namespace taskd::proxy
