// The writer's segment: a file in /dev/shm, or a memfd where that has no room (ring.h, points 3 and 4).
//
// Not thread-safe: the recorder calls it under its lock. Nothing here prints or ends the process; a call that fails has
// left nothing behind.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "taskd/ring.h"

namespace taskd::worker {

struct Segment {
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;
  ring::SegmentHeader* header = nullptr;
};

// Creates, locks, allocates and maps the header's part; the header is all zeros. False: no shared memory to be had.
bool CreateSegment(const char* socket_path, uint64_t unique, Segment& segment);

constexpr uint64_t RingBytes(uint32_t index) {
  return index < ring::kLargeRings ? ring::kLargeRingBytes : ring::kSmallRingBytes;
}

// Allocates and maps the data of slot `index` and fills in where it lies. Null: no room.
char* AddRing(const Segment& segment, uint32_t index);

// The descriptor still is the segment. A program may close descriptors it does not know; the number then may stand for
// a file of its own, which must not be touched.
bool OwnsDescriptor(const Segment& segment);

// Removes the segment's name if every record has been read, so that a rank that ends leaves nothing behind where no
// proxy is there any more. What is mapped or open stays usable.
void RemoveIfRead(const Segment& segment);

// Removes the names of rank `rank`'s earlier segments on this socket that no proxy ever took on and whose processes are
// gone: on a machine without proxies one a rank stays, not one a run. Those of the last minutes are left to a proxy
// that may be late.
void RemoveAbandoned(const Segment& own, const char* socket_path, int rank);

// Whether a process that started this one, or its parent and so on, is alive and records marks as `rank` on this
// socket.
bool AncestorRecordsAs(const char* socket_path, int rank);

}  // namespace taskd::worker
