// The shared-memory segment of one rank: the layout that libtaskd.so writes and the proxy reads.
//
// Design:
// 1. One segment a process, one ring a recording thread. A ring has one writer (its thread) and one reader (the
//    proxy), so recording needs no lock and no read-modify-write instruction.
// 2. A ring is a flight recorder. Positions count bytes since the ring's birth and never wrap. A record never crosses
//    a block; the writer announces a whole block in `reserved` before it touches it, so everything at or above
//    `reserved - data_bytes` is intact and starts at a record. A reader that was lapped goes on there and counts what
//    it missed from the records' sequence numbers.
// 3. The segment is a file in /dev/shm, and its pages are allocated before they are used: a full tmpfs cannot raise
//    SIGBUS in training. Its life does not depend on the rank's or the proxy's, so what a killed rank recorded is still
//    there for a proxy that was killed too. Where /dev/shm has not 256 MiB to spare for others it is a memfd, which
//    lives as long as one of the two.
// 4. The writer holds a POSIX write lock on the file for as long as it lives (kernel-released, not inherited by fork):
//    that is how a reader distinguishes a living rank from a dead one, in any PID namespace.
// 5. Everything that the reader must remember to go on after a restart (cursors, the write under way, the clock anchor)
//    lies in the segment too, written by the reader only.
// 6. The reader believes nothing here: see RingSegment in proxy/ring_segment.h for the checks.
// 7. Processors may order stores and loads weakly (arm64). What the writer publishes with a release store the reader
//    takes with an acquire load: `magic` (the header before it), `slots` and `ready` (where a ring lies), `head` (the
//    records below it and the domains that they name), `source_domains` (its two neighbours). `reserved` and a block's
//    words are a sequence lock: the writer stores `reserved`, has a release fence and stores words; the reader loads
//    words, has an acquire fence and loads `reserved`. Who has read one word of a new block so finds it announced.
//    The gate and the cursors speak for themselves only, so the writer may load them relaxed. For whoever comes after a
//    process was killed only the compiler's order counts: its stores up to some instruction are there, the later ones
//    are not, and the kernel (exit, lock, socket) stands between the two.
//
// The file, offsets in bytes, and who writes what:
//
//         0 +- SegmentHeader ---------------------------------------+
//           | magic version header_bytes pid clock start_...        |  the rank, before the proxy sees it
//           | rank local_rank                                       |  the rank, again when it learns them
//        64 | gate                                                  |  the rank, later the proxy; each mark loads it
//       128 | slots domains dropped, MSPTI's answer                 |  the rank
//       192 | attached undecided_keep intent anchors written        |  the proxy: what its successor must know
//       368 | domain_names[kMaxDomains]                             |  the rank
//    33,152 | thread_slots[kMaxThreads], 192 bytes each             |
//           |     0 ready data_offset data_bytes                    |  the rank, once
//           |    64 head reserved cost_... dropped                  |  the recording thread
//           |   128 consumed lost sequence, each with its ..._next  |  the proxy
//   196,608 +- kDataOffset -----------------------------------------+  from here on each part is there from its
//           | ring of slot 0: 64 blocks of kBlockBytes              |  thread's first mark on
//           |   block: | record | record | ... | record | pad |     |  the recording thread
//           | rings of slots 1 to 3, the same                       |
//           | rings of slots 4 to 511: 16 blocks each               |
//           +-------------------------------------------------------+
//
// A ring, in positions that only grow (the word at position p lies at p % data_bytes):
//
//    ... | overwritten | intact, read | intact, unread | one block at most, being written | ...
//                      ^              ^ consumed       ^ head                             ^ reserved
//                      reserved - data_bytes; where it is above consumed, what is between was lost
//
// What may change, and what not. The layout is that of kVersion: a proxy opens no segment of another one, and what its
// rank records is read by nobody. So all of it may change with kVersion, but for what is read of segments of any
// release: magic, version and header_bytes (RingSegment::Open), and rank, slots and attached, at 20, 128 and 192, by
// which a rank knows what its earlier lives and its ancestors have left (segment.cc). Who is no part of TaskD uses
// taskd.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace taskd::ring {

inline constexpr uint64_t kMagic = 0x31474e52444b5354;  // "TSKDRNG1", little endian
inline constexpr uint32_t kVersion = 2;

inline constexpr uint32_t kBlockBytes = 32 * 1024;
// The first threads of a rank carry the load (main, autograd); later ones still hold 2 s at 1,000 records/s of 120-byte
// names.
inline constexpr uint32_t kLargeRings = 4;
inline constexpr uint32_t kLargeRingBytes = 2 * 1024 * 1024;
inline constexpr uint32_t kSmallRingBytes = 512 * 1024;
inline constexpr uint32_t kMaxThreads = 512;
inline constexpr uint32_t kMaxDomains = 128;
inline constexpr uint32_t kDomainNameBytes = 256;  // with the terminating NUL
inline constexpr uint32_t kMaxNameBytes = 254;  // longer names are cut here; the reader trims to a character boundary
inline constexpr uint32_t kSourceTrailerBytes = 16;
inline constexpr uint32_t kMaxRecordBytes = 32 + 256 + kSourceTrailerBytes;

