// Design:
// 1. Each rank's marks are folded into steps on their own (marks/mark_fold.h), a chunk of its files at a time. Between
//    two chunks a rank has neither a buffer nor, when there are many ranks, an open file: only an offset and some
//    folds.
// 2. Folds go to the engine in the order of their ends, as they would come to a manager. The next one is only known
// once every
//    rank has one, so ranks are read in rounds: first everybody who runs low, on all threads; then one thread hands
//    folds over until a rank has none left.
// 3. The engine's clock is the time in the marks. Clocks of nodes that differ only shift what one step waits for.
#include "readers/diagnose_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "diagnosis/engine.h"
#include "marks/mark_file_reader.h"
#include "marks/mark_fold.h"
#include "marks/parallel_group.h"

namespace taskd::readers {
namespace {

using diagnosis::Engine;

// Of one read. Small ones where there are many ranks: folds of a chunk wait in memory until the other ranks' are there.
constexpr size_t kChunksBytes = size_t{256} << 20;
constexpr size_t kMinChunkBytes = size_t{16} << 10;
constexpr size_t kMaxChunkBytes = size_t{1} << 20;
constexpr size_t kMaxLineBytes = size_t{64} << 10;
// As long as a step waits for its last rank (Engine::Options::step_deadline_ns).
constexpr uint64_t kGoneAfterNs = 10'000'000'000;
// Descriptors for everything but mark files.
constexpr size_t kOtherDescriptors = 64;

class RankStream {
 public:
  explicit RankStream(const RankMarks& marks)
      : marks_(marks),
        fold_(std::make_unique<MarkFold>([this](StepFold&& step) { folds_.push_back(std::move(step)); })) {
    // A rank without the file knows its groups by their names only.
    absl::StatusOr<std::vector<GroupInfo>> groups =
        ReadParallelGroups(absl::StrCat(marks.folder, "/parallel_group.json"));
    if (groups.ok()) fold_->SetGroups(*groups);
  }

  // Reads on until two folds are there (so that one is left when the others of its step are handed over), or the end.
  void Refill(std::vector<char>& buffer, size_t chunk_bytes, bool keep_open) {
    while (!ended_ && folds_.size() < 2) {
      if (file_ == marks_.files.size()) {
        fold_->Finish();
        ended_ = true;
      } else {
        ReadChunk(buffer, chunk_bytes);
      }
    }
    if (!keep_open) fd_.reset();
    low_water_ = std::max<size_t>(2, folds_.size() / 2);
  }

  int rank() const { return marks_.rank; }
  bool runs_low() const { return !ended_ && folds_.size() < low_water_; }
  bool ended() const { return ended_; }
  const MarkFold& fold() const { return *fold_; }
  std::deque<StepFold>& folds() { return folds_; }
  uint64_t lines() const { return lines_; }
  uint64_t broken_lines() const { return broken_lines_; }
  uint64_t bytes_read() const { return bytes_read_; }
  // What could not be read; empty: nothing.
  const std::string& problem() const { return problem_; }

  uint64_t groups_sent = 0;  // MarkFold::groups_version of what the engine knows

 private:
  void NextFile() {
    bytes_read_ += marks_.files[file_].bytes - offset_;
    fd_.reset();
    ++file_;
    offset_ = 0;
    skipping_ = false;
  }

