#include "fake_mspti.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

typedef struct __attribute__((packed, aligned(8))) FakeMarker {
  uint32_t kind, flag, source;
  uint64_t timestamp_ns, id;
  uint32_t process_id, thread_id;
  const char* name;
  const char* domain;
} FakeMarker;
_Static_assert(sizeof(FakeMarker) == 56, "contract 4.3: packed, 56 bytes");

enum { kMarker = 1, kKinds = 16, kMaxDomains = 64, kMaxText = 255, kLogBytes = 1 << 16, kMaxLater = 64 };

typedef struct Buffer {
  uint8_t* data;
  size_t bytes, valid_bytes;
  int taken;
} Buffer;

typedef struct Text {
  struct Text* next;
  char text[];
} Text;

typedef void (*RequestBuffer)(uint8_t** buffer, size_t* bytes, size_t* max_records);
typedef void (*CompleteBuffer)(uint8_t* buffer, size_t bytes, size_t valid_bytes);

// contract 4.3: one lock, taken by every record, and held while a buffer is requested.
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static RequestBuffer g_request;
static CompleteBuffer g_complete;
static Buffer g_buffer;
static int g_enabled[kKinds];
static char g_disabled_domains[kMaxDomains][kMaxText];
static int g_disabled_count;
static int g_subscriber;  // 0: none, 1: by msptiSubscribe, 2: somebody else
static int g_handle;
static Text* g_texts;  // contract 4.3: names are kept for ever
static uint64_t g_last_id;
static uint64_t g_dropped, g_rejected;
static int g_late_gone, g_all_gone;
static Buffer g_later[kMaxLater];  // full buffers whose hand-over waits, see FakeHoldHandOver
static int g_later_count, g_hold;
static uint64_t g_request_calls;
static FakeTraits g_traits = {.marker_bytes = 56};

// Results to come: function name -> code, for `times` calls (-1: all).
static struct {
  char function[64];
  int code, times;
} g_failures[16];
static char g_log[kLogBytes];

