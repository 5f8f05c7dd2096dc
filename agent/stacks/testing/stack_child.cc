// A rank for stack_collector_test.cc: its main thread waits in poll, the others for a lock that nobody gives up.
//   poll N      N other threads
//   blocked N   the main thread blocks all signals
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

__attribute__((noinline)) void WaitForTheOthers(int fd) {
  pollfd wait{fd, POLLIN, 0};
  while (poll(&wait, 1, -1) < 1) {
  }
}

__attribute__((noinline)) void HoldTheLock(std::mutex& mutex) {
  std::lock_guard lock(mutex);
  abort();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::mutex mutex;
  mutex.lock();
  std::vector<std::thread> threads;
  for (int i = 0; i < atoi(argv[2]); ++i) threads.emplace_back([&mutex] { HoldTheLock(mutex); });
  if (strcmp(argv[1], "blocked") == 0) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
  }
  int fds[2];
  if (pipe(fds) != 0) return 3;
  WaitForTheOthers(fds[0]);
  abort();
}
