// Design:
// 1. Each file is read once, by one thread. Only data that the diagnosis needs is kept: the summaries of its steps.
// 2. Marks, profiles and NCCL Inspector number their steps differently, so each of the three is judged separately, and
//    so are dumps and answers of a hung job. The results are joined.
#include "readers/diagnose_sources.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/printable.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/ascend_folder.h"
#include "readers/hang_sources.h"
#include "readers/hang_tables.h"
#include "readers/joined_report.h"
#include "readers/mark_directory.h"
#include "readers/nccl_inspector.h"
#include "readers/profiled_ranks.h"
#include "readers/read_source.h"
#include "readers/source_files.h"
#include "readers/source_ranks.h"
#include "readers/trace_fold.h"

namespace taskd::readers {
namespace {

constexpr size_t kEventsBytes = size_t{512} << 20;  // sum over all threads, while files are read
constexpr size_t kNamedInNote = 3;

bool IsProfile(SourceFormat format) {
  return format == SourceFormat::kKinetoTrace || format == SourceFormat::kAscendProfile;
}
bool IsInspector(SourceFormat format) { return format == SourceFormat::kNcclInspector; }

// The named paths, and the files found in them.
struct Found {
  std::optional<MarkDirectory> marks;
  std::vector<SourceFile> files;
  size_t beside_marks = 0;  // how many of the last ones lie in the folders of marks
  bool only_marks = false;  // all named paths are folders of marks
};

class Diagnosis {
 public:
  Diagnosis(Found found, int threads, const EngineSeen& on_engine)
      : found_(std::move(found)), threads_(std::max(1, threads)), on_engine_(on_engine) {}

  absl::StatusOr<SourcesDiagnosis> Run(const ReadProgress& progress, const StepSeen& on_step) {
    ReadAll(progress);
    const absl::Status known = CheckFormats();
    if (!known.ok() && (!found_.marks || absl::IsInvalidArgument(known))) return known;
    FoldInspected();
    naming_note_ = NameRanks(read_);
    CheckJobs();
    SourcesDiagnosis diagnosis;
    std::vector<Judged> parts;
    if (found_.marks) {
      absl::Status status = JudgeMarks(progress, on_step, diagnosis, parts);
      if (!status.ok() && Sources().empty()) return status;
      marks_problem_ = std::string(status.message());
    }
    JudgeProfiles(IsProfile, on_step, diagnosis, parts);
    JudgeProfiles(IsInspector, on_step, diagnosis, parts);
    HangAnswer hang = FindHangIn(read_, hang_tables_);
    if (parts.empty() && hang.formats.empty()) return absl::FailedPreconditionError(WhyNothing());
    Join(std::move(parts), std::move(hang), diagnosis);
    return diagnosis;
  }

 private:
  void ReadAll(const ReadProgress& progress) {
    const std::vector<SourceFile>& files = found_.files;
    read_.resize(files.size());
    uint64_t bytes = 0;
    for (const SourceFile& file : files) bytes += file.bytes;
    const size_t threads = std::min<size_t>(static_cast<size_t>(threads_), files.size());
    const size_t max_events = kEventsBytes / sizeof(TraceEvent) / std::max<size_t>(1, threads);
    std::atomic<size_t> next = 0;
    std::atomic<uint64_t> done = 0;
    auto work = [&](bool is_first) {
      DumpMemory memory;
      for (size_t i = next++; i < files.size(); i = next++) {
        read_[i] = ReadSource(files[i], max_events, hang_tables_, memory);
        done += files[i].bytes;
        if (is_first && progress) progress(done, bytes);
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work, false);
    work(true);
    for (std::thread& other : others) other.join();
    // Other files in a folder of marks may have any format, so they get no note.
    for (size_t i = read_.size() - found_.beside_marks; i < read_.size(); ++i) {
      if (read_[i].format == SourceFormat::kUnknown) read_[i].note.clear();
    }
  }

  // Checks that at least one named file, apart from marks, has a known format.
  absl::Status CheckFormats() const {
    if (found_.only_marks) return absl::OkStatus();
    const auto named_end = read_.end() - static_cast<std::ptrdiff_t>(found_.beside_marks);
    const bool any = std::any_of(read_.begin(), named_end,
                                 [](const SourceContent& content) { return content.format != SourceFormat::kUnknown; });
    if (any) return absl::OkStatus();
    if (const std::vector<std::string> problems = Problems(); !problems.empty()) {
      return absl::FailedPreconditionError(problems[0]);
    }
    if (read_.empty()) return absl::InvalidArgumentError("there is no file in it");
    const auto relative =
        std::find_if(read_.begin(), read_.end(), [](const SourceContent& content) { return !content.seems.empty(); });
    if (relative != read_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Printable(relative->file.path), " ", relative->seems,
                       read_.size() == 1 ? "" : ", and of the others none is of a known format"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(read_[0].file.path), read_.size() == 1 ? " is" : " and the others are",
                     " of no known format (mark files, PyTorch profiler traces, Ascend profiler "
                     "folders, NCCL Inspector, flight recorder dumps, answers of NCCL RAS)"));
  }