static uint64_t Now(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void Check(const int* gone, const char* function) {
  if (!__atomic_load_n(gone, __ATOMIC_ACQUIRE)) return;
  fprintf(stderr, "fake MSPTI: %s was called after its objects were destroyed\n", function);
  abort();
}

// Under the lock.
static int Enter(const char* function, const char* argument) {
  Check(&g_late_gone, function);
  const size_t used = strlen(g_log);
  snprintf(g_log + used, sizeof(g_log) - used, "%s(%s);", function, argument);
  for (size_t i = 0; i < sizeof(g_failures) / sizeof(g_failures[0]); ++i) {
    if (strcmp(g_failures[i].function, function) != 0 || g_failures[i].times == 0) continue;
    if (g_failures[i].times > 0) --g_failures[i].times;
    return g_failures[i].code;
  }
  return 0;
}

// contract 4.3: on the thread that made the record, under the lock.
static void Request(void) {
  memset(&g_buffer, 0, sizeof(g_buffer));
  size_t max_records = 0;
  ++g_request_calls;
  g_request(&g_buffer.data, &g_buffer.bytes, &max_records);
  g_buffer.taken = 1;
}

static void Complete(Buffer buffer) { g_complete(buffer.data, buffer.bytes, buffer.valid_bytes); }

// Under the lock.
static void Append(const void* record, size_t bytes) {
  if (g_request == NULL) return;
  if (!g_buffer.taken) {
    Request();
  } else if (!g_traits.flush_only &&
             g_buffer.valid_bytes * 10 >= g_buffer.bytes * 8) {  // contract 4.3: handed over at 80 %
    if (g_hold && g_later_count < kMaxLater) {
      g_later[g_later_count++] = g_buffer;
    } else {
      Complete(g_buffer);
    }
    Request();
  }
  if (g_buffer.data == NULL || bytes > g_buffer.bytes - g_buffer.valid_bytes) {
    ++g_dropped;
    return;
  }
  memcpy(g_buffer.data + g_buffer.valid_bytes, record, bytes);
  g_buffer.valid_bytes += bytes;
}

static const char* Keep(const char* text) {
  for (Text* known = g_texts; known != NULL; known = known->next) {
    if (strcmp(known->text, text) == 0) return known->text;
  }
  Text* added = malloc(sizeof(Text) + strlen(text) + 1);
  strcpy(added->text, text);
  added->next = g_texts;
  g_texts = added;
  return added->text;
}

static int DomainIsOn(const char* name) {
  for (int i = 0; i < g_disabled_count; ++i) {
    if (strcmp(g_disabled_domains[i], name) == 0) return 0;
  }
  return 1;
}

// Under the lock. `flag` without a stream: 1, 2 or 4.
static void Host(uint32_t flag, int stream, uint64_t id, const char* name, const char* domain) {
  FakeMarker marker = {.kind = kMarker,
                       .flag = stream ? flag << 3 : flag,
                       .source = 0,
                       .timestamp_ns = Now(CLOCK_REALTIME),
                       .id = id,
                       .process_id = (uint32_t)getpid(),
                       .thread_id = (uint32_t)syscall(SYS_gettid),
                       .name = name,
                       .domain = domain};
  Append(&marker, g_traits.marker_bytes);
}

static void Device(uint32_t flag, uint64_t id, uint64_t timestamp_ns) {
  FakeMarker marker = {.kind = kMarker,
                       .flag = flag << 3,
                       .source = 1,
                       .timestamp_ns = timestamp_ns,
                       .id = id,
                       .process_id = 3,  // device
                       .thread_id = 17,  // stream
                       .name = "",
                       .domain = ""};
  Append(&marker, g_traits.marker_bytes);
}

// ---- MSPTI's interface, contract 4.1.

FAKE_EXPORT int msptiSubscribe(void** subscriber, void* callback, void* user_data) {
  (void)callback;
  (void)user_data;
  pthread_mutex_lock(&g_lock);
  int result = Enter("Subscribe", "");
  if (result == 0 && subscriber == NULL) result = 1;
  if (result == 0 && g_subscriber != 0) result = 2;  // contract 4.2: multiple subscribers
  if (result == 0) {
    g_subscriber = 1;
    *subscriber = &g_handle;
  }
  pthread_mutex_unlock(&g_lock);
  return result;
}

FAKE_EXPORT int msptiUnsubscribe(void* subscriber) {
  pthread_mutex_lock(&g_lock);
  int result = Enter("Unsubscribe", "");
  if (result == 0 && g_subscriber != 0 && (g_subscriber != 1 || subscriber != &g_handle)) result = 1;
  if (result == 0) g_subscriber = 0;
  pthread_mutex_unlock(&g_lock);
  return result;
}

FAKE_EXPORT int msptiActivityRegisterCallbacks(RequestBuffer request, CompleteBuffer complete) {
  pthread_mutex_lock(&g_lock);
  int result = Enter("RegisterCallbacks", "");
  if (result == 0 && (request == NULL || complete == NULL)) result = 1;
  if (result == 0) {
    g_request = request;
    g_complete = complete;
  }
  pthread_mutex_unlock(&g_lock);
  return result;
}

static int SetKind(const char* function, int kind, int on) {
  char argument[16];
  snprintf(argument, sizeof(argument), "%d", kind);
  pthread_mutex_lock(&g_lock);
  int result = Enter(function, argument);
  if (result == 0 && (kind < 1 || kind >= kKinds)) result = 1;
  if (result == 0) g_enabled[kind] = on;
  if (result == 0 && on && g_traits.request_in_enable && g_request != NULL && !g_buffer.taken) Request();
  pthread_mutex_unlock(&g_lock);
  return result;
}
FAKE_EXPORT int msptiActivityEnable(int kind) { return SetKind("Enable", kind, 1); }
FAKE_EXPORT int msptiActivityDisable(int kind) { return SetKind("Disable", kind, 0); }

static int SetDomain(const char* function, const char* name, int on) {
  pthread_mutex_lock(&g_lock);
  int result = Enter(function, name != NULL ? name : "null");
  if (result == 0 && name == NULL) result = 1;
  if (result == 0) {
    for (int i = g_disabled_count - 1; i >= 0; --i) {
      if (strcmp(g_disabled_domains[i], name) == 0) {
        memcpy(g_disabled_domains[i], g_disabled_domains[--g_disabled_count], kMaxText);
      }
    }
    if (!on && g_disabled_count < kMaxDomains) {
      snprintf(g_disabled_domains[g_disabled_count++], kMaxText, "%s", name);
    }
  }
  pthread_mutex_unlock(&g_lock);
  return result;
}
FAKE_EXPORT int msptiActivityEnableMarkerDomain(const char* name) { return SetDomain("EnableDomain", name, 1); }
FAKE_EXPORT int msptiActivityDisableMarkerDomain(const char* name) { return SetDomain("DisableDomain", name, 0); }

FAKE_EXPORT int msptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  pthread_mutex_lock(&g_lock);
  Check(&g_all_gone, "FlushAll");
  if (g_complete != NULL) {
    for (int i = 0; i < g_later_count; ++i) Complete(g_later[i]);
    g_later_count = 0;
    if (g_buffer.taken) Complete(g_buffer);
    memset(&g_buffer, 0, sizeof(g_buffer));
  }
  pthread_mutex_unlock(&g_lock);
  return 0;
}

