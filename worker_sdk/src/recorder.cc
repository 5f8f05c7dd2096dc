#include "recorder.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

#include "communication_owner.h"
#include "domains.h"
#include "hello_client.h"
#include "mspti_feed.h"
#include "primary.h"
#include "runtime.h"
#include "segment.h"
#include "slow_path.h"

namespace taskd::worker {
namespace {

// A block of a ring holds at most this many records, and gets as many ids.
constexpr uint64_t kIdsPerBlock = ring::kBlockBytes / ring::kRecordHeaderBytes;
constexpr uint64_t kIdEpochNs = 1'577'836'800'000'000'000;  // 2020-01-01
// A thread without a ring looks for one again at every so many dropped marks: others may have ended meanwhile.
constexpr uint64_t kRetryDropped = 1024;

constinit const std::atomic<uint32_t> g_gate_uninitialized{ring::kGateUninitialized};
constinit const std::atomic<uint32_t> g_gate_forward{kGateForward};

// Read at load, when nothing else may be done yet.
ClockReading g_start;
pid_t g_start_pid;

// Under the lock.
Segment g_segment;
ThreadState g_threads[ring::kMaxThreads];
bool g_fork_handler = false;
pthread_key_t g_thread_key;
bool g_has_thread_key = false;
char g_socket_path[PATH_MAX];
bool g_names_read = false;

// Written under the lock before the gate opens, then only read.
constinit MarkNames g_mark_names;

// Any thread.
std::atomic<ring::SegmentHeader*> g_header{nullptr};
std::atomic<uint32_t> g_slots{0};  // entries of g_threads ever used
std::atomic<uint64_t> g_next_id{0};
std::atomic<uint64_t> g_dropped{0};      // while there is no segment to count in
std::atomic<bool> g_initialized{false};  // taskd_worker_init was called, and not taskd_worker_destroy since
std::atomic<bool> g_no_room{false};      // the last thread that wanted a ring got none
std::atomic<uint64_t> g_no_room_marks{0};

__attribute__((constructor)) void OnLoad() {
  g_start = ReadClocks();
  g_start_pid = getpid();
}

__attribute__((destructor)) void OnExit() {
  SlowPath slow_path;
  if (slow_path.entered() && g_segment.header != nullptr) RemoveIfRead(g_segment);
}

void CountDropped() {
  ring::SegmentHeader* header = g_header.load(std::memory_order_acquire);
  (header != nullptr ? header->dropped : g_dropped).fetch_add(1, std::memory_order_relaxed);
}

void OnThreadExit(void* state) {
  t_state = &g_no_thread;
  // FindRing's acquire load: whoever gets the ring next goes on behind this thread's last record.
  static_cast<ThreadState*>(state)->in_use.store(0, std::memory_order_release);
  g_no_room.store(false, std::memory_order_relaxed);
}

// The child has its parent's memory: the ring it must not write, the lock it does not hold, the connection it would
// keep open.
void OnForkChild() {
  g_gate.store(&g_gate_off, std::memory_order_release);
  ForgetMsptiFeed();
  ForgetHelloClient();
  if (OwnsDescriptor(g_segment)) close(g_segment.fd);
  // A child forked by a signal handler inside a mark still returns to that mark.
  const bool inside_mark = t_state != &g_no_thread && t_state != &g_on_slow_path && t_state->busy;
  if (!inside_mark) {
    const uint32_t slots = g_slots.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < slots; ++i) munmap(g_threads[i].data, g_threads[i].data_bytes);
    if (g_segment.header != nullptr) munmap(g_segment.header, ring::kDataOffset);
    memset(static_cast<void*>(g_threads), 0, slots * sizeof(ThreadState));
  }
  if (g_has_thread_key) pthread_setspecific(g_thread_key, nullptr);
  g_slots.store(0, std::memory_order_relaxed);
  g_header.store(nullptr, std::memory_order_relaxed);
  g_segment = {};
  g_socket_path[0] = '\0';
  t_state = &g_no_thread;
  g_initialized.store(false);
  g_no_room.store(false);
  g_identity.rank.store(-1);
  g_identity.local_rank.store(-1);
  g_identity.disk_limit_mb.store(0);
  g_dropped.store(0);
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
}

// A decimal number of the environment, -1 where there is none.
int EnvironmentNumber(const char* name) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return -1;
  char* end;
  long value = strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value <= INT_MAX ? static_cast<int>(value) : -1;
}

int FirstEnvironmentNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    int value = EnvironmentNumber(name);
    if (value >= 0) return value;
  }
  return -1;
}

// A step of one task a node has launchers as its tasks, and a job's batch shell is task 0 of nothing.
bool IsOneOfSlurmsTasks() { return EnvironmentNumber("SLURM_STEP_NUM_TASKS") > 1; }

// What a launcher of ranks says, -1 where none does. RANK_ID comes before the newer three: where it is set, it is what the
// program was started with, and a container may have variables of the step that it runs in besides.
int EnvironmentRank() {
  const int rank = FirstEnvironmentNumber({"RANK", "OMPI_COMM_WORLD_RANK", "RANK_ID", "PMIX_RANK", "PMI_RANK"});
  return rank < 0 && IsOneOfSlurmsTasks() ? EnvironmentNumber("SLURM_PROCID") : rank;
}

int EnvironmentLocalRank() {
  const int local_rank =
      FirstEnvironmentNumber({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_LOCAL_RANK"});
  return local_rank < 0 && IsOneOfSlurmsTasks() ? EnvironmentNumber("SLURM_LOCALID") : local_rank;
}

// Once, before the first record.
void ReadMarkNames() {
  if (g_names_read) return;
  g_mark_names.Parse(
      getenv("TASKD_MARK_NAMES"), [](const char* line, void*) { Say(line); }, nullptr);
  if (!g_mark_names.empty()) g_plain_kinds.store(~(1u << ring::kKindOther), std::memory_order_relaxed);
  g_names_read = true;
}

void PublishIdentity() {
  g_segment.header->rank.store(g_identity.rank.load());
  g_segment.header->local_rank.store(g_identity.local_rank.load());
}

// Creates the segment and all that goes with it, once. False: no shared memory to be had.
bool EnsureSegment() {
  if (g_segment.header != nullptr) return true;
  if (!g_has_thread_key && pthread_key_create(&g_thread_key, OnThreadExit) != 0) return false;
  g_has_thread_key = true;
  if (!g_fork_handler && pthread_atfork(nullptr, nullptr, OnForkChild) != 0) return false;
  g_fork_handler = true;
  if (getpid() != g_start_pid) {
    g_start = ReadClocks();
    g_start_pid = getpid();
  }
  ReadMarkNames();
  const uint64_t now_ns = ReadClockNs(CLOCK_REALTIME);
  if (!CreateSegment(SocketPath(), now_ns ^ g_start.counter << 20, g_segment)) return false;
  const ring::ClockKind clock = ChooseClock();
  g_counter_clock = clock == ring::kClockCounter;
  // Unique over the lives of a rank as long as it makes fewer than one record in 64 ns; below 2^53 until 2038.
  g_next_id.store((now_ns - kIdEpochNs) / 64 % kIdEnd);
  ring::SegmentHeader& header = *g_segment.header;
  header.version = ring::kVersion;
  header.header_bytes = sizeof(ring::SegmentHeader);
  header.pid = static_cast<uint32_t>(getpid());
  header.clock = clock;
  header.start_ticks = g_counter_clock ? g_start.counter : g_start.monotonic_ns;
  header.start_monotonic_ns = g_start.monotonic_ns;
  header.start_realtime_ns = g_start.realtime_ns;
  header.dropped.store(g_dropped.load(), std::memory_order_relaxed);
  header.gate.store(ring::kGateAllKinds | ring::kGateUndecided, std::memory_order_relaxed);
  PublishDomains(header);
  PublishIdentity();
  // Last: a proxy may find the file by its name before it is whole. It loads this with acquire.
  __atomic_store_n(&header.magic, ring::kMagic, __ATOMIC_RELEASE);
  g_header.store(&header, std::memory_order_release);
  return true;
}

taskd_domain* DomainHandle(uint32_t index) { return reinterpret_cast<taskd_domain*>(&g_domain_handles[index]); }

// A mark whose name the rules have not seen yet.
uint64_t RecordByRules(ring::RecordType type, const taskd_domain* domain, const char* name, uint32_t gate,
                       bool stream) {
  char storage[MarkNames::kNameBytes];
  const uint32_t index = DomainIndex(domain);
  NamedMark mark = NameMark(index, name, storage);
  if (mark.domain != index && mark.domain == ring::kDomainCommunication) {
    if (IsPartOfCommunication(g_header.load(std::memory_order_acquire)->domain_names[index])) {
      mark = {name, index, KindOfName(name)};
    } else {
      stream = true;  // readers expect operations to have one
    }
  }
  domain = DomainHandle(mark.domain);
  return type == ring::kRecordMark
             ? RecordOn<ring::kRecordMark, NamePlace::kAnywhere, Rules::kAsked>(domain, mark.name, gate, stream)
             : RecordOn<ring::kRecordRangeStart, NamePlace::kAnywhere, Rules::kAsked>(domain, mark.name, gate, stream);
}

void OpenGate() { g_gate.store(&g_segment.header->gate, std::memory_order_release); }

// The first mark. A child that was forked before it is a child like any other: it records only when it asks. So is a
// process that a rank has started, which has the rank's environment: it must not take the rank's place.
void StartAtFirstMark() {
  SlowPath slow_path;
  if (!slow_path.entered()) return CountDropped();
  if (g_gate.load(std::memory_order_relaxed) != &g_gate_uninitialized) return;
  const int rank = EnvironmentRank();
  const bool child = getpid() != g_start_pid || (rank >= 0 && AncestorRecordsAs(SocketPath(), rank));
  if (child || !EnsureSegment()) {
    if (!child) CountDropped();
    g_gate.store(&g_gate_off, std::memory_order_release);
    return;
  }
  g_identity.rank.store(rank);
  g_identity.local_rank.store(EnvironmentLocalRank());
  PublishIdentity();
  OpenGate();
  if (g_identity.rank.load() < 0) return;
  StartHelloClient();
  StartMsptiFeed(*g_segment.header);
}

// Leaves the rest of the block to nobody and announces the next one before anything is written there.
// The state is busy.
void EnterNextBlock(ThreadState& state) {
  if (state.next != state.block_end) {
    StoreWord(reinterpret_cast<uint64_t*>(state.next),
              ring::PackWord0(static_cast<uint32_t>(state.block_end - state.next), ring::kRecordPad, 0, 0));
  }
  const uint64_t position = state.block_end + state.position_base;
  // The fence keeps the words of the block behind the store of `reserved`; a release store would only keep what is before
  // it. Its other half is the reader's acquire fence (RingSegment::CopyChunk).
#if defined(__SANITIZE_THREAD__)
  state.slot->reserved.store(position + ring::kBlockBytes, std::memory_order_seq_cst);  // it knows no fences
#else
  state.slot->reserved.store(position + ring::kBlockBytes, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
#endif
  const uint32_t sequence = state.sequence.load(std::memory_order_relaxed);
  const uint32_t block_records = sequence - state.block_sequence.load(std::memory_order_relaxed);
  state.records_before.store(state.records_before.load(std::memory_order_relaxed) + block_records,
                             std::memory_order_relaxed);
  state.block_sequence.store(sequence, std::memory_order_relaxed);
  state.id_base = g_next_id.fetch_add(kIdsPerBlock, std::memory_order_relaxed) - sequence;
  state.next = reinterpret_cast<uint64_t>(state.data) + (position & (state.data_bytes - 1));
  state.block_end = state.next + ring::kBlockBytes;
  state.position_base = position - state.next;
  state.sample_next = true;
  state.limit = state.next;  // one record; the one after it is the sample of this block
}

// A ring of a thread that ended, else a new one; null: neither is to be had. Under the lock.
ThreadState* FindRing() {
  const uint32_t slots = g_slots.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < slots; ++i) {
    if (g_threads[i].in_use.load(std::memory_order_acquire) == 0) return &g_threads[i];
  }
  if (slots == ring::kMaxThreads) return nullptr;
  char* data = AddRing(g_segment, slots);
  if (data == nullptr) return nullptr;
  ThreadState& state = g_threads[slots];
  state.slot = &g_segment.header->thread_slots[slots];
  state.data = data;
  state.data_bytes = RingBytes(slots);
  state.next = state.block_end = reinterpret_cast<uint64_t>(data);  // at the end of no block: limit is below
  state.position_base = -state.next;
  // What is above is there for who sees any of these three: the proxy, and GetStats.
  state.slot->ready.store(1, std::memory_order_release);
  g_slots.store(slots + 1, std::memory_order_release);
  g_segment.header->slots.store(slots + 1, std::memory_order_release);
  return &state;
}

ThreadState* ClaimRing() {
  SlowPath slow_path;
  if (!slow_path.entered() || g_segment.header == nullptr) return nullptr;
  ThreadState* state = FindRing();
  if (state == nullptr || pthread_setspecific(g_thread_key, state) != 0) {
    g_no_room.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  state->in_use.store(1, std::memory_order_relaxed);
  state->tid_bits = static_cast<uint64_t>(syscall(SYS_gettid)) << 32;
  for (auto& of_type : state->templates) {
    for (RecordTemplate& known : of_type) known = {.name = kNowhere};  // the last owner's had its thread id
  }
  // The last owner may have been cancelled inside a mark.
  state->busy = false;
  slow_path.set_state(state);
  return state;
}

}  // namespace

constinit const std::atomic<uint32_t> g_gate_off{0};
constinit std::atomic<const std::atomic<uint32_t>*> g_gate{&g_gate_uninitialized};
bool g_counter_clock = false;
constinit std::atomic<uint32_t> g_plain_kinds{~0u};
constinit Identity g_identity{-1, -1, 0};
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
// Always busy: a mark finds the slow path.
constinit ThreadState g_no_thread{.busy = true};
constinit ThreadState g_on_slow_path{.busy = true};
constinit thread_local ThreadState* t_state = &g_no_thread;

void Say(const char* line) {
  char buffer[512];
  const int bytes = snprintf(buffer, sizeof(buffer), "taskd: %s\n", line);
  if (bytes <= 0) return;
  const size_t length = static_cast<size_t>(bytes) < sizeof(buffer) ? static_cast<size_t>(bytes) : sizeof(buffer) - 1;
  // Training does not wait for whoever reads it: what a full pipe, or a terminal that was stopped, does not take is lost.
  pollfd console = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&console, 1, 0) != 1 || (console.revents & POLLOUT) == 0) return;
  if (write(STDERR_FILENO, buffer, length) < 0) return;  // nobody to tell
}

