// Design:
// 1. Each rank's marks are folded into steps separately (marks/mark_fold.h), a chunk of its files at a time. Between
//    two chunks a rank keeps an offset and some step summaries, but no buffer. If there are many ranks, it keeps no
//    open file either.
// 2. Step summaries of all ranks are merged into the engine (readers/fold_merge.h). Clocks that differ between nodes
//    only shift the waits within a step.
#include "readers/diagnose_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "marks/mark_file_reader.h"
#include "marks/mark_fold.h"
#include "marks/parallel_group.h"
#include "readers/fold_merge.h"
#include "readers/fold_stream.h"

namespace taskd::readers {
namespace {

// Size of one read. It is small if there are many ranks: summaries of a chunk wait in memory for those of other ranks.
constexpr size_t kChunksBytes = size_t{256} << 20;
constexpr size_t kMinChunkBytes = size_t{16} << 10;
constexpr size_t kMaxChunkBytes = size_t{1} << 20;
constexpr size_t kMaxLineBytes = size_t{64} << 10;
// Descriptors for all uses except mark files.
constexpr size_t kOtherDescriptors = 64;

class RankStream final : public FoldStream {
 public:
  RankStream(const RankMarks& marks, size_t chunk_bytes, bool keep_open)
      : FoldStream(marks.rank),
        marks_(marks),
        chunk_bytes_(chunk_bytes),
        keep_open_(keep_open),
        fold_(std::make_unique<MarkFold>([this](StepFold&& step) { folds_.push_back(std::move(step)); })) {}

  void Refill(std::vector<char>& buffer) override {
    if (!std::exchange(begun_, true)) ReadGroups();
    while (!ended_ && folds_.size() < 2) {
      if (file_ == marks_.files.size()) {
        fold_->Finish();
        ended_ = true;
      } else {
        ReadChunk(buffer, chunk_bytes_);
      }
    }
    if (!keep_open_) fd_.reset();
    low_water_ = std::max<size_t>(2, folds_.size() / 2);
  }

  bool runs_low() const override { return !ended_ && folds_.size() < low_water_; }
  bool ended() const override { return ended_; }
  const std::vector<GroupInfo>& groups() const override { return fold_->groups(); }
  uint64_t groups_version() const override { return fold_->groups_version(); }
  int device_id() const { return fold_->device_id(); }
  uint64_t lines() const { return lines_; }
  uint64_t broken_lines() const { return broken_lines_; }
  uint64_t bytes_read() const { return bytes_read_; }
  // The files that could not be read; empty: none.
  const std::string& problem() const { return problem_; }

 private:
  // A rank without the file knows its groups only by name.
  void ReadGroups() {
    absl::StatusOr<std::vector<GroupInfo>> groups =
        ReadParallelGroups(absl::StrCat(marks_.folder, "/parallel_group.json"));
    if (groups.ok()) fold_->SetGroups(*groups);
  }

  void NextFile() {
    bytes_read_ += marks_.files[file_].bytes - offset_;
    fd_.reset();
    ++file_;
    offset_ = 0;
    skipping_ = false;
  }

  void SkipUnreadable(int error) {
    // Aging may have deleted the file meanwhile; such a file is treated like one that was deleted before.
    if (error != ENOENT && problem_.empty()) {
      problem_ = absl::StrCat(marks_.files[file_].path, ": ", std::strerror(error));
    }
    fold_->Lost(0);
    NextFile();
  }

  void AddLine(std::string_view line) {
    if (line.empty()) return;
    ++lines_;
    if (std::optional<MarkRecord> record = ParseMarkRecord(line, storage_)) {
      fold_->Add(*record);
    } else {
      ++broken_lines_;
      fold_->Lost(1);
    }
  }

  // Adds the whole lines of `text`. Returns their bytes, with the rest of a line that is skipped.
  size_t AddLines(std::string_view text) {
    size_t consumed = 0;
    if (skipping_) {
      size_t end = text.find('\n');
      consumed = end == std::string_view::npos ? text.size() : end + 1;
      skipping_ = end == std::string_view::npos;
    }
    while (consumed < text.size()) {
      const auto* end = static_cast<const char*>(memchr(text.data() + consumed, '\n', text.size() - consumed));
      if (end == nullptr) break;
      auto length = static_cast<size_t>(end - text.data()) - consumed;
      AddLine(text.substr(consumed, length));
      consumed += length + 1;
    }
    return consumed;
  }

