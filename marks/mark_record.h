// A mark record from a rank's ring or from a line of its mark files. It is the common input of MarkFold
// (marks/mark_fold.h) and of `taskd trace`.
#pragma once

#include <cstdint>
#include <string_view>

namespace taskd {

struct MarkRecord {
  enum class Phase : uint8_t { kInstant, kStart, kEnd };

  Phase phase = Phase::kInstant;
  bool device = false;      // a device stamp (SourceKind 1): when the range ran, not when it was enqueued
  uint64_t time_ns = 0;     // Unix, by the clock of the rank's node
  uint64_t id = 0;          // id of the range; its host and device records share it
  uint32_t process_id = 0;  // in a device record: the device id
  uint32_t thread_id = 0;   // in a device record: the stream id
  std::string_view name;    // unescaped; empty in all but the first record of an id
  std::string_view domain;  // like `name`
};

}  // namespace taskd