  void SkipUnreadable(int error) {
    // A file that aging has deleted in the meantime is like one that it deleted before.
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

  // Adds the whole lines of `text`; how many bytes they have, and the rest of a line that is skipped.
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
      // Not blocking: it may have become a pipe since it was listed.
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
      // A line without its end is one that is being written, or that a dying machine left: no defect.
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
  size_t file_ = 0;
  uint64_t offset_ = 0;    // in that file, of a line's begin
  bool skipping_ = false;  // in a line that is too long
  UniqueFd fd_;
  std::string storage_;
  std::deque<StepFold> folds_;
  size_t low_water_ = 2;
  std::unique_ptr<MarkFold> fold_;
  bool ended_ = false;
  uint64_t lines_ = 0;
  uint64_t broken_lines_ = 0;
  uint64_t bytes_read_ = 0;
  std::string problem_;
};

// Mark files that may be open at once.
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
        on_step_(on_step),
        chunk_bytes_(std::clamp(kChunksBytes / directory.ranks.size(), kMinChunkBytes, kMaxChunkBytes)),
        keep_open_(directory.ranks.size() <= DescriptorLimit()),
        buffers_(std::max(1, threads), std::vector<char>(std::max(chunk_bytes_, kMaxLineBytes))),
        streams_(directory.ranks.size()),
        nodes_(directory.ranks.size(), kNotSent),
        device_ids_(directory.ranks.size(), -1) {}

