#include "nvtx_ranges.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

namespace taskd::worker {
namespace {

constinit pthread_key_t g_stack_key;
constinit std::atomic<uint32_t> g_stack_key_state{0};  // 0: none yet, 1: being made, 2: there, 3: not to be had

void Learn(PushStack& stack, const taskd_domain* domain, const char* name) {
  if (IsNearPageEnd(name, kKnownBytes)) return;
  const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  const uint64_t words[2] = {LoadNameWord<NamePlace::kAnywhere>(name), LoadNameWord<NamePlace::kAnywhere>(name + 8)};
  const uint32_t index = DomainIndex(domain);
  const ring::Kind kind = index == ring::kDomainCommunication ? ring::kKindCommunication : ClassifyName(words[0], name);
  // As RecordOn: not what is off, what another copy records, or what a rule may rename.
  if (((gate & g_plain_kinds.load(std::memory_order_relaxed)) >> kind & 1) == 0 || !g_counter_clock) return;
  KnownName known = {.word = {}, .mask = {}, .domain = domain, .gate = gate, .bytes = 0, .word0 = 0, .word3 = 0};
  uint32_t bytes = 0;
  uint64_t zero = 0;
  for (int i = 0; i < 2 && zero == 0; ++i) {
    zero = ZeroByteMask(words[i]);
    known.mask[i] = zero == 0 ? ~uint64_t{0} : zero ^ (zero - 1);  // up to the lowest zero byte
    known.word[i] = words[i] & known.mask[i];
    bytes += zero == 0 ? 8 : static_cast<uint32_t>(__builtin_ctzll(zero)) >> 3;
  }
  if (zero == 0) return;  // longer
  known.bytes = ring::kRecordHeaderBytes + ((bytes + 7) & ~7u);
  const uint32_t flags = FlagIf((gate & ring::kGateUndecided) != 0, ring::kFlagUndecided);
  known.word0 = ring::PackWord0(known.bytes, ring::kRecordRangeStart, flags, 0);
  known.word3 = ring::PackWord3(0, bytes, index, kind);
  // A signal handler's push may look here at any moment.
  KnownName& place = KnownPlace(stack, words[0]);
  place.gate = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  known.gate = 0;
  place = known;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  place.gate = gate;
}

void FreeStack(void* stack) {
  t_pushed = nullptr;
  munmap(stack, sizeof(PushStack));
}

}  // namespace

constinit thread_local PushStack* t_pushed = nullptr;

PushStack* NewStack() {
  const int saved_errno = errno;
  void* stack = mmap(nullptr, sizeof(PushStack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) stack = nullptr;
  uint32_t none = 0;
  if (g_stack_key_state.compare_exchange_strong(none, 1)) {
    g_stack_key_state.store(pthread_key_create(&g_stack_key, FreeStack) == 0 ? 2 : 3);
  }
  // Without a key the page stays when the thread ends: better than no ranges.
  if (stack != nullptr && g_stack_key_state.load() == 2) pthread_setspecific(g_stack_key, stack);
  t_pushed = static_cast<PushStack*>(stack);
  errno = saved_errno;
  return t_pushed;
}

int PushOnNewStack(const char* name) { return NewStack() == nullptr ? nvtx::kNoPushPopTracking : Push(name); }

int PushSlowly(PushStack* stack, uint32_t level, const char* name) {
  stack->ids[level] = Record<ring::kRecordRangeStart>(name, false);
  Learn(*stack, nullptr, name);
  return static_cast<int>(level);
}

uint64_t DomainPushSlowly(PushStack& stack, const taskd_domain* domain, const char* name) {
  const uint64_t id = DomainRecord<ring::kRecordRangeStart>(domain, name, false);
  Learn(stack, domain, name);
  return id;
}

}  // namespace taskd::worker
