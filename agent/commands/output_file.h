// A result file that is there whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace taskd::commands {

// Written beside its target under a name that begins with a dot, and renamed by Commit. Where the target is a symbolic
// link, what it points to is replaced; "-" (stdout), pipes and devices are written as they are. A signal that ends the
// process removes what is not committed. One at a time in a process.
class OutputFile {
 public:
  // INVALID_ARGUMENT: it cannot be created there.
  static absl::StatusOr<OutputFile> Create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  // What is not committed is removed.
  ~OutputFile();

  absl::Status Write(std::string_view data);
  absl::Status Commit();

 private:
  OutputFile() = default;

  std::string path_;       // as the user gave it
  std::string target_;     // without symbolic links
  std::string temporary_;  // empty: written directly
  int fd_ = -1;
};

}  // namespace taskd::commands
