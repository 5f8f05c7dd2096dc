#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "taskd/hello.h"

namespace taskd::worker {
namespace {

// A program that closed its stderr must not find its next message in our segment.
int MoveAboveStdio(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(fd);
  return moved;
}

int OpenShmFile(const char* socket_path, uint64_t unique, char* path, size_t path_bytes) {
  for (int attempt = 0; attempt < 8; ++attempt, unique += 0x9e3779b97f4a7c15) {
    snprintf(path, path_bytes, "%s/taskd-%u-%016llx-%d-%016llx", hello::kSegmentFolder, geteuid(),
             static_cast<unsigned long long>(hello::HashSocketPath(socket_path)), getpid(),
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

// Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which ends the process.
bool Allocate(int fd, uint64_t offset, uint64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < offset + bytes) {
    return false;
  }
  return posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
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
    if (SetUp(fd, segment)) return true;
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
  if (!Allocate(segment.fd, offset, bytes)) return nullptr;
  void* base = MapShared(segment.fd, offset, bytes);
  if (base == nullptr) return nullptr;
  slot.data_offset = offset;
  slot.data_bytes = bytes;
  return static_cast<char*>(base);
}

bool OwnsDescriptor(const Segment& segment) {
  struct stat info;
  return segment.fd >= 0 && fstat(segment.fd, &info) == 0 && info.st_dev == segment.device &&
         info.st_ino == segment.inode;
}

}  // namespace taskd::worker
