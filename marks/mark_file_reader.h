// Reads mark files (TaskD contract §4.5-4.6), whoever wrote them: a line, or all files of one rank in the order of
// time.
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

// One line, without its line feed. The views of the record point into `line` or `storage`. The contract's exact form is
// read fast; any other order of keys and any spaces are read too. Nothing: not a mark.
std::optional<MarkRecord> ParseMarkRecord(std::string_view line, std::string& storage);

// The files of one rank's directory as one stream of records, in bounded memory whatever the files hold.
// Files are those named by digits, in the order of the number; anything else, symbolic links too, is left alone.
// Not thread-safe.
class MarkFileReader {
 public:
  // NOT_FOUND: there is no such directory. FAILED_PRECONDITION: it is a symbolic link or no directory.
  static absl::StatusOr<MarkFileReader> Open(const std::string& rank_dir);

  // The next record; its views are valid until the next call. False: the end for now; a later call reads on there. A line
  // without a line feed, at the end of a file, counts if it is a whole mark; in the newest file it is left otherwise,
  // because it may still be being written.
  bool Next(MarkRecord& record);

  // Lines that are no marks.
  uint64_t broken_lines() const { return broken_lines_; }
  // Of all files, as they were when the directory was opened; and how much of it has been read.
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  // The first error in reading a file. The rest of that file is left out.
  const absl::Status& status() const { return status_; }

 private:
  MarkFileReader() = default;
  bool OpenNextFile();
  // More of the present file behind what is left in the buffer; false at its end.
  bool Fill();

  std::string rank_dir_;
  UniqueFd dir_;
  std::vector<std::string> files_;
  size_t next_file_ = 0;
  UniqueFd file_;
  std::vector<char> buffer_;
  size_t begin_ = 0;  // what is left in the buffer
  size_t end_ = 0;
  bool skipping_ = false;      // the rest of a line that is too long
  bool gave_partial_ = false;  // the last line was a whole record although its line feed was not there
  std::string storage_;
  uint64_t broken_lines_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t read_bytes_ = 0;
  absl::Status status_;
};

}  // namespace taskd
