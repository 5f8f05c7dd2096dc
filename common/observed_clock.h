// Time as a watcher has seen it, for every rule by which one part of a job takes another for lost. Where the watcher
// itself did not run (SIGSTOP, a busy machine, a VM that was moved) it has asked nothing and read nothing: that time is
// nobody's silence.
//
//   ObservedClock clock(kLookNs);
//   heard_ns = clock.Look(now_ns);                                      // something came
//   if (clock.Look(now_ns) - heard_ns >= silence_ns) ...                // nothing came, at the next look or a later one
//   next_look_ns = clock.NextLook(heard_ns + silence_ns);               // when to look again
#pragma once

#include <algorithm>
#include <cstdint>

namespace taskd {

// Not thread-safe.
class ObservedClock {
 public:
  // `interval_ns`: the watcher looks at least so often while it waits for something. Of the time between two looks no
  // more than twice as much counts.
  constexpr explicit ObservedClock(int64_t interval_ns) : interval_ns_(interval_ns) {}

  // `now_ns`: of any steady clock. Returns the time on this one, which starts near 0.
  int64_t Look(int64_t now_ns) {
    if (now_ns <= looked_ns_) return time_ns_;
    time_ns_ += std::min(now_ns - looked_ns_, 2 * interval_ns_);
    looked_ns_ = now_ns;
    return time_ns_;
  }
  // As of the last look.
  int64_t time_ns() const { return time_ns_; }

  // On the steady clock: when to look again at the latest for what is due at `due_ns` of this one.
  int64_t NextLook(int64_t due_ns) const {
    return looked_ns_ + std::clamp<int64_t>(due_ns - time_ns_, 0, interval_ns_);
  }

 private:
  int64_t interval_ns_;
  int64_t looked_ns_ = 0;
  int64_t time_ns_ = 0;
};

}  // namespace taskd