inline constexpr uint32_t kDomainDefault = 0;        // "default"
inline constexpr uint32_t kDomainCommunication = 1;  // "communication"

// The gate: which kinds are recorded. Written by the proxy, loaded by every mark.
enum GateBits : uint32_t {
  kGateStep = 1u << 0,
  kGateSaveCheckpoint = 1u << 1,
  kGateForward = 1u << 2,
  kGateDataLoader = 1u << 3,
  kGateCommunication = 1u << 4,
  kGateOther = 1u << 5,  // marks of no known kind; on while any kind but communication is on
  kGateAllKinds = (1u << 6) - 1,
  // No proxy has spoken yet: everything is recorded and flagged, and the proxy keeps what the wanted state asks for.
  kGateUndecided = 1u << 6,
  // Process-local only, never in a segment: this process has no segment yet.
  kGateUninitialized = 1u << 31,
};

// Index of a kind in per-kind counters; the bit of kind k in the gate is 1 << k.
enum Kind : uint32_t {
  kKindStep = 0,
  kKindSaveCheckpoint = 1,
  kKindForward = 2,
  kKindDataLoader = 3,
  kKindCommunication = 4,
  kKindOther = 5,
  kKinds = 6,
};

enum RecordType : uint8_t {
  kRecordPad = 1,  // fills the rest of a block; no other field is valid
  kRecordMark = 2,
  kRecordRangeStart = 3,
  kRecordRangeEnd = 4,  // has no name; its kind and domain are those of the start with its id, not the ones it carries
};

enum RecordFlags : uint8_t {
  kFlagStream = 1u << 0,     // the call had a stream
  kFlagUndecided = 1u << 1,  // recorded while the gate was undecided
  kFlagTruncated = 1u << 2,  // the name was longer than kMaxNameBytes
  kFlagSource = 1u << 3,     // MSPTI's: it has a time, an id and threads of its own
  kFlagDevice = 1u << 4,     // with kFlagSource: stamped by the device
};

// A record is 4 words and then the name, padded with zeros to a multiple of 8 bytes; records are 8-byte aligned. Words
// are stored and loaded as relaxed atomics, so a reader that races with the writer is well defined and finds out after.
//   word 0: bytes (16 bits) | type (8) | flags (8) | tid (32)       bytes counts the whole record
//   word 1: ticks                                                    see SegmentHeader::clock
//   word 2: id                                                       one id a range and a mark; below 2^53, never 0
//   word 3: sequence (32) | name_bytes (16) | domain (8) | kind (8)  sequence counts the ring's records from 0, wraps
// With kFlagSource two words follow the name's padding:
//   Unix ns | process or device id (32), thread or stream id (32)
// The id then is the source's own, which counts from 1, and ticks are when the record was made, not the mark. Device
// records and ends have no name, no domain and no kind; all of a range share its id. None of them is kFlagUndecided.
inline constexpr uint32_t kRecordHeaderBytes = 32;
// Ids of the process itself count 64 ns since 2020, so no source gets there.
inline constexpr uint64_t kFirstOwnId = uint64_t{1} << 48;

constexpr uint64_t PackWord0(uint32_t bytes, RecordType type, uint32_t flags, uint32_t tid) {
  return uint64_t{bytes} | uint64_t{type} << 16 | uint64_t{flags & 0xff} << 24 | uint64_t{tid} << 32;
}
constexpr uint64_t PackWord3(uint32_t sequence, uint32_t name_bytes, uint32_t domain, uint32_t kind) {
  return uint64_t{sequence} | uint64_t{name_bytes} << 32 | uint64_t{domain} << 48 | uint64_t{kind} << 56;
}

enum ClockKind : uint32_t {
  kClockMonotonic = 1,  // ticks are CLOCK_MONOTONIC ns
  kClockCounter = 2,    // ticks are the invariant TSC (x86-64) or cntvct (arm64)
};

// One recording thread. A slot is reused by a later thread after its own has ended: the records carry the tid.
struct alignas(64) ThreadSlot {
  // Set once by the writer before `ready`.
  std::atomic<uint32_t> ready;  // 1: the fields below are valid
  uint32_t reserved0;
  uint64_t data_offset;  // in the segment's file, page-aligned
  uint64_t data_bytes;   // kLargeRingBytes or kSmallRingBytes
  uint64_t reserved1[5];

  // Written by the recording thread.
  alignas(64) std::atomic<uint64_t> head;  // bytes committed
  std::atomic<uint64_t> reserved;          // end of the block being written; a multiple of kBlockBytes
  // The second record of every block is timed to its end: the sum, and how many.
  std::atomic<uint64_t> cost_ticks;
  std::atomic<uint64_t> cost_samples;
  std::atomic<uint64_t> dropped;  // marks of this thread that could not be recorded (a mark inside a mark)
  uint64_t reserved2[3];