  // Reads the whole lines of the next chunk.
  void ReadChunk(std::vector<char>& buffer, size_t chunk_bytes) {
    const MarkFile& file = marks_.files[file_];
    if (!fd_.valid()) {
      // O_NONBLOCK: the file may have become a pipe since it was listed.
      fd_.reset(::open(file.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (!fd_.valid()) return SkipUnreadable(errno);
    }
    size_t wanted = static_cast<size_t>(std::min<uint64_t>(chunk_bytes, file.bytes - offset_));
    ssize_t got = wanted == 0 ? 0 : ::pread(fd_.get(), buffer.data(), wanted, static_cast<off_t>(offset_));
    if (got < 0) {
      if (errno == EINTR) return;
      return SkipUnreadable(errno);
    }
    std::string_view text(buffer.data(), static_cast<size_t>(got));
    bool last = got == 0 || offset_ + text.size() == file.bytes;
    const size_t consumed = AddLines(text);
    offset_ += consumed;
    bytes_read_ += consumed;
    if (last) {
      // A line without its end is still being written, or its writer died. Neither is a defect.
      if (consumed < text.size()) {
        if (std::optional<MarkRecord> record = ParseMarkRecord(text.substr(consumed), storage_)) fold_->Add(*record);
      }
      return NextFile();
    }
    if (consumed > 0) return;
    if (chunk_bytes < kMaxLineBytes) return ReadChunk(buffer, kMaxLineBytes);
    ++lines_;
    ++broken_lines_;
    fold_->Lost(1);
    skipping_ = true;
  }

  const RankMarks& marks_;
  const size_t chunk_bytes_;
  const bool keep_open_;
  bool begun_ = false;
  size_t file_ = 0;
  uint64_t offset_ = 0;    // begin of a line in that file
  bool skipping_ = false;  // within a line that is too long
  UniqueFd fd_;
  std::string storage_;
  size_t low_water_ = 2;
  std::unique_ptr<MarkFold> fold_;
  bool ended_ = false;
  uint64_t lines_ = 0;
  uint64_t broken_lines_ = 0;
  uint64_t bytes_read_ = 0;
  std::string problem_;
};

// The number of mark files that may be open at once.
size_t DescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  rlim_t now = ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : before;
  return now > kOtherDescriptors ? static_cast<size_t>(std::min<rlim_t>(now, 1 << 20)) - kOtherDescriptors : 0;
}

class Reader {
 public:
  Reader(const MarkDirectory& directory, int threads, const ReadProgress& progress, const StepSeen& on_step)
      : directory_(directory),
        progress_(progress),
        chunk_bytes_(std::clamp(kChunksBytes / directory.ranks.size(), kMinChunkBytes, kMaxChunkBytes)),
        streams_(MakeStreams()),
        merge_(streams_, threads, std::max(chunk_bytes_, kMaxLineBytes), on_step),
        nodes_(directory.ranks.size(), kNotSent),
        device_ids_(directory.ranks.size(), -1) {}

  absl::StatusOr<diagnosis::Report> Run(const DiagnosisEnd& at_end) {
    merge_.Run([this](std::vector<diagnosis::RankPlace>& places) { return FindPlaces(places); },
               [this] {
                 if (progress_) progress_(bytes_read(), directory_.bytes);
               });
    uint64_t lines = 0, broken = 0;
    for (const auto& stream : owned_) lines += stream->lines(), broken += stream->broken_lines();
    if (lines == broken) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_.folder, " holds no marks: none of its ", lines, " lines is one"));
    }
    if (at_end) at_end(merge_.engine(), nodes_);
    diagnosis::Report report = merge_.engine().report();
    AddNotes(lines, broken, report);
    return report;
  }

 private:
  static constexpr int kNotSent = -2;

  std::vector<FoldStream*> MakeStreams() {
    const bool keep_open = directory_.ranks.size() <= DescriptorLimit();
    std::vector<FoldStream*> streams;
    for (const RankMarks& marks : directory_.ranks) {
      owned_.push_back(std::make_unique<RankStream>(marks, chunk_bytes_, keep_open));
      streams.push_back(owned_.back().get());
    }
    return streams;
  }

  uint64_t bytes_read() const {
    uint64_t bytes = 0;
    for (const auto& stream : owned_) bytes += stream->bytes_read();
    return bytes;
  }

  // Device ids are known once device records have been read, which may be late.
  bool FindPlaces(std::vector<diagnosis::RankPlace>& places) {
    bool changed = false;
    for (size_t i = 0; i < owned_.size(); ++i) {
      int id = owned_[i]->device_id();
      changed |= device_ids_[i] != id || nodes_[i] == kNotSent;
      device_ids_[i] = id;
    }
    if (!changed) return false;
    nodes_ = NodesOfRanks(directory_.ranks, device_ids_);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const RankMarks& marks = directory_.ranks[i];
      places.push_back({.node = nodes_[i], .host = marks.host, .local_rank = marks.local_rank});
    }
    return true;
  }

  void AddNotes(uint64_t lines, uint64_t broken, diagnosis::Report& report) const {
    auto note = [&](std::string text) { report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(text)}); };
    if (broken > 0) note(absl::StrCat(broken, " of ", lines, " lines are no marks and were left out"));
    std::vector<std::string> problems = directory_.problems;
    for (const auto& stream : owned_) {
      if (!stream->problem().empty()) problems.push_back(stream->problem());
    }
    if (problems.empty()) return;
    std::string more = problems.size() == 1 ? "" : absl::StrCat(" (and ", problems.size() - 1, " more)");
    note(absl::StrCat("cannot be read: ", problems[0], more));
  }

  const MarkDirectory& directory_;
  const ReadProgress& progress_;
  const size_t chunk_bytes_;
  std::vector<std::unique_ptr<RankStream>> owned_;  // in the order of MarkDirectory::ranks
  const std::vector<FoldStream*> streams_;
  FoldMerge merge_;
  std::vector<int> nodes_;  // as sent to the engine
  std::vector<int> device_ids_;
};

}  // namespace

absl::StatusOr<diagnosis::Report> DiagnoseFiles(const MarkDirectory& directory, int threads,
                                                const ReadProgress& progress, const DiagnosisEnd& at_end,
                                                const StepSeen& on_step) {
  return Reader(directory, threads, progress, on_step).Run(at_end);
}

}  // namespace taskd::readers
