#include "proxy/segment_drain.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/log.h"
#include "common/median.h"
#include "marks/mark_line.h"
#include "marks/step_name.h"
#include "marks/work_name.h"

namespace taskd::proxy {
namespace {

constexpr uint64_t kMaxAgeNs = 500'000'000;
// A ring that is fuller than this does not wait for kMaxAge: the rest of it is room for a proxy that gets no CPU.
constexpr double kDueFill = 1.0 / 8;
constexpr size_t kBatchBytes = size_t{1024} * 1024;  // of ring records; about 5 times that in the file
constexpr size_t kBatchMemory = 4 * kBatchBytes;     // the most that one takes
// Read ahead of the files only when the rest of the ring could fill up before the next look.
constexpr double kReadAheadFill = 1.0 / 2;
// Ranges that are started and never ended.
constexpr size_t kMaxOpenRanges = 1 << 16;

// The thread that made the mark: a source's records are all written by one of ours.
uint32_t ThreadOf(const RingRecord& record) {
  return (record.flags & ring::kFlagSource) != 0 ? record.thread_id : record.tid;
}

bool HasStreamFlags(const RingRecord& record) {
  // The official reader looks for host steps and forwards under the flags of a range with a stream.
  if ((record.flags & ring::kFlagStream) != 0) return true;
  return (record.flags & ring::kFlagSource) == 0 &&
         (record.kind == ring::kKindStep || record.kind == ring::kKindForward);
}

// A range that begins only while there are steps, or before the first.
bool IsOfSteps(uint8_t kind) {
  return kind == ring::kKindStep || kind == ring::kKindForward || kind == ring::kKindDataLoader;
}

// The fold knows these two. The segment's own text is not for it: its process may change it at any time.
std::string_view DomainForFold(uint32_t domain) {
  return domain == ring::kDomainDefault ? "default" : domain == ring::kDomainCommunication ? "communication" : "other";
}

}  // namespace

SegmentDrain::SegmentDrain(std::unique_ptr<RingSegment> segment, std::shared_ptr<RankFiles> files,
                           std::shared_ptr<RankFold> fold)
    : segment_(std::move(segment)), files_(std::move(files)), fold_(std::move(fold)), lost_told_(segment_->lost()) {
  const ring::SegmentHeader& header = segment_->header();
  cursors_known_ =
      header.attached.load(std::memory_order_acquire) == 0 || header.intent.valid.load(std::memory_order_acquire) != 1;
  for (uint32_t kind = 0; kind < ring::kKinds; ++kind) {
    written_[kind] = header.written[kind].load(std::memory_order_relaxed);
  }
}

// Finds out whether the write that is noted in the segment was done.
absl::StatusOr<bool> SegmentDrain::Settle() {
  const ring::WriteIntent& intent = segment_->header().intent;
  if (intent.file.load(std::memory_order_relaxed) == kNoMarkFile) return true;
  if (!files_->there()) return false;  // its files cannot be reached any more
  absl::StatusOr<bool> written = files_->SettleInterruptedWrite(
      intent.file.load(std::memory_order_relaxed), static_cast<int64_t>(intent.offset.load(std::memory_order_relaxed)),
      static_cast<int64_t>(intent.bytes.load(std::memory_order_relaxed)));
  if (!absl::IsInvalidArgument(written.status())) return written;
  spdlog::warn("{}", written.status().message());
  return false;
}

absl::Status SegmentDrain::TakeOver() {
  ring::SegmentHeader& header = segment_->header();
  const bool first = header.attached.load(std::memory_order_acquire) == 0;
  if (!first) {
    if (!cursors_known_) {  // only this thread changes it, and nothing is read before
      absl::StatusOr<bool> written = Settle();
      if (!written.ok()) return written.status();
      std::lock_guard<std::mutex> lock(mutex_);
      if (*written) {
        segment_->CommitStagedCursors();
        CommitAnchor();
        for (uint32_t kind = 0; kind < ring::kKinds; ++kind) {
          written_[kind] = header.written_next[kind].load(std::memory_order_relaxed);
          header.written[kind].store(written_[kind], std::memory_order_relaxed);
        }
      }
      header.intent.valid.store(0, std::memory_order_release);
      cursors_known_ = true;
    }
    const auto reopen = [this](std::string_view text) {
      std::optional<MarkLine> line = ParseMarkLine(text);
      if (!line) return;
      if (line->device) {  // it does not name its process: of an earlier one's its host line was none of ours
        if (line->flag != kMarkStartStream) device_.erase(line->id);
        return;
      }
      if (line->process_id != segment_->pid()) return;
      if ((line->flag == kMarkStartStream || line->flag == kMarkInstantStream) && line->id < ring::kFirstOwnId) {
        ExpectDevice(line->id);
      }
      if (line->flag == kMarkStart || line->flag == kMarkStartStream) {
        open_[line->id] = {line->flag << 1, StepNumber(line->name).value_or(-1), line->timestamp_ns};
      } else if (line->flag == kMarkEnd || line->flag == kMarkEndStream) {
        open_.erase(line->id);
      }
    };
    if (files_->there()) {
      if (absl::Status read = files_->VisitNewestLines(reopen); !read.ok()) return read;
    }
  }
  header.attached.fetch_add(1, std::memory_order_acq_rel);
  taken_over_ = true;
  return absl::OkStatus();
}

TickAnchor SegmentDrain::left_anchor() const {
  const ring::SegmentHeader& header = segment_->header();
  const ring::ClockAnchor& anchor = header.anchors[header.anchor_index.load(std::memory_order_relaxed) & 1];
  TickAnchor left = {anchor.ticks.load(std::memory_order_relaxed), anchor.monotonic_ns.load(std::memory_order_relaxed)};
  return left.ticks == 0 ? segment_->start() : left;
}

void SegmentDrain::StageAnchor(TickAnchor anchor) {
  ring::SegmentHeader& header = segment_->header();
  uint32_t next = ~header.anchor_index.load(std::memory_order_relaxed) & 1;
  header.anchors[next].ticks.store(anchor.ticks, std::memory_order_relaxed);
  header.anchors[next].monotonic_ns.store(anchor.monotonic_ns, std::memory_order_relaxed);
  header.anchor_index_next.store(next, std::memory_order_release);
}

void SegmentDrain::CommitAnchor() {
  ring::SegmentHeader& header = segment_->header();
  header.anchor_index.store(header.anchor_index_next.load(std::memory_order_relaxed), std::memory_order_release);
}

uint64_t SegmentDrain::MonotonicAt(uint64_t ticks, TickAnchor now) const {
  return segment_->counter_clock() ? TickLine(left_anchor(), now).MonotonicNs(ticks) : ticks;
}

uint64_t SegmentDrain::MaxEarlyTicks(TickAnchor now) const {
  if (!segment_->counter_clock()) return kMaxEarlyNs;
  // By our own clock: the segment's is set by its process.
  const uint64_t ns = std::max<uint64_t>(now.monotonic_ns - born_.monotonic_ns, 1);
  constexpr double kMaxTicksPerNs = 10;  // what two readings within a moment may seem to show
  const double ticks_per_ns = static_cast<double>(now.ticks - born_.ticks) / static_cast<double>(ns);
  return static_cast<uint64_t>(std::min(ticks_per_ns, kMaxTicksPerNs) * kMaxEarlyNs);
}

std::string SegmentDrain::fault() {
  std::lock_guard<std::mutex> lock(mutex_);
  return segment_->faulted() ? segment_->fault() : std::string();
}

bool SegmentDrain::drained() {
  std::lock_guard<std::mutex> lock(mutex_);
  return backlog_.empty() && segment_->Pending() == 0;
}

size_t SegmentDrain::backlog_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const Batch& batch : backlog_) bytes += batch.bytes;
  return bytes;
}

