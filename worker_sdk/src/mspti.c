#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1  // dl_iterate_phdr, memmem, RTLD_DEEPBIND
#endif
#include "mspti.h"

#include <assert.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// 0.25 s of marks are lost with a process that is killed; a flush costs the training thread one request for a buffer.
enum { kFlushMs = 250 };
// How late a switch is seen where nobody wakes us.
enum { kIdleMs = 500 };
enum { kBacklogMs = 10 };
enum { kFirstRetryMs = 1000, kMaxRetryMs = 5000 };
// The longest that the end of the process waits for the thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { kExitMs = 10000 };  // in a test on a busy machine, which reports what the thread reads after that
#else
enum { kExitMs = 1000 };
#endif
// A record that is not ours to read: only its kind is looked at.
enum { kKindBytes = 4 };

enum { kActivityMarker = 1, kActivityKernel = 2, kActivityApi = 3 };

typedef void (*RequestBuffer)(uint8_t** buffer, size_t* bytes, size_t* max_records);
typedef void (*CompleteBuffer)(uint8_t* buffer, size_t bytes, size_t valid_bytes);

typedef struct Api {
  int (*enable)(int kind);
  int (*disable)(int kind);
  int (*get_next_record)(uint8_t* buffer, size_t valid_bytes, uint8_t** record);
  int (*register_callbacks)(RequestBuffer request, CompleteBuffer complete);
  int (*flush_all)(uint32_t flag);
  int (*enable_domain)(const char* name);
  int (*disable_domain)(const char* name);
  int (*subscribe)(void** subscriber, void* callback, void* user_data);
  int (*unsubscribe)(void* subscriber);
} Api;

enum SlotState { kSlotFree = 0, kSlotOut = 1, kSlotFull = 2 };

typedef struct Slot {
  uint32_t state;   // atomic
  uint64_t ticket;  // atomic; order in which MSPTI took them
  uint32_t wanted;
  size_t valid_bytes;
  uint8_t* data;
} Slot;

enum ThreadWord { kThreadNone = 0, kThreadRuns = 1 };

// MSPTI's callbacks have no argument of ours, so there is one of everything.
static struct {
  // Any thread.
  Slot slots[kMsptiPoolBuffers];
  uint8_t* scrap;
  uint32_t accept;  // atomic; buffers are read
  uint64_t next_ticket;
  uint32_t wanted;  // atomic; as the stepping thread saw it last
  uint64_t emitted, dropped, malformed, unknown_buffers;
  uint64_t* shared_dropped;  // atomic; the caller's
  int subscribed;
  uint32_t own_word;

  // Of the stepping thread.
  Api api;
  int open;
  MsptiConfig config;
  void* subscriber;
  int marker_on;         // by us
  int default_disabled;  // the domain, by us
  int answered;
  int said;  // the answer, since g.wanted changed
  MsptiAnswer answer;
  int64_t retry_at_ms;
  int retry_ms;
  int64_t flush_at_ms;
  uint64_t flushed_ticket;  // all buffers below were back when the last flush returned, or never will be
  Slot* reading;
  size_t read_bytes;  // the next record begins here or later
  uint8_t* record;    // the last one
  int pending;        // `mark` was refused by emit
  MsptiMark mark;
  int exit_handlers;

  // The thread.
  uint32_t thread;     // atomic, a futex; ThreadWord
  uint32_t stop_kind;  // atomic
  int64_t stop_by_ms;  // atomic
  uint32_t forked;     // atomic
  uint32_t exited;     // atomic; MSPTI's objects may be gone
} g;

