// An event loop of a test that runs until something is true.
#pragma once

#include <functional>

#include "common/event_loop.h"

namespace taskd::modes {

// False: not within a minute.
inline bool RunUntil(EventLoop& loop, const std::function<bool()>& condition) {
  constexpr int64_t kPollNs = 2'000'000;
  constexpr int64_t kDeadlineNs = 60'000'000'000;
  const int64_t deadline = EventLoop::NowNs() + kDeadlineNs;
  std::function<void()> look = [&] {
    if (condition() || EventLoop::NowNs() > deadline) return loop.Stop();
    loop.RunAfter(kPollNs, look);
  };
  loop.Post(look);
  loop.Run();
  return condition();
}

}  // namespace taskd::modes