size_t SegmentDrain::backlog_records() {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t records = 0;
  for (const Batch& batch : backlog_) records += batch.ring.records.size();
  return records;
}

uint64_t SegmentDrain::lost() {
  std::lock_guard<std::mutex> lock(mutex_);
  return segment_->lost();
}

uint64_t SegmentDrain::recorded() {
  std::lock_guard<std::mutex> lock(mutex_);
  return segment_->recorded();
}

void SegmentDrain::NoteSteps(const RingBatch& batch) {
  const uint32_t keep = segment_->header().undecided_keep.load(std::memory_order_relaxed);
  for (const RingRecord& record : batch.records) {
    const bool start = record.type == ring::kRecordRangeStart;
    if ((!start && record.type != ring::kRecordMark) || (record.flags & ring::kFlagDevice) != 0) continue;
    if ((record.flags & ring::kFlagUndecided) != 0 && (keep & (1u << record.kind)) == 0) continue;
    if (record.ticks < noted_ticks_) continue;  // peeked at before it was read
    noted_ticks_ = record.ticks;
    if (start && record.kind == ring::kKindStep) {
      progress_.begun_step = StepNumber(batch.Name(record)).value_or(progress_.begun_step);
    }
    if (start && IsOfSteps(record.kind)) progress_.left_loop = false;
    if (!start && batch.Name(record) == kStepsAreOver) progress_.left_loop = true;
  }
}

