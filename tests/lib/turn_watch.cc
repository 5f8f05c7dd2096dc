// Preload for a program whose event loops are tested: the CPU time that a thread takes from the return of epoll_wait() to
// its next call. Whenever a turn is the longest of the process so far, and longer than a millisecond, a line with its
// milliseconds is added to the file that TASKD_TURN_LOG names. The clock is the thread's CPU clock: a busy machine makes
// turns no longer.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace {

constexpr int64_t kShortNs = 1'000'000;

std::atomic<int64_t> longest_ns = kShortNs;
thread_local int64_t turn_began_ns = 0;

int64_t ThreadCpuNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void TurnTook(int64_t ns) {
  int64_t before = longest_ns;
  while (ns > before && !longest_ns.compare_exchange_weak(before, ns)) {
  }
  const char* path = getenv("TASKD_TURN_LOG");
  if (ns <= before || path == nullptr) return;
  char line[32];
  const int size = snprintf(line, sizeof(line), "%.1f\n", static_cast<double>(ns) / 1e6);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, line, static_cast<size_t>(size));
  close(fd);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int epoll_wait(int epoll, epoll_event* events, int most,
                                                                 int timeout) {
  static const auto real = reinterpret_cast<decltype(&epoll_wait)>(dlsym(RTLD_NEXT, "epoll_wait"));
  if (turn_began_ns != 0) TurnTook(ThreadCpuNs() - turn_began_ns);
  const int count = real(epoll, events, most, timeout);
  turn_began_ns = ThreadCpuNs();
  return count;
}
