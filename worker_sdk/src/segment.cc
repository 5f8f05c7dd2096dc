#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "taskd/hello.h"
#include "taskd/own_user.h"

namespace taskd::worker {
namespace {

// A program that closed its stderr must not find its next message in our segment.
int MoveAboveStdio(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(fd);
  return moved;
}

// As getdents64(2) fills them in.
struct DirectoryEntry {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[];
};

constexpr time_t kAbandonedSeconds = 600;
// /dev/shm belongs to the training first (data loaders and collectives pass their data there; a container gives 64 MB
// by default). With less than this left we take memory elsewhere, or none.
constexpr uint64_t kShmReserveBytes = uint64_t{256} * 1024 * 1024;

// Whether `bytes` more in the file system of `fd` leave others their room.
bool LeavesRoom(int fd, uint64_t bytes) {
  struct statvfs info;
  return fstatvfs(fd, &info) == 0 && uint64_t{info.f_bavail} * info.f_frsize >= bytes + kShmReserveBytes;
}

// A memfd lies in no file system that could fill up.
bool IsShmFile(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

void NamePrefix(const char* socket_path, char* prefix, size_t bytes) {
  snprintf(prefix, bytes, "taskd-%u-%016llx-", geteuid(),
           static_cast<unsigned long long>(hello::HashSocketPath(socket_path)));
}

// Calls visit(folder, name, fd, stat) for each file of this user that has a segment's name, but for the one with inode
// `own`: closing that would give up our lock. Until visit is false, or `most` entries of the folder have been looked at.
template <typename Visit>
void VisitSegments(const char* socket_path, ino_t own, size_t most, Visit visit) {
  char prefix[48];
  NamePrefix(socket_path, prefix, sizeof(prefix));
  const int folder = open(hello::kSegmentFolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  // Not opendir: it allocates, and a thread of ours must hold no lock of an allocator while the program forks.
  alignas(DirectoryEntry) char entries[4096];
  ssize_t bytes;
  bool more = true;
  while (more && (bytes = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0) {
    for (ssize_t at = 0; more && at < bytes;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->length;
      if (most == 0) {
        more = false;
        break;
      }
      --most;
      struct stat info;
      if (strncmp(entry->name, prefix, strlen(prefix)) != 0) continue;
      if (fstatat(folder, entry->name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_ino == own) continue;
      if (!IsOwnUser(info.st_uid)) continue;
      const int fd = openat(folder, entry->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
      if (fd < 0) continue;
      more = visit(folder, entry->name, fd, info);
      close(fd);
    }
  }
  close(folder);
}

// 0: there is none, or /proc does not show it.
pid_t ParentOf(pid_t pid) {
  char path[32];
  char text[512];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t bytes = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (bytes <= 0) return 0;
  text[bytes] = '\0';
  const char* name_end = strrchr(text, ')');  // ") S 4711 ..."
  return name_end == nullptr || strlen(name_end) < 5 ? 0 : static_cast<pid_t>(strtol(name_end + 4, nullptr, 10));
}

bool IsAncestor(pid_t wanted) {
  constexpr int kGenerations = 64;
  pid_t pid = getppid();
  for (int i = 0; i < kGenerations && pid > 1; ++i, pid = ParentOf(pid)) {
    if (pid == wanted) return true;
  }
  return false;
}

template <typename Field>
bool ReadField(int fd, size_t offset, Field& field) {
  return pread(fd, &field, sizeof(field), static_cast<off_t>(offset)) == sizeof(field);
}

// Whether the segment behind `fd` is rank's, was never taken on by a proxy, and belongs to no living process.
bool IsAbandoned(int fd, int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  uint64_t magic = 0;
  int32_t its_rank = -1;
  uint32_t attached = 1;
  return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
         ReadField(fd, offsetof(ring::SegmentHeader, magic), magic) &&
         ReadField(fd, offsetof(ring::SegmentHeader, rank), its_rank) &&
         ReadField(fd, offsetof(ring::SegmentHeader, attached), attached) && magic == ring::kMagic &&
         its_rank == rank && attached == 0;
}

// Whether an ancestor of ours records as `rank` into the segment behind `fd`.
bool IsAncestors(int fd, int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  int32_t its_rank = -1;
  uint32_t threads = 0;
  return ReadField(fd, offsetof(ring::SegmentHeader, rank), its_rank) && its_rank == rank &&
         ReadField(fd, offsetof(ring::SegmentHeader, slots), threads) && threads > 0 &&
         fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && IsAncestor(lock.l_pid);
}

int OpenShmFile(const char* socket_path, uint64_t unique, char* path, size_t path_bytes) {
  for (int attempt = 0; attempt < 8; ++attempt, unique += 0x9e3779b97f4a7c15) {
    char prefix[48];
    NamePrefix(socket_path, prefix, sizeof(prefix));
    snprintf(path, path_bytes, "%s/%s%d-%016llx", hello::kSegmentFolder, prefix, getpid(),
             static_cast<unsigned long long>(unique));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return -1;
    fd = MoveAboveStdio(fd);
    if (fd < 0) unlink(path);
    return fd;
  }
  return -1;
}

// A byte in each page takes the page's memory, or fails where there is none. Nothing of ours is there yet.
bool WritePages(int fd, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kPageBytes = 4096;
  for (uint64_t at = kPageBytes - 1; at < bytes; at += kPageBytes) {
    if (pwrite(fd, "", 1, static_cast<off_t>(offset + at)) != 1) return false;
  }
  return true;
}

// Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which ends the process.
bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < offset + bytes) {
    return false;
  }
  const int error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  // Filters of system calls know few by name.
  if (error == EPERM || error == ENOSYS) return WritePages(fd, offset, bytes);
  return error == 0;
}

void* MapShared(int fd, uint64_t offset, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
  return base == MAP_FAILED ? nullptr : base;
}

// Takes the descriptor: on failure it is closed.
bool SetUp(int fd, Segment& segment) {
  if (fd < 0) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  struct stat info;
  void* base = nullptr;
  // The lock comes first: a proxy that finds the file takes one without a lock for a dead rank's.
  if (fcntl(fd, F_SETLK, &lock) == 0 && Allocate(fd, 0, ring::kDataOffset) && fstat(fd, &info) == 0) {
    base = MapShared(fd, 0, ring::kDataOffset);
  }
  if (base == nullptr) {
    close(fd);
    return false;
  }
  segment = {fd, info.st_dev, info.st_ino, static_cast<ring::SegmentHeader*>(base)};
  return true;
}

}  // namespace

bool CreateSegment(const char* socket_path, uint64_t unique, Segment& segment) {
  char path[128];
  int fd = OpenShmFile(socket_path, unique, path, sizeof(path));
  if (fd >= 0) {
    if (!LeavesRoom(fd, ring::kDataOffset + ring::kLargeRingBytes)) {
      close(fd);
    } else if (SetUp(fd, segment)) {
      return true;
    }
    unlink(path);
  }
  return SetUp(MoveAboveStdio(memfd_create("taskd", MFD_CLOEXEC)), segment);
}

char* AddRing(const Segment& segment, uint32_t index) {
  if (!OwnsDescriptor(segment)) return nullptr;
  ring::ThreadSlot& slot = segment.header->thread_slots[index];
  const uint64_t large = index < ring::kLargeRings ? index : ring::kLargeRings;
  const uint64_t offset = ring::kDataOffset + large * ring::kLargeRingBytes + (index - large) * ring::kSmallRingBytes;
  const uint64_t bytes = RingBytes(index);
  if (IsShmFile(segment.fd) && !LeavesRoom(segment.fd, bytes)) return nullptr;
  if (!Allocate(segment.fd, offset, bytes)) return nullptr;
  void* base = MapShared(segment.fd, offset, bytes);
  if (base == nullptr) return nullptr;
  slot.data_offset = offset;
  slot.data_bytes = bytes;
  return static_cast<char*>(base);
}

void RemoveIfRead(const Segment& segment) {
  if (!OwnsDescriptor(segment)) return;
  const uint32_t slots = segment.header->slots.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < slots && i < ring::kMaxThreads; ++i) {
    const ring::ThreadSlot& slot = segment.header->thread_slots[i];
    // Relaxed: the proxy moves its cursor after the write, and nothing else of it is read here.
    if (slot.head.load(std::memory_order_relaxed) != slot.consumed.load(std::memory_order_relaxed)) return;
  }
  char link[32];
  char path[128];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", segment.fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  const size_t folder = sizeof(hello::kSegmentFolder) - 1;
  if (length <= 0 || strncmp(path, hello::kSegmentFolder, folder) != 0) return;
  path[length] = '\0';
  unlink(path);
}

void RemoveAbandoned(const Segment& own, const char* socket_path, int rank) {
  const time_t now = time(nullptr);
  // The proxy is asked after this, and another user may have made any number of files there.
  constexpr size_t kMostEntries = 16384;
  VisitSegments(socket_path, own.inode, kMostEntries,
                [&](int folder, const char* name, int fd, const struct stat& info) {
                  if (now - info.st_mtime >= kAbandonedSeconds && IsAbandoned(fd, rank)) unlinkat(folder, name, 0);
                  return true;
                });
}

bool AncestorRecordsAs(const char* socket_path, int rank) {
  bool found = false;
  VisitSegments(socket_path, 0, SIZE_MAX, [&](int, const char*, int fd, const struct stat&) {
    found = IsAncestors(fd, rank);
    return !found;
  });
  return found;
}

bool OwnsDescriptor(const Segment& segment) {
  struct stat info;
  return segment.fd >= 0 && fstat(segment.fd, &info) == 0 && info.st_dev == segment.device &&
         info.st_ino == segment.inode;
}

}  // namespace taskd::worker
