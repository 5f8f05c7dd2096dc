// NCCL's C functions in front of NCCL's own, where this library is preloaded: communication marks where NCCL has no
// profiler plugin, and in programs without a framework that marks (communication_owner.h decides).
//
// Design:
// 1. What is linked against NCCL finds our functions first, because a preloaded library stands before all others. Who
//    asks for them by dlopen and dlsym gets NCCL's own: our symbols have a version that is not the default one, which
//    only a reference without a version is bound to, as all references to NCCL are. So a program that asks by dlsym
//    whether NCCL is there learns the truth.
// 2. A call goes on to NCCL with the caller's own arguments, and NCCL's answer goes back as it is. Nothing is asked of
//    CUDA, and of NCCL only a communicator's size and rank, where they are not known from the call that made it.
// 3. A mark is a range on the host, with the names that the plugin's have: from the call to its return, within a group
//    to the end of the outermost group, when NCCL has started what was queued.
// 4. A communicator's name is made of what all its ranks know: the id, or the parent's name, the number of the split and
//    the color. One whose making was not seen is named for this process alone: better no group than a wrong one.
#include "nccl_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "communication_owner.h"
#include "nccl_communicators.h"
#include "nccl_library.h"
#include "nccl_mark_name.h"
#include "recorder.h"
#include "runtime.h"