  absl::StatusOr<diagnosis::Report> Run(const DiagnosisEnd& at_end) {
    std::vector<size_t> low(streams_.size());
    for (size_t i = 0; i < low.size(); ++i) low[i] = i;
    while (true) {
      Refill(low);
      for (size_t i : waiting_) Enqueue(i);
      waiting_.clear();
      if (heads_.empty()) break;
      SendPlaces();
      FeedEngine();
      low.clear();
      for (size_t i = 0; i < streams_.size(); ++i) {
        if (streams_[i]->runs_low()) low.push_back(i);
      }
      if (progress_) progress_(bytes_read(), directory_.bytes);
    }
    uint64_t lines = 0, broken = 0;
    for (const auto& stream : streams_) lines += stream->lines(), broken += stream->broken_lines();
    if (lines == broken) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory_.folder, " holds no marks: none of its ", lines, " lines is one"));
    }
    engine_.Finish();
    if (at_end) at_end(engine_, nodes_);
    diagnosis::Report report = engine_.report();
    AddNotes(lines, broken, report);
    return report;
  }

 private:
  static constexpr int kNotSent = -2;

  uint64_t bytes_read() const {
    uint64_t bytes = 0;
    for (const auto& stream : streams_) bytes += stream->bytes_read();
    return bytes;
  }

  // Reads the streams with these indices, on all threads; each stream by one of them.
  void Refill(const std::vector<size_t>& low) {
    std::atomic<size_t> next = 0;
    auto work = [&](std::vector<char>& buffer) {
      for (size_t i = next++; i < low.size(); i = next++) {
        std::unique_ptr<RankStream>& stream = streams_[low[i]];
        if (stream == nullptr) stream = std::make_unique<RankStream>(directory_.ranks[low[i]]);
        stream->Refill(buffer, chunk_bytes_, keep_open_);
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < std::min(buffers_.size(), low.size()); ++i) {
      others.emplace_back([&work, &buffer = buffers_[i]] { work(buffer); });
    }
    work(buffers_[0]);
    for (std::thread& other : others) other.join();
    if (first_) {
      for (size_t i = 0; i < streams_.size(); ++i) waiting_.push_back(i);
      first_ = false;
    }
  }

  void Enqueue(size_t i) {
    std::deque<StepFold>& folds = streams_[i]->folds();
    if (folds.empty()) {
      ended_.push_back({streams_[i]->rank(), now_ns_, added_ + 2 * heads_.size()});
    } else {
      heads_.push({folds.front().end_ns, i});
    }
  }

  // Device ids are known once device records were read, and may be learned late.
  void SendPlaces() {
    bool changed = false;
    for (size_t i = 0; i < streams_.size(); ++i) {
      int id = streams_[i]->fold().device_id();
      changed |= device_ids_[i] != id || nodes_[i] == kNotSent;
      device_ids_[i] = id;
    }
    if (!changed) return;
    std::vector<int> nodes = NodesOfRanks(directory_.ranks, device_ids_);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes_[i] == nodes[i]) continue;
      nodes_[i] = nodes[i];
      const RankMarks& marks = directory_.ranks[i];
      engine_.SetPlace(marks.rank, {.node = nodes[i], .host = marks.host, .local_rank = marks.local_rank});
    }
  }

  // Hands folds to the engine until it is not known which comes next.
  void FeedEngine() {
    while (waiting_.empty() && !heads_.empty()) {
      size_t i = heads_.top().second;
      heads_.pop();
      RankStream& stream = *streams_[i];
      if (stream.groups_sent != stream.fold().groups_version()) {
        const std::vector<GroupInfo>& groups = stream.fold().groups();
        for (size_t group = 0; group < groups.size(); ++group) {
          engine_.SetGroup(stream.rank(), static_cast<uint32_t>(group), groups[group]);
        }
        stream.groups_sent = stream.fold().groups_version();
      }
      StepFold fold = std::move(stream.folds().front());
      stream.folds().pop_front();
      now_ns_ = std::max(now_ns_, fold.end_ns);
      if (on_step_) on_step_(stream.rank(), fold);
      engine_.Add(stream.rank(), std::move(fold), now_ns_);
      if (stream.folds().empty() && !stream.ended()) {
        waiting_.push_back(i);
      } else {
        Enqueue(i);
      }
      ++added_;
      // About once a step.
      if (added_ >= advance_at_) AdvanceEngine();
    }
  }

  void AdvanceEngine() {
    engine_.Advance(now_ns_);
    advance_at_ = added_ + heads_.size() + waiting_.size();
    std::erase_if(ended_, [this](const Ended& ended) {
      bool gone = added_ >= ended.gone_at && now_ns_ >= ended.time_ns + kGoneAfterNs;
      if (gone) engine_.RemoveRank(ended.rank);
      return gone;
    });
  }

  void AddNotes(uint64_t lines, uint64_t broken, diagnosis::Report& report) const {
    auto note = [&](std::string text) { report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(text)}); };
    if (broken > 0) note(absl::StrCat(broken, " of ", lines, " lines are no marks and were left out"));
    std::vector<std::string> problems = directory_.problems;
    for (const auto& stream : streams_) {
      if (!stream->problem().empty()) problems.push_back(stream->problem());
    }
    if (problems.empty()) return;
    std::string more = problems.size() == 1 ? "" : absl::StrCat(" (and ", problems.size() - 1, " more)");
    note(absl::StrCat("cannot be read: ", problems[0], more));
  }

  const MarkDirectory& directory_;
  const ReadProgress& progress_;
  const StepSeen& on_step_;
  const size_t chunk_bytes_;
  const bool keep_open_;
  std::vector<std::vector<char>> buffers_;            // one a thread
  std::vector<std::unique_ptr<RankStream>> streams_;  // as MarkDirectory::ranks
  std::vector<int> nodes_;                            // as the engine knows them
  std::vector<int> device_ids_;
  bool first_ = true;

  // Streams with a fold, by the end of their first one; and those whose next fold has to be read.
  using Head = std::pair<uint64_t, size_t>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
  std::vector<size_t> waiting_;

  Engine engine_;
  uint64_t now_ns_ = 0;
  uint64_t added_ = 0;
  uint64_t advance_at_ = 0;

  // A rank whose files end. Files of a job in progress end at about the same time, but not at the same step: only whom
  // the others outlive by two steps and some time is gone.
  struct Ended {
    int rank;
    uint64_t time_ns;
    uint64_t gone_at;  // value of added_
  };
  std::vector<Ended> ended_;
};

}  // namespace

absl::StatusOr<diagnosis::Report> DiagnoseFiles(const MarkDirectory& directory, int threads,
                                                const ReadProgress& progress, const DiagnosisEnd& at_end,
                                                const StepSeen& on_step) {
  return Reader(directory, threads, progress, on_step).Run(at_end);
}

}  // namespace taskd::readers
