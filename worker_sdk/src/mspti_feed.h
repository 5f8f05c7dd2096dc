// MSPTI's marks (mspti.h) into the ring of their thread, and what became of the gate into the segment's header.
#pragma once

#include "taskd/ring.h"

namespace taskd::worker {

// Starts the source where there is an MSPTI. Under the lock; the segment stays mapped for as long as the process lives.
void StartMsptiFeed(ring::SegmentHeader& header);

// Reads what MSPTI still has and leaves it; waits up to a second for that. Not under the lock: the source records.
void StopMsptiFeed(ring::SegmentHeader& header);

// In a forked child.
void ForgetMsptiFeed();

}  // namespace taskd::worker
