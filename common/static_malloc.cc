// Memory in the static program is jemalloc's. Of what a manager allocates by the hundred thousand a second in one thread and
// frees in another, glibc's allocator takes a fifth more CPU time (docs/benchmarks.md).
#include <jemalloc/jemalloc.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>

extern "C" {

// MALLOC_CONF is for the training, which may run with another jemalloc: what it says is nothing to us, and what it says
// wrongly is nothing for us to complain about (ld's --wrap).
// NOLINTBEGIN(bugprone-reserved-identifier)
char* __real_secure_getenv(const char*);
char* __wrap_secure_getenv(const char* name) {
  return std::strcmp(name, "MALLOC_CONF") == 0 ? nullptr : __real_secure_getenv(name);
}
// NOLINTEND(bugprone-reserved-identifier)

// Four for each processor would be hundreds on a large host, for threads that wait most of the time.
const char* malloc_conf = "narenas:8";

// glibc's, of which a static program must not have a part.
int malloc_trim(size_t) { return mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0) == 0 ? 1 : 0; }

}  // extern "C"