namespace taskd::worker {
namespace {

using nccl::UniqueId;

constinit NcclCommunicators g_communicators;
constinit std::atomic<uint32_t> g_said_missing{0};
static_assert(kNcclFunctions <= 32);

bool IsGood(int result) { return result == nccl::kCallSuccess || result == nccl::kCallInProgress; }

// A newer function than this NCCL has. Without us the program would have ended here, or not have been loaded.
__attribute__((noinline, cold)) int Missing(NcclFunction function) {
  const uint32_t bit = uint32_t{1} << function;
  if ((g_said_missing.fetch_or(bit) & bit) == 0) {
    char line[96];
    snprintf(line, sizeof(line), "this program's NCCL has no nccl%s: the call is refused", NameOf(function));
    Say(line);
  }
  return nccl::kCallInvalidUsage;
}

// ---- Names of communicators

uint64_t Mix(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0xff51afd7ed558ccd;
  return hash ^ hash >> 32;
}

uint64_t NameOfIds(const UniqueId* ids, int count) {
  uint64_t hash = static_cast<uint64_t>(count);
  for (int i = 0; i < count; ++i) {
    for (size_t at = 0; at < sizeof(UniqueId); at += sizeof(uint64_t)) {
      uint64_t word;
      memcpy(&word, ids[i].bytes + at, sizeof(word));
      hash = Mix(hash, word);
    }
  }
  return hash;
}

// No other process's, and always the same for the same handle, so that there are not more names than handles.
uint64_t OwnName(const void* comm) {
  static constinit std::atomic<uint64_t> process{0};
  uint64_t name = process.load(std::memory_order_relaxed);
  if (name == 0) {
    const uint64_t made = Mix(ReadClockNs(CLOCK_REALTIME), static_cast<uint64_t>(getpid())) | 1;
    if (process.compare_exchange_strong(name, made, std::memory_order_relaxed)) name = made;
  }
  return Mix(name, reinterpret_cast<uintptr_t>(comm));
}

uint64_t NameOfChild(const void* parent, uint64_t first, uint64_t second) {
  NcclMember member;
  const bool known = g_communicators.Get(parent, member);
  return Mix(Mix(known ? member.communicator : OwnName(parent), first), second);
}

// Who this process is in a communicator.
NcclMember MemberOf(const void* comm) {
  NcclMember member;
  if (comm == nullptr) return {0, -1, -1};
  const bool known = g_communicators.Get(comm, member);
  if (!known) member.communicator = OwnName(comm);
  if (member.ranks == 0) {
    using Ask = int(const void* comm, int* number);
    const void* caller = reinterpret_cast<const void*>(t_nccl_binding == nullptr ? 0 : t_nccl_binding->begin);
    auto* count = NcclFunctionFor<Ask>(kNcclCommCount, caller);
    auto* user_rank = NcclFunctionFor<Ask>(kNcclCommUserRank, caller);
    const bool answered = count != nullptr && user_rank != nullptr && count(comm, &member.ranks) == 0 &&
                          user_rank(comm, &member.rank) == 0 && member.ranks > 0;
    if (!answered) member.ranks = member.rank = -1;
    if (known) g_communicators.SetPlace(comm, member);
  }
  if (!known) g_communicators.Put(comm, member);
  return member;
}

// ---- Groups

// What the end of the thread's outermost group is to do.
struct Queued {
  Queued* next;
  uint64_t range;  // to end; 0: a communicator is made
  void* const* made;
  NcclMember member;
};
constinit thread_local uint32_t t_group_depth = 0;
constinit thread_local Queued* t_first_queued = nullptr;
constinit thread_local Queued* t_last_queued = nullptr;

// False: no memory.
bool Queue(uint64_t range, void* const* made, const NcclMember& member) {
  auto* queued = static_cast<Queued*>(malloc(sizeof(Queued)));
  if (queued == nullptr) return false;
  *queued = {nullptr, range, made, member};
  (t_last_queued == nullptr ? t_first_queued : t_last_queued->next) = queued;
  t_last_queued = queued;
  return true;
}

int EndGroup(int result) {
  if (t_group_depth == 0 || --t_group_depth > 0) return result;
  Queued* queued = t_first_queued;
  t_first_queued = t_last_queued = nullptr;
  while (queued != nullptr) {
    if (queued->range != 0) {
      RecordRangeEnd(queued->range);
    } else if (IsGood(result)) {
      g_communicators.Put(*queued->made, queued->member);
    }
    Queued* next = queued->next;
    free(queued);
    queued = next;
  }
  return result;
}

// NCCL has made, or will make at the group's end, a communicator at `made`.
int Made(int result, void* const* made, const NcclMember& member) {
  if (!IsGood(result) || made == nullptr) return result;
  if (t_group_depth == 0) {
    g_communicators.Put(*made, member);
  } else {
    Queue(0, made, member);
  }
  return result;
}

// ---- Operations

constexpr int kNoPeer = -1;

struct Operation {
  NcclFunction function;
  const void* comm;
  size_t count;
  int type;
  int peer;
};

// The least that a call costs: no mark can come of it.
inline bool IsOff() {
  constexpr uint32_t kMaybe = ring::kGateCommunication | ring::kGateUninitialized | kGateForward;
  return (g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed) & kMaybe) == 0;
}

// Returns the range, 0 where there is none of ours.
__attribute__((noinline)) uint64_t Begin(const Operation& operation) {
  if ((EnabledKinds() & TASKD_KIND_COMMUNICATION) == 0) return 0;
  if (!BeginCommunication(CommunicationSource::kNcclCall, 0)) return 0;
  const NcclMember member = MemberOf(operation.comm);
  char name[nccl::kNameBytes];
  {
    nccl::NameWriter out(name);
    nccl::AppendSize(out, operation.count, nccl::TypeNameOf(operation.type));
    out.Text("nccl:").Hexadecimal(member.communicator);
    // As NCCL itself calls it.
    nccl::AppendFunction(out, operation.function == kNcclBcast ? "Broadcast" : NameOf(operation.function));
    if (member.ranks > 0) {
      nccl::AppendRanks(out, member.ranks, member.rank);
      nccl::AppendPeer(out, operation.function == kNcclSend, member.rank, operation.peer);
    }
    out.Text("}");
  }
  const uint64_t range = DomainRecord<ring::kRecordRangeStart>(CreateDomain("communication"), name, true);
  if (range == 0) EndCommunication(CommunicationSource::kNcclCall);
  return range;
}

__attribute__((noinline)) int End(uint64_t range, int result) {
  if (range == 0) return result;
  EndCommunication(CommunicationSource::kNcclCall);
  const bool queued = t_group_depth > 0 && IsGood(result) && Queue(range, nullptr, {});
  if (!queued) RecordRangeEnd(range);
  return result;
}

}  // namespace
}  // namespace taskd::worker

// ---- The functions. What they are called here is local to the library (libtaskd.map).

using namespace taskd::worker;  // NOLINT(google-build-using-namespace): what follows is C

