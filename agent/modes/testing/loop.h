// An event loop of a test that runs until something is true.
#pragma once

#include <functional>

#include "common/event_loop.h"
#include "common/testing/deadline.h"

namespace taskd::modes {

// False: not within the patience of a test.
inline bool RunUntil(EventLoop& loop, const std::function<bool()>& condition) {
  constexpr int64_t kPollNs = 2'000'000;
  const taskd::testing::Deadline deadline;
  std::function<void()> look = [&] {
    const bool is_over = deadline.IsOver();  // before the last look: it may have taken long to get to it
    if (condition() || is_over) return loop.Stop();
    loop.RunAfter(kPollNs, look);
  };
  loop.Post(look);
  loop.Run();
  return condition();
}

}  // namespace taskd::modes