SegmentDrain::Progress SegmentDrain::Peek() {
  std::lock_guard<std::mutex> lock(mutex_);
  do {
    segment_->Peek(kBatchBytes, peeked_, peek_batch_);
    NoteSteps(peek_batch_);
  } while (peek_batch_.more && !peek_batch_.records.empty());
  return progress_;
}

void SegmentDrain::StopPeeking() {
  std::lock_guard<std::mutex> lock(mutex_);
  peeked_.clear();
  peek_batch_ = {};
}

bool SegmentDrain::Due(uint64_t now_monotonic_ns, bool all) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!backlog_.empty()) return true;
  if (segment_->faulted()) return false;
  if (segment_->Pending() == 0) {
    pending_since_ns_ = 0;
    if (taken_over_ && now_monotonic_ns - anchored_ns_ > 1'000'000'000) {
      // Keeps the line between two anchors short, so that it follows the kernel's adjustments of its clock.
      StageAnchor(ReadAnchor());
      CommitAnchor();
      anchored_ns_ = now_monotonic_ns;
    }
    return false;
  }
  if (pending_since_ns_ == 0) pending_since_ns_ = now_monotonic_ns;
  return all || segment_->fill() >= kDueFill || now_monotonic_ns - pending_since_ns_ >= kMaxAgeNs;
}

absl::Status SegmentDrain::Flush(uint64_t now_monotonic_ns, bool all, bool to_the_end) {
  if (!Due(now_monotonic_ns, all)) return absl::OkStatus();
  if (!taken_over_) {
    if (absl::Status taken = TakeOver(); !taken.ok()) return taken;
  }
  const uint64_t goal = to_the_end ? UINT64_MAX : Stamp(ReadAnchor());  // everything up to here is to be written
  bool more = true;
  while (more) {
    const Batch* batch = Front(to_the_end);
    if (batch == nullptr) break;
    if (absl::Status written = WriteBatch(*batch); !written.ok()) return written;
    anchored_ns_ = now_monotonic_ns;
    std::lock_guard<std::mutex> lock(mutex_);
    // A batch ends before the goal if it was read before this call, or at an end that waits for its start: its time is
    // over in a moment.
    more = backlog_.size() > 1 || (batch->ring.more ? !batch->ring.records.empty() : batch->ring.cut_ticks < goal);
    PopFront();
  }
  pending_since_ns_ = 0;
  return absl::OkStatus();
}

const SegmentDrain::Batch* SegmentDrain::Front(bool to_the_end) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (backlog_.empty() && !ReadBatch(to_the_end, false)) return nullptr;
  return &backlog_.front();
}

