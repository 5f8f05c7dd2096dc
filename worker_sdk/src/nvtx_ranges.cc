#include "nvtx_ranges.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace taskd::worker {
namespace {

constinit std::atomic<uint32_t> g_mark_names_state{0};  // 0: not read, 1: being read, 2: read
constinit pthread_key_t g_stack_key;
constinit std::atomic<uint32_t> g_stack_key_state{0};  // 0: none yet, 1: being made, 2: there, 3: not to be had

void FreeStack(void* stack) {
  t_pushed = nullptr;
  munmap(stack, kStackBytes);
}

}  // namespace

constinit MarkNames g_mark_names;
constinit thread_local PushStack* t_pushed = nullptr;

void Say(const char* line) {
  char buffer[512];
  const int bytes = snprintf(buffer, sizeof(buffer), "taskd: %s\n", line);
  if (bytes <= 0) return;
  const size_t length = static_cast<size_t>(bytes) < sizeof(buffer) ? static_cast<size_t>(bytes) : sizeof(buffer) - 1;
  if (write(STDERR_FILENO, buffer, length) < 0) return;  // nobody to tell
}

void ReadMarkNames() {
  uint32_t unread = 0;
  if (g_mark_names_state.compare_exchange_strong(unread, 1)) {
    g_mark_names.Parse(
        getenv("TASKD_MARK_NAMES"), [](const char* line, void*) { Say(line); }, nullptr);
    g_mark_names_state.store(2);
  }
  while (g_mark_names_state.load() != 2) sched_yield();
}

PushStack* NewStack() {
  const int saved_errno = errno;
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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

// Different for every domain handle of the recorder: one byte each, side by side.
uint64_t TagOf(const taskd_domain* domain) { return reinterpret_cast<uintptr_t>(domain) & 0xff; }

int CountTag(const PushStack& stack, uint64_t tag) {
  int count = 0;
  for (uint32_t i = 0; i < stack.domain_depth; ++i) count += stack.entries[i] >> kTagShift == tag;
  return count;
}

int DomainPop(const taskd_domain* domain) {
  if (domain == nullptr) return Pop();
  PushStack* stack = t_pushed;
  if (stack == nullptr || stack->domain_depth == 0) return nvtx::kNoPushPopTracking;
  const uint64_t tag = TagOf(domain);
  if (stack->domain_depth > PushStack::kMaxEntries) return static_cast<int>(--stack->domain_depth);
  // The domain's innermost range may lie below those of others.
  for (uint32_t i = stack->domain_depth; i-- > 0;) {
    const uint64_t entry = stack->entries[i];
    if (entry >> kTagShift != tag) continue;
    RecordRangeEnd(entry & (kIdEnd - 1));
    const int level = CountTag(*stack, tag) - 1;
    memmove(&stack->entries[i], &stack->entries[i + 1], (stack->domain_depth - i - 1) * sizeof(uint64_t));
    --stack->domain_depth;
    return level;
  }
  return nvtx::kNoPushPopTracking;
}

}  // namespace taskd::worker
