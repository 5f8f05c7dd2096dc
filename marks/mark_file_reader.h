// Reads mark files (TaskD contract §4.5-4.6), including those of other writers: single lines, or all files of one rank
// in the order of time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "marks/mark_record.h"

namespace taskd {

// Parses one line without its line feed. The views of the record point into `line` or `storage`. The contract's exact
// form is fast to read; any other order of keys and any spaces are accepted too. Returns nullopt if the line is not a
// mark.
std::optional<MarkRecord> ParseMarkRecord(std::string_view line, std::string& storage);

// Reads the files of one rank's directory as one stream of records, in bounded memory whatever the files contain. Files
// are named by digits and are read in the order of their numbers. Other entries, including symbolic links, are ignored.
// Not thread-safe.
class MarkFileReader {
 public:
  // NOT_FOUND: there is no such directory. FAILED_PRECONDITION: it is a symbolic link or not a directory.
  static absl::StatusOr<MarkFileReader> Open(const std::string& rank_dir);

  // Reads the next record; its views are valid until the next call. Returns false at the present end; a later call
  // continues there. A last line that lacks its line feed counts if it is a whole mark. In the newest file an
  // incomplete last line is kept for later calls, because it may still be being written.
  bool Next(MarkRecord& record);

  // Returns the number of lines that are not marks.
  uint64_t broken_lines() const { return broken_lines_; }
  // total_bytes() is the size of all files when the directory was opened; read_bytes() is the part that has been read.
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  // Returns the first read error. The rest of that file is skipped.
  const absl::Status& status() const { return status_; }

 private:
  MarkFileReader() = default;
  bool OpenNextFile();
  // Reads more of the present file into the buffer, after its unread bytes. Returns false at the end of the file.
  bool Fill();

  std::string rank_dir_;
  UniqueFd dir_;
  std::vector<std::string> files_;
  size_t next_file_ = 0;
  UniqueFd file_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // [begin_, end_) is the unread part of the buffer
  size_t end_ = 0;
  bool skipping_ = false;      // skips the rest of a line that is too long
  bool gave_partial_ = false;  // the last line was a whole record but had no line feed yet
  std::string storage_;
  uint64_t broken_lines_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  absl::Status status_;
};

}  // namespace taskd
