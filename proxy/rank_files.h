// The mark files of one rank: which one is appended to, when a new one begins, and how a write that a kill interrupted
// is settled (TaskD contract §4.6; a file's name is its first second, ten digits).
//
// Not thread-safe. Two proxies must not write one rank's files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "proxy/profiling_dir.h"

namespace taskd::proxy {

inline constexpr int64_t kMaxMarkFileBytes = int64_t{10} * 1024 * 1024;  // a file above this is followed by a new one

// "1745567190": ten digits and nothing else.
bool IsMarkFileName(std::string_view name);
inline constexpr uint64_t kLastMarkFile = 9'999'999'999;
// In the note of a write that goes to no file.
inline constexpr uint64_t kNoMarkFile = UINT64_MAX;

class RankFiles {
 public:
  RankFiles(ProfilingDir dir, int rank) : dir_(std::move(dir)), rank_(rank) {}

  // False: there is no folder for them, and no function below but path() is to be called.
  bool there() const { return dir_.has_mark_files(); }

  // Where the next Append goes. A file is opened, made or followed by a new one as needed: the newest file of the rank
  // is appended to (also one of an earlier life), unless it is above the limit, does not end with a whole line, or is
  // no file that can be written: that is left alone.
  struct Target {
    uint64_t file;   // its name
    int64_t offset;  // its size
  };
  absl::StatusOr<Target> Prepare(int64_t now_unix_s);

  // Appends whole lines with one write to the file of the last Prepare. On failure nothing of them stays in the file; while
  // a part cannot be removed, Prepare fails, too.
  absl::Status Append(std::string_view lines);

  // Returns whether the write of `bytes` bytes at `offset` of `file` was done by a proxy that is gone; a part of it is
  // removed, so that the answer is yes or no. UNAVAILABLE: a process still has the file open to write; one that was
  // killed while its storage hangs may write yet.
  absl::StatusOr<bool> SettleInterruptedWrite(uint64_t file, int64_t offset, int64_t bytes);

  // Calls `visit(line)` for each line of the newest files of the rank, oldest first, at most two files.
  template <typename Visitor>
  absl::Status VisitNewestLines(Visitor visit) const;

  std::string path() const { return dir_.RankPath(rank_); }

 private:
  absl::Status OpenFile(int folder, uint64_t file, bool create);
  absl::StatusOr<std::string> ReadNewest(int count_from_newest) const;
  bool StillThere() const;
  absl::Status RemovePart();

  const ProfilingDir dir_;
  const int rank_;
  UniqueFd fd_;
  uint64_t file_ = 0;
  int64_t size_ = 0;
  bool has_part_ = false;  // behind size_, of a write that failed
};

// Content of the rank's newest (0), second newest (1), … mark file; NOT_FOUND past the oldest.
template <typename Visitor>
absl::Status RankFiles::VisitNewestLines(Visitor visit) const {
  for (int file : {1, 0}) {
    absl::StatusOr<std::string> text = ReadNewest(file);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    std::string_view rest = *text;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      visit(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace taskd::proxy
