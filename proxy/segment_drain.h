// Brings what one rank's segment holds into the rank's mark files: in the order of time, once, whatever is killed when.
//
// Design:
// 1. A batch is every record up to a cut-off time stamp, over all threads of the rank. A record stamped before the cut
//    whose range end lies before it too was committed before it. An end that was stamped before its start all the same
//    is put behind it, and no batch ends between the two (proxy/range_order.h).
// 2. A batch becomes one write(2). Before it, the cursors that will hold afterwards and the write itself (file, size
//    before, bytes) are noted in the segment; after it, the cursors become valid and the note is struck. A proxy that
//    takes over compares the note with the file's size and knows whether the batch is in.
// 3. An end is written only if its start was: the open ranges are kept in memory, and read back from the newest files
//    at a take-over.
// 4. What has been written is folded (marks/mark_fold.h), once: a batch that could not be written is not.
//    Where there is no folder for files, the write is left out and all else is as by 2: the note says so, and a batch
//    that was noted counts as done. Ranges that were open when a proxy ended are then unknown to the next one, and their
//    ends are left out: of the steps, it misses the one that was under way.
// 5. A device line (MSPTI's) is written only for an id whose host line this process wrote; these ids are kept and read
//    back like the open ranges.
// 6. While a batch cannot be written, further ones are read behind it into the backlog, before the rings overwrite
//    them. Each is written as by 2, in order; the segment's cursors move with the files only. So a proxy that takes
//    over reads again what the rings still hold, and the records' sequence numbers show how many are gone.
//
// Two threads: one writes (Flush, which may hang with the storage), one watches (everything else). What the watcher may
// call while a Flush is under way is marked.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "marks/mark_record.h"
#include "proxy/range_order.h"
#include "proxy/rank_files.h"
#include "proxy/rank_fold.h"
#include "proxy/ring_segment.h"

namespace taskd::proxy {

class SegmentDrain {
 public:
  // `files` and `fold` are those of the segment's rank; without a fold nothing is folded.
  SegmentDrain(std::unique_ptr<RingSegment> segment, std::shared_ptr<RankFiles> files,
               std::shared_ptr<RankFold> fold = nullptr);

  // During a Flush only its header, gate, descriptor and what else never changes.
  RingSegment& segment() { return *segment_; }
  // As RingSegment::fault(). Also during a Flush.
  std::string fault();

  // Whether there is something to write: a part of a ring is unread, or something lies there since kMaxAge; anything at
  // all if `all`.
  bool Due(uint64_t now_monotonic_ns, bool all);
  // Writes what is due; everything if `all`. With `to_the_end` also what the clock calls future, for a segment whose
  // writer is gone. OK also if there was nothing to do. On an error nothing is lost: the next call tries again.
  absl::Status Flush(uint64_t now_monotonic_ns, bool all, bool to_the_end);

  // Takes what the rings are about to overwrite into the backlog, at most about `room_bytes` of memory. Also during a
  // Flush, which is what it is for.
  void ReadAhead(size_t room_bytes);
  // Memory of what was read and is not written. Also during a Flush.
  size_t backlog_bytes();
  // Records in it. Also during a Flush.
  size_t backlog_records();
  uint64_t lost();      // also during a Flush
  uint64_t recorded();  // RingSegment::recorded(); also during a Flush

  // By what was recorded, written or not.
  struct Progress {
    int64_t begun_step = -1;  // N of the newest "step N" that has begun; -1: none
    bool left_loop = false;   // kStepsAreOver, and nothing of a step has begun since
  };
  // Reads what the rings hold and no batch has. For a rank whose files do not move, until StopPeeking(). Also during a Flush.
  Progress Peek();
  void StopPeeking();

  // Everything recorded that can be read is in the files.
  bool drained();

  struct Counters {
    std::array<uint64_t, ring::kKinds> written{};  // marks and ranges started in the files
    uint64_t bytes = 0;                            // of them
    uint64_t last_mark_ns = 0;                     // Unix, of the newest of them; 0: none
    uint64_t lost = 0;
    int64_t step = -1;  // of the newest "step N" that ended
    double step_ms = 0;
    double overhead_ns_per_mark = 0;
    uint64_t recorded = 0;   // not set by counters()
    bool left_loop = false;  // Progress::left_loop

