// The way of a mark into the calling thread's ring.
//
// Design:
// 1. One pointer, g_gate, decides what this process does: it points at a gate word, and a word of 0 ends the call. It
//    first points at a private word that sends the first mark to the slow path, then at the segment's gate, and after
//    destroy or in a forked child at a private zero.
// 2. One thread-local pointer leads to the thread's ring. A signal may come between any two instructions, and its
//    handler may make marks: nothing of the thread's state is looked at before it is marked busy, and a mark that finds
//    it busy is dropped and counted. A thread without a ring points at a state that always is. `next > limit` sends a
//    mark to the slow path: the end of a block, or a mark whose cost is to be measured.
// 3. The ring's own words are never read back: a damaged segment cannot lead a write astray.
// 4. No lock, no allocation, no system call, no read-modify-write instruction, errno untouched.
// 5. Reading the processor's counter takes as long as some 200 other instructions and little overlaps with it, so what
//    a mark costs beyond it is the number of its instructions. A short name (up to 7 bytes) that the thread made before
//    finds its record ready but for time, id and sequence number (RecordTemplate); all else goes through RecordOn.
// 6. g_gate is stored with release after all that a mark reads behind it is there (segment, rules, clock), and loaded
//    with acquire. What the thread's own signal handlers see needs signal fences only; what the proxy sees is in ring.h,
//    point 7.
#pragma once

#include <atomic>
#include <cstdint>

#include "clock.h"
#include "mark_names.h"
#include "name_words.h"
#include "taskd/ring.h"
#include "taskd/taskd.h"
#include "work_suffix.h"

#define TASKD_EXPORT extern "C" __attribute__((visibility("default")))

namespace taskd::worker {

// What RecordOn found out about a short name under one state of the gate.
struct RecordTemplate {
  // The first 8 bytes at the name's address, whatever follows the NUL; the key together with gate.
  uint64_t raw_word = 0;
  uint64_t word0 = 0;
  uint64_t word3 = 0;  // without the sequence number
  uint64_t name_word = 0;
  uint32_t gate = 0;
  const char* name = nullptr;  // where it was last seen: not at a page's end. Never null in a thread's ring
};
inline constexpr char kNowhere[8] = {};
inline constexpr uint32_t kTemplateBytes = ring::kRecordHeaderBytes + 8;

// Private to its thread, but for the atomics. The hot part is one cache line.
struct alignas(64) ThreadState {
  uint64_t next = 0;           // where the next record goes, an address
  uint64_t limit = 0;          // a record may begin up to here
  uint64_t position_base = 0;  // `next` + this: bytes since the ring's birth
  uint64_t id_base = 0;        // sequence + this: the record's id
  uint64_t tid_bits = 0;       // the thread's id where word 0 has it
  uint64_t last_ticks = 0;
  ring::ThreadSlot* slot = nullptr;
  std::atomic<uint32_t> sequence{0};
  bool busy = false;
  bool sample_next = false;