ring::SegmentHeader* CurrentHeader() { return g_segment.header; }
const Segment& CurrentSegment() { return g_segment; }

const char* SocketPath() {
  if (g_socket_path[0] != '\0') return g_socket_path;
  const char* path = getenv("TASKD_SOCKET");
  if (path != nullptr && *path != '\0') {
    snprintf(g_socket_path, sizeof(g_socket_path), "%s", path);
  } else {
    const char* task = getenv("MINDX_TASK_ID");
    snprintf(g_socket_path, sizeof(g_socket_path), "/tmp/taskd-%u/%s/proxy.sock", geteuid(),
             task != nullptr && *task != '\0' ? task : "default");
  }
  return g_socket_path;
}

uint64_t SlowMark(ring::RecordType type, const taskd_domain* domain, const char* name, uint32_t gate, bool stream) {
  const std::atomic<uint32_t>* gate_word = g_gate.load(std::memory_order_acquire);
  if (gate_word == &g_gate_uninitialized) {
    if (OtherPrimary() != nullptr) {
      g_gate.store(&g_gate_forward, std::memory_order_release);
    } else {
      StartAtFirstMark();
    }
    gate_word = g_gate.load(std::memory_order_acquire);
    if (gate_word == &g_gate_uninitialized) return 0;
  }
  if (gate_word == &g_gate_forward) {
    const CoreTable* other = OtherPrimary();
    if (type == ring::kRecordRangeStart) return other->range_start(domain, name, stream);
    other->mark(domain, name, stream);
    return 0;
  }
  // Off, unless this thread or another one has just opened the gate, or a rule makes another kind of it.
  if ((gate & ring::kGateUninitialized) == 0 && g_mark_names.empty()) return 0;
  gate = gate_word->load(std::memory_order_relaxed) & (ring::kGateAllKinds | ring::kGateUndecided);
  return gate == 0 ? 0 : RecordByRules(type, domain, name, gate, stream);
}

