// Ends that the order of time stamps puts before their starts.
//
// A processor may read its counter before a load that precedes it in the program. The end of a range that one thread
// starts and another ends is stamped beside the load that learned the id, so its time may be a little earlier than its
// start's: as long as such a load can take. Ordering the two would cost a mark as much again as it costs now; a reader
// that knows of it mends it for nothing:
// * in a batch, such an end waits for its start and is taken right after it (EarlyEnds);
// * at a batch's end the start may come with the next batch, so the end and all after it wait for that (FirstEarlyEnd).
//
// Ranges of a source (MSPTI) are stamped by the source and not meant here. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "proxy/ring_segment.h"

namespace taskd::proxy {

// An end is stamped at most this much before its start. A load that misses every cache and the TLB takes some
// microseconds.
inline constexpr uint64_t kMaxEarlyNs = 50'000;

// The ends of one batch whose starts have not come yet.
class EarlyEnds {
 public:
  void Clear() { ends_.clear(); }
  void Add(const RingRecord& end) { ends_.try_emplace(end.id, end); }
  // The end of this range, once.
  std::optional<RingRecord> Take(uint64_t id) {
    if (ends_.empty()) return std::nullopt;
    const auto end = ends_.find(id);
    if (end == ends_.end()) return std::nullopt;
    const RingRecord found = end->second;
    ends_.erase(end);
    return found;
  }

 private:
  absl::flat_hash_map<uint64_t, RingRecord> ends_;
};

// The time stamp of the first end later than `settled_ticks` whose start is neither in the batch nor `open`; nothing:
// there is none.
std::optional<uint64_t> FirstEarlyEnd(const RingBatch& batch, uint64_t settled_ticks,
                                      absl::FunctionRef<bool(uint64_t id)> open);

// As RingSegment::Read, but stops before an end that may have come before its start: one stamped less than `max_early`
// ticks before the end of the batch. Such an end comes with a batch that reaches that much further, whatever that
// holds; it is no reason for `more`. `open` as above.
void ReadWholeRanges(RingSegment& segment, uint64_t cut_ticks, size_t max_bytes, uint64_t max_early,
                     absl::FunctionRef<bool(uint64_t id)> open, RingBatch& batch);

}  // namespace taskd::proxy