  // Leaves the file out if an earlier file is of the same process.
  bool IsInspectedTwice(size_t i) {
    const auto end = read_.begin() + static_cast<std::ptrdiff_t>(i);
    const auto same = std::find_if(read_.begin(), end, [&](const SourceContent& earlier) {
      return AreOfOneProcess(earlier.inspected, read_[i].inspected);
    });
    if (same == end) return false;
    AddNote(read_[i].note, absl::StrCat("left out: ", Printable(same->file.path), " is of the same process"));
    return true;
  }

  // The ranks of the Inspector's files, and the ranges that stand for steps, are known only from all files together.
  void FoldInspected() {
    std::vector<InspectorProcess*> processes;
    std::vector<size_t> files;
    for (size_t i = 0; i < read_.size(); ++i) {
      if (read_[i].inspected.communicators.empty() || IsInspectedTwice(i)) continue;
      processes.push_back(&read_[i].inspected);
      files.push_back(i);
    }
    if (files.empty()) return;
    InspectorJob job = FoldInspector(processes);
    for (size_t i = 0; i < files.size(); ++i) {
      SourceContent& file = read_[files[i]];
      file.rank = job.ranks[i].rank;
      file.world_size = job.world_size;
      file.folded = std::move(job.ranks[i].folded);
      file.inspected = {};
    }
    inspector_notes_.emplace_back(
        "NCCL Inspector knows neither steps nor what ranks do between operations: a step here stands for a stretch of "
        "each communicator's operations, and only transfers are judged");
    if (job.world_size == 0) {
      inspector_notes_.emplace_back(
          "no communicator has all ranks: they are numbered by host and process, and not as the job does");
    }
  }

  // Leaves out traces of another job than that of most traces.
  void CheckJobs() {
    std::map<int, size_t> sizes;
    for (const SourceContent& file : read_) {
      if (file.world_size > 0) ++sizes[file.world_size];
    }
    for (const auto& [size, count] : sizes) {
      if (world_size_ == 0 || count > sizes[world_size_]) world_size_ = size;
    }
    for (SourceContent& file : read_) {
      if (file.format == SourceFormat::kUnknown) continue;
      if (file.world_size > 0 && file.world_size != world_size_) {
        AddNote(file.note, absl::StrCat("left out: it is of a job of ", file.world_size,
                                        " ranks, most others of one of ", world_size_));
        file.rank = -1;
        file.folded = {};
      } else if (file.format != SourceFormat::kNcclRas && !IsInspector(file.format) &&
                 (file.rank < 0 || file.rank >= diagnosis::kMaxRanks)) {
        if (!file.note.starts_with("left out")) {
          AddNote(file.note,
                  "left out: neither the file nor its name says which rank it is of (rename it rank_N.json)");
        }
        file.rank = -1;
      }
    }
  }