FAKE_EXPORT int msptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes, uint8_t** record) {
  // contract 4.3: the cursor is the thread's. Not in a block of the heap, of which the sanitizers of GCC 12 take the
  // 16 bytes before it for a header where it begins 16 bytes into a page.
  static __thread size_t position __attribute__((tls_model("initial-exec")));
  Check(&g_all_gone, "GetNextRecord");
  if (buffer == NULL) return 1;
  const size_t marker_bytes = g_traits.marker_bytes;
  if (g_traits.place_in_argument) {
    uint8_t* next = *record == NULL ? buffer : *record + marker_bytes;
    if (next >= buffer + valid_bytes) return 3;
    *record = next;
    return 0;
  }
  if (position >= valid_bytes) {
    position = 0;
    return 3;  // contract 4.2: the end of the buffer
  }
  uint32_t kind;
  memcpy(&kind, buffer + position, sizeof(kind));
  // Other kinds have other sizes; kind 3 (API) has 48 bytes here. An unknown one ends with the cursor where it is.
  const size_t bytes = kind == kMarker ? marker_bytes : kind == 3 ? 48 : 0;
  if (bytes == 0) return 8;
  *record = buffer + position;
  position += bytes;
  return 0;
}

// ---- Marks, as mstx hands them to MSPTI.

// See the end of this file.
static void DestroyLate(void) { __atomic_store_n(&g_late_gone, 1, __ATOMIC_RELEASE); }

static int Accepts(const char* name, const char* domain) {
  static int marked;
  if (__atomic_load_n(&g_all_gone, __ATOMIC_ACQUIRE)) return 0;
  if (!marked) atexit(DestroyLate);
  marked = 1;
  if (!g_enabled[kMarker]) return 0;
  if (name != NULL && strlen(name) >= kMaxText) {  // contract 4.3: up to 254 bytes
    ++g_rejected;
    return 0;
  }
  return DomainIsOn(domain);
}

