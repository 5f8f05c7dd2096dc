// Ranges of NVTX: which ones a thread has pushed and not popped.
#pragma once

#include <string.h>

#include "nvtx.h"
#include "recorder.h"

namespace taskd::worker {

// A name of at most 15 bytes that the thread pushed before: its record but for thread, time, id and sequence number.
struct alignas(64) KnownName {
  uint64_t word[2];  // the name, zero beyond it
  uint64_t mask[2];  // of the name and its NUL: what lies beyond differs from buffer to buffer
  const taskd_domain* domain;
  uint32_t gate;   // under which it was recorded; 0: no name
  uint32_t bytes;  // of the record
  uint64_t word0;
  uint64_t word3;
};

// The default domain has a stack of its own, because nearly all ranges are of it and each instruction counts there; all
// others share one, whose entries hold their domain in the upper bits.
struct PushStack {
  static constexpr uint32_t kKnownNames = 8;
  static constexpr uint32_t kMaxIds = 255;
  static constexpr uint32_t kMaxEntries = 256;
  KnownName known[kKnownNames];
  uint32_t depth;         // may be above kMaxIds: deeper ranges are counted, not recorded
  uint32_t domain_depth;  // likewise
  uint64_t ids[kMaxIds];
  uint64_t entries[kMaxEntries];
  uint16_t domain_levels[256];  // by tag: how many entries are of that domain
};

constexpr int kTagShift = 53;
static_assert(kIdEnd == uint64_t{1} << kTagShift);

// The bytes that are looked at before the name is known.
constexpr uintptr_t kKnownBytes = 16;

#pragma GCC visibility push(hidden)
// Null until the thread's first push: static TLS is short where a library is loaded late.
extern constinit thread_local PushStack* t_pushed;
#pragma GCC visibility pop

// Gives the calling thread its stack; null: no memory.
PushStack* NewStack();

template <ring::RecordType kType>
__attribute__((always_inline)) inline uint64_t RecordIn(const taskd_domain* domain, const char* name) {
  return domain == nullptr ? Record<kType>(name, false) : DomainRecord<kType>(domain, name, false);
}

// Different for the names of the known kinds.
inline KnownName& KnownPlace(PushStack& stack, uint64_t first_word) {
  return stack.known[(first_word ^ first_word >> 8) % PushStack::kKnownNames];
}

// Records the start of a range whose name is known under this gate. 0: it has to go the usual way.
__attribute__((always_inline)) inline uint64_t RecordKnownName(PushStack& stack, const taskd_domain* domain,
                                                               const char* name, uint32_t gate) {
  if (__builtin_expect(IsNearPageEnd(name, kKnownBytes), false)) return 0;
  const uint64_t word = LoadNameWord<NamePlace::kAnywhere>(name);
  const uint64_t next_word = LoadNameWord<NamePlace::kAnywhere>(name + 8);
  const KnownName& known = KnownPlace(stack, word);
  const uint64_t difference = ((word & known.mask[0]) ^ known.word[0]) | ((next_word & known.mask[1]) ^ known.word[1]);
  if (__builtin_expect(difference != 0, false) || gate != known.gate || domain != known.domain) return 0;
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return 0;
  const uint64_t next = state.next;
  if (__builtin_expect(next > state.limit, false)) {
    EndRecord(state);
    return 0;
  }
  auto* words = reinterpret_cast<uint64_t*>(next);
  StoreWord(words + 1, KeepOrder(state, ReadCounter()));
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  const uint64_t id = state.id_base + sequence;
  StoreWord(words, known.word0 | state.tid_bits);
  StoreWord(words + 2, id);
  StoreWord(words + 3, known.word3 | sequence);
  StoreWord(words + 4, known.word[0]);
  StoreWord(words + 5, known.word[1]);  // of a short name it is the next record's place, which nobody reads yet
  CommitRecord(state, next + known.bytes, sequence);
  return id;
}

__attribute__((noinline, cold)) int PushOnNewStack(const char* name);
// Records the usual way, and knows the name from then on if it can be known.
__attribute__((noinline)) int PushSlowly(PushStack* stack, uint32_t level, const char* name);

// In the default domain. Returns the level of the new range, from 0.
//
// A name that is known is recorded in line; all else is a last call, so that this needs no stack frame: a pair has to
// stay within 5 ns of its two time stamps.
__attribute__((always_inline)) inline int Push(const char* name) {
  PushStack* stack = t_pushed;
  if (__builtin_expect(stack == nullptr, false)) return PushOnNewStack(name);
  const uint32_t level = stack->depth;
  // Counted before it is made: a signal handler's ranges then lie above it.
  stack->depth = level + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(level >= PushStack::kMaxIds, false)) return static_cast<int>(level);
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  if (__builtin_expect(gate == 0, true)) {
    stack->ids[level] = 0;
    return static_cast<int>(level);
  }
  const uint64_t id = RecordKnownName(*stack, nullptr, name, gate);
  if (__builtin_expect(id == 0, false)) return PushSlowly(stack, level, name);
  stack->ids[level] = id;
  return static_cast<int>(level);
}