    friend bool operator==(const Counters&, const Counters&) = default;
  };
  Counters counters() const;

 private:
  struct OpenRange {
    uint32_t end_flag;
    int64_t step;  // -1: not a step
    uint64_t start_ns;
  };

  struct Batch {
    RingBatch ring;
    TickAnchor now;     // when it was read
    uint64_t lost = 0;  // by then
    size_t bytes = 0;   // of memory
  };

  absl::Status TakeOver();
  absl::StatusOr<bool> Settle();
  // The batch to be written next; null: there is nothing.
  const Batch* Front(bool to_the_end);
  // Reads one more into the backlog; `ahead`: not on the thread that writes. False: there was nothing to read. mutex_
  // is held.
  bool ReadBatch(bool to_the_end, bool ahead);
  void NoteSteps(const RingBatch& batch);
  void PopFront();
  absl::Status WriteBatch(const Batch& batch);
  absl::Status AppendLines(const Batch& batch, TickAnchor cut);
  // Lines of the batch into lines_; what it changes in open_ and device_ is noted for UndoFormat.
  void Format(const RingBatch& batch, TickAnchor now);
  void UndoFormat();
  void ForgetOldRanges();
  void FormatEnd(const RingRecord& record, uint64_t timestamp_ns);
  void FormatDevice(const RingRecord& record);
  // False: it is expected already.
  bool ExpectDevice(uint64_t id);
  void Fold(uint64_t lost);
  TickAnchor left_anchor() const;
  // A time as records are stamped with it.
  uint64_t Stamp(TickAnchor anchor) const { return segment_->counter_clock() ? anchor.ticks : anchor.monotonic_ns; }
  uint64_t MonotonicAt(uint64_t ticks, TickAnchor now) const;
  // kMaxEarlyNs in the segment's ticks.
  uint64_t MaxEarlyTicks(TickAnchor now) const;
  void StageAnchor(TickAnchor anchor);
  void CommitAnchor();

  std::mutex mutex_;  // guards reading and cursors of segment_, and from here to noted_ticks_
  std::unique_ptr<RingSegment> segment_;
  std::deque<Batch> backlog_;  // the first is being written during a Flush
  Batch spare_;                // so that the usual one allocates nothing
  // False: the write that a proxy before us began is not settled, so it is not known where to read on.
  bool cursors_known_;
  std::vector<RingCursor> peeked_;
  RingBatch peek_batch_;
  Progress progress_;         // of what was read or peeked at
  uint64_t noted_ticks_ = 0;  // until when

  std::shared_ptr<RankFiles> files_;
  std::shared_ptr<RankFold> fold_;
  uint64_t lost_told_;  // to the fold
  const TickAnchor born_ = ReadAnchor();
  bool taken_over_ = false;
  uint64_t pending_since_ns_ = 0;  // 0: nothing pending
  uint64_t anchored_ns_ = 0;
  std::string lines_;
  absl::flat_hash_map<uint64_t, OpenRange> open_;
  EarlyEnds early_ends_;                                // of the batch being written
  std::vector<std::pair<uint64_t, OpenRange>> opened_;  // by the batch being written
  std::vector<std::pair<uint64_t, OpenRange>> closed_;
  // Ids of MSPTI whose host line is in the files and whose device lines may come. Device lines of others are left out.
  absl::flat_hash_set<uint64_t> device_;
  std::vector<uint64_t> device_new_;  // by the batch being written
  std::vector<uint64_t> device_done_;
  std::vector<MarkRecord> records_;  // of the batch being written; their names lie there
  std::array<uint64_t, ring::kKinds> written_{};
  std::array<uint64_t, ring::kKinds> written_next_{};
  int64_t step_ = -1;
  double step_ms_ = 0;
  uint64_t written_bytes_ = 0;
  uint64_t last_mark_ns_ = 0;       // in the files
  uint64_t last_mark_ns_next_ = 0;  // with what is formatted
};

// Of two segments of one rank, the later one second.
SegmentDrain::Counters Sum(SegmentDrain::Counters a, const SegmentDrain::Counters& b);

}  // namespace taskd::proxy
