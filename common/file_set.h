// Several files that are one result: each appears whole, and none before all of them have been written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/atomic_file.h"

namespace taskd {

// Files that are not committed are removed with the set. Between two names a signal may end the process: block signals around the commit where that must not be.
class FileSet {
 public:
  FileSet() = default;
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  // Writes `content` to the disk beside `path`, under a name that begins with a dot. UNAVAILABLE: path and reason.
  absl::Status Add(const std::string& path, std::string_view content);
  // The files take their names, in the order of Add; what has such a name (a symbolic link too) is replaced.
  // UNAVAILABLE: path and reason; then none of this set is there.
  absl::Status Commit();

 private:
  std::vector<FreshFile> files_;
};

}  // namespace taskd