static uint32_t Load32(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void Store32(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static void Count(uint64_t* counter, uint64_t by) { __atomic_fetch_add(counter, by, __ATOMIC_RELAXED); }
static void CountDropped(uint64_t by) {
  Count(&g.dropped, by);
  uint64_t* shared = __atomic_load_n(&g.shared_dropped, __ATOMIC_ACQUIRE);
  if (shared != NULL) Count(shared, by);
}
static uint64_t Counted(const uint64_t* counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }

static int64_t NowMs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Not private: the word may lie in shared memory.
static void FutexWait(const uint32_t* word, uint32_t expected, int timeout_ms) {
  struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}
static void FutexWake(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

// ---- Callbacks: on the training thread, under MSPTI's lock.

static void OnRequest(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *bytes = kMsptiBufferBytes;
  *max_records = 0;  // as many as fit
  if (Load32(&g.accept)) {
    for (int i = 0; i < kMsptiPoolBuffers; ++i) {
      uint32_t expected = kSlotFree;
      // The lowest free one: the pages of the others are never touched while marks are few.
      if (__atomic_compare_exchange_n(&g.slots[i].state, &expected, kSlotOut, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        g.slots[i].wanted = Load32(&g.wanted);
        // NextSlot: who sees a ticket given out sees the earlier ones in their slots.
        __atomic_store_n(&g.slots[i].ticket, __atomic_fetch_add(&g.next_ticket, 1, __ATOMIC_ACQ_REL), __ATOMIC_RELEASE);
        *buffer = g.slots[i].data;
        return;
      }
    }
  }
  *buffer = g.scrap;
}

static void OnComplete(uint8_t* buffer, size_t bytes, size_t valid_bytes) {
  (void)bytes;
  if (buffer == g.scrap) {
    CountDropped(valid_bytes / kMsptiMarkerBytes);
    return;
  }
  for (int i = 0; i < kMsptiPoolBuffers; ++i) {
    Slot* slot = &g.slots[i];
    if (slot->data != buffer || Load32(&slot->state) != kSlotOut) continue;
    slot->valid_bytes = valid_bytes <= (size_t)kMsptiBufferBytes ? valid_bytes : (size_t)kMsptiBufferBytes;
    Store32(&slot->state, kSlotFull);
    return;
  }
  Count(&g.unknown_buffers, 1);  // of the subscriber before us. Not ours to free
}

// ---- Records.

// The fields of a marker. MSPTI pads them to a multiple of 8.
typedef struct __attribute__((packed)) PackedMarker {
  uint32_t kind;
  uint32_t flag;
  uint32_t source;
  uint64_t timestamp_ns;
  uint64_t id;
  uint32_t process_id;
  uint32_t thread_id;
  const char* name;
  const char* domain;
} PackedMarker;
static_assert(sizeof(PackedMarker) == kMsptiFieldBytes, "contract 4.3");

int ParseMsptiMarker(const uint8_t* record, MsptiMark* mark) {
  PackedMarker marker;
  memcpy(&marker, record, sizeof(marker));
  if (marker.kind != kActivityMarker) return 0;
  if (marker.flag == 0 || marker.flag > 32 || (marker.flag & (marker.flag - 1)) != 0) return 0;
  // Documented: 0 where no time could be had.
  if (marker.source > 1 || marker.id == 0 || marker.timestamp_ns == 0) return 0;
  // The document has null for no name and for the default domain, the code has "" and "default".
  const int names_itself = marker.source == 0 && marker.flag != 4 && marker.flag != 32;
  mark->flag = marker.flag;
  mark->source = marker.source;
  mark->timestamp_ns = marker.timestamp_ns;
  mark->id = marker.id;
  mark->process_id = marker.process_id;
  mark->thread_id = marker.thread_id;
  mark->name = marker.name != NULL ? marker.name : "";
  mark->domain = marker.domain != NULL ? marker.domain : names_itself ? "default" : "";
  return 1;
}

// 1: the buffer is read to its end; 0: emit has no room.
static int ReadSlot(Slot* slot) {
  const MsptiConfig* config = &g.config;
  for (;;) {
    if (Load32(&g.exited)) return 0;
    if (!g.pending) {
      // Its place is thread-local by the contract; the interface that MSPTI follows has it in this argument.
      uint8_t* record = g.record;
      const int result = g.api.get_next_record(slot->data, slot->valid_bytes, &record);
      if (result == kMsptiMaxLimit) return 1;
      // A foreign library's word about our memory: it must lead forward and stay inside.
      const size_t at = (size_t)(record - slot->data);
      const size_t room =
          record != NULL && record >= slot->data && at <= slot->valid_bytes ? slot->valid_bytes - at : 0;
      uint32_t kind = 0;
      if (result == kMsptiOk && room >= kKindBytes && at >= g.read_bytes) memcpy(&kind, record, sizeof(kind));
      if (kind == 0 || (kind == kActivityMarker && room < kMsptiFieldBytes)) {
        const size_t left = slot->valid_bytes > g.read_bytes ? slot->valid_bytes - g.read_bytes : 0;
        const int at_its_end = result != kMsptiOk && left <= kMsptiMarkerBytes - kMsptiFieldBytes;
        if (!at_its_end) Count(&g.malformed, left < kMsptiMarkerBytes ? 1 : left / kMsptiMarkerBytes);
        // Its thread-local place would be taken for one in the next buffer.
        g.api.get_next_record(slot->data, 0, &record);
        return 1;
      }
      g.record = record;
      g.read_bytes = at + (size_t)(kind == kActivityMarker ? (int)kMsptiFieldBytes : (int)kKindBytes);
      if (kind != kActivityMarker || !ParseMsptiMarker(record, &g.mark)) {
        Count(&g.malformed, 1);
        continue;
      }
      g.mark.wanted = slot->wanted;
      g.pending = 1;
    }
    if (!config->emit(config->context, &g.mark)) return 0;
    g.pending = 0;
    Count(&g.emitted, 1);
  }
}

// The buffer that is next by the order of design point 3; null: none. A slot's state is stored after what belongs to it
// (release) and loaded before (acquire), but for a slot just taken, which has its old ticket for a moment more. MSPTI's
// lock lets the next one begin only after that, so whatever was given out before this look is to be believed, and what
// came later waits for the next look.
static Slot* NextSlot(void) {
  const uint64_t given_out = __atomic_load_n(&g.next_ticket, __ATOMIC_ACQUIRE);
  Slot* next = NULL;
  uint64_t next_ticket = 0;
  uint64_t oldest_out = UINT64_MAX;
  for (int i = 0; i < kMsptiPoolBuffers; ++i) {
    Slot* slot = &g.slots[i];
    const uint32_t state = Load32(&slot->state);
    const uint64_t ticket = __atomic_load_n(&slot->ticket, __ATOMIC_ACQUIRE);
    if (state == kSlotFull && ticket < given_out && (next == NULL || ticket < next_ticket)) {
      next = slot;
      next_ticket = ticket;
    } else if (state == kSlotOut && ticket >= g.flushed_ticket && ticket < oldest_out) {
      oldest_out = ticket;
    }
  }
  return next != NULL && next_ticket < oldest_out ? next : NULL;
}

enum DrainResult { kDrainedAll, kDrainedOne, kDrainRefused };

// One buffer at a time: marks may come as fast as they are read, and a switch must not wait for them to end.
static enum DrainResult DrainOne(void) {
  if (g.reading == NULL) {
    g.reading = NextSlot();
    g.read_bytes = 0;
    g.record = NULL;
    if (g.reading == NULL) return kDrainedAll;
  }
  if (!ReadSlot(g.reading)) return kDrainRefused;
  Store32(&g.reading->state, kSlotFree);
  g.reading = NULL;
  return kDrainedOne;
}

static void Flush(void) {
  const uint64_t before = __atomic_load_n(&g.next_ticket, __ATOMIC_ACQUIRE);
  if (Load32(&g.exited)) return;
  g.api.flush_all(1);
  g.flushed_ticket = before;
}

static void RegisterExitHandler(int count);  // design point 6

// ---- Switching.

enum Outcome { kOff = 0, kOn = 1, kFailed = 2 };

static void FirstError(int* error, int result) {
  if (*error == kMsptiOk) *error = result;
}

// Contract §4.2, "default ON".
static int SwitchOn(uint32_t wanted) {
  int error = kMsptiOk;
  if (!g.subscribed) {
    void* subscriber = NULL;
    const int result = g.api.subscribe(&subscriber, NULL, NULL);
    if (result != kMsptiOk) return result;
    g.subscriber = subscriber;
    __atomic_store_n(&g.subscribed, 1, __ATOMIC_RELAXED);
    Store32(&g.accept, 1);
    // Each time: another subscriber may have put its own there meanwhile.
    const int registered = g.api.register_callbacks(OnRequest, OnComplete);
    if (registered != kMsptiOk) {
      g.api.unsubscribe(subscriber);
      __atomic_store_n(&g.subscribed, 0, __ATOMIC_RELAXED);
      return registered;
    }
    RegisterExitHandler(1);
  }
  // Communication alone is ours, the contract cannot say it: all markers are on then and the default domain is not.
  if ((wanted & kMsptiDefault) == 0 && !g.default_disabled) {
    const int result = g.api.disable_domain("default");
    g.default_disabled = result == kMsptiOk;
    FirstError(&error, result);
  }
  g.marker_on = 1;
  FirstError(&error, g.api.enable(kActivityMarker));
  if ((wanted & kMsptiDefault) != 0 && g.default_disabled) {
    const int result = g.api.enable_domain("default");
    g.default_disabled = result != kMsptiOk;
    FirstError(&error, result);
  }
  return error;
}

// Contract §4.2, "default OFF"; and the buffers come back while they are still ours.
static int SwitchOff(void) {
  int error = g.api.disable(kActivityMarker);
  g.marker_on = error != kMsptiOk;
  // Never switched on by us: that they cannot be switched off is no failure.
  g.api.disable(kActivityKernel);
  g.api.disable(kActivityApi);
  if (g.default_disabled && g.api.enable_domain("default") == kMsptiOk) g.default_disabled = 0;
  if (!g.subscribed) return error;
  Flush();
  const int result = g.api.unsubscribe(g.subscriber);
  FirstError(&error, result);
  if (result == kMsptiOk) __atomic_store_n(&g.subscribed, 0, __ATOMIC_RELAXED);
  return error;
}

static void Say(void) {
  g.said = 1;
  if (g.config.answer != NULL) g.config.answer(g.config.context, &g.answer);
}

static void Answer(uint32_t wanted, enum Outcome of_default, enum Outcome of_communication, int error) {
  const MsptiAnswer answer = {wanted, 1400 + 10 * (uint32_t)of_default + (uint32_t)of_communication, error};
  const int same =
      g.answered && g.answer.wanted == answer.wanted && g.answer.code == answer.code && g.answer.error == answer.error;
  g.answered = 1;
  g.answer = answer;
  if (!same || !g.said) Say();
}

static void Apply(uint32_t wanted) {
  // What is off because we never switched it on is not touched: it may be another's.
  if (wanted == 0 && !g.subscribed && !g.marker_on) {
    Answer(wanted, kOff, kOff, kMsptiOk);
    return;
  }
  const int error = wanted != 0 ? SwitchOn(wanted) : SwitchOff();
  if (wanted != 0 && !g.subscribed) {
    Answer(wanted, kFailed, kOff, error);  // communication's state is unknown, which counts as off
    return;
  }
  const int communication = (wanted & kMsptiCommunication) != 0;
  const int result = communication ? g.api.enable_domain("communication") : g.api.disable_domain("communication");
  const enum Outcome of_default = error != kMsptiOk ? kFailed : (wanted & kMsptiDefault) != 0 ? kOn : kOff;
  const enum Outcome of_communication = result != kMsptiOk ? kFailed : communication ? kOn : kOff;
  Answer(wanted, of_default, of_communication, error != kMsptiOk ? error : result);
}

int MsptiStep(int64_t now_ms) {
  const uint32_t all_wanted = g.config.wanted(g.config.context);
  if (all_wanted != g.wanted) {
    Store32(&g.wanted, all_wanted);
    g.said = 0;
    if (g.subscribed) Flush();
  }
  const uint32_t wanted = all_wanted & kMsptiAllDomains;
  const int changed = !g.answered || wanted != g.answer.wanted;
  if (changed || (g.answer.error != kMsptiOk && now_ms >= g.retry_at_ms)) {
    const int doubled = g.retry_ms * 2 < kMaxRetryMs ? g.retry_ms * 2 : kMaxRetryMs;
    g.retry_ms = changed || g.retry_ms == 0 ? kFirstRetryMs : doubled;
    g.retry_at_ms = now_ms + g.retry_ms;
    Apply(wanted);
  } else if (!g.said) {
    Say();
  }
  if (g.subscribed && now_ms >= g.flush_at_ms) {
    g.flush_at_ms = now_ms + kFlushMs;
    Flush();
  }
  const uint64_t emitted = Counted(&g.emitted);
  const enum DrainResult drained = DrainOne();
  if (emitted == 0 && Counted(&g.emitted) != 0) RegisterExitHandler(2);
  if (drained == kDrainRefused) return kBacklogMs;
  if (drained == kDrainedOne) return 0;
  int64_t wait_ms = kIdleMs;
  if (g.subscribed && g.flush_at_ms - now_ms < wait_ms) wait_ms = g.flush_at_ms - now_ms;
  if (g.answer.error != kMsptiOk && g.retry_at_ms - now_ms < wait_ms) wait_ms = g.retry_at_ms - now_ms;
  return wait_ms > 0 ? (int)wait_ms : 0;
}

// ---- Finding it.

static const char kName[] = "libmspti.so";

static int OnObject(struct dl_phdr_info* info, size_t bytes, void* argument) {
  (void)bytes;
  const char* slash = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
  const char* base = slash != NULL ? slash + 1 : info->dlpi_name;
  if (base == NULL || strncmp(base, kName, sizeof(kName) - 1) != 0) return 0;
  if (base[sizeof(kName) - 1] != '\0' && base[sizeof(kName) - 1] != '.') return 0;
  *(const char**)argument = info->dlpi_name;
  return 1;
}

static void* OpenFile(const char* path) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return dlopen(path, RTLD_NOW | RTLD_GLOBAL);  // they refuse RTLD_DEEPBIND
#else
  return dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
#endif
}

static const char kDefaultPlace[] = "/usr/local/Ascend/ascend-toolkit/latest/lib64/libmspti.so";

// The next file of that name in LD_LIBRARY_PATH from *list on, which moves behind it; 0: there is none.
// The linker has its own copy of the variable, of the program's start.
static int NextInLibraryPath(const char** list, char* path) {
  while (*list != NULL && **list != '\0') {
    const char* folder = *list;
    const size_t bytes = strcspn(folder, ":");
    *list += bytes + (folder[bytes] == ':');
    if (bytes == 0 || bytes >= PATH_MAX - 16) continue;
    snprintf(path, PATH_MAX, "%.*s/libmspti.so", (int)bytes, folder);
    if (access(path, R_OK) == 0) return 1;
  }
  return 0;
}

static const char* LoadedLibrary(void) {
  const char* loaded = NULL;
  dl_iterate_phdr(OnObject, &loaded);
  return loaded;
}

// What `ldconfig -p` prints.
static int IsInLinkerCache(void) {
  const int file = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  struct stat info;
  int found = 0;
  if (file >= 0 && fstat(file, &info) == 0 && info.st_size > 0) {
    void* cache = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (cache != MAP_FAILED) {
      found = memmem(cache, (size_t)info.st_size, kName, sizeof(kName) - 1) != NULL;
      munmap(cache, (size_t)info.st_size);
    }
  }
  if (file >= 0) close(file);
  return found;
}

int MsptiMayBeThere(void) {
  char path[PATH_MAX];
  const char* list = getenv("LD_LIBRARY_PATH");
  return LoadedLibrary() != NULL || NextInLibraryPath(&list, path) || IsInLinkerCache() ||
         access(kDefaultPlace, R_OK) == 0;
}

static void* OpenLibrary(void) {
  char path[PATH_MAX];
  const char* loaded = LoadedLibrary();
  void* library = loaded != NULL ? dlopen(loaded, RTLD_NOW | RTLD_NOLOAD) : NULL;
  for (const char* list = getenv("LD_LIBRARY_PATH"); library == NULL && NextInLibraryPath(&list, path);) {
    library = OpenFile(path);
  }
  if (library == NULL) library = OpenFile(kName);
  if (library == NULL) library = OpenFile(kDefaultPlace);
  return library;
}

// The function that is missing, null: none is.
static const char* FillApi(void* library, Api* api) {
  const struct {
    const char* name;
    void* slot;
  } functions[] = {
      {"msptiActivityEnable", &api->enable},
      {"msptiActivityDisable", &api->disable},
      {"msptiActivityGetNextRecord", &api->get_next_record},
      {"msptiActivityRegisterCallbacks", &api->register_callbacks},
      {"msptiActivityFlushAll", &api->flush_all},
      {"msptiActivityEnableMarkerDomain", &api->enable_domain},
      {"msptiActivityDisableMarkerDomain", &api->disable_domain},
      {"msptiSubscribe", &api->subscribe},
      {"msptiUnsubscribe", &api->unsubscribe},
  };
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    void* function = dlsym(library, functions[i].name);
    if (function == NULL) return functions[i].name;
    memcpy(functions[i].slot, &function, sizeof(function));
  }
  return NULL;
}

// Never given back: MSPTI may hold a buffer for as long as the process lives. Pages are only taken as they are written.
static int MapPool(void) {
  if (g.scrap != NULL) return 1;
  const size_t bytes = (size_t)(kMsptiPoolBuffers + 1) * kMsptiBufferBytes;
  void* base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return 0;
  uint8_t* data = (uint8_t*)base;
  for (int i = 0; i < kMsptiPoolBuffers; ++i) g.slots[i].data = data + (size_t)i * kMsptiBufferBytes;
  g.scrap = data + (size_t)kMsptiPoolBuffers * kMsptiBufferBytes;
  return 1;
}

static int Open(const char** missing) {
  g.answered = 0;
  g.retry_ms = 0;
  if (missing != NULL) *missing = NULL;
  if (g.open) return 0;
  void* library = OpenLibrary();
  if (library == NULL || !MapPool()) return 1;
  const char* lacks = FillApi(library, &g.api);
  if (missing != NULL) *missing = lacks;
  if (lacks != NULL) return 2;
  g.open = 1;
  return 0;
}

static void Configure(const MsptiConfig* config) {
  g.config = *config;
  __atomic_store_n(&g.shared_dropped, config->dropped, __ATOMIC_RELEASE);
}

int MsptiOpen(const MsptiConfig* config, const char** missing) {
  Configure(config);
  return Open(missing);
}

// ---- The thread.

static void ReadTheRest(int64_t until_ms) {
  enum DrainResult drained;
  while ((drained = DrainOne()) != kDrainedAll && NowMs() < until_ms && !Load32(&g.exited)) {
    const struct timespec pause = {0, 2000000};
    if (drained == kDrainRefused) nanosleep(&pause, NULL);
  }
  if (g.pending) CountDropped(1);
  for (int i = 0; i < kMsptiPoolBuffers; ++i) {
    Slot* slot = &g.slots[i];
    if (Load32(&slot->state) != kSlotFull) continue;
    const size_t left = slot == g.reading ? slot->valid_bytes - g.read_bytes : slot->valid_bytes;
    CountDropped(left / kMsptiMarkerBytes);
    if (slot == g.reading && !Load32(&g.exited)) {
      uint8_t* ignored = NULL;
      g.api.get_next_record(slot->data, 0, &ignored);  // its thread-local place
    }
    Store32(&slot->state, kSlotFree);
  }
  g.reading = NULL;
  g.pending = 0;
}

static void Finish(enum MsptiStopKind kind) {
  if (!g.open) return;
  if (g.subscribed) {
    if (kind == kMsptiRelease) {
      Apply(0);
    } else {
      Flush();
    }
  }
  Store32(&g.accept, 0);
  ReadTheRest(__atomic_load_n(&g.stop_by_ms, __ATOMIC_RELAXED));
}

static void* Run(void* unused) {
  (void)unused;
  prctl(PR_SET_NAME, "taskd-mspti");
  const char* missing = NULL;
  const int usable = Open(&missing) == 0;
  if (missing != NULL && g.config.unusable != NULL) g.config.unusable(g.config.context, missing);
  for (;;) {
    const uint32_t* word = g.config.wake_word != NULL ? g.config.wake_word : &g.own_word;
    const uint32_t seen = Load32(word);
    if (Load32(&g.stop_kind) != 0 || !usable) break;
    FutexWait(word, seen, MsptiStep(NowMs()));
  }
  Finish((enum MsptiStopKind)Load32(&g.stop_kind));
  Store32(&g.thread, kThreadNone);
  FutexWake(&g.thread);
  return NULL;
}

int MsptiStart(const MsptiConfig* config) {
  enum { kStackBytes = 256 * 1024 };  // MSPTI's calls come out of it
  if (Load32(&g.forked) || Load32(&g.exited)) return -1;
  if (!MsptiMayBeThere()) return 0;
  uint32_t none = kThreadNone;
  if (!__atomic_compare_exchange_n(&g.thread, &none, kThreadRuns, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return 0;
  Store32(&g.stop_kind, 0);
  Configure(config);
  pthread_attr_t attributes;
  pthread_t thread;
  int error = pthread_attr_init(&attributes);
  if (error == 0) {
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    error = pthread_create(&thread, &attributes, Run, NULL);
    pthread_attr_destroy(&attributes);
  }
  if (error == 0) return 0;
  Store32(&g.thread, kThreadNone);
  return -1;
}

void MsptiWake(void) {
  uint32_t* shared = g.config.wake_word;
  if (shared == NULL) {
    __atomic_fetch_add(&g.own_word, 1, __ATOMIC_ACQ_REL);
    FutexWake(&g.own_word);
  } else {
    FutexWake(shared);  // not ours to change: the thread may miss this one and sleep out its time
  }
}

int MsptiStop(enum MsptiStopKind kind, int timeout_ms) {
  const int64_t until_ms = NowMs() + timeout_ms;
  if (Load32(&g.forked) || Load32(&g.thread) == kThreadNone) return 0;
  // Half of it for records that nobody takes; the other half is MSPTI's.
  __atomic_store_n(&g.stop_by_ms, NowMs() + timeout_ms / 2, __ATOMIC_RELAXED);
  Store32(&g.stop_kind, (uint32_t)kind);
  for (;;) {
    const uint32_t thread = Load32(&g.thread);
    if (thread == kThreadNone) return 0;
    const int64_t left_ms = until_ms - NowMs();
    if (left_ms <= 0) return -1;
    MsptiWake();
    FutexWait(&g.thread, thread, left_ms < 20 ? (int)left_ms : 20);
  }
}

static void OnExit(void) {
  MsptiStop(kMsptiAtExit, kExitMs);
  Store32(&g.accept, 0);
  // A thread that MSPTI or emit kept for longer touches nothing when it comes back.
  Store32(&g.exited, 1);
}

// Handlers of exit run last in, first out.
static void RegisterExitHandler(int count) {
  if (g.exit_handlers >= count) return;
  g.exit_handlers = count;
  atexit(OnExit);
}

void MsptiForgetInChild(void) {
  Store32(&g.forked, 1);
  Store32(&g.accept, 0);
  __atomic_store_n(&g.shared_dropped, NULL, __ATOMIC_RELEASE);
  Store32(&g.thread, kThreadNone);
}

void MsptiGetStats(MsptiStats* stats) {
  stats->subscribed = __atomic_load_n(&g.subscribed, __ATOMIC_RELAXED);
  stats->buffers_out = 0;
  for (int i = 0; i < kMsptiPoolBuffers; ++i) stats->buffers_out += Load32(&g.slots[i].state) == kSlotOut;
  stats->emitted = Counted(&g.emitted);
  stats->dropped = Counted(&g.dropped);
  stats->malformed = Counted(&g.malformed);
  stats->unknown_buffers = Counted(&g.unknown_buffers);
}
