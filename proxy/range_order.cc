#include "proxy/range_order.h"

#include <algorithm>

namespace taskd::proxy {

std::optional<uint64_t> FirstEarlyEnd(const RingBatch& batch, uint64_t settled_ticks,
                                      absl::FunctionRef<bool(uint64_t id)> open) {
  absl::flat_hash_map<uint64_t, uint64_t> early;  // id -> ticks
  for (auto record = batch.records.rbegin(); record != batch.records.rend() && record->ticks > settled_ticks;
       ++record) {
    if (record->type != ring::kRecordRangeEnd || (record->flags & ring::kFlagSource) != 0) continue;
    if (!open(record->id)) early[record->id] = record->ticks;
  }
  // Most were started in the same batch.
  for (auto record = batch.records.begin(); record != batch.records.end() && !early.empty(); ++record) {
    if (record->type == ring::kRecordRangeStart) early.erase(record->id);
  }
  std::optional<uint64_t> first;
  for (const auto& [id, ticks] : early) first = std::min(first.value_or(ticks), ticks);
  return first;
}

void ReadWholeRanges(RingSegment& segment, uint64_t cut_ticks, size_t max_bytes, uint64_t max_early,
                     absl::FunctionRef<bool(uint64_t id)> open, RingBatch& batch) {
  segment.Read(cut_ticks, max_bytes, batch);
  if (batch.cut_ticks == UINT64_MAX) return;  // all that there is and will be
  const uint64_t settled_ticks = batch.cut_ticks - std::min(batch.cut_ticks, max_early);
  const std::optional<uint64_t> early = FirstEarlyEnd(batch, settled_ticks, open);
  if (!early) return;
  const bool limited = batch.cut_ticks < cut_ticks;
  segment.Unread();
  segment.Read(*early - 1, max_bytes, batch);
  batch.more = limited;
  // The byte limit ended the batch before the time of an early end had passed, and it began with one. A start so near
  // to it would be in the batch: this end has none.
  if (!limited || !batch.records.empty()) return;
  segment.Unread();
  segment.Read(cut_ticks, max_bytes, batch);
}

}  // namespace taskd::proxy
