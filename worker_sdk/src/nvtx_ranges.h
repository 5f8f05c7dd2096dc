// Names and ranges of NVTX: under which name one is recorded, and which ranges a thread has pushed and not popped.
//
// kFull: there is another tool, or there are rules for names; a program with neither does not pay for them.
#pragma once

#include "mark_names.h"
#include "nvtx.h"
#include "recorder.h"

namespace taskd::worker {

// Reads TASKD_MARK_NAMES, once. Complete when it returns, also for an instance of NVTX that starts at the same time.
void ReadMarkNames();

// One line on stderr.
void Say(const char* line);

// One page. The default domain has a stack of its own, because nearly all ranges are of it and each instruction counts
// there; all others share one, whose entries say in their upper bits which domain they are of.
constexpr size_t kStackBytes = 4096;
struct PushStack {
  static constexpr uint32_t kMaxIds = 255;
  static constexpr uint32_t kMaxEntries = 256;
  uint32_t depth;         // may be above kMaxIds: deeper ranges are counted, not recorded
  uint32_t domain_depth;  // likewise
  uint64_t ids[kMaxIds];
  uint64_t entries[kMaxEntries];
};
static_assert(sizeof(PushStack) == kStackBytes);

constexpr int kTagShift = 53;
static_assert(kIdEnd == uint64_t{1} << kTagShift);

#pragma GCC visibility push(hidden)
extern MarkNames g_mark_names;
// Null until the thread's first push: static TLS is short where a library is loaded late.
extern constinit thread_local PushStack* t_pushed;
#pragma GCC visibility pop

// Gives the calling thread its stack; null: no memory.
PushStack* NewStack();

template <ring::RecordType kType>
__attribute__((noinline, cold)) uint64_t RecordByRules(const taskd_domain* domain, const char* name) {
  // Off: not worth a look at the rules.
  if (g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed) == 0 || name == nullptr) return 0;
  char storage[MarkNames::kNameBytes];
  MarkNames::Translation translation;
  if (!g_mark_names.Translate(name, nullptr, storage, translation)) return DomainRecord<kType>(domain, name, false);
  if (!translation.communication) return Record<kType>(translation.name, false);
  // With a stream, as other readers expect operations to be.
  return DomainRecord<kType>(CreateDomain("communication"), translation.name, true);
}

template <ring::RecordType kType, bool kFull>
__attribute__((always_inline)) inline uint64_t RecordName(const char* name) {
  if (kFull && !g_mark_names.empty()) return RecordByRules<kType>(nullptr, name);
  return Record<kType>(name, false);
}

template <ring::RecordType kType, bool kFull>
__attribute__((always_inline)) inline uint64_t RecordName(const taskd_domain* domain, const char* name) {
  if (kFull && !g_mark_names.empty()) return RecordByRules<kType>(domain, name);
  return domain == nullptr ? Record<kType>(name, false) : DomainRecord<kType>(domain, name, false);
}

template <bool kFull>
__attribute__((noinline, cold)) int PushOnNewStack(const char* name);

template <bool kFull>
__attribute__((noinline)) int PushSlowly(PushStack* stack, uint32_t level, const char* name) {
  stack->ids[level] = RecordName<ring::kRecordRangeStart, kFull>(name);
  return static_cast<int>(level);
}

// In the default domain. Returns the level of the new range, from 0.
//
// A short name that the thread made before is recorded in line, as RecordShort does; all else is a last call, so that
// this needs no stack frame: a pair has to stay within 5 ns of its two time stamps.
template <bool kFull>
__attribute__((always_inline)) inline int Push(const char* name) {
  PushStack* stack = t_pushed;
  if (__builtin_expect(stack == nullptr, false)) return PushOnNewStack<kFull>(name);
  const uint32_t level = stack->depth;
  // Counted before it is made: a signal handler's ranges then lie above it.
  stack->depth = level + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (__builtin_expect(level >= PushStack::kMaxIds, false)) return static_cast<int>(level);
  if (kFull) return PushSlowly<kFull>(stack, level, name);
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  if (__builtin_expect(gate == 0, true)) {
    stack->ids[level] = 0;
    return static_cast<int>(level);
  }
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) return PushSlowly<kFull>(stack, level, name);
  const RecordTemplate& known = state.templates[ring::kRecordRangeStart - ring::kRecordMark][false];
  if (__builtin_expect(name != known.name, false) || !IsKnown(state, known, name, gate)) {
    EndRecord(state);
    return PushSlowly<kFull>(stack, level, name);
  }
  stack->ids[level] = RecordKnown<ring::kRecordRangeStart, false>(state, known);
  return static_cast<int>(level);
}

template <bool kFull>
int PushOnNewStack(const char* name) {
  return NewStack() == nullptr ? nvtx::kNoPushPopTracking : Push<kFull>(name);
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

uint64_t TagOf(const taskd_domain* domain);
int CountTag(const PushStack& stack, uint64_t tag);

template <bool kFull>
int DomainPush(const taskd_domain* domain, const char* name) {
  if (domain == nullptr) return Push<kFull>(name);
  PushStack* stack = t_pushed;
  if (stack == nullptr && (stack = NewStack()) == nullptr) return nvtx::kNoPushPopTracking;
  const uint64_t tag = TagOf(domain);
  const uint32_t index = stack->domain_depth;
  stack->domain_depth = index + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (index >= PushStack::kMaxEntries) return static_cast<int>(index);  // nearly: nobody nests so deep
  stack->entries[index] = tag << kTagShift;
  const int level = CountTag(*stack, tag) - 1;
  stack->entries[index] |= RecordName<ring::kRecordRangeStart, kFull>(domain, name);
  return level;
}

// As Pop, in a domain.
int DomainPop(const taskd_domain* domain);

}  // namespace taskd::worker
