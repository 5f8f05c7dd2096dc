#include "proxy/ring_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace taskd::proxy {
namespace {

using ring::SegmentHeader;
using ring::ThreadSlot;

// Every ring a segment can have. Mapped whole at once: pages beyond the file's end cost nothing, and a ring that is
// added later needs no new mapping.
constexpr uint64_t kMaxSegmentBytes = ring::kDataOffset + uint64_t{ring::kLargeRings} * ring::kLargeRingBytes +
                                      uint64_t{ring::kMaxThreads - ring::kLargeRings} * ring::kSmallRingBytes;
constexpr uint64_t kBlockWords = ring::kBlockBytes / 8;

uint32_t RecordBytes(uint64_t word0) { return word0 & 0xffff; }
uint8_t RecordTypeOf(uint64_t word0) { return (word0 >> 16) & 0xff; }

}  // namespace

absl::StatusOr<std::unique_ptr<RingSegment>> RingSegment::Open(UniqueFd fd) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, "ring segment: fstat");
  if (!S_ISREG(info.st_mode) || info.st_size < static_cast<off_t>(ring::kDataOffset)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ring segment: not a regular file of at least ", ring::kDataOffset, " bytes"));
  }
  void* base = mmap(nullptr, kMaxSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "ring segment: mmap");
  auto segment = std::unique_ptr<RingSegment>(new RingSegment);
  segment->header_ = static_cast<SegmentHeader*>(base);
  segment->mapped_bytes_ = kMaxSegmentBytes;
  segment->guard_ = std::make_unique<SigbusGuard>(base, kMaxSegmentBytes);
  if (!segment->guard_->valid()) return absl::ResourceExhaustedError("ring segment: too many segments on this node");
  const SegmentHeader& header = *segment->header_;
  // Acquire: the writer stores it last, with release, and a file found by its name may be filled in right now.
  if (__atomic_load_n(&header.magic, __ATOMIC_ACQUIRE) != ring::kMagic || header.version != ring::kVersion ||
      header.header_bytes != sizeof(SegmentHeader)) {
    return absl::FailedPreconditionError(
        absl::StrCat("ring segment: version ", header.version, ", this proxy reads version ", ring::kVersion));
  }
  segment->fd_ = std::move(fd);
  segment->device_ = info.st_dev;
  segment->inode_ = info.st_ino;
  segment->pid_ = header.pid;
  segment->counter_clock_ = header.clock == ring::kClockCounter;
  segment->start_ = {header.start_ticks, header.start_monotonic_ns};
  segment->start_realtime_ns_ = header.start_realtime_ns;
  return segment;
}

RingSegment::~RingSegment() {
  if (header_ != nullptr) munmap(header_, mapped_bytes_);
}