#define TASKD_NCCL_SYMBOL(name, parameters, ...)       \
  TASKD_EXPORT int taskd_instead_of_##name parameters; \
  __asm__(".symver taskd_instead_of_" #name ",nccl" #name "@TASKD_NCCL_CALLS");
TASKD_NCCL_OPERATIONS(TASKD_NCCL_SYMBOL)
TASKD_NCCL_FRAME(TASKD_NCCL_SYMBOL)

// NCCL's function for whom the enclosing one returns to.
#define TASKD_NCCL_BEHIND(name) \
  NcclFunctionFor<decltype(taskd_instead_of_##name)>(kNccl##name, __builtin_return_address(0))

#define TASKD_NCCL_OPERATION(name, parameters, arguments, peer)                    \
  int taskd_instead_of_##name parameters {                                         \
    auto* function = TASKD_NCCL_BEHIND(name);                                      \
    if (__builtin_expect(function == nullptr, false)) return Missing(kNccl##name); \
    if (__builtin_expect(IsOff(), true)) return function arguments;                \
    const uint64_t range = Begin({kNccl##name, comm, count, type, peer});          \
    return End(range, function arguments);                                         \
  }
TASKD_NCCL_OPERATIONS(TASKD_NCCL_OPERATION)

int taskd_instead_of_GroupStart() {
  auto* function = TASKD_NCCL_BEHIND(GroupStart);
  if (function == nullptr) return Missing(kNcclGroupStart);
  const int result = function();
  if (IsGood(result)) ++t_group_depth;
  return result;
}

int taskd_instead_of_GroupEnd() {
  auto* function = TASKD_NCCL_BEHIND(GroupEnd);
  return function == nullptr ? Missing(kNcclGroupEnd) : EndGroup(function());
}

int taskd_instead_of_GroupSimulateEnd(void* information) {
  auto* function = TASKD_NCCL_BEHIND(GroupSimulateEnd);
  return function == nullptr ? Missing(kNcclGroupSimulateEnd) : EndGroup(function(information));
}

int taskd_instead_of_CommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  auto* function = TASKD_NCCL_BEHIND(CommInitRank);
  if (function == nullptr) return Missing(kNcclCommInitRank);
  return Made(function(comm, ranks, id, rank), comm, {NameOfIds(&id, 1), ranks, rank});
}

int taskd_instead_of_CommInitRankConfig(void** comm, int ranks, UniqueId id, int rank, void* config) {
  auto* function = TASKD_NCCL_BEHIND(CommInitRankConfig);
  if (function == nullptr) return Missing(kNcclCommInitRankConfig);
  return Made(function(comm, ranks, id, rank, config), comm, {NameOfIds(&id, 1), ranks, rank});
}

int taskd_instead_of_CommInitRankScalable(void** comm, int ranks, int rank, int count, UniqueId* ids, void* config) {
  auto* function = TASKD_NCCL_BEHIND(CommInitRankScalable);
  if (function == nullptr) return Missing(kNcclCommInitRankScalable);
  const uint64_t name = ids == nullptr ? 0 : NameOfIds(ids, count);
  return Made(function(comm, ranks, rank, count, ids, config), comm, {name, ranks, rank});
}

int taskd_instead_of_CommInitAll(void** comms, int devices, const int* list) {
  auto* function = TASKD_NCCL_BEHIND(CommInitAll);
  if (function == nullptr) return Missing(kNcclCommInitAll);
  const int result = function(comms, devices, list);
  const uint64_t name = OwnName(comms);  // all of its ranks are here
  for (int i = 0; comms != nullptr && i < devices; ++i) Made(result, &comms[i], {name, devices, i});
  return result;
}

int taskd_instead_of_CommSplit(void* comm, int color, int key, void** made, void* config) {
  auto* function = TASKD_NCCL_BEHIND(CommSplit);
  if (function == nullptr) return Missing(kNcclCommSplit);
  const uint64_t name = NameOfChild(comm, g_communicators.NextSplit(comm), static_cast<uint64_t>(color));
  return Made(function(comm, color, key, made, config), made, {name, 0, 0});
}

// Named by who is left out, not by a number: those do not count along.
int taskd_instead_of_CommShrink(void* comm, int* excluded, int count, void** made, void* config, int flags) {
  auto* function = TASKD_NCCL_BEHIND(CommShrink);
  if (function == nullptr) return Missing(kNcclCommShrink);
  uint64_t who = 0;
  for (int i = 0; excluded != nullptr && i < count; ++i) who += Mix(1, static_cast<uint64_t>(excluded[i]));
  const uint64_t name = NameOfChild(comm, UINT64_MAX, who);
  return Made(function(comm, excluded, count, made, config, flags), made, {name, 0, 0});
}

// A communicator is forgotten first: once it is gone NCCL may give its handle to another one.
int taskd_instead_of_CommDestroy(void* comm) {
  auto* function = TASKD_NCCL_BEHIND(CommDestroy);
  if (function == nullptr) return Missing(kNcclCommDestroy);
  g_communicators.Remove(comm);
  return function(comm);
}

int taskd_instead_of_CommAbort(void* comm) {
  auto* function = TASKD_NCCL_BEHIND(CommAbort);
  if (function == nullptr) return Missing(kNcclCommAbort);
  g_communicators.Remove(comm);
  return function(comm);
}
