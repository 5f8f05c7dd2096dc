// Writes a thread's stack when a launcher asks for it (taskd/stack_dump.h). Armed at load, and only where
// TASKD_STACK_DIR is set; else one getenv is all that happens.
//
// The handler runs in training, at any instruction of it, so:
// * it takes no lock, allocates nothing and calls nothing that may. backtrace() is safe after its first call, which
//   loads libgcc_s; that one is made here, when armed. (Since glibc 2.35 and GCC 12 unwinding finds its tables without
//   the dynamic linker's lock. Before, a thread that unwinds waits for one that is in dlopen; it goes on when that one
//   does.)
// * it uses raw system calls: open(2) and write(2) of libc are cancellation points.
// * it is bounded: frames, bytes, no loop over anything that can grow.
// * it names nothing: who collects reads the names from the files of the process's modules.
//
// SA_ONSTACK, because a thread may run on a stack of a few hundred bytes (coroutines) and then has a signal stack;
// where that one is too small to unwind on, the handler reports only where the thread is. SA_RESTART; what the kernel
// does not restart after any handler (poll, nanosleep) returns EINTR to the program.
#include "taskd/stack_dump.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "taskd/own_user.h"

namespace taskd::worker {
namespace {

// What unwinding needs with room to spare (measured with the frames: below 5 KiB, and 7 on arm64, whose unwinder keeps
// 97 registers instead of 17; see stack_dump_test.cc).
#if defined(__aarch64__)
constexpr size_t kStackBytes = 12 * 1024;
#else
constexpr size_t kStackBytes = 8 * 1024;
#endif
// Frames of the handler itself that come before the interrupted one.
constexpr int kOwnFrames = 8;

// With a slash at its end. Written before sigaction: the kernel's lock around the handlers stands between that and any
// thread that runs one.
constexpr size_t kMaxPath = 512;
char g_folder[kMaxPath];
size_t g_folder_bytes;

// Text of a few hundred bytes that is written whenever it is full.
class Writer {
 public:
  explicit Writer(int fd) : fd_(fd) {}
  void Text(const char* text) {
    while (*text != '\0') Put(*text++);
  }
  void Hex(uint64_t value) {
    int shift = 60;
    while (shift > 0 && value >> shift == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) Put("0123456789abcdef"[value >> shift & 15]);
  }
  void Line(const char* what, uint64_t value) {
    Text(what);
    Hex(value);
    Put('\n');
  }
  void Flush() {
    size_t done = 0;
    while (done < used_) {
      long wrote = syscall(SYS_write, fd_, buffer_ + done, used_ - done);
      if (wrote <= 0) break;  // a full disk: then the end is missing
      done += static_cast<size_t>(wrote);
    }
    used_ = 0;
  }

 private:
  void Put(char c) {
    if (used_ == sizeof(buffer_)) Flush();
    buffer_[used_++] = c;
  }
  int fd_;
  size_t used_ = 0;
  char buffer_[512];
};

// A path of `<folder>/` and what follows.
class Path {
 public:
  Path() : used_(g_folder_bytes) { memcpy(text_, g_folder, g_folder_bytes); }
  Path& Put(char c) {
    if (used_ + 1 < sizeof(text_)) text_[used_++] = c;
    return *this;
  }
  Path& Number(uint64_t value, unsigned base) {
    char digits[20];
    int count = 0;
    do digits[count++] = "0123456789abcdef"[value % base];
    while ((value /= base) != 0);
    while (count > 0) Put(digits[--count]);
    return *this;
  }
  const char* c_str() {
    text_[used_] = '\0';
    return text_;
  }

 private:
  size_t used_;
  char text_[kMaxPath];
};

int Create(const char* path) {
  return static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600));
}

uint64_t InterruptedAt(const ucontext_t* context) {
#if defined(__x86_64__)
  return static_cast<uint64_t>(context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return context->uc_mcontext.pc;
#else
  (void)context;
  return 0;
#endif
}

bool RoomToUnwind(const ucontext_t* context) {
  const stack_t& stack = context->uc_stack;  // the thread's signal stack when the signal came
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const auto begin = reinterpret_cast<uintptr_t>(stack.ss_sp);
  const bool on_it = stack.ss_size != 0 && here >= begin && here < begin + stack.ss_size;
  return !on_it || here - begin >= kStackBytes;
}

// Not inlined: its frames are on the stack only where there is room.
__attribute__((noinline)) void WriteFrames(Writer& writer, uint64_t at) {
  void* frames[kMaxStackFrames + kOwnFrames];
  const int count = backtrace(frames, kMaxStackFrames + kOwnFrames);
  int first = 0;
  while (first < count && reinterpret_cast<uint64_t>(frames[first]) != at) ++first;
  if (first == count) return;  // the interrupted frame was not reached: what there is, is only our own
  for (int i = first + 1; i < count; ++i) writer.Line("from ", reinterpret_cast<uint64_t>(frames[i]));
  if (count == kMaxStackFrames + kOwnFrames) writer.Text("more\n");
}

void OnStackSignal(int, siginfo_t* info, void* context_pointer) {
  if (info->si_code != SI_QUEUE) return;  // a stray kill: it carries no collection
  const int saved_errno = errno;
  const auto* context = static_cast<const ucontext_t*>(context_pointer);
  const auto collection = reinterpret_cast<uint64_t>(info->si_value.sival_ptr);
  const auto pid = static_cast<uint64_t>(syscall(SYS_getpid));
  const auto tid = static_cast<uint64_t>(syscall(SYS_gettid));
  Path path;
  path.Number(collection, 16).Put('/').Number(pid, 10).Put('.').Number(tid, 10);
  const int fd = Create(path.c_str());
  if (fd >= 0) {
    Writer writer(fd);
    const uint64_t at = InterruptedAt(context);
    writer.Line("self ", static_cast<uint64_t>(pthread_self()));
    writer.Line("at ", at);
    if (RoomToUnwind(context)) {
      WriteFrames(writer, at);
    } else {
      writer.Text("short\n");
    }
    writer.Text("end\n");
    writer.Flush();
    syscall(SYS_close, fd);
  }
  errno = saved_errno;
}

// Only a folder that nobody else can write: what is created there is trusted by who collects it.
bool TakeFolder() {
  const char* folder = getenv("TASKD_STACK_DIR");
  if (folder == nullptr || folder[0] != '/') return false;
  if (strlen(folder) + 64 > kMaxPath) return false;
  struct stat status;
  if (lstat(folder, &status) != 0 || !S_ISDIR(status.st_mode) || !IsOwnUser(status.st_uid) ||
      (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return false;
  }
  char* end = stpcpy(g_folder, folder);
  *end++ = '/';
  g_folder_bytes = static_cast<size_t>(end - g_folder);
  return true;
}

__attribute__((constructor)) void ArmStackDump() {
  const int saved_errno = errno;
  struct sigaction action = {};
  if (TakeFolder() && sigaction(StackSignal(), nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
      action.sa_handler == SIG_DFL) {
    void* frame;
    backtrace(&frame, 1);
    action = {};
    action.sa_sigaction = OnStackSignal;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(StackSignal(), &action, nullptr) == 0) {
      Path path;
      path.Number(static_cast<uint64_t>(getpid()), 10);
      for (const char* c = ".armed"; *c != '\0'; ++c) path.Put(*c);
      const int fd = Create(path.c_str());
      if (fd >= 0) syscall(SYS_close, fd);
    }
  }
  errno = saved_errno;
}

}  // namespace
}  // namespace taskd::worker