uint64_t StartWithWork(const char* name, const char* suffix, bool stream) {
  char base[kWorkBaseBytes];
  CopyBase(base, name, suffix);
  const uint64_t id = Record<ring::kRecordRangeStart>(base, stream);
  Record<ring::kRecordMark>(suffix, false);
  return id;
}

NamedMark NameMark(uint32_t domain, const char* name, char (&storage)[MarkNames::kNameBytes]) {
  if (domain == ring::kDomainCommunication) return {name, domain, ring::kKindCommunication};
  const ring::Kind kind = KindOfName(name);
  MarkNames::Translation translation;
  if (kind != ring::kKindOther || !g_mark_names.Translate(name, storage, translation)) return {name, domain, kind};
  return {translation.name, translation.communication ? ring::kDomainCommunication : ring::kDomainDefault,
          translation.kind};
}

void SlowRangeEnd(uint64_t id) {
  const std::atomic<uint32_t>* gate = g_gate.load(std::memory_order_acquire);
  if (gate != &g_gate_uninitialized && gate != &g_gate_forward) return;
  if (const CoreTable* other = OtherPrimary()) other->range_end(id);
}

Prepared PrepareThread() {
  if (t_state == &g_no_thread) {
    const bool try_it = !g_no_room.load(std::memory_order_relaxed) ||
                        g_no_room_marks.fetch_add(1, std::memory_order_relaxed) % kRetryDropped == 0;
    if (!try_it || ClaimRing() == nullptr) {
      CountDropped();
      return Prepared::kDropped;
    }
  }
  ThreadState& state = *t_state;
  if (!BeginRecord(state)) {  // a mark inside a mark, or inside a slow path
    if (state.slot != nullptr) {
      state.slot->dropped.fetch_add(1, std::memory_order_relaxed);
    } else {
      CountDropped();
    }
    return Prepared::kDropped;
  }
  Prepared prepared = Prepared::kReady;
  if (state.next > state.limit) {
    const uint64_t limit = state.block_end - ring::kMaxRecordBytes;
    if (state.sample_next && state.next <= limit) {
      state.sample_next = false;
      state.limit = limit;
      prepared = Prepared::kSampled;
    } else {
      EnterNextBlock(state);
    }
  }
  EndRecord(state);
  return prepared;
}

