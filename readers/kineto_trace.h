// Traces of PyTorch's profiler (Kineto's and the older one's chrome traces): a JSON object with "traceEvents", or their
// array alone. docs/from-other-tools.md says what of them is used.
#pragma once

#include <cstddef>

#include "readers/byte_source.h"
#include "readers/trace_events.h"

namespace taskd::readers {

// Reads to the end, or to where the file is damaged: then `note` says what and where, and what came before counts.
TraceRank ReadKinetoTrace(ByteSource& source, size_t max_events);

}  // namespace taskd::readers
