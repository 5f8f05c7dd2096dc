#include "agent/stacks/proc_facts.h"

#include <dirent.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace taskd::stacks {
namespace {

std::vector<pid_t> ReadTids(pid_t pid) {
  std::vector<pid_t> tids;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(absl::StrCat("/proc/", pid, "/task").c_str()), closedir);
  if (folder == nullptr) return tids;
  while (const dirent* entry = readdir(folder.get())) {
    pid_t tid = 0;
    if (absl::SimpleAtoi(entry->d_name, &tid) && tid > 0) tids.push_back(tid);
  }
  std::sort(tids.begin(), tids.end(), [pid](pid_t a, pid_t b) { return (a == pid) != (b == pid) ? a == pid : a < b; });
  return tids;
}

}  // namespace

std::string SyscallName(long number) {
  static constexpr struct {
    long number;
    const char* name;
  } kNames[] = {
      {SYS_futex, "futex"},
      {SYS_read, "read"},
      {SYS_write, "write"},
      {SYS_readv, "readv"},
      {SYS_writev, "writev"},
      {SYS_pread64, "pread64"},
      {SYS_pwrite64, "pwrite64"},
      {SYS_ppoll, "ppoll"},
      {SYS_pselect6, "pselect6"},
      {SYS_epoll_pwait, "epoll_pwait"},
      {SYS_recvfrom, "recvfrom"},
      {SYS_recvmsg, "recvmsg"},
      {SYS_sendto, "sendto"},
      {SYS_sendmsg, "sendmsg"},
      {SYS_accept, "accept"},
      {SYS_accept4, "accept4"},
      {SYS_connect, "connect"},
      {SYS_ioctl, "ioctl"},
      {SYS_nanosleep, "nanosleep"},
      {SYS_clock_nanosleep, "clock_nanosleep"},
      {SYS_sched_yield, "sched_yield"},
      {SYS_wait4, "wait4"},
      {SYS_waitid, "waitid"},
      {SYS_flock, "flock"},
      {SYS_fsync, "fsync"},
      {SYS_fdatasync, "fdatasync"},
      {SYS_openat, "openat"},
      {SYS_close, "close"},
      {SYS_munmap, "munmap"},
      {SYS_madvise, "madvise"},
      {SYS_io_getevents, "io_getevents"},
      {SYS_rt_sigtimedwait, "rt_sigtimedwait"},
      {SYS_rt_sigsuspend, "rt_sigsuspend"},
      {SYS_semtimedop, "semtimedop"},
      {SYS_restart_syscall, "restart_syscall"},
#ifdef SYS_poll  // what arm64 does not have
      {SYS_poll, "poll"},
      {SYS_select, "select"},
      {SYS_epoll_wait, "epoll_wait"},
      {SYS_pause, "pause"},
#endif
  };
  for (const auto& entry : kNames) {
    if (entry.number == number) return entry.name;
  }
  return absl::StrCat("system call ", number);
}

ProcStatus ReadStatus(pid_t pid, pid_t tid) {
  ProcStatus status;
  std::ifstream file(absl::StrCat("/proc/", pid, "/task/", tid, "/status"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "State:") {
      words >> status.state;
    } else if (name == "SigBlk:") {
      words >> std::hex >> status.blocked;
    } else if (name == "SigCgt:") {
      words >> std::hex >> status.caught;
    } else if (name == "SigPnd:") {
      words >> std::hex >> status.pending;
    }
  }
  return status;
}

std::string ReadComm(pid_t pid) { return FirstLineOfSystemFile(absl::StrCat("/proc/", pid, "/comm")); }

std::vector<pid_t> ReadChildren(pid_t pid) {
  std::vector<pid_t> children;
  for (pid_t tid : ReadTids(pid)) {
    std::istringstream words(FirstLineOfSystemFile(absl::StrCat("/proc/", pid, "/task/", tid, "/children")));
    std::copy(std::istream_iterator<pid_t>(words), {}, std::back_inserter(children));
  }
  return children;
}

std::vector<ThreadStack> ReadThreads(pid_t pid, size_t limit) {
  std::vector<ThreadStack> threads;
  for (pid_t tid : ReadTids(pid)) {
    if (threads.size() == limit) break;
    const std::string folder = absl::StrCat("/proc/", pid, "/task/", tid);
    ThreadStack thread;
    thread.tid = tid;
    thread.name = FirstLineOfSystemFile(folder + "/comm");
    thread.state = ReadStatus(pid, tid).state;
    thread.wchan = FirstLineOfSystemFile(folder + "/wchan");
    if (thread.wchan == "0") thread.wchan.clear();
    // "202 0x7f... ...", "running", or "-1 ..." outside of a call.
    std::istringstream words(FirstLineOfSystemFile(folder + "/syscall"));
    std::string call;
    words >> call;
    long number = -1;
    thread.syscall = absl::SimpleAtoi(call, &number) ? (number >= 0 ? SyscallName(number) : "") : call;
    if (thread.state.empty()) continue;  // it has ended meanwhile
    threads.push_back(std::move(thread));
  }
  return threads;
}

}  // namespace taskd::stacks