  absl::Status JudgeMarks(const ReadProgress& progress, const StepSeen& on_step, SourcesDiagnosis& diagnosis,
                          std::vector<Judged>& parts) {
    const MarkDirectory& marks = *found_.marks;
    Judged part;
    part.formats = {SourceFormat::kMarks};
    for (const RankMarks& rank : marks.ranks) {
      SourceRank& source = part.ranks.emplace_back();
      source.rank = rank.rank;
      source.host = rank.host;
      source.folder = rank.folder;
      for (const MarkFile& file : rank.files) source.bytes += file.bytes;
    }
    steps_of_rank_.resize(marks.ranks.size());
    const auto count = [&](int rank, const StepFold& fold) {
      ++steps_of_rank_[IndexOf(rank, part.ranks)];
      if (on_step) on_step(rank, fold);
    };
    const auto at_end = [&](const diagnosis::Engine& engine, const std::vector<int>& nodes) {
      for (size_t i = 0; i < nodes.size(); ++i) {
        part.ranks[i].node = nodes[i];
        part.ranks[i].clock_offset_ns = nodes[i] < 0 ? 0 : engine.ClockOffsetNs(nodes[i]);
      }
      AddPeers(engine.report(), engine, part.ranks);
      if (on_engine_) on_engine_(engine);
    };
    absl::StatusOr<diagnosis::Report> report = DiagnoseFiles(marks, threads_, progress, at_end, count);
    if (!report.ok()) return report.status();
    part.report = *std::move(report);
    if (!part.ranks.empty() && world_size_ > 0 && part.ranks.back().rank >= world_size_) {
      Note(absl::StrCat("there are marks of rank ", part.ranks.back().rank, ", and other files of a job of ",
                        world_size_, " ranks: they may be of two jobs"),
           part.report);
    }
    diagnosis.steps_format = SourceFormat::kMarks;
    parts.push_back(std::move(part));
    return absl::OkStatus();
  }

  void JudgeProfiles(bool (*is_of)(SourceFormat), const StepSeen& on_step, SourcesDiagnosis& diagnosis,
                     std::vector<Judged>& parts) {
    ProfiledRanks profiled(read_, world_size_, is_of);
    if (profiled.empty()) return;
    Judged part;
    for (const SourceContent& file : read_) {
      const bool is_new = std::find(part.formats.begin(), part.formats.end(), file.format) == part.formats.end();
      if (is_of(file.format) && file.rank >= 0 && is_new) part.formats.push_back(file.format);
    }
    const bool is_first = diagnosis.steps_format == SourceFormat::kUnknown;
    part.report = profiled.Judge(is_first ? on_step : nullptr, on_engine_);
    part.ranks = profiled.TakeRanks();
    if (is_of == IsInspector) {
      for (const std::string& note : inspector_notes_) Note(note, part.report);
    }
    if (is_first) diagnosis.steps_format = part.formats[0];
    parts.push_back(std::move(part));
  }

  // Joins the parts; if there are several, records which of them proved each verdict.
  void Join(std::vector<Judged> parts, HangAnswer hang, SourcesDiagnosis& diagnosis) {
    for (Judged& part : parts) {
      if (part.formats[0] != diagnosis.steps_format) continue;
      diagnosis.ranks = part.ranks;
      diagnosis.verdicts = part.report.verdicts;
    }
    const bool are_several = parts.size() + hang.formats.size() > 1;
    if (!parts.empty()) {
      diagnosis.report = are_several ? JoinReports(parts, diagnosis.proved_by) : std::move(parts[0].report);
    }
    diagnosis.report.ranks = std::max(diagnosis.report.ranks, hang.ranks);
    AddProblems(diagnosis.report);
    if (!naming_note_.empty()) Note(naming_note_, diagnosis.report);
    for (diagnosis::Note& note : hang.notes) diagnosis.report.notes.push_back(std::move(note));
    diagnosis.hang = std::move(hang.hang);
    if (diagnosis.hang && are_several) {
      diagnosis.hang_proved_by = hang.format;
      absl::StrAppend(&diagnosis.hang->text, " (", TitleOf(diagnosis.hang_proved_by), ")");
    }
    diagnosis.sources = Sources();
  }

  static void Note(std::string text, diagnosis::Report& report) {
    report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(text)});
  }

  void AddProblems(diagnosis::Report& report) const {
    std::vector<std::string> problems = Problems();
    if (problems.empty()) return;
    const size_t more = problems.size() - std::min(problems.size(), kNamedInNote);
    problems.resize(problems.size() - more);
    Note(absl::StrCat("not all could be used: ", absl::StrJoin(problems, "; "),
                      more == 0 ? "" : absl::StrCat(" (and ", more, " more)")),
         report);
  }

  std::vector<std::string> Problems() const {
    std::vector<std::string> problems;
    if (!marks_problem_.empty()) problems.push_back(marks_problem_);
    for (const SourceContent& read : read_) {
      if (!read.note.empty()) problems.push_back(absl::StrCat(Printable(read.file.path), ": ", read.note));
    }
    return problems;
  }