  RecordTemplate templates[2][2] = {};  // of marks and of range starts, without and with a stream
  char* data = nullptr;
  uint64_t data_bytes = 0;
  uint64_t block_end = 0;                   // an address like `next`
  std::atomic<uint64_t> records_before{0};  // up to the block's first record, whose sequence number is block_sequence
  std::atomic<uint32_t> block_sequence{0};
  std::atomic<uint32_t> in_use{0};
};

// Process-local gate value above the segment's bits (ring::kGateUninitialized is the other one). Which of the private
// words it is, the slow path takes from g_gate itself: the segment's gate is another process's to write.
inline constexpr uint32_t kGateForward = 1u << 30;  // another copy of this library records for this process

inline constexpr uint64_t kIdEnd = uint64_t{1} << 53;

// Declared hidden, which -fvisibility does to definitions only: else they are reached through the global offset table.
#pragma GCC visibility push(hidden)
extern std::atomic<const std::atomic<uint32_t>*> g_gate;
extern const std::atomic<uint32_t> g_gate_off;
extern std::atomic<uint32_t> g_domain_count;
extern char g_domain_handles[ring::kMaxDomains];  // a taskd_domain* points at its byte here and is never dereferenced
extern bool g_counter_clock;
// Kinds that a mark may record by itself: all, but for kKindOther where the user has rules for names (mark_names.h).
// Such a mark takes the slow path, as if its kind were off.
extern std::atomic<uint32_t> g_plain_kinds;
// Compiled as initial-exec TLS: one load, and never a lazy allocation inside a mark. Costs 8 bytes of the static TLS
// reserve. constinit spares the guard against an initializer that there is not.
extern constinit thread_local ThreadState* t_state;
#pragma GCC visibility pop

// Slow paths, each called last so that the fast path needs no stack frame.
// SlowMark: the gate has no bit for this mark, or a rule of the user's may fit it; decides where it goes.
uint64_t SlowMark(ring::RecordType type, const taskd_domain* domain, const char* name, uint32_t gate, bool stream);
void SlowRangeEnd(uint64_t id);
// The start of a range whose message says its work (work_suffix.h): two marks.
uint64_t StartWithWork(const char* name, const char* suffix, bool stream);
enum class Prepared {
  kDropped,  // no record can be made; it was counted
  kReady,
  kSampled,  // ready, and the record's cost is to be measured
};
// Makes room in the calling thread's ring, gets it a ring first.
Prepared PrepareThread();
// After a record of PrepareThread's kSampled.
void SampleCost();

// What a mark is recorded as: under its own name, or as the first of the user's rules that fits it demands.
struct NamedMark {
  const char* name;  // valid as long as `storage`, or as the caller's name
  uint32_t domain;   // its index
  ring::Kind kind;
};
// For marks of a source that has no fast path here. There is a segment; `name` is not null, `domain` an index.
NamedMark NameMark(uint32_t domain, const char* name, char (&storage)[MarkNames::kNameBytes]);

int Init(int rank, int local_rank, int disk_limit_mb);
int Start();
int Destroy();
uint32_t EnabledKinds();
taskd_domain* CreateDomain(const char* name);
int GetStats(taskd_worker_stats* stats);

inline void StoreWord(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

inline uint64_t ReadTicks() {
  return __builtin_expect(g_counter_clock, true) ? ReadCounter() : ReadClockNs(CLOCK_MONOTONIC);
}

inline uint32_t FlagIf(bool set, ring::RecordFlags flag) { return set ? uint32_t{flag} : 0; }

// A handle of nobody's knowledge (mstx's own, another library's) is the default domain. Relaxed: however the handle came
// to this thread, its domain was counted before.
inline uint32_t DomainIndex(const taskd_domain* domain) {
  uintptr_t index = reinterpret_cast<uintptr_t>(domain) - reinterpret_cast<uintptr_t>(g_domain_handles);
  return index < g_domain_count.load(std::memory_order_relaxed) ? static_cast<uint32_t>(index) : ring::kDomainDefault;
}

// From here to EndRecord a signal handler's mark is dropped instead of written over ours. False: this is such a mark,
// or the thread has no ring.
inline bool BeginRecord(ThreadState& state) {
  if (__builtin_expect(state.busy, false)) return false;
  state.busy = true;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

inline void EndRecord(ThreadState& state) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  state.busy = false;
}

inline uint64_t KeepOrder(ThreadState& state, uint64_t ticks) {
#if !defined(__x86_64__)
  // Two reads of cntvct may be done out of order; of the TSC they are too slow for that.
  if (ticks < state.last_ticks) ticks = state.last_ticks;
  state.last_ticks = ticks;
#else
  (void)state;
#endif
  return ticks;
}

// Publishes the record: the reader's acquire load of `head` finds all its words.
inline void CommitRecord(ThreadState& state, uint64_t next, uint32_t sequence) {
  state.next = next;
  state.sequence.store(sequence + 1, std::memory_order_relaxed);
  state.slot->head.store(next + state.position_base, std::memory_order_release);
  EndRecord(state);
}

inline void WriteRangeEnd(ThreadState& state, uint32_t gate, uint64_t ticks, uint64_t id) {
  const uint64_t next = state.next;
  auto* words = reinterpret_cast<uint64_t*>(next);
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  const uint32_t flags = FlagIf((gate & ring::kGateUndecided) != 0, ring::kFlagUndecided);
  StoreWord(words, ring::PackWord0(ring::kRecordHeaderBytes, ring::kRecordRangeEnd, flags, 0) | state.tid_bits);
  StoreWord(words + 1, ticks);
  StoreWord(words + 2, id);
  StoreWord(words + 3, ring::PackWord3(sequence, 0, ring::kDomainDefault, ring::kKindOther));
  CommitRecord(state, next + ring::kRecordHeaderBytes, sequence);
}

// Whether the user's rules have been asked about a name.
enum class Rules { kToAsk, kAsked };

// Any name, any domain. `gate` is not 0.
template <ring::RecordType kType, NamePlace kPlace, Rules kRules = Rules::kToAsk>
__attribute__((noinline)) uint64_t RecordOn(const taskd_domain* domain, const char* name, uint32_t gate, bool stream);

template <ring::RecordType kType, NamePlace kPlace, Rules kRules>
__attribute__((noinline, cold)) uint64_t PrepareAndRecord(const taskd_domain* domain, const char* name, uint32_t gate,
                                                          bool stream) {
  const Prepared prepared = PrepareThread();
  if (prepared == Prepared::kDropped) return 0;
  const uint64_t id = RecordOn<kType, kPlace, kRules>(domain, name, gate, stream);
  if (prepared == Prepared::kSampled) SampleCost();
  return id;
}

template <ring::RecordType kType, NamePlace kPlace, Rules kRules>
uint64_t RecordOn(const taskd_domain* domain, const char* name, uint32_t gate, bool stream) {
  if (kPlace == NamePlace::kAnywhere && __builtin_expect(IsNearPageEnd(name, ring::kMaxNameBytes + 2), false)) {
    return RecordOn<kType, NamePlace::kNearPageEnd, kRules>(domain, name, gate, stream);
  }
  if (kPlace == NamePlace::kNearPageEnd && name == nullptr) return 0;
  const uint64_t first_word = LoadNameWord<kPlace>(name);
  const uint32_t domain_index = DomainIndex(domain);
  const ring::Kind kind =
      domain_index == ring::kDomainCommunication ? ring::kKindCommunication : ClassifyName(first_word, name);
  if (kType == ring::kRecordRangeStart && __builtin_expect(kind == ring::kKindOther, false) &&
      domain_index == ring::kDomainDefault) {
    if (const char* suffix = WorkSuffix(first_word, name)) return StartWithWork(name, suffix, stream);
  }
  if (kRules == Rules::kAsked) {
    if ((gate >> kind & 1) == 0) return 0;
  } else if (__builtin_expect(((gate & g_plain_kinds.load(std::memory_order_relaxed)) >> kind & 1) == 0, false)) {
    return SlowMark(kType, domain, name, gate, stream);
  }
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return PrepareAndRecord<kType, kPlace, kRules>(domain, name, gate, stream);
  const uint64_t next = state.next;
  if (__builtin_expect(next > state.limit, false)) {
    EndRecord(state);
    return PrepareAndRecord<kType, kPlace, kRules>(domain, name, gate, stream);
  }
  const uint64_t ticks = KeepOrder(state, ReadTicks());
  auto* words = reinterpret_cast<uint64_t*>(next);
  const NameCopy copied = CopyName<kPlace>(words + 4, first_word, name);
  const uint32_t bytes = ring::kRecordHeaderBytes + ((copied.bytes + 7) & ~7u);
  const uint32_t flags = FlagIf(stream, ring::kFlagStream) | FlagIf(copied.truncated, ring::kFlagTruncated) |
                         FlagIf((gate & ring::kGateUndecided) != 0, ring::kFlagUndecided);
  const uint64_t word0 = ring::PackWord0(bytes, kType, flags, 0) | state.tid_bits;
  const uint64_t word3 = ring::PackWord3(0, copied.bytes, domain_index, kind);
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  const uint64_t id = state.id_base + sequence;
  StoreWord(words, word0);
  StoreWord(words + 1, ticks);
  StoreWord(words + 2, id);
  StoreWord(words + 3, word3 | sequence);
  state.last_ticks = ticks;
  if (bytes == kTemplateBytes && copied.bytes != 8 && domain_index == ring::kDomainDefault && g_counter_clock) {
    state.templates[kType - ring::kRecordMark][stream] = {
        first_word, word0, word3, copied.word, gate, kPlace == NamePlace::kAnywhere ? name : kNowhere};
  }
  CommitRecord(state, next + bytes, sequence);
  return id;
}

// The record of a short name that is the thread's last one of this type. The state is busy.
template <ring::RecordType kType, bool kStream>
__attribute__((always_inline)) inline uint64_t RecordKnown(ThreadState& state, const RecordTemplate& known) {
  const uint64_t next = state.next;
  auto* words = reinterpret_cast<uint64_t*>(next);
  StoreWord(words + 1, KeepOrder(state, ReadCounter()));
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  const uint64_t id = state.id_base + sequence;
  StoreWord(words, known.word0);
  StoreWord(words + 2, id);
  StoreWord(words + 3, known.word3 | sequence);
  StoreWord(words + 4, known.name_word);
  CommitRecord(state, next + kTemplateBytes, sequence);
  return id;
}

inline bool IsKnown(const ThreadState& state, const RecordTemplate& known, const char* name, uint32_t gate) {
  return __builtin_expect(
      LoadNameWord<NamePlace::kAnywhere>(name) == known.raw_word && gate == known.gate && state.next <= state.limit,
      true);
}

// At another place than before: that may be the end of a page, or null.
template <ring::RecordType kType, bool kStream>
__attribute__((noinline)) uint64_t RecordElsewhere(const char* name, uint32_t gate) {
  if (IsNearPageEnd(name, 8)) return RecordOn<kType, NamePlace::kNearPageEnd>(nullptr, name, gate, kStream);
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return RecordOn<kType, NamePlace::kAnywhere>(nullptr, name, gate, kStream);
  RecordTemplate& known = state.templates[kType - ring::kRecordMark][kStream];
  if (!IsKnown(state, known, name, gate)) {
    EndRecord(state);
    return RecordOn<kType, NamePlace::kAnywhere>(nullptr, name, gate, kStream);
  }
  known.name = name;
  return RecordKnown<kType, kStream>(state, known);
}

template <ring::RecordType kType, bool kStream>
__attribute__((always_inline)) inline uint64_t RecordShort(const char* name, uint32_t gate) {
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return RecordOn<kType, NamePlace::kAnywhere>(nullptr, name, gate, kStream);
  const RecordTemplate& known = state.templates[kType - ring::kRecordMark][kStream];
  if (__builtin_expect(name != known.name, false) || !IsKnown(state, known, name, gate)) {
    EndRecord(state);
    return RecordElsewhere<kType, kStream>(name, gate);
  }
  return RecordKnown<kType, kStream>(state, known);
}

template <ring::RecordType kType>
__attribute__((noinline)) uint64_t RecordShortWithStream(const char* name, uint32_t gate) {
  return RecordShort<kType, true>(name, gate);
}

// A mark or the start of a range in the default domain.
template <ring::RecordType kType>
__attribute__((always_inline)) inline uint64_t Record(const char* name, bool stream) {
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  if (__builtin_expect(gate == 0, true)) return 0;
  if (stream) return RecordShortWithStream<kType>(name, gate);
  return RecordShort<kType, false>(name, gate);
}

template <ring::RecordType kType>
inline uint64_t DomainRecord(const taskd_domain* domain, const char* name, bool stream) {
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  if (__builtin_expect(gate == 0, true)) return 0;
  return RecordOn<kType, NamePlace::kAnywhere>(domain, name, gate, stream);
}

void PrepareAndRecordEnd(uint64_t id);

// Recorded whatever the gate is by now, because its start was.
__attribute__((always_inline)) inline void RecordRangeEnd(uint64_t id) {
  if (__builtin_expect(id - 1 >= kIdEnd - 1, false)) return;
  const std::atomic<uint32_t>* gate_word = g_gate.load(std::memory_order_acquire);
  if (__builtin_expect(gate_word == &g_gate_off, false)) return;
  const uint32_t gate = gate_word->load(std::memory_order_relaxed);
  if (__builtin_expect(gate >= kGateForward, false)) return SlowRangeEnd(id);
  ThreadState& state = *t_state;
  if (!g_counter_clock || !BeginRecord(state)) return PrepareAndRecordEnd(id);
  if (__builtin_expect(state.next > state.limit, false)) {
    EndRecord(state);
    return PrepareAndRecordEnd(id);
  }
  WriteRangeEnd(state, gate, KeepOrder(state, ReadCounter()), id);
}

}  // namespace taskd::worker
