// The process's domains: created at any time, before or after there is a segment, and never freed.
#pragma once

#include "taskd/ring.h"

namespace taskd::worker {

// Copies the names of all domains into the segment. Under the lock.
void PublishDomains(ring::SegmentHeader& header);

}  // namespace taskd::worker
