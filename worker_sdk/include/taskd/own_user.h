// Whether a user id, as the kernel shows it, is this process's own user or root. Every comparison of users goes through
// here: peers of sockets, owners of files and folders.
//
// A user namespace shows whom it does not map as one id, the kernel's overflow uid (user_namespaces(7); 65534, "nobody").
// Whoever that is is nobody's own and not root, even for a process that appears as 65534 itself. Only where the
// namespace maps every id, as the initial one does, is that number a user like any other.
//
// Allocates nothing and leaves errno alone: libtaskd.so asks here too. Thread safe. Reads two files of /proc at each
// call whose answer depends on them.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace taskd {

inline constexpr uid_t kDefaultOverflowUid = 65534;

// The ids of this process's user namespace. Feed() takes the text of /proc/self/uid_map in pieces of any size: lines of
// "first id here, first id outside, how many".
class UidMap {
 public:
  void Feed(const char* text, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        number_ = number_ * 10 + static_cast<uint64_t>(text[i] - '0');
        in_number_ = true;
      } else if (in_number_) {
        fields_[field_++] = number_;
        number_ = 0;
        in_number_ = false;
        if (field_ == 3) {
          mapped_ += fields_[2];
          field_ = 0;
        }
      }
    }
  }
  // Every id but (uid_t)-1, which is none.
  bool is_whole() const { return mapped_ >= UINT32_MAX; }

 private:
  uint64_t fields_[3] = {};
  uint64_t number_ = 0;
  uint64_t mapped_ = 0;  // ranges do not overlap
  int field_ = 0;
  bool in_number_ = false;
};

namespace own_user_internal {

// Calls take(piece, bytes) until the file ends. False: it cannot be read to its end.
template <typename Take>
bool ReadProcFile(const char* path, Take take) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char piece[256];
  ssize_t bytes;
  while ((bytes = read(fd, piece, sizeof(piece))) > 0 || (bytes < 0 && errno == EINTR)) {
    if (bytes > 0) take(piece, static_cast<size_t>(bytes));
  }
  close(fd);
  return bytes == 0;
}

inline uid_t OverflowUid() {
  uint64_t uid = 0;
  bool any = false;
  const bool read_it = ReadProcFile("/proc/sys/kernel/overflowuid", [&](const char* piece, size_t bytes) {
    for (size_t i = 0; i < bytes && piece[i] >= '0' && piece[i] <= '9'; ++i) {
      uid = uid * 10 + static_cast<uint64_t>(piece[i] - '0');
      any = true;
    }
  });
  return read_it && any ? static_cast<uid_t>(uid) : kDefaultOverflowUid;
}

inline bool MapsEveryId() {
  UidMap map;
  if (ReadProcFile("/proc/self/uid_map", [&](const char* piece, size_t bytes) { map.Feed(piece, bytes); })) {
    return map.is_whole();
  }
  // A kernel without user namespaces. Without /proc nobody knows.
  return errno == ENOENT && access("/proc/self/status", F_OK) == 0;
}

}  // namespace own_user_internal

// `uid` stands for whoever this process's user namespace does not map.
inline bool IsUnmappedUser(uid_t uid) {
  const int saved_errno = errno;
  const bool is_unmapped = uid == own_user_internal::OverflowUid() && !own_user_internal::MapsEveryId();
  errno = saved_errno;
  return is_unmapped;
}

inline bool IsOwnUser(uid_t uid) { return uid == geteuid() && !IsUnmappedUser(uid); }
inline bool IsRoot(uid_t uid) { return uid == 0 && !IsUnmappedUser(uid); }
inline bool IsOwnUserOrRoot(uid_t uid) { return IsOwnUser(uid) || IsRoot(uid); }

}  // namespace taskd