bool SegmentDrain::ReadBatch(bool to_the_end, bool ahead) {
  const uint32_t keep = segment_->header().undecided_keep.load(std::memory_order_relaxed);
  segment_->set_count_undecided((keep & ring::kGateAllKinds) != 0);
  Batch& batch = backlog_.emplace_back(std::exchange(spare_, {}));
  batch.now = ReadAnchor();
  // Reading ahead, open_ is another thread's: there an end waits a moment though its start is long known.
  const auto open = [this, ahead](uint64_t id) { return !ahead && open_.contains(id); };
  ReadWholeRanges(*segment_, to_the_end ? UINT64_MAX : Stamp(batch.now), kBatchBytes, MaxEarlyTicks(batch.now), open,
                  batch.ring);
  batch.lost = segment_->lost();
  if (batch.ring.cursors.empty()) {  // nothing there, or not to be believed
    spare_ = std::move(batch);
    backlog_.pop_back();
    return false;
  }
  NoteSteps(batch.ring);
  if (ahead) {  // it may be there for long
    batch.ring.records.shrink_to_fit();
    batch.ring.words.shrink_to_fit();
  }
  batch.bytes = sizeof(Batch) + batch.ring.records.capacity() * sizeof(RingRecord) +
                batch.ring.words.capacity() * sizeof(uint64_t) + batch.ring.cursors.capacity() * sizeof(RingCursor);
  return true;
}

void SegmentDrain::PopFront() {
  if (backlog_.size() == 1 && backlog_.front().bytes <= kBatchMemory) spare_ = std::move(backlog_.front());
  backlog_.pop_front();
}

void SegmentDrain::ReadAhead(size_t room_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!cursors_known_) return;
  while (room_bytes >= kBatchMemory && segment_->Pending() > 0 && segment_->fill() >= kReadAheadFill) {
    if (!ReadBatch(false, true) || backlog_.back().ring.records.empty()) return;
    room_bytes -= std::min(room_bytes, backlog_.back().bytes);
  }
}

// Ids grow, so the smaller half are the older ranges: those that will hardly be ended any more.
void SegmentDrain::ForgetOldRanges() {
  std::vector<uint64_t> ids;
  ids.reserve(open_.size());
  for (const auto& [id, range] : open_) ids.push_back(id);
  absl::erase_if(open_, [limit = UpperMedian(ids)](const auto& entry) { return entry.first < limit; });
}

// Where the device loses marks their ids pile up: the older half goes.
bool SegmentDrain::ExpectDevice(uint64_t id) {
  if (device_.size() >= kMaxOpenRanges) {
    std::vector<uint64_t> ids(device_.begin(), device_.end());
    const uint64_t limit = UpperMedian(ids);
    absl::erase_if(device_, [limit](uint64_t expected) { return expected < limit; });
  }
  return device_.insert(id).second;
}

void SegmentDrain::FormatDevice(const RingRecord& record) {
  if (!device_.contains(record.id)) return;
  const bool start = record.type == ring::kRecordRangeStart;
  const bool mark = record.type == ring::kRecordMark;
  AppendMarkLine({.flag = mark    ? kMarkInstantStream
                          : start ? kMarkStartStream
                                  : kMarkEndStream,
                  .timestamp_ns = record.timestamp_ns,
                  .id = record.id,
                  .process_id = record.process_id,
                  .thread_id = record.thread_id,
                  .name = {},
                  .domain = {},
                  .device = true},
                 lines_);
  if (!start) {
    device_.erase(record.id);
    device_done_.push_back(record.id);
  }
  if (mark) return;
  records_.push_back({.phase = start ? MarkRecord::Phase::kStart : MarkRecord::Phase::kEnd,
                      .device = true,
                      .time_ns = record.timestamp_ns,
                      .id = record.id,
                      .process_id = record.process_id,
                      .thread_id = record.thread_id,
                      .name = {},
                      .domain = {}});
}

void SegmentDrain::FormatEnd(const RingRecord& record, uint64_t timestamp_ns) {
  auto open = open_.find(record.id);
  const bool source = (record.flags & ring::kFlagSource) != 0;
  if (open == open_.end()) {
    if (!source) early_ends_.Add(record);
    return;
  }
  if (!source) timestamp_ns = std::max(timestamp_ns, open->second.start_ns);
  if (open->second.step >= 0) {
    step_ = open->second.step;
    step_ms_ = static_cast<double>(static_cast<int64_t>(timestamp_ns - open->second.start_ns)) / 1e6;
  }
  AppendMarkLine({.flag = open->second.end_flag,
                  .timestamp_ns = timestamp_ns,
                  .id = record.id,
                  .process_id = segment_->pid(),
                  .thread_id = ThreadOf(record),
                  .name = {},
                  .domain = {}},
                 lines_);
  records_.push_back({.phase = MarkRecord::Phase::kEnd,
                      .time_ns = timestamp_ns,
                      .id = record.id,
                      .process_id = segment_->pid(),
                      .thread_id = ThreadOf(record),
                      .name = {},
                      .domain = {}});
  last_mark_ns_next_ = std::max(last_mark_ns_next_, timestamp_ns);
  closed_.push_back(*open);
  open_.erase(open);
}