void SampleCost() {
  const uint64_t end_ticks = ReadTicks();
  ThreadState& state = *t_state;
  if (end_ticks < state.last_ticks) return;
  std::atomic<uint64_t>& cost = state.slot->cost_ticks;
  std::atomic<uint64_t>& samples = state.slot->cost_samples;
  cost.store(cost.load(std::memory_order_relaxed) + end_ticks - state.last_ticks, std::memory_order_relaxed);
  samples.store(samples.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void PrepareAndRecordEnd(uint64_t id) {
  for (;;) {
    const Prepared prepared = PrepareThread();
    if (prepared == Prepared::kDropped) return;
    ThreadState& state = *t_state;
    if (!BeginRecord(state)) continue;
    if (state.next > state.limit) {  // a signal handler was faster
      EndRecord(state);
      continue;
    }
    const uint32_t gate = g_gate.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
    const uint64_t ticks = KeepOrder(state, ReadTicks());
    state.last_ticks = ticks;
    WriteRangeEnd(state, gate, ticks, id);
    if (prepared == Prepared::kSampled) SampleCost();
    return;
  }
}

int Init(int rank, int local_rank, int disk_limit_mb) {
  if (rank < 0 || local_rank < -1 || disk_limit_mb < 0) return -1;
  if (const CoreTable* other = OtherPrimary()) return other->init(rank, local_rank, disk_limit_mb);
  SlowPath slow_path;
  if (!slow_path.entered()) return -1;
  if (local_rank < 0) local_rank = EnvironmentLocalRank();
  if (!EnsureSegment()) {
    g_gate.store(&g_gate_off, std::memory_order_release);
    return -1;
  }
  const bool changed = g_identity.rank.exchange(rank) != rank;
  const bool local_changed = g_identity.local_rank.exchange(local_rank) != local_rank;
  const bool limit_changed = g_identity.disk_limit_mb.exchange(disk_limit_mb) != disk_limit_mb;
  PublishIdentity();
  OpenGate();
  const bool first = !g_initialized.exchange(true);
  if (changed || local_changed || limit_changed || first) StartHelloClient();
  if (first) StartMsptiFeed(*g_segment.header);
  return 0;
}

int Start() {
  if (const CoreTable* other = OtherPrimary()) return other->start();
  return g_initialized.load() ? 0 : -1;
}

int Destroy() {
  if (const CoreTable* other = OtherPrimary()) return other->destroy();
  if (ring::SegmentHeader* header = g_header.load(std::memory_order_acquire)) StopMsptiFeed(*header);
  SlowPath slow_path;
  if (!slow_path.entered()) return -1;
  g_gate.store(&g_gate_off, std::memory_order_release);
  return g_initialized.exchange(false) ? 0 : -1;
}

uint32_t EnabledKinds() {
  const std::atomic<uint32_t>* gate = g_gate.load(std::memory_order_acquire);
  if (gate == &g_gate_uninitialized || gate == &g_gate_forward) {
    if (const CoreTable* other = OtherPrimary()) return other->enabled_kinds();
    return getpid() == g_start_pid ? uint32_t{ring::kGateAllKinds} : 0;  // the first mark will be recorded
  }
  return gate->load(std::memory_order_relaxed) & ring::kGateAllKinds;
}

int GetStats(taskd_worker_stats* stats) {
  if (stats == nullptr) return -1;
  if (const CoreTable* other = OtherPrimary()) return other->get_stats(stats);
  *stats = {};
  stats->rank = g_identity.rank.load();
  stats->attached = IsAttached() ? 1 : 0;
  stats->kinds = EnabledKinds();
  const ring::SegmentHeader* header = g_header.load(std::memory_order_acquire);
  if (header == nullptr) {
    stats->dropped = g_dropped.load(std::memory_order_relaxed);
    return 0;
  }
  stats->dropped = header->dropped.load(std::memory_order_relaxed);
  const uint32_t slots = g_slots.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < slots; ++i) {
    stats->threads += g_threads[i].in_use.load(std::memory_order_relaxed);
    const ThreadState& state = g_threads[i];
    // Of a thread that enters a block at this moment it may be wrong by that block.
    stats->records +=
        state.records_before.load(std::memory_order_relaxed) +
        (state.sequence.load(std::memory_order_relaxed) - state.block_sequence.load(std::memory_order_relaxed));
    stats->dropped += g_threads[i].slot->dropped.load(std::memory_order_relaxed);
  }
  return 0;
}

}  // namespace taskd::worker
