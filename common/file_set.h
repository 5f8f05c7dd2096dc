// Several files that are one result: each appears whole, and none before all of them have been written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace taskd {

// Between two names a signal may end the process: block signals around the commit where that must not be.
class FileSet {
 public:
  FileSet() = default;
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;
  // What is not committed is removed.
  ~FileSet();

  // Writes `content` to the disk beside `path`, under a name that begins with a dot. UNAVAILABLE: path and reason.
  absl::Status Add(const std::string& path, std::string_view content);
  // The files take their names, in the order of Add; what has such a name (a symbolic link too) is replaced.
  // UNAVAILABLE: path and reason; then none of this set is there.
  absl::Status Commit();

 private:
  struct File {
    std::string path;
    std::string temporary;
  };
  std::vector<File> files_;
};

}  // namespace taskd