  std::vector<Source> Sources() const {
    std::vector<Source> sources;
    for (const SourceContent& read : read_) {
      if (read.format == SourceFormat::kUnknown && read.note.empty()) continue;  // an unrelated file in the folder
      sources.push_back({.path = read.file.path,
                         .format = read.format,
                         .rank = read.rank,
                         .records = read.records,
                         .note = read.note});
    }
    if (sources.empty() || !found_.marks) return sources;
    std::vector<Source> all;
    for (size_t i = 0; i < found_.marks->ranks.size(); ++i) {
      const RankMarks& rank = found_.marks->ranks[i];
      all.push_back({.path = rank.folder,
                     .format = SourceFormat::kMarks,
                     .rank = rank.rank,
                     .records = steps_of_rank_[i],
                     .note = ""});
    }
    all.insert(all.end(), sources.begin(), sources.end());
    return all;
  }

  std::string WhyNothing() const {
    const std::vector<std::string> problems = Problems();
    return problems.empty() ? "nothing could be read" : problems[0];
  }

  const Found found_;
  const int threads_;
  const EngineSeen& on_engine_;
  std::vector<SourceContent> read_;  // in the order of Found::files
  HangTables hang_tables_;
  int world_size_ = 0;                   // 0: unknown
  std::vector<uint64_t> steps_of_rank_;  // in the order of MarkDirectory::ranks
  std::string marks_problem_;            // why the marks could not be judged; empty: they were
  std::string naming_note_;              // returned by NameRanks
  std::vector<std::string> inspector_notes_;
};

// Finds folders of marks and other files: those that are named, and those that lie in such a folder.
absl::StatusOr<Found> Find(const std::vector<std::string>& paths) {
  Found found;
  std::vector<std::string> others;
  const std::vector<std::string> expanded = ExpandPatterns(paths);
  absl::StatusOr<MarkDirectory> marks = ListMarkDirectories(expanded, others);
  if (marks.ok()) {
    found.marks = *std::move(marks);
  } else if (!absl::IsInvalidArgument(marks.status()) && !absl::IsNotFound(marks.status())) {
    return absl::InvalidArgumentError(marks.status().message());
  }
  absl::StatusOr<std::vector<SourceFile>> files = FindSourceFiles(others);
  if (!files.ok()) return files.status();
  found.files = JoinAscendFolders(*std::move(files));
  if (!found.marks) return found;
  found.only_marks = others.empty();
  std::set<std::string> of_ranks;
  for (const RankMarks& rank : found.marks->ranks) of_ranks.insert(rank.folder);
  files = FindSourceFiles(found.marks->places, of_ranks);
  if (!files.ok()) return found;  // the folder is gone, or too large
  std::vector<SourceFile> beside = JoinAscendFolders(*std::move(files));
  found.beside_marks = beside.size();
  found.files.insert(found.files.end(), beside.begin(), beside.end());
  return found;
}

// The error for paths without a known format. The error of a folder of marks is the most specific one, if a path is a
// folder that has marks or no files.
absl::Status WhyUnknown(const std::vector<std::string>& paths, const absl::Status& unknown) {
  for (const std::string& path : ExpandPatterns(paths)) {
    absl::StatusOr<std::vector<SourceFile>> files = FindSourceFiles({path});
    if (path == "-" || !files.ok() || (files->size() == 1 && (*files)[0].path == path)) continue;
    const absl::Status marks = ListMarkDirectory(path).status();
    if (absl::IsNotFound(marks) && !files->empty()) continue;
    if (!marks.ok()) return absl::InvalidArgumentError(marks.message());
  }
  return unknown;
}

}  // namespace

absl::StatusOr<SourcesDiagnosis> DiagnoseSources(const std::vector<std::string>& paths, int threads,
                                                 const ReadProgress& progress, const StepSeen& on_step,
                                                 const EngineSeen& on_engine) {
  absl::StatusOr<Found> found = Find(paths);
  if (!found.ok()) return found.status();
  const std::string task = found->marks ? found->marks->task : "";
  std::string choice = found->marks ? found->marks->choice : "";
  absl::StatusOr<SourcesDiagnosis> diagnosis = Diagnosis(*std::move(found), threads, on_engine).Run(progress, on_step);
  if (absl::IsInvalidArgument(diagnosis.status()) && (paths.size() == 1 || !task.empty())) {
    return WhyUnknown(paths, diagnosis.status());
  }
  if (!diagnosis.ok()) return diagnosis.status();
  std::string job = paths[0];
  while (job.size() > 1 && job.back() == '/') job.pop_back();
  diagnosis->choice = std::move(choice);
  diagnosis->name = task.empty() ? job.substr(job.find_last_of('/') + 1) : task;
  return diagnosis;
}

}  // namespace taskd::readers
