// The reader's side of a rank's shared-memory segment (worker_sdk/include/taskd/ring.h).
//
// Nothing in a segment is believed: every offset, length and index is checked before it is used, a segment that breaks
// a rule becomes faulted() for good, and a segment that is truncated under us is caught (SigbusGuard). The worst that a
// hostile writer reaches is the loss of its own marks.
//
// Not thread-safe, but for SetGate and WriterLives, which any thread may call.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "proxy/sigbus_guard.h"
#include "proxy/tick_clock.h"
#include "taskd/ring.h"

namespace taskd::proxy {

struct RingRecord {
  uint64_t ticks;
  uint64_t id;
  uint32_t tid;
  uint32_t name_offset;  // in 8-byte words of the batch's buffer
  uint16_t name_bytes;
  ring::RecordType type;
  uint8_t flags;   // ring::RecordFlags
  uint8_t domain;  // < RingSegment::domains()
  uint8_t kind;    // ring::Kind
  // With ring::kFlagSource only.
  uint64_t timestamp_ns = 0;  // Unix
  uint32_t process_id = 0;    // or device
  uint32_t thread_id = 0;     // or stream
};

// How far a reader is in one ring.
struct RingCursor {
  uint64_t consumed = 0;  // bytes since the ring's birth
  uint64_t lost = 0;      // records overwritten before they were read
  uint32_t sequence = 0;  // of the next record
};

// What one Read found, in the order of ticks over all threads. It shares nothing with the segment.
struct RingBatch {
  std::vector<RingRecord> records;
  std::vector<uint64_t> words;
  std::vector<RingCursor> cursors;  // behind it, by ring; rings that came later are where they began
  uint64_t cut_ticks = 0;           // every record up to here was read
  bool more = false;                // the byte limit cut it short: read again

  std::string_view Name(const RingRecord& record) const {
    return {reinterpret_cast<const char*>(words.data() + record.name_offset), record.name_bytes};
  }
};

class RingSegment {
 public:
  // Takes a segment's descriptor. FAILED_PRECONDITION: another version or size; INVALID_ARGUMENT: not a segment.
  static absl::StatusOr<std::unique_ptr<RingSegment>> Open(UniqueFd fd);
  ~RingSegment();
  RingSegment(const RingSegment&) = delete;
  RingSegment& operator=(const RingSegment&) = delete;

  // Empty while the segment is sound; else what is wrong with it.
  const std::string& fault() const { return fault_; }
  bool faulted() {
    if (fault_.empty() && guard_->hit()) fault_ = "its shared memory was truncated";
    return !fault_.empty();
  }

  dev_t device() const { return device_; }
  ino_t inode() const { return inode_; }
  int fd() const { return fd_.get(); }
  // A process other than this one holds the writer's lock. Any thread.
  bool WriterLives() const;

  uint32_t pid() const { return pid_; }
  bool counter_clock() const { return counter_clock_; }
  TickAnchor start() const { return start_; }
  uint64_t start_realtime_ns() const { return start_realtime_ns_; }

  // The gate. Any thread.
  void SetGate(uint32_t gate);

  // Bytes recorded and not yet read, over all rings; picks up new rings. Cheap.
  uint64_t Pending();
  // Largest share of a ring that is unread, 0 to 1 (above 1: overwritten). As of the last Pending().
  double fill() const { return fill_; }

  // Reads records up to `cut_ticks`, about `max_bytes` of them, into `batch`, and goes on behind it with the next Read.
  // The first one begins at the segment's cursors. Those move by CommitCursors only: what was read and not committed is
  // read again by whoever opens the segment next, as far as the rings still hold it.
  void Read(uint64_t cut_ticks, size_t max_bytes, RingBatch& batch);
  // Reads as Read does, from `from` on (by ring; where the next Read begins, if that is later), and leaves the next Read as
  // it was. `from` is then behind what was read.
  void Peek(size_t max_bytes, std::vector<RingCursor>& from, RingBatch& batch);
  // The next Read begins where the last one did.
  void Unread();
  // Writes a batch's cursors into the segment beside the valid ones; then makes them the valid ones. Batches are
  // committed in the order in which they were read.
  void StageCursors(const RingBatch& batch);
  void CommitCursors(const RingBatch& batch);
  // Commits the valid cursors that an earlier proxy has staged, and reads from there. Before the first Read.
  void CommitStagedCursors();

  // Name of a record's domain; empty names and garbage are possible.
  std::string_view DomainName(uint8_t domain) const;

  uint64_t recorded() const;               // bytes, since the rings' births: grows with each record
  uint64_t lost() const;                   // overwritten, dropped, without a ring
  double overhead_ticks_per_mark() const;  // 0 without samples
  // Whether overwritten records of the time before any proxy spoke count as lost.
  void set_count_undecided(bool count) { count_undecided_ = count; }

  // The part of the header that the proxy owns.
  ring::SegmentHeader& header() { return *header_; }

 private:
  // A ring and its cursors, checked.
  struct Ring {
    ring::ThreadSlot* slot;
    const uint64_t* data;
    uint64_t words;  // power of two
    RingCursor read;
    RingCursor before;  // `read` as the last Read found it
  };
  struct Chunk {
    size_t ring;
    uint64_t position;   // of the first word in the buffer
    size_t word_offset;  // in batch.words
    size_t word_count;
    bool truncated;  // the ring has more
  };

  RingSegment() = default;
  void Fault(std::string what) {
    if (fault_.empty()) fault_ = std::move(what);
  }
  void PickUpRings();
  bool CopyChunk(size_t index, size_t max_words, RingBatch& batch, Chunk& chunk);
  // Parses a chunk's records up to cut_ticks; moves the ring's cursor.
  void ParseChunk(const Chunk& chunk, uint64_t cut_ticks, RingBatch& batch);

  UniqueFd fd_;
  ring::SegmentHeader* header_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::unique_ptr<SigbusGuard> guard_;
  std::string fault_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint32_t pid_ = 0;
  bool counter_clock_ = false;
  bool count_undecided_ = true;
  TickAnchor start_;
  uint64_t start_realtime_ns_ = 0;
  double fill_ = 0;
  std::vector<Ring> rings_;
};

}  // namespace taskd::proxy