FAKE_EXPORT void FakeMark(const char* domain, const char* name, int stream) {
  pthread_mutex_lock(&g_lock);
  if (Accepts(name, domain)) {
    const uint64_t id = ++g_last_id;
    Host(1, stream, id, Keep(name), Keep(domain));
    if (stream) Device(1, id, Now(CLOCK_REALTIME) + 1000);
  }
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT uint64_t FakeRangeStart(const char* domain, const char* name, int stream) {
  uint64_t id = 0;
  pthread_mutex_lock(&g_lock);
  if (Accepts(name, domain)) {
    id = ++g_last_id;
    Host(2, stream, id, Keep(name), Keep(domain));
  }
  pthread_mutex_unlock(&g_lock);
  return id;
}

// contract 4.3: with a stream 4 records, the device's after the host's; ends and device records have no name, no
// domain.
FAKE_EXPORT void FakeRangeEnd(const char* domain, uint64_t id, int stream) {
  pthread_mutex_lock(&g_lock);
  if (id != 0 && Accepts(NULL, domain)) {
    Host(4, stream, id, "", "");
    if (stream) {
      const uint64_t now_ns = Now(CLOCK_REALTIME);
      Device(2, id, now_ns + 1000);
      Device(4, id, now_ns + 2000);
    }
  }
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeAppend(const void* record, size_t bytes) {
  pthread_mutex_lock(&g_lock);
  Append(record, bytes);
  pthread_mutex_unlock(&g_lock);
}

// ---- The test's side.

FAKE_EXPORT void FakeFail(const char* function, int code, int times) {
  pthread_mutex_lock(&g_lock);
  int place = -1;
  for (int i = 0; i < (int)(sizeof(g_failures) / sizeof(g_failures[0])); ++i) {
    if (strcmp(g_failures[i].function, function) == 0) place = i;
    if (place < 0 && g_failures[i].times == 0) place = i;
  }
  if (place >= 0) {
    snprintf(g_failures[place].function, sizeof(g_failures[place].function), "%s", function);
    g_failures[place].code = code;
    g_failures[place].times = times;
  }
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeOtherSubscriber(int there) {
  pthread_mutex_lock(&g_lock);
  if (there && g_subscriber == 0) g_subscriber = 2;
  if (!there && g_subscriber == 2) g_subscriber = 0;
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeHoldHandOver(int hold) {
  pthread_mutex_lock(&g_lock);
  g_hold = hold;
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeHandOverHeld(int which) {
  pthread_mutex_lock(&g_lock);
  if (which < g_later_count) {
    Buffer buffer = g_later[which];
    memmove(&g_later[which], &g_later[which + 1], (size_t)(g_later_count - which - 1) * sizeof(Buffer));
    --g_later_count;
    Complete(buffer);
  }
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeSetTraits(const FakeTraits* traits) {
  pthread_mutex_lock(&g_lock);
  g_traits = *traits;
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeTakeLog(char* out, size_t bytes) {
  pthread_mutex_lock(&g_lock);
  snprintf(out, bytes, "%s", g_log);
  g_log[0] = '\0';
  pthread_mutex_unlock(&g_lock);
}

FAKE_EXPORT void FakeGetStats(FakeStats* stats) {
  pthread_mutex_lock(&g_lock);
  stats->dropped = g_dropped;
  stats->rejected = g_rejected;
  stats->requests = g_request_calls;
  stats->held = g_later_count;
  stats->marker_enabled = g_enabled[kMarker];
  stats->subscriber = g_subscriber;
  pthread_mutex_unlock(&g_lock);
}

// ---- Its end. The real library's objects are destroyed by exit handlers: those that it makes when it is loaded last,
// those that it makes at its first mark before them. After the second kind is gone only FlushAll and GetNextRecord are
// safe, after the first kind nothing is, nor are its strings.

static void DestroyAll(void) {
  pthread_mutex_lock(&g_lock);
  __atomic_store_n(&g_all_gone, 1, __ATOMIC_RELEASE);
  for (Text* text = g_texts; text != NULL;) {
    Text* next = text->next;
    memset(text->text, 0xdd, strlen(text->text));
    free(text);
    text = next;
  }
  g_texts = NULL;
  pthread_mutex_unlock(&g_lock);
}

__attribute__((constructor)) static void OnLoad(void) { atexit(DestroyAll); }
