// What the parts of the library share besides the fast path. Under the lock of slow_path.h unless noted otherwise.
#pragma once

#include <atomic>

#include "segment.h"
#include "taskd/ring.h"

namespace taskd::worker {

// The segment's header, null while there is none.
ring::SegmentHeader* CurrentHeader();
const Segment& CurrentSegment();

// Who this process is; -1: not known, 0 for no wished limit. Any thread may read.
struct Identity {
  std::atomic<int> rank;
  std::atomic<int> local_rank;
  std::atomic<int> disk_limit_mb;
};
extern Identity g_identity;

// One line on stderr, for a variable or a libmspti.so that cannot be used; nothing else in this library prints. Any
// thread.
void Say(const char* line);

// The proxy's socket: TASKD_SOCKET, else /tmp/taskd-<uid>/<MINDX_TASK_ID or default>/proxy.sock. Decided at first use;
// a rank that moved to another socket could not be found under its segment's name.
const char* SocketPath();

}  // namespace taskd::worker
