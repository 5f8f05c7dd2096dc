// What each thread of a rank does.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace taskd::stacks {

struct ThreadStack {
  pid_t tid = 0;                    // 0: known to Python only
  std::string name;                 // comm
  std::string state;                // of /proc: "S", "D", "T", ...; empty: the thread ended meanwhile
  std::string wchan;                // where in the kernel it waits; empty: nowhere, or not readable
  std::string syscall;              // "futex", "poll", a number; "running"; empty: not readable
  std::vector<std::string> python;  // innermost first: "wait (threading.py:320)"
  std::string script;               // the innermost frame of Python that is no library's; empty: none
  std::vector<std::string> native;  // innermost first: "poll+0x4f (libc.so.6)", "0x1234 (libfoo.so)", "0x7f00001234"
  std::string note;                 // why there are no native frames, or not all
};

struct RankStacks {
  int rank = 0;
  int node = 0;
  pid_t pid = 0;                     // whose threads these are: the rank's process, or a child of it that is armed
  std::string command;               // comm of the process
  std::string note;                  // why there is less than one would expect; empty: nothing
  std::vector<ThreadStack> threads;  // the main thread first, then by tid; at most kMaxStackThreads
};

inline constexpr size_t kMaxStackThreads = 1024;

}  // namespace taskd::stacks