void SegmentDrain::Format(const RingBatch& batch, TickAnchor now) {
  lines_.clear();
  opened_.clear();
  closed_.clear();
  device_new_.clear();
  device_done_.clear();
  records_.clear();
  early_ends_.Clear();
  written_next_ = written_;
  last_mark_ns_next_ = last_mark_ns_;
  const TickLine line(left_anchor(), now);
  const uint64_t realtime_offset = segment_->start_realtime_ns() - segment_->start().monotonic_ns;
  const uint32_t keep = segment_->header().undecided_keep.load(std::memory_order_relaxed);
  for (const RingRecord& record : batch.records) {
    uint64_t monotonic = segment_->counter_clock() ? line.MonotonicNs(record.ticks) : record.ticks;
    const bool source = (record.flags & ring::kFlagSource) != 0;
    const uint64_t timestamp_ns = source ? record.timestamp_ns : monotonic + realtime_offset;
    if ((record.flags & ring::kFlagDevice) != 0) {
      FormatDevice(record);
      continue;
    }
    if (record.type == ring::kRecordRangeEnd) {
      FormatEnd(record, timestamp_ns);
      continue;
    }
    if ((record.flags & ring::kFlagUndecided) != 0 && (keep & (1u << record.kind)) == 0) continue;
    if (source && (record.flags & ring::kFlagStream) != 0 && ExpectDevice(record.id)) device_new_.push_back(record.id);
    const bool start = record.type == ring::kRecordRangeStart;
    uint32_t flag;
    if (start) {
      flag = HasStreamFlags(record) ? kMarkStartStream : kMarkStart;
      OpenRange range = {flag << 1, record.kind == ring::kKindStep ? StepNumber(batch.Name(record)).value_or(-1) : -1,
                         timestamp_ns};
      if (open_.size() >= kMaxOpenRanges) ForgetOldRanges();
      if (open_.emplace(record.id, range).second) opened_.push_back({record.id, range});
    } else {
      flag = (record.flags & ring::kFlagStream) != 0 ? kMarkInstantStream : kMarkInstant;
    }
    ++written_next_[record.kind];
    last_mark_ns_next_ = std::max(last_mark_ns_next_, timestamp_ns);
    const std::string_view name = batch.Name(record);
    AppendMarkLine({.flag = flag,
                    .timestamp_ns = timestamp_ns,
                    .id = record.id,
                    .process_id = segment_->pid(),
                    .thread_id = ThreadOf(record),
                    .name = name,
                    .domain = segment_->DomainName(record.domain),
                    .cut = (record.flags & ring::kFlagTruncated) != 0},
                   lines_);
    if (!start && !WorkOfName(name)) continue;  // other instants are none of the fold's
    records_.push_back({.phase = start ? MarkRecord::Phase::kStart : MarkRecord::Phase::kInstant,
                        .time_ns = timestamp_ns,
                        .id = record.id,
                        .process_id = segment_->pid(),
                        .thread_id = ThreadOf(record),
                        .name = name,
                        .domain = DomainForFold(record.domain)});
    if (!start) continue;
    if (const std::optional<RingRecord> end = early_ends_.Take(record.id)) FormatEnd(*end, timestamp_ns);
  }
}

// Notes in the segment what is about to be written, so that a proxy after us can tell whether it was; then writes it.
// `valid` is stored with release behind all that it makes valid, here and in WriteBatch: of our stores that proxy finds
// those up to the instruction at which we were killed, so the compiler must not move them past each other.
absl::Status SegmentDrain::AppendLines(const Batch& batch, TickAnchor cut) {
  absl::StatusOr<RankFiles::Target> target = RankFiles::Target{kNoMarkFile, 0};
  if (files_->there()) target = files_->Prepare(time(nullptr));
  if (!target.ok()) return target.status();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    segment_->StageCursors(batch.ring);
  }
  StageAnchor(cut);
  ring::SegmentHeader& header = segment_->header();
  for (uint32_t kind = 0; kind < ring::kKinds; ++kind) {
    header.written_next[kind].store(written_next_[kind], std::memory_order_relaxed);
  }
  header.intent.file.store(target->file, std::memory_order_relaxed);
  header.intent.offset.store(static_cast<uint64_t>(target->offset), std::memory_order_relaxed);
  header.intent.bytes.store(lines_.size(), std::memory_order_relaxed);
  header.intent.valid.store(1, std::memory_order_release);
  return files_->there() ? files_->Append(lines_) : absl::OkStatus();
}

