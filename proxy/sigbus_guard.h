// Memory that another process may truncate under us: a read past the end of a shared file raises SIGBUS, and a training
// process that shrinks its segment must not take the proxy down with it.
#pragma once

#include <atomic>
#include <cstddef>

namespace taskd::proxy {

// While an object lives, a SIGBUS inside [begin, begin + bytes) replaces the page by zeros and sets `hit` instead of
// ending the process. A SIGBUS elsewhere ends the process as ever. At most kMax at a time; valid() is false beyond
// that.
class SigbusGuard {
 public:
  static constexpr int kMax = 8192;

  SigbusGuard(void* begin, size_t bytes);
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;

  bool valid() const { return slot_ >= 0; }
  bool hit() const;

 private:
  int slot_ = -1;
};

}  // namespace taskd::proxy