bool RingSegment::WriterLives() const {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd_.get(), F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void RingSegment::PickUpRings() {
  uint32_t count = header_->slots.load(std::memory_order_acquire);
  if (count > ring::kMaxThreads) return Fault(absl::StrCat("it claims ", count, " rings"));
  struct stat info;
  bool size_known = false;
  while (rings_.size() < count) {
    ThreadSlot& slot = header_->thread_slots[rings_.size()];
    if (slot.ready.load(std::memory_order_acquire) != 1) return;
    if (!size_known && fstat(fd_.get(), &info) != 0) return Fault("its size cannot be read");
    size_known = true;
    uint64_t offset = slot.data_offset;
    uint64_t bytes = slot.data_bytes;
    if ((bytes != ring::kLargeRingBytes && bytes != ring::kSmallRingBytes) || offset < ring::kDataOffset ||
        offset % 4096 != 0 || offset > kMaxSegmentBytes - bytes ||
        offset + bytes > static_cast<uint64_t>(info.st_size)) {
      return Fault(absl::StrCat("ring ", rings_.size(), " lies at ", offset, "+", bytes, ", outside its segment"));
    }
    uint64_t consumed = slot.consumed.load(std::memory_order_relaxed);
    if (consumed % 8 != 0) return Fault(absl::StrCat("ring ", rings_.size(), " has the odd cursor ", consumed));
    uint64_t lost = slot.lost.load(std::memory_order_relaxed);
    uint32_t sequence = slot.sequence.load(std::memory_order_relaxed);
    rings_.push_back({&slot,
                      reinterpret_cast<const uint64_t*>(reinterpret_cast<const char*>(header_) + offset),
                      bytes / 8,
                      {consumed, lost, sequence},
                      {}});
  }
}

uint64_t RingSegment::Pending() {
  fill_ = 0;
  if (faulted()) return 0;
  PickUpRings();
  uint64_t pending = 0;
  for (Ring& ring : rings_) {
    uint64_t head = ring.slot->head.load(std::memory_order_relaxed);
    if (head < ring.read.consumed || head % 8 != 0) {
      Fault(absl::StrCat("ring ", &ring - rings_.data(), " went back from ", ring.read.consumed, " to ", head));
      return 0;
    }
    pending += head - ring.read.consumed;
    fill_ = std::max(fill_, static_cast<double>(head - ring.read.consumed) / static_cast<double>(ring.words * 8));
  }
  return faulted() ? 0 : pending;
}

// Copies first and asks afterwards whether the writer was faster: what it may have overwritten meanwhile is dropped. The
// fence is the other half of the writer's (EnterNextBlock): a word of a block that was copied shows that block reserved.
// `head` is loaded with acquire, so `reserved`, which was stored before it, is never below it in a sound ring.
bool RingSegment::CopyChunk(size_t index, size_t max_words, RingBatch& batch, Chunk& chunk) {
  Ring& ring = rings_[index];
  ThreadSlot& slot = *ring.slot;
  const uint64_t ring_bytes = ring.words * 8;
  uint64_t head = slot.head.load(std::memory_order_acquire);
  uint64_t reserved = slot.reserved.load(std::memory_order_relaxed);
  if (head < ring.read.consumed || head % 8 != 0 || reserved < head || reserved % ring::kBlockBytes != 0) {
    Fault(absl::StrCat("ring ", index, " is inconsistent: head ", head, ", reserved ", reserved));
    return false;
  }
  uint64_t begin = std::max(ring.read.consumed, reserved > ring_bytes ? reserved - ring_bytes : 0);
  if (begin >= head) return false;
  uint64_t words = std::min<uint64_t>((head - begin) / 8, max_words);
  size_t offset = batch.words.size();
  batch.words.resize(offset + words);
  for (uint64_t i = 0, word = begin / 8; i < words; ++i, ++word) {
    batch.words[offset + i] = __atomic_load_n(&ring.data[word & (ring.words - 1)], __ATOMIC_RELAXED);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  reserved = slot.reserved.load(std::memory_order_relaxed);
  uint64_t intact = reserved > ring_bytes ? reserved - ring_bytes : 0;
  chunk = {index, begin, offset, words, begin + words * 8 < head};
  if (intact > begin) {
    uint64_t gone = std::min<uint64_t>((intact - begin) / 8, words);
    chunk.position += gone * 8;
    chunk.word_offset += gone;
    chunk.word_count -= gone;
    chunk.truncated = true;
  }
  return chunk.word_count > 0;
}

void RingSegment::SetGate(uint32_t gate) {
  header_->gate.store(gate, std::memory_order_release);  // ranks load it relaxed: it orders no other memory
  // A rank with MSPTI has a thread that waits for it.
  syscall(SYS_futex, &header_->gate, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void RingSegment::ParseChunk(const Chunk& chunk, uint64_t cut_ticks, RingBatch& batch) {
  Ring& ring = rings_[chunk.ring];
  const uint64_t* words = batch.words.data() + chunk.word_offset;
  // Behind the heads: a domain is counted before a record can name it.
  const uint32_t domains = std::min(header_->domains.load(std::memory_order_acquire), ring::kMaxDomains);
  uint64_t i = 0;
  while (i + 4 <= chunk.word_count) {
    uint64_t position_words = chunk.position / 8 + i;
    uint64_t block_left = kBlockWords - position_words % kBlockWords;
    uint64_t word0 = words[i];
    uint32_t bytes = RecordBytes(word0);
    uint8_t type = RecordTypeOf(word0);
    uint64_t length = bytes / 8;
    if (bytes % 8 != 0 || length == 0 || length > block_left) {
      return Fault(absl::StrCat("ring ", chunk.ring, " holds a record of ", bytes, " bytes at ", position_words * 8));
    }
    if (i + length > chunk.word_count) break;
    if (type == ring::kRecordPad) {
      if (length != block_left) return Fault(absl::StrCat("ring ", chunk.ring, " is padded inside a block"));
      i += length;
      ring.read.consumed = (position_words + length) * 8;
      continue;
    }
    RingRecord record;
    record.ticks = words[i + 1];
    if (record.ticks > cut_ticks) break;
    uint64_t word3 = words[i + 3];
    uint32_t name_bytes = (word3 >> 32) & 0xffff;
    record.id = words[i + 2];
    record.tid = word0 >> 32;
    record.flags = (word0 >> 24) & 0xff;
    record.type = static_cast<ring::RecordType>(type);
    record.domain = (word3 >> 48) & 0xff;
    record.kind = word3 >> 56;
    record.name_bytes = name_bytes;
    record.name_offset = static_cast<uint32_t>(chunk.word_offset + i + 4);
    const bool source = (record.flags & ring::kFlagSource) != 0;
    const uint32_t trailer_bytes = source ? ring::kSourceTrailerBytes : 0;
    if (type < ring::kRecordMark || type > ring::kRecordRangeEnd || length < 4 || bytes > ring::kMaxRecordBytes ||
        name_bytes > ring::kMaxNameBytes || ring::kRecordHeaderBytes + name_bytes + trailer_bytes > bytes ||
        record.domain >= domains || record.kind >= ring::kKinds || record.id == 0 ||
        (source ? (record.flags & ring::kFlagUndecided) != 0 : (record.flags & ring::kFlagDevice) != 0)) {
      return Fault(absl::StrCat("ring ", chunk.ring, " holds a malformed record at ", position_words * 8));
    }
    if (source) {
      record.timestamp_ns = words[i + length - 2];
      record.process_id = static_cast<uint32_t>(words[i + length - 1]);
      record.thread_id = words[i + length - 1] >> 32;
    }
    auto sequence = static_cast<uint32_t>(word3);
    // Records overwritten before a proxy decided the gate count as lost only if they were wanted.
    if (count_undecided_ || !(record.flags & ring::kFlagUndecided)) {
      ring.read.lost += static_cast<uint32_t>(sequence - ring.read.sequence);
    }
    ring.read.sequence = sequence + 1;
    batch.records.push_back(record);
    i += length;
    ring.read.consumed = (position_words + length) * 8;
  }
}

void RingSegment::Read(uint64_t cut_ticks, size_t max_bytes, RingBatch& batch) {
  batch.records.clear();
  batch.words.clear();
  batch.cursors.clear();
  batch.more = false;
  batch.cut_ticks = cut_ticks;
  if (faulted()) return;
  PickUpRings();
  for (Ring& ring : rings_) ring.before = ring.read;
  size_t active = 0;
  for (Ring& ring : rings_) active += ring.slot->head.load(std::memory_order_relaxed) != ring.read.consumed;
  if (active == 0 || faulted()) return;
  const size_t max_words = std::max<size_t>(max_bytes / active, ring::kBlockBytes) / 8;
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < rings_.size(); ++i) {
    Chunk chunk;
    if (CopyChunk(i, max_words, batch, chunk)) chunks.push_back(chunk);
    if (faulted()) return;
  }
  // A ring that was read only in part bounds what may be taken from the others, or time would run backwards in the
  // file.
  for (const Chunk& chunk : chunks) {
    if (!chunk.truncated) continue;
    batch.more = true;
    uint64_t last_ticks = 0;
    for (uint64_t i = 0; i + 4 <= chunk.word_count;) {
      uint64_t word0 = batch.words[chunk.word_offset + i];
      uint64_t length = RecordBytes(word0) / 8;
      if (length == 0 || i + length > chunk.word_count) break;
      if (RecordTypeOf(word0) != ring::kRecordPad) last_ticks = batch.words[chunk.word_offset + i + 1];
      i += length;
    }
    batch.cut_ticks = std::min(batch.cut_ticks, last_ticks);
  }
  for (const Chunk& chunk : chunks) {
    ParseChunk(chunk, batch.cut_ticks, batch);
    if (faulted()) {
      batch.records.clear();
      return;
    }
  }
  batch.cursors.reserve(rings_.size());
  for (const Ring& ring : rings_) batch.cursors.push_back(ring.read);
  if (chunks.size() > 1) {
    std::stable_sort(batch.records.begin(), batch.records.end(),
                     [](const RingRecord& a, const RingRecord& b) { return a.ticks < b.ticks; });
  }
}

void RingSegment::Peek(size_t max_bytes, std::vector<RingCursor>& from, RingBatch& batch) {
  batch.records.clear();
  if (faulted()) return;
  PickUpRings();
  std::vector<std::pair<RingCursor, RingCursor>> kept;
  kept.reserve(rings_.size());
  for (Ring& ring : rings_) {
    const size_t i = kept.size();
    kept.emplace_back(ring.read, ring.before);
    if (i < from.size() && from[i].consumed > ring.read.consumed) ring.read = from[i];
  }
  Read(UINT64_MAX, max_bytes, batch);
  from.resize(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    from[i] = rings_[i].read;
    std::tie(rings_[i].read, rings_[i].before) = kept[i];
  }
}

void RingSegment::Unread() {
  for (Ring& ring : rings_) ring.read = ring.before;
}

void RingSegment::StageCursors(const RingBatch& batch) {
  for (size_t i = 0; i < batch.cursors.size(); ++i) {
    ring::ThreadSlot& slot = *rings_[i].slot;
    slot.consumed_next.store(batch.cursors[i].consumed, std::memory_order_relaxed);
    slot.lost_next.store(batch.cursors[i].lost, std::memory_order_relaxed);
    slot.sequence_next.store(batch.cursors[i].sequence, std::memory_order_relaxed);
  }
}

void RingSegment::CommitCursors(const RingBatch& batch) {
  for (size_t i = 0; i < batch.cursors.size(); ++i) {
    ring::ThreadSlot& slot = *rings_[i].slot;
    slot.consumed.store(batch.cursors[i].consumed, std::memory_order_relaxed);
    slot.lost.store(batch.cursors[i].lost, std::memory_order_relaxed);
    slot.sequence.store(batch.cursors[i].sequence, std::memory_order_relaxed);
  }
}

void RingSegment::CommitStagedCursors() {
  Pending();  // picks the rings up
  for (Ring& ring : rings_) {
    ring.read = {ring.slot->consumed_next.load(std::memory_order_relaxed),
                 ring.slot->lost_next.load(std::memory_order_relaxed),
                 ring.slot->sequence_next.load(std::memory_order_relaxed)};
    ring.slot->consumed.store(ring.read.consumed, std::memory_order_relaxed);
    ring.slot->lost.store(ring.read.lost, std::memory_order_relaxed);
    ring.slot->sequence.store(ring.read.sequence, std::memory_order_relaxed);
    if (ring.read.consumed % 8 != 0) Fault(absl::StrCat("ring ", &ring - rings_.data(), " has an odd staged cursor"));
  }
}

std::string_view RingSegment::DomainName(uint8_t domain) const {
  if (domain >= ring::kMaxDomains) return {};
  const char* name = header_->domain_names[domain];
  return {name, strnlen(name, ring::kDomainNameBytes)};
}

uint64_t RingSegment::recorded() const {
  uint64_t bytes = 0;
  for (const Ring& ring : rings_) bytes += ring.slot->head.load(std::memory_order_relaxed);
  return bytes;
}

uint64_t RingSegment::lost() const {
  uint64_t lost = header_->dropped.load(std::memory_order_relaxed);
  for (const Ring& ring : rings_) lost += ring.read.lost + ring.slot->dropped.load(std::memory_order_relaxed);
  return lost;
}

double RingSegment::overhead_ticks_per_mark() const {
  uint64_t ticks = 0;
  uint64_t samples = 0;
  for (const Ring& ring : rings_) {
    ticks += ring.slot->cost_ticks.load(std::memory_order_relaxed);
    samples += ring.slot->cost_samples.load(std::memory_order_relaxed);
  }
  return samples == 0 ? 0 : static_cast<double>(ticks) / static_cast<double>(samples);
}

}  // namespace taskd::proxy
