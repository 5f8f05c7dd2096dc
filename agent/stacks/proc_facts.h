// What /proc shows about a process and its threads. Any of them may end while it is read: then there is less of it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/stacks/rank_stacks.h"

namespace taskd::stacks {

struct ProcStatus {
  std::string state;  // one letter; empty: it has ended
  uint64_t blocked = 0;
  uint64_t caught = 0;
  uint64_t pending = 0;  // sent to this thread, not to the process
  bool Blocks(int signal) const { return (blocked >> (signal - 1) & 1) != 0; }
  bool Awaits(int signal) const { return (pending >> (signal - 1) & 1) != 0; }
  bool Catches(int signal) const { return (caught >> (signal - 1) & 1) != 0; }
};

ProcStatus ReadStatus(pid_t pid, pid_t tid);
std::string ReadComm(pid_t pid);
std::vector<pid_t> ReadChildren(pid_t pid);
// With name, state, wchan and syscall; the main thread first, at most `limit`.
std::vector<ThreadStack> ReadThreads(pid_t pid, size_t limit);

// "futex", ...; its number where we do not know it. For the calls in which training waits.
std::string SyscallName(long number);

}  // namespace taskd::stacks
