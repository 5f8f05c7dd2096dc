#include "hello_client.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "runtime.h"
#include "slow_path.h"
#include "taskd/hello.h"
#include "taskd/own_user.h"

namespace taskd::worker {
namespace {

constexpr int kFirstRetryMs = 20;
constexpr int kMaxRetryMs = 500;
constexpr int kRefusedRetryMs = 5000;
constexpr size_t kStackBytes = 128 * 1024;  // the static TLS of everything that is preloaded comes out of it

enum class Outcome { kNoProxy, kRefused, kTaken, kProxyGone };

// Under the lock.
bool g_running = false;
int g_socket = -1;
ino_t g_socket_inode = 0;
std::atomic<bool> g_attached{false};    // relaxed: no other memory is published by it
std::atomic<uint32_t> g_generation{0};  // of the identity; a futex

// A program may close descriptors it does not know; ours may by now be another file's number.
bool OwnsSocket() {
  struct stat info;
  return g_socket >= 0 && fstat(g_socket, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == g_socket_inode;
}

void TakeSocket(int fd) {
  struct stat info;
  g_socket = fd;
  g_socket_inode = fstat(fd, &info) == 0 ? info.st_ino : 0;
}

void CloseSocket() {
  if (OwnsSocket()) close(g_socket);
  g_socket = -1;
}

bool SameUserOrRoot(int fd) {
  ucred peer;
  socklen_t bytes = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && IsOwnUserOrRoot(peer.uid);
}

int Connect() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const char* path = SocketPath();
  const size_t path_bytes = strlen(path);
  if (path_bytes >= sizeof(address.sun_path)) return -1;
  memcpy(address.sun_path, path, path_bytes);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Whoever else may create that path must not get at the rank's memory.
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || !SameUserOrRoot(fd)) {
    close(fd);
    return -1;
  }
  return fd;
}

bool SendHello(int fd) {
  hello::Hello message = {};
  message.magic = hello::kMagic;
  message.version = hello::kVersion;
  message.role = hello::kRoleWorker;
  message.rank = g_identity.rank.load();
  message.local_rank = g_identity.local_rank.load();
  message.pid = static_cast<uint32_t>(getpid());
  message.disk_limit_mb = static_cast<uint32_t>(g_identity.disk_limit_mb.load());
  int segment_fd;
  {
    SlowPath slow_path;
    if (!OwnsDescriptor(CurrentSegment())) return false;
    segment_fd = CurrentSegment().fd;
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data = {&message, sizeof(message)};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(rights), &segment_fd, sizeof(int));
  // All 64 bytes fit the empty buffer of a new connection at once.
  return sendmsg(fd, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message));
}

bool ReceiveAll(int fd, void* buffer, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = recv(fd, static_cast<char*>(buffer) + done, bytes - done, 0);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

Outcome Talk(int fd) {
  hello::HelloReply reply;
  if (!SendHello(fd) || !ReceiveAll(fd, &reply, sizeof(reply))) return Outcome::kNoProxy;
  if (reply.magic == hello::kMagic && reply.status == hello::kTaken) return Outcome::kTaken;
  if (reply.magic != hello::kMagic || reply.status != hello::kAccepted) return Outcome::kRefused;
  g_attached.store(true, std::memory_order_relaxed);
  char ignored[64];
  while (ReceiveAll(fd, ignored, 1)) {
  }
  g_attached.store(false, std::memory_order_relaxed);
  return Outcome::kProxyGone;
}

// Ends early when the identity changes.
void Wait(int delay_ms, uint32_t generation) {
  timespec delay = {delay_ms / 1000, delay_ms % 1000 * 1'000'000};
  syscall(SYS_futex, &g_generation, FUTEX_WAIT_PRIVATE, generation, &delay, nullptr, 0);
}

void* HelloThread(void*) {
  prctl(PR_SET_NAME, "taskd-hello");
  RemoveAbandoned(CurrentSegment(), SocketPath(), g_identity.rank.load());
  int delay_ms = kFirstRetryMs;
  for (;;) {
    const uint32_t generation = g_generation.load();
    Outcome outcome = Outcome::kNoProxy;
    int fd = Connect();
    if (fd >= 0) {
      {
        SlowPath slow_path;
        TakeSocket(fd);
        // A change before this line found no socket to shut down.
        if (g_generation.load() != generation) shutdown(fd, SHUT_RDWR);
      }
      outcome = Talk(fd);
      SlowPath slow_path;
      CloseSocket();
    }
    if (outcome == Outcome::kProxyGone || g_generation.load() != generation) delay_ms = kFirstRetryMs;
    Wait(outcome == Outcome::kRefused ? kRefusedRetryMs : delay_ms, generation);
    delay_ms = delay_ms * 2 < kMaxRetryMs ? delay_ms * 2 : kMaxRetryMs;
  }
}

}  // namespace

bool StartHelloClient() {
  g_generation.fetch_add(1);
  if (g_running) {
    if (OwnsSocket()) shutdown(g_socket, SHUT_RDWR);
    syscall(SYS_futex, &g_generation, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    return true;
  }
  // The thread inherits the mask of the slow path: every signal is blocked, the process's handlers never run on it.
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  int error = pthread_create(&thread, &attributes, HelloThread, nullptr);
  pthread_attr_destroy(&attributes);
  if (error == EINVAL) {  // static TLS larger than that stack
    error = pthread_create(&thread, nullptr, HelloThread, nullptr);
    if (error == 0) pthread_detach(thread);
  }
  g_running = error == 0;
  return g_running;
}

bool IsAttached() { return g_attached.load(std::memory_order_relaxed); }

void ForgetHelloClient() {
  CloseSocket();
  g_running = false;
  g_attached.store(false, std::memory_order_relaxed);
}

}  // namespace taskd::worker
