// Opens and reads files at paths that other users, or the job's own ranks, can touch. tests/check_files.py refuses open(2),
// fopen(), std::ifstream and the like elsewhere; files that are replaced as a whole are written by common/atomic_file.h.
//
// These functions never wait for a FIFO's other end, never use a device, and repeat calls that a signal interrupted. They
// take as long as the storage does. Thread safe.
//
// Errors are "PATH: WHY", with the codes NOT_FOUND (there is no such file), FAILED_PRECONDITION (it breaks the rules below),
// RESOURCE_EXHAUSTED (it is larger than the limit) and UNAVAILABLE (anything else that the system says).
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd {

// Which files are taken. All are regular ones.
struct FileRules {
  int folder = AT_FDCWD;   // descriptor of the folder that a relative path begins at
  std::string shown = {};  // what errors call the file; empty: its path
  bool follow_links =
      false;  // at the path's end: for paths that a person named, and for mounted secrets, which are links
  bool follow_own_links = false;  // one of this user's or root's, and a file of theirs may have other names
  bool only_own = false;          // belongs to this user or root, and nobody else may write to it
};

// Opens a file that is there. `flags`: the access mode, and O_APPEND. A file that is opened for writing has one name only, so
// that nothing appears in another file by a hard link.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, const FileRules& rules = {});

// The same, and makes the file where it is missing. `mode` is subject to the umask. A new file's name is never a link,
// whatever the rules say.
absl::StatusOr<UniqueFd> OpenOrCreateFile(const std::string& path, int flags, mode_t mode, const FileRules& rules = {});

// Makes a new file for writing. ALREADY_EXISTS: something has the name.
absl::StatusOr<UniqueFd> CreateFile(const std::string& path, mode_t mode, const FileRules& rules = {});

// Opens a folder for reading, openat() and fsync(). A link at the path's end is followed only where the rules allow it;
// `only_own` is not looked at: OpenOwnDir() (common/runtime_dir.h) checks the owners of all folders on the way.
absl::StatusOr<UniqueFd> OpenFolder(const std::string& path, const FileRules& rules = {});

// The whole file, from its begin or from `offset` on. An offset beyond the end gives "".
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes, const FileRules& rules = {});
absl::StatusOr<std::string> ReadOpened(int file, size_t max_bytes, const std::string& shown, uint64_t offset = 0);

// The first `max_bytes` of it from `offset` on, or what can be read.
std::string ReadSome(int file, size_t max_bytes, uint64_t offset = 0);

// The text of a file that the kernel or root makes: below /proc, /sys and /etc, or below a test's root with such files. Links
// are followed and no owner is asked for. Empty where it cannot be read; cut after 16 MiB.
std::string ReadSystemFile(const std::string& path);
std::string FirstLineOfSystemFile(const std::string& path);

// Writes all of it, in as many calls as that takes. Returns 0, or the error's number.
int WriteAll(int file, std::string_view data);

// Writes what was written to the disk. Returns 0, or the error's number; 0 for a folder of a file system that cannot do that.
int SyncFile(int file);

}  // namespace taskd