  // Written by the proxy: position and expected sequence that the files hold, and those that hold once the write in
  // SegmentHeader::intent is done.
  alignas(64) std::atomic<uint64_t> consumed;
  std::atomic<uint64_t> consumed_next;
  std::atomic<uint64_t> lost;  // records overwritten before they were read
  std::atomic<uint64_t> lost_next;
  std::atomic<uint32_t> sequence;
  std::atomic<uint32_t> sequence_next;
  uint64_t reserved3[3];
};
static_assert(sizeof(ThreadSlot) == 192);

// The one write under way: lets a proxy that takes over decide whether the file already has it.
struct WriteIntent {
  std::atomic<uint32_t> valid;
  uint32_t reserved0;
  std::atomic<uint64_t> file;    // the file's name, a 10-digit number of seconds
  std::atomic<uint64_t> offset;  // the file's size before the write
  std::atomic<uint64_t> bytes;
};

// A point where ticks and CLOCK_MONOTONIC were read together.
struct ClockAnchor {
  std::atomic<uint64_t> ticks;
  std::atomic<uint64_t> monotonic_ns;
};

// MSPTI switches domains, not kinds. The bits of MsptiDomains.
enum SourceDomains : uint32_t {
  kSourceDefault = 1u << 0,
  kSourceCommunication = 1u << 1,
  kSourceAnswered = 1u << 31,
};

// What a gate asks of MSPTI. Nothing before a proxy spoke: MSPTI slows training and keeps other profilers away, and who
// knows whether a proxy comes.
constexpr uint32_t SourceDomainsOf(uint32_t gate) {
  if ((gate & kGateUndecided) != 0) return 0;
  const uint32_t others = gate & (kGateAllKinds & ~uint32_t{kGateCommunication});
  return (others != 0 ? uint32_t{kSourceDefault} : 0) |
         ((gate & kGateCommunication) != 0 ? uint32_t{kSourceCommunication} : 0);
}
// SegmentHeader::source_code where these domains are applied, and no others.
constexpr uint32_t SourceCodeOf(uint32_t domains) {
  return 1400 + ((domains & kSourceDefault) != 0 ? 10 : 0) + ((domains & kSourceCommunication) != 0 ? 1 : 0);
}

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;  // sizeof(SegmentHeader)
  uint32_t pid;
  std::atomic<int32_t> rank;  // -1: not known yet
  std::atomic<int32_t> local_rank;
  uint32_t clock;  // ClockKind
  // The process's start of time: ticks, CLOCK_MONOTONIC and CLOCK_REALTIME read together at load.
  uint64_t start_ticks;
  uint64_t start_monotonic_ns;
  uint64_t start_realtime_ns;

  alignas(64) std::atomic<uint32_t> gate;  // GateBits
  uint32_t reserved0[15];

  alignas(64) std::atomic<uint32_t> slots;  // slots ever used; slots[i].ready shows which are filled
  std::atomic<uint32_t> domains;            // valid entries of domain_names
  std::atomic<uint64_t> dropped;            // marks of threads that got no slot, of MSPTI that found no buffer
  // MSPTI's answer to the gate. source_domains is stored last, with release; who reads it with acquire may still find
  // the two others of the next answer.
  std::atomic<uint32_t> source_domains;  // SourceDomains that it answers, with kSourceAnswered; 0: there is no MSPTI
  std::atomic<uint32_t> source_code;     // TaskD contract §3, 1400 to 1422
  std::atomic<int32_t> source_error;     // 0: applied; else MSPTI's result
  uint32_t reserved4;
  uint64_t reserved1[4];

  // Written by the proxy.
  alignas(64) std::atomic<uint32_t> attached;  // times a proxy took this segment on
  // Which kinds of the records flagged kFlagUndecided are kept: GateBits, and kGateUndecided once it is decided.
  std::atomic<uint32_t> undecided_keep;
  WriteIntent intent;
  ClockAnchor anchors[2];  // the one in use is anchor_index; 0/0 there: start_ticks and start_monotonic_ns
  std::atomic<uint32_t> anchor_index;
  std::atomic<uint32_t> anchor_index_next;
  std::atomic<uint64_t> written[kKinds];  // marks and ranges started that the files hold
  std::atomic<uint64_t> written_next[kKinds];

  char domain_names[kMaxDomains][kDomainNameBytes];  // NUL-terminated
  ThreadSlot thread_slots[kMaxThreads];
};

// Data of slot i begins at a page boundary at or after this. arm64 kernels may have pages of 64 KiB.
inline constexpr uint64_t kDataOffset = (sizeof(SegmentHeader) + 65535) / 65536 * 65536;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace taskd::ring