__attribute__((noinline)) inline int PopSlowly(uint32_t level, uint64_t id) {
  RecordRangeEnd(id);
  return static_cast<int>(level);
}

// Returns the level of the range that ends here; negative: there is none. As RecordRangeEnd, without a stack frame.
__attribute__((always_inline)) inline int Pop() {
  PushStack* stack = t_pushed;
  if (__builtin_expect(stack == nullptr || stack->depth == 0, false)) return nvtx::kNoPushPopTracking;
  const uint32_t level = --stack->depth;
  if (__builtin_expect(level >= PushStack::kMaxIds, false)) return static_cast<int>(level);
  const uint64_t id = stack->ids[level];
  if (id == 0) return static_cast<int>(level);
  const std::atomic<uint32_t>* gate_word = g_gate.load(std::memory_order_acquire);
  const uint32_t gate = gate_word->load(std::memory_order_relaxed);
  ThreadState& state = *t_state;
  if (__builtin_expect(gate_word == &g_gate_off || gate >= kGateForward || !g_counter_clock, false) ||
      !BeginRecord(state)) {
    return PopSlowly(level, id);
  }
  if (__builtin_expect(state.next > state.limit, false)) {
    EndRecord(state);
    return PopSlowly(level, id);
  }
  WriteRangeEnd(state, gate, KeepOrder(state, ReadCounter()), id);
  return static_cast<int>(level);
}

// Different for every domain handle of the recorder: one byte each, side by side.
inline uint64_t TagOf(const taskd_domain* domain) { return reinterpret_cast<uintptr_t>(domain) & 0xff; }

uint64_t DomainPushSlowly(PushStack& stack, const taskd_domain* domain, const char* name);

// As Push and Pop, in a domain.
__attribute__((always_inline)) inline int DomainPush(const taskd_domain* domain, const char* name) {
  if (domain == nullptr) return Push(name);
  PushStack* stack = t_pushed;
  if (stack == nullptr && (stack = NewStack()) == nullptr) return nvtx::kNoPushPopTracking;
  const uint64_t tag = TagOf(domain);
  const uint32_t index = stack->domain_depth;
  stack->domain_depth = index + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (index >= PushStack::kMaxEntries) return static_cast<int>(index);  // nearly: nobody nests so deep
  stack->entries[index] = tag << kTagShift;
  const int level = stack->domain_levels[tag]++;
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  if (gate == 0) return level;
  uint64_t id = RecordKnownName(*stack, domain, name, gate);
  if (__builtin_expect(id == 0, false)) id = DomainPushSlowly(*stack, domain, name);
  stack->entries[index] |= id;
  return level;
}

__attribute__((always_inline)) inline int DomainPop(const taskd_domain* domain) {
  if (domain == nullptr) return Pop();
  PushStack* stack = t_pushed;
  if (stack == nullptr || stack->domain_depth == 0) return nvtx::kNoPushPopTracking;
  const uint64_t tag = TagOf(domain);
  if (stack->domain_depth > PushStack::kMaxEntries) return static_cast<int>(--stack->domain_depth);
  // The domain's innermost range may lie below those of others.
  const uint32_t top = stack->domain_depth - 1;
  uint32_t i = top;
  while (stack->entries[i] >> kTagShift != tag) {
    if (i-- == 0) return nvtx::kNoPushPopTracking;
  }
  const uint64_t id = stack->entries[i] & (kIdEnd - 1);
  if (i != top) memmove(&stack->entries[i], &stack->entries[i + 1], (top - i) * sizeof(uint64_t));
  stack->domain_depth = top;
  const int level = --stack->domain_levels[tag];
  RecordRangeEnd(id);
  return level;
}

}  // namespace taskd::worker
