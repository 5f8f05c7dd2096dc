// One mark record, as it comes from a rank's ring or from a line of its mark files: the common input of the fold
// (marks/mark_fold.h) and of `taskd trace`.
#pragma once

#include <cstdint>
#include <string_view>

namespace taskd {

struct MarkRecord {
  enum class Phase : uint8_t { kInstant, kStart, kEnd };

  Phase phase = Phase::kInstant;
  bool device = false;      // stamped on the device (SourceKind 1): when it ran, not when it was enqueued
  uint64_t time_ns = 0;     // Unix, by the clock of the rank's node
  uint64_t id = 0;          // of the range; host and device records of one range share it
  uint32_t process_id = 0;  // of a device record: its device id
  uint32_t thread_id = 0;   // of a device record: its stream id
  std::string_view name;    // unescaped; empty in all but the first record of an id
  std::string_view domain;  // as name
};

}  // namespace taskd
