// Memory in the static program is jemalloc's. A manager allocates by the hundred thousand a second in one thread what it
// frees in another; with glibc's allocator it takes a twelfth more CPU time (docs/benchmarks.md).
#include <jemalloc/jemalloc.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <string>

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

// In place of glibc's, which would bring the rest of its allocator along: what is free goes back to the system, of all
// arenas.
int malloc_trim(size_t) {
  const std::string purge = "arena." + std::to_string(MALLCTL_ARENAS_ALL) + ".purge";
  return mallctl(purge.c_str(), nullptr, nullptr, nullptr, 0) == 0 ? 1 : 0;
}

}  // extern "C"
