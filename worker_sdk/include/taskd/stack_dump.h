// How a launcher asks the processes of a rank where they are (worker_sdk/src/stack_dump.cc,
// agent/stacks/stack_collector.h).
//
// The launcher makes a folder that only its user may write, and names it in TASKD_STACK_DIR. A process that is loaded
// with libtaskd.so then takes StackSignal(), unless it is taken, and creates `<folder>/<pid>.armed`. Only where that
// file lies and the process catches the signal (SigCgt) may it be sent: by default it would end the process. Python
// takes PythonStackSignal() with faulthandler, into `<folder>/<pid>.py` (worker_sdk/python/taskd/_stacks.py).
//
// A request is StackSignal() queued to one thread (rt_tgsigqueueinfo, SI_QUEUE) with the number of a collection as its
// value. The thread writes `<folder>/<collection, hexadecimal>/<pid>.<tid>`:
//
//   self <pthread_self, hexadecimal>
//   at <address>          where it was interrupted
//   from <address>        return addresses, innermost first; not where the rest of the stack was out of reach
//   more                  there were more than kMaxStackFrames
//   short                 no room on its signal stack to unwind: only `at`
//   end
//
// The folder of a collection exists while it lasts: who answers late (a thread that blocked the signal, a stopped
// process) finds no folder and writes nothing.
#pragma once

#include <signal.h>

namespace taskd {

inline constexpr int kMaxStackFrames = 128;

// Real-time signals: standard ones mean something to many programs, and do not carry a value. Near the top, because
// programs count theirs from SIGRTMIN up (glibc's own two, timers, JVMs, Android's), and not the very top, which
// instrumentation tools take for themselves (valgrind). Functions, as SIGRTMAX is one.
inline int StackSignal() { return SIGRTMAX - 5; }
inline int PythonStackSignal() { return SIGRTMAX - 6; }

}  // namespace taskd
