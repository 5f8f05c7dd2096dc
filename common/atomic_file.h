// Replaces a file as a whole: a reader finds the old content or the new one, even after the machine has lost its power.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace taskd {

// A file that is being written beside its name, under a random one that begins with a dot. What is not committed is removed,
// whatever the reason. Errors are UNAVAILABLE: the path and the system's reason. Not thread safe.
class FreshFile {
 public:
  // `folder` is copied; `path` is what errors show. `mode` is subject to the umask.
  static absl::StatusOr<FreshFile> Create(int folder, const std::string& name, mode_t mode, const std::string& path);
  // In the folder of `path`, which exists.
  static absl::StatusOr<FreshFile> Create(const std::string& path, mode_t mode);
  FreshFile(FreshFile&& other) noexcept;
  FreshFile& operator=(FreshFile&&) = delete;
  ~FreshFile();

  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }
  // Its present name, in the same folder.
  const std::string& fresh_name() const { return fresh_name_; }

  absl::Status Write(std::string_view data);
  // Writes the content to the disk: without that a crash of the machine may leave the name with nothing behind it.
  absl::Status Sync();
  // Gives the file its name; what has it (a symbolic link too) is replaced, a folder is not.
  absl::Status Commit();
  // Removes the file again, after Commit(): what it has replaced does not come back.
  void Remove();
  // Writes the folder to the disk, after Commit(): else the name may be the old file's after a crash of the machine.
  absl::Status SyncFolder();
  // The open file, with its locks: only Commit(), Remove() and SyncFolder() work after that.
  UniqueFd TakeFile() { return std::move(file_); }

 private:
  FreshFile(UniqueFd folder, std::string name, std::string path);
  absl::Status Error(int error) const;

  UniqueFd folder_;
  UniqueFd file_;
  std::string name_;
  std::string path_;        // for messages
  std::string fresh_name_;  // empty: it is not there, or not any more
};

// Writes `content` beside the file `name` of the folder that the descriptor `folder` stands for, with mode 0600, and gives it
// that name. OK: it is on the disk. UNAVAILABLE: `path`, which only messages have, and the system's reason; the file is then
// as it was, unless its folder alone could not be written to the disk, and nothing stays beside it. Takes as long as the
// storage does.
absl::Status WriteFileAtomically(int folder, const std::string& name, std::string_view content,
                                 const std::string& path);

// The same of the file at `path`, in a folder that exists.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace taskd
