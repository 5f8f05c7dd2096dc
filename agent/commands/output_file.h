// A result file that is there whole or not at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/atomic_file.h"
#include "common/unique_fd.h"

namespace taskd::commands {

// Written beside its name under one that begins with a dot, and renamed by Commit. A symbolic link of this user's or root's is
// replaced itself: what it points to stays as it is, since anybody may have made what lies in /tmp. "-" (stdout), descriptors
// ("/dev/stdout", "/dev/fd/3"), pipes and devices are written as they are. A signal that ends the process removes what is not
// committed. One at a time in a process.
class OutputFile {
 public:
  // INVALID_ARGUMENT: it cannot be created there, or what has the name is another user's link or pipe.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  // What is not committed is removed.
  ~OutputFile();

  absl::Status Write(std::string_view data);
  absl::Status Commit();

 private:
  OutputFile() = default;

  std::string path_;                // as the user gave it
  std::optional<FreshFile> fresh_;  // none: written directly
  UniqueFd direct_;
};

}  // namespace taskd::commands
