// mstx's own library for tests, libms_tools_ext.so: its calls reach the fake MSPTI of the process, if there is one by
// then. The real way from mstx to MSPTI is not part of the contract.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_mspti.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

static struct {
  void (*mark)(const char* domain, const char* name, int stream);
  uint64_t (*range_start)(const char* domain, const char* name, int stream);
  void (*range_end)(const char* domain, uint64_t id, int stream);
  int found;
} g_tool;

// Which open ranges have a stream: their ends do not say it. A table of the last ids is enough for a test.
enum { kOpenRanges = 1 << 16 };
static uint64_t g_with_stream[kOpenRanges];

static int FindTool(void) {
  if (__atomic_load_n(&g_tool.found, __ATOMIC_ACQUIRE)) return 1;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  const struct {
    const char* name;
    void* place;
  } functions[] = {
      {"FakeMark", &g_tool.mark}, {"FakeRangeStart", &g_tool.range_start}, {"FakeRangeEnd", &g_tool.range_end}};
  int found = 1;
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    void* function = dlsym(RTLD_DEFAULT, functions[i].name);
    if (function == NULL) {
      found = 0;
      break;
    }
    memcpy(functions[i].place, &function, sizeof(function));
  }
  __atomic_store_n(&g_tool.found, found, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return found;
}

FAKE_EXPORT void* mstxDomainCreateA(const char* name) { return strdup(name); }

FAKE_EXPORT void mstxDomainDestroy(void* domain) { free(domain); }

FAKE_EXPORT void mstxDomainMarkA(void* domain, const char* message, void* stream) {
  if (FindTool()) g_tool.mark(domain, message, stream != NULL);
}

FAKE_EXPORT uint64_t mstxDomainRangeStartA(void* domain, const char* message, void* stream) {
  if (!FindTool()) return 0;
  const uint64_t id = g_tool.range_start(domain, message, stream != NULL);
  if (stream != NULL) __atomic_store_n(&g_with_stream[id % kOpenRanges], id, __ATOMIC_RELAXED);
  return id;
}

FAKE_EXPORT void mstxDomainRangeEnd(void* domain, uint64_t id) {
  if (id == 0 || !FindTool()) return;
  const int stream = __atomic_load_n(&g_with_stream[id % kOpenRanges], __ATOMIC_RELAXED) == id;
  g_tool.range_end(domain, id, stream);
}

// The functions below call those above by their public names: whoever stands in front gets these calls once more, with
// a domain that is not his.
static char g_default[] = "default";

FAKE_EXPORT void mstxMarkA(const char* message, void* stream) { mstxDomainMarkA(g_default, message, stream); }

FAKE_EXPORT uint64_t mstxRangeStartA(const char* message, void* stream) {
  return mstxDomainRangeStartA(g_default, message, stream);
}

FAKE_EXPORT void mstxRangeEnd(uint64_t id) { mstxDomainRangeEnd(g_default, id); }
