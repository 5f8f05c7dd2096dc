// Reads traces of PyTorch's profiler (Kineto's and the older one's chrome traces): a JSON object with "traceEvents", or
// the array alone. docs/from-other-tools.md describes their use.
#pragma once

#include <cstddef>

#include "readers/byte_source.h"
#include "readers/trace_events.h"

namespace taskd::readers {

// If the file is damaged, `note` states the defect and its position, and the data before it counts.
TraceRank ReadKinetoTrace(ByteSource& source, size_t max_events);

}  // namespace taskd::readers