// As it was before Format.
void SegmentDrain::UndoFormat() {
  for (const auto& [id, range] : closed_) open_.emplace(id, range);
  for (const auto& [id, range] : opened_) open_.erase(id);
  device_.insert(device_done_.begin(), device_done_.end());
  for (uint64_t id : device_new_) device_.erase(id);
}

absl::Status SegmentDrain::WriteBatch(const Batch& batch) {
  const int64_t old_step = step_;
  const double old_step_ms = step_ms_;
  TickAnchor cut = batch.now;
  if (batch.ring.more || batch.ring.cut_ticks < Stamp(batch.now))
    cut = {batch.ring.cut_ticks, MonotonicAt(batch.ring.cut_ticks, batch.now)};
  Format(batch.ring, batch.now);
  ring::SegmentHeader& header = segment_->header();
  absl::Status written;
  if (lines_.empty()) {
    StageAnchor(cut);
  } else {
    written = AppendLines(batch, cut);
  }
  if (!written.ok()) {
    header.intent.valid.store(0, std::memory_order_release);
    UndoFormat();
    step_ = old_step;
    step_ms_ = old_step_ms;
    return written;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    segment_->CommitCursors(batch.ring);
  }
  CommitAnchor();
  written_ = written_next_;
  if (files_->there()) written_bytes_ += lines_.size();
  last_mark_ns_ = last_mark_ns_next_;
  for (uint32_t kind = 0; kind < ring::kKinds; ++kind)
    header.written[kind].store(written_[kind], std::memory_order_relaxed);
  header.intent.valid.store(0, std::memory_order_release);
  if (fold_ != nullptr) Fold(batch.lost);
  return absl::OkStatus();
}

void SegmentDrain::Fold(uint64_t lost) {
  // What was overwritten is older than what could still be read.
  if (lost > lost_told_) fold_->marks().Lost(lost - lost_told_);
  lost_told_ = lost;
  for (const MarkRecord& record : records_) fold_->marks().Add(record);
}

SegmentDrain::Counters SegmentDrain::counters() const {
  Counters counters;
  counters.written = written_;
  counters.bytes = written_bytes_;
  counters.last_mark_ns = last_mark_ns_;
  counters.lost = segment_->lost();
  counters.step = step_;
  counters.step_ms = step_ms_;
  counters.left_loop = progress_.left_loop;
  double ns_per_tick = 1;
  if (segment_->counter_clock()) {
    TickAnchor now = ReadAnchor();
    TickAnchor start = segment_->start();
    if (now.ticks > start.ticks) {
      ns_per_tick =
          static_cast<double>(now.monotonic_ns - start.monotonic_ns) / static_cast<double>(now.ticks - start.ticks);
    }
  }
  counters.overhead_ns_per_mark = segment_->overhead_ticks_per_mark() * ns_per_tick;
  return counters;
}

SegmentDrain::Counters Sum(SegmentDrain::Counters a, const SegmentDrain::Counters& b) {
  for (size_t kind = 0; kind < a.written.size(); ++kind) a.written[kind] += b.written[kind];
  a.bytes += b.bytes;
  a.last_mark_ns = std::max(a.last_mark_ns, b.last_mark_ns);
  a.lost += b.lost;
  a.recorded += b.recorded;
  a.left_loop = b.left_loop;
  if (b.step >= 0) {
    a.step = b.step;
    a.step_ms = b.step_ms;
  }
  if (b.overhead_ns_per_mark > 0) a.overhead_ns_per_mark = b.overhead_ns_per_mark;
  return a;
}

}  // namespace taskd::proxy
