// What a message would take in memory, counted on the wire before any of it is built: two bytes can be a sub-message of
// hundreds.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace taskd::proto {

// Of one message that comes in: eight times what it may have on the wire. The fullest message of folds that a proxy
// sends needs about half of it.
inline constexpr size_t kMaxBuiltBytes = size_t{32} << 20;

// OK: at most `max_bytes` in about. RESOURCE_EXHAUSTED: more. INVALID_ARGUMENT: the wire is broken, or has groups,
// which nobody sends. `type` must not contain itself.
absl::Status CheckBuiltSize(const google::protobuf::Descriptor& type, google::protobuf::io::ZeroCopyInputStream* wire,
                            size_t max_bytes = kMaxBuiltBytes);

}  // namespace taskd::proto
