// The one lock of the library, and what must hold while it is held.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "recorder.h"

namespace taskd::worker {

extern pthread_mutex_t g_mutex;
// What t_state points at in a thread without a ring, and in one that is on a slow path. Neither is ever written.
extern ThreadState g_no_thread;
extern ThreadState g_on_slow_path;

// Holds the lock, keeps errno, and keeps out what could come back here on the same thread or leave the lock behind:
// signal handlers, cancellation, and marks made by a hooked allocator below us.
class SlowPath {
 public:
  SlowPath() : errno_(errno), state_(t_state), entered_(state_ != &g_on_slow_path) {
    if (!entered_) return;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &signals_);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_);
    t_state = &g_on_slow_path;
    pthread_mutex_lock(&g_mutex);
  }
  ~SlowPath() {
    if (entered_) {
      pthread_mutex_unlock(&g_mutex);
      t_state = state_;
      pthread_setcancelstate(cancel_state_, nullptr);
      pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
    }
    errno = errno_;
  }
  SlowPath(const SlowPath&) = delete;
  SlowPath& operator=(const SlowPath&) = delete;

  // False: this thread is inside already, nothing may be done.
  bool entered() const { return entered_; }
  ThreadState* state() const { return state_; }
  // What t_state is to be afterwards.
  void set_state(ThreadState* state) { state_ = state; }

 private:
  int errno_;
  ThreadState* state_;
  bool entered_;
  sigset_t signals_ = {};
  int cancel_state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace taskd::worker
