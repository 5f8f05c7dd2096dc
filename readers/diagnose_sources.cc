// Design:
// 1. Each file is read once, by one thread, and only what the diagnosis needs of it is kept: the folds of its steps.
// 2. Files of one rank are windows of one profile where their steps do not overlap.
// 3. Clocks are aligned before folds are compared: files have the clocks of their hosts, or begin at 0.
#include "readers/diagnose_sources.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "diagnosis/rank_place.h"
#include "readers/ascend_folder.h"
#include "readers/ascend_profile.h"
#include "readers/byte_source.h"
#include "readers/flight_recorder.h"
#include "readers/hang_tables.h"
#include "readers/kernel_evidence.h"
#include "readers/kineto_trace.h"
#include "readers/mark_directory.h"
#include "readers/nccl_inspector.h"
#include "readers/nccl_ras.h"
#include "readers/pickle.h"
#include "readers/source_files.h"
#include "readers/trace_fold.h"

namespace taskd::readers {
namespace {

constexpr size_t kBeginBytes = size_t{64} << 10;            // of a file, to see what it is
constexpr size_t kEventsBytes = size_t{512} << 20;          // of all threads, while files are read
constexpr uint64_t kFirstTimeNs = 946'684'800'000'000'000;  // of the year 2000: an earlier one is no time of day
constexpr size_t kNamedInNote = 3;

struct ReadFile {
  SourceFormat format = SourceFormat::kUnknown;
  int rank = -1;
  int world_size = 0;
  std::string host;
  uint64_t records = 0;
  std::string note;
  FoldedTrace folded;
  bool has_times = true;  // else its steps begin at no time of day
  InspectorProcess inspected;
  FlightDump dump;
  std::vector<RasState> ras;

  bool is_dump() const { return format == SourceFormat::kFlightPickle || format == SourceFormat::kFlightJson; }
};

void AddNote(std::string& note, std::string_view more) {
  if (!more.empty()) note.append(note.empty() ? "" : "; ").append(more);
}

// From its begin on, with what it is.
absl::StatusOr<std::pair<ByteSource, SourceFormat>> OpenSource(const std::string& path) {
  absl::StatusOr<ByteSource> source = ByteSource::Open(path);
  if (!source.ok()) return source.status();
  std::string begin(kBeginBytes, '\0');
  size_t length = 0;
  while (length < begin.size()) {
    const size_t got = source->Read(begin.data() + length, begin.size() - length);
    if (got == 0) break;
    length += got;
  }
  begin.resize(length);
  const SourceFormat format = FormatOf(begin);
  source->PutBack(std::move(begin));
  return std::pair(*std::move(source), format);
}

// Of a file of no known format that is a pickle: why it would not be read. Empty: it is something else.
std::string WhyPickleIsRefused(ByteSource& source) {
  std::string begin(kBeginBytes, '\0');
  begin.resize(source.Read(begin.data(), begin.size()));
  if (!IsPickle(begin)) return "";
  ValueTree tree;
  const std::string problem = ReadPickle(begin, tree);
  return problem.starts_with("opcode") ? absl::StrCat("a pickle of more than plain data: ", problem) : "";
}

// A file that is no profile, whole. False: it is one, or of no known format.
bool ReadOther(ByteSource& source, SourceFormat format, const std::string& path, HangTables& tables, ReadFile& read) {
  if (format == SourceFormat::kNcclInspector) {
    read.inspected = ReadNcclInspector(source);
    read.records = read.inspected.records;
    read.host = read.inspected.host;
    AddNote(read.note, read.inspected.note);
  } else if (format == SourceFormat::kFlightPickle || format == SourceFormat::kFlightJson) {
    read.dump = ReadFlightDump(source, format == SourceFormat::kFlightPickle, tables);
    read.records = read.dump.records;
    read.rank = read.dump.rank >= 0 ? read.dump.rank : RankOfPath(path);
    read.world_size = read.dump.world_size;
    AddNote(read.note, read.dump.note);
  } else if (format == SourceFormat::kNcclRas) {
    RasAnswers answers = ReadRasAnswers(source);
    read.records = answers.records;
    read.ras = std::move(answers.states);
    AddNote(read.note, answers.note);
  } else {
    return false;
  }
  read.format = format;
  return true;
}

// One file, or an Ascend profiler's folder, whose trace is only read where nothing sums it up.
ReadFile ReadOne(const SourceFile& file, size_t max_events, HangTables& tables) {
  ReadFile read;
  TraceRank trace;
  AscendProfile ascend(max_events);
  for (const std::string& path : file.parts.empty() ? std::vector{file.path} : file.parts) {
    absl::StatusOr<std::pair<ByteSource, SourceFormat>> opened = OpenSource(path);
    if (!opened.ok()) {
      AddNote(read.note, std::string(opened.status().message()));
      continue;
    }
    auto& [source, format] = *opened;
    if (ReadOther(source, format, path, tables, read)) return read;
    if (format == SourceFormat::kUnknown) {
      AddNote(read.note, source.damage());
      AddNote(read.note, WhyPickleIsRefused(source));
    } else if (format == SourceFormat::kAscendProfile) {
      ascend.Read(source);
    } else if (ascend.empty()) {
      trace = ReadKinetoTrace(source, max_events);
    } else {
      continue;
    }
    if (read.format == SourceFormat::kUnknown) read.format = format;
  }
  if (read.format == SourceFormat::kUnknown) return read;
  const std::string& path = file.parts.empty() ? file.path : file.parts[0];
  const bool is_in_ascend = read.format == SourceFormat::kAscendProfile || !file.parts.empty();
  AscendRank place;
  if (is_in_ascend) place = FindAscendRank(path);
  read.has_times = read.format != SourceFormat::kAscendProfile || ascend.has_ops();
  if (read.format == SourceFormat::kAscendProfile) trace = ascend.Take();
  NameAscendGroups(place.groups, trace.groups);
  read.records = trace.records;
  AddNote(read.note, trace.note);
  read.rank = trace.rank >= 0 ? trace.rank : is_in_ascend ? place.rank : RankOfPath(path);
  read.world_size = trace.world_size > 0 ? trace.world_size : place.world_size;
  read.host = place.host.empty() ? HostOfPath(path) : place.host;
  read.folded = FoldTrace(std::move(trace));
  if (!read.has_times && ascend.is_pipeline() && place.groups.empty()) {
    AddNote(read.note, "left out: nothing says of which pipeline stage it is (profiler_metadata.json is not there)");
    read.folded = {};
  } else if (!read.has_times) {  // operations do not say which groups there are
    read.folded.groups.insert(read.folded.groups.end(), place.groups.begin(), place.groups.end());
  }
  return read;
}

class Diagnosis {
 public:
  Diagnosis(std::vector<SourceFile> files, int threads) : files_(std::move(files)), threads_(std::max(1, threads)) {}

  absl::StatusOr<SourcesDiagnosis> Run(const ReadProgress& progress, const StepSeen& on_step) {
    ReadAll(progress);
    if (absl::Status status = CheckFormats(); !status.ok()) return status;
    FoldInspected();
    CheckJobs();
    GatherRanks();
    FindAscendMembers();
    AlignClocks();
    NoteSteps();
    std::map<int, diagnosis::HangRank> dumps = GatherDumps();
    const std::vector<RasState> ras = GatherRas();
    if (ranks_.empty() && dumps.empty() && ras.empty()) return absl::FailedPreconditionError(WhyNothing());
    SourcesDiagnosis diagnosis;
    if (!ranks_.empty()) diagnosis.report = Judge(on_step);
    AddNotes(diagnosis.report);
    if (!dumps.empty()) AddHang(std::move(dumps), diagnosis);
    if (!ras.empty()) AddRasFinding(JudgeRas(ras), diagnosis);
    diagnosis.sources = Sources();
    return diagnosis;
  }

 private:
  struct Rank {
    std::vector<size_t> files;  // indices of read_, in the order of their steps
    FoldedTrace folded;
    std::string host;
  };

  void ReadAll(const ReadProgress& progress) {
    read_.resize(files_.size());
    uint64_t bytes = 0;
    for (const SourceFile& file : files_) bytes += file.bytes;
    const size_t threads = std::min<size_t>(static_cast<size_t>(threads_), files_.size());
    const size_t max_events = kEventsBytes / sizeof(TraceEvent) / std::max<size_t>(1, threads);
    std::atomic<size_t> next = 0;
    std::atomic<uint64_t> done = 0;
    auto work = [&](bool is_first) {
      for (size_t i = next++; i < files_.size(); i = next++) {
        read_[i] = ReadOne(files_[i], max_events, hang_tables_);
        done += files_[i].bytes;
        if (is_first && progress) progress(done, bytes);
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work, false);
    work(true);
    for (std::thread& other : others) other.join();
  }

  absl::Status CheckFormats() const {
    const bool any = std::any_of(read_.begin(), read_.end(),
                                 [](const ReadFile& file) { return file.format != SourceFormat::kUnknown; });
    if (any) return absl::OkStatus();
    for (size_t i = 0; i < read_.size(); ++i) {
      if (!read_[i].note.empty()) {
        return absl::FailedPreconditionError(absl::StrCat(Printable(files_[i].path), ": ", read_[i].note));
      }
    }
    return absl::InvalidArgumentError(
        files_.empty() ? "there is no file in it"
                       : absl::StrCat(Printable(files_[0].path), files_.size() == 1 ? " is" : " and the others are",
                                      " of no known format (mark files, PyTorch profiler traces, Ascend profiler "
                                      "folders, NCCL Inspector, flight recorder dumps, answers of NCCL RAS)"));
  }

  // Its ranks, and what stands for steps, only all files together tell.
  void FoldInspected() {
    std::vector<InspectorProcess*> processes;
    std::vector<size_t> files;
    for (size_t i = 0; i < read_.size(); ++i) {
      if (read_[i].inspected.communicators.empty()) continue;
      processes.push_back(&read_[i].inspected);
      files.push_back(i);
    }
    if (files.empty()) return;
    InspectorJob job = FoldInspector(processes);
    for (size_t i = 0; i < files.size(); ++i) {
      ReadFile& file = read_[files[i]];
      file.rank = job.ranks[i].rank;
      file.world_size = job.world_size;
      file.folded = std::move(job.ranks[i].folded);
      file.inspected = {};
    }
    notes_.emplace_back(
        "NCCL Inspector knows neither steps nor what ranks do between operations: a step here stands for a stretch of "
        "each communicator's operations, and only transfers are judged");
    if (job.world_size == 0) {
      notes_.emplace_back(
          "no communicator has all ranks: they are numbered by host and process, and not as the job does");
    }
  }

  // Traces of another job than most are left out.
  void CheckJobs() {
    std::map<int, size_t> sizes;
    for (const ReadFile& file : read_) {
      if (file.world_size > 0) ++sizes[file.world_size];
    }
    for (const auto& [size, count] : sizes) {
      if (world_size_ == 0 || count > sizes[world_size_]) world_size_ = size;
    }
    for (ReadFile& file : read_) {
      if (file.format == SourceFormat::kUnknown) continue;
      if (file.world_size > 0 && file.world_size != world_size_) {
        AddNote(file.note, absl::StrCat("left out: it is of a job of ", file.world_size,
                                        " ranks, most others of one of ", world_size_));
        file.rank = -1;
        file.folded = {};
      } else if (file.format != SourceFormat::kNcclRas && (file.rank < 0 || file.rank >= diagnosis::kMaxRanks)) {
        AddNote(file.note, "left out: neither the file nor its name says which rank it is of (rename it rank_N.json)");
        file.rank = -1;
      }
    }
  }

  void GatherRanks() {
    std::map<int, std::vector<size_t>> files;
    for (size_t i = 0; i < read_.size(); ++i) {
      if (!read_[i].is_dump() && read_[i].rank >= 0) files[read_[i].rank].push_back(i);
    }
    for (auto& [rank, indices] : files) {
      const auto first_step = [this](size_t i) {
        return read_[i].folded.folds.empty() ? INT64_MAX : read_[i].folded.folds.front().step;
      };
      std::stable_sort(indices.begin(), indices.end(),
                       [&](size_t a, size_t b) { return first_step(a) < first_step(b); });
      Rank& gathered = ranks_[rank];
      for (size_t i : indices) AddWindow(rank, i, gathered);
    }
  }

  // Of several dumps of a rank the newest.
  std::map<int, diagnosis::HangRank> GatherDumps() {
    const auto newest_ns = [this](size_t i) {
      uint64_t newest = 0;
      for (const diagnosis::HangOp& op : read_[i].dump.known.ops) newest = std::max(newest, op.created_ns);
      return newest;
    };
    std::map<int, size_t> of_rank;
    for (size_t i = 0; i < read_.size(); ++i) {
      // Of one that was refused nothing is known.
      const bool is_empty = read_[i].records == 0 && !read_[i].note.empty();
      if (!read_[i].is_dump() || read_[i].rank < 0 || is_empty) continue;
      const auto [found, is_new] = of_rank.try_emplace(read_[i].rank, i);
      if (is_new) continue;
      size_t older = i;
      if (newest_ns(i) > newest_ns(found->second)) std::swap(older, found->second);
      AddNote(read_[older].note, absl::StrCat("left out: ", Printable(files_[found->second].path),
                                              " is a dump of rank ", found->first, " too, and not older"));
    }
    std::map<int, diagnosis::HangRank> dumps;
    for (const auto& [rank, i] : of_rank) dumps.emplace(rank, std::move(read_[i].dump.known));
    return dumps;
  }

  void AddHang(std::map<int, diagnosis::HangRank> dumps, SourcesDiagnosis& diagnosis) {
    const diagnosis::HangFacts facts = hang_tables_.Take(std::move(dumps));
    std::set<int> ranks;
    for (const auto& [rank, known] : facts.ranks) ranks.insert(rank);
    for (const diagnosis::HangGroup& group : facts.groups) ranks.insert(group.members.begin(), group.members.end());
    diagnosis.report.ranks = std::max(diagnosis.report.ranks, static_cast<int>(ranks.size()));
    diagnosis.hang = diagnosis::FindHang(facts);
    std::vector<int> missing;
    for (int rank : ranks) {
      if (!facts.ranks.contains(rank)) missing.push_back(rank);
    }
    std::vector<diagnosis::Note>& notes = diagnosis.report.notes;
    if (!missing.empty()) {
      notes.push_back({diagnosis::NoteKind::kNoData,
                       absl::StrCat("of ", ranks.size(), " ranks there is no dump of ",
                                    missing.size() == 1 ? "rank " : "ranks ", FormatRanges(missing))});
    }
    if (!diagnosis.hang) {
      notes.push_back({diagnosis::NoteKind::kNoData, "the dumps of the flight recorders show no operation that waits"});
    }
  }

  // In the order of their times.
  std::vector<RasState> GatherRas() {
    std::vector<RasState> all, newest;
    for (ReadFile& file : read_) {
      for (RasState& state : file.ras) all.push_back(std::move(state));
    }
    std::stable_sort(all.begin(), all.end(), [](const RasState& a, const RasState& b) { return a.since < b.since; });
    for (RasState& state : all) AddRasState(std::move(state), newest);
    return newest;
  }

  // Beside dumps: these say more.
  static void AddRasFinding(RasFinding finding, SourcesDiagnosis& diagnosis) {
    for (std::string& note : finding.notes) {
      diagnosis.report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(note)});
    }
    diagnosis.report.ranks = std::max(diagnosis.report.ranks, finding.ranks);
    if (!finding.hang) return;
    if (!diagnosis.hang || (diagnosis.hang->origins.empty() && !finding.hang->origins.empty())) {
      diagnosis.hang = std::move(finding.hang);
    } else {
      diagnosis.report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(finding.hang->text)});
    }
  }

  // A further file of a rank.
  void AddWindow(int rank, size_t i, Rank& gathered) {
    FoldedTrace& more = read_[i].folded;
    FoldedTrace& before = gathered.folded;
    if (gathered.files.empty()) {
      gathered.host = read_[i].host;
      before = std::move(more);
    } else if (!more.folds.empty()) {
      if (!read_[i].has_times && !before.folds.empty()) {
        ShiftClock(-static_cast<int64_t>(before.folds.back().end_ns), more.folds);
      }
      const bool overlaps = !before.folds.empty() && (more.folds.front().step <= before.folds.back().step ||
                                                      more.folds.front().end_ns <= before.folds.back().end_ns);
      if (overlaps) {
        AddNote(read_[i].note, absl::StrCat("left out: ", Printable(files_[gathered.files.back()].path),
                                            " has steps of rank ", rank, " at the same time"));
        return;
      }
      MergeGroups(before, more);
      for (StepFold& fold : more.folds) before.folds.push_back(std::move(fold));
      before.has_ops |= more.has_ops;
      MergeKernels(before, more);
      if (before.steps == StepSource::kNone) before.steps = more.steps;
    }
    gathered.files.push_back(i);
  }

  // Indices of `more`'s folds become those of `all`.
  static void MergeGroups(FoldedTrace& all, FoldedTrace& more) {
    std::vector<uint32_t> index;
    for (GroupInfo& group : more.groups) {
      const auto known = std::find_if(all.groups.begin(), all.groups.end(),
                                      [&](const GroupInfo& other) { return other.name == group.name; });
      index.push_back(static_cast<uint32_t>(known - all.groups.begin()));
      if (known == all.groups.end()) all.groups.push_back(std::move(group));
    }
    for (StepFold& fold : more.folds) {
      for (OpFold& op : fold.ops) op.group = index[op.group];
      for (OpSample& sample : fold.samples) sample.group = index[sample.group];
    }
  }

  static void MergeKernels(FoldedTrace& all, FoldedTrace& more) {
    for (KernelTimes& kernel : more.kernels) {
      const auto known = std::find_if(all.kernels.begin(), all.kernels.end(),
                                      [&](const KernelTimes& other) { return other.name == kernel.name; });
      if (known == all.kernels.end()) {
        all.kernels.push_back(std::move(kernel));
      } else {
        known->ms.insert(known->ms.end(), kernel.ms.begin(), kernel.ms.end());
      }
    }
  }

  // Ascend's operations call a process group by a number of its own, and not every profile says of whom it is.
  void FindAscendMembers() {
    std::map<std::string, std::vector<int>> ranks_of_group;
    const auto for_each = [this](const auto& use) {
      for (auto& [rank, gathered] : ranks_) {
        if (read_[gathered.files[0]].format != SourceFormat::kAscendProfile) continue;
        for (GroupInfo& group : gathered.folded.groups) {
          if (!group.name.empty() && group.members.empty()) use(rank, group);
        }
      }
    };
    for_each([&](int rank, const GroupInfo& group) { ranks_of_group[group.name].push_back(rank); });
    for_each([&](int, GroupInfo& group) { group.members = CompressMembers(ranks_of_group[group.name]); });
  }

  void AlignClocks() {
    // Traces that name no group are of a job with one.
    const int most = ranks_.empty() ? 0 : ranks_.rbegin()->first + 1;
    for (auto& [rank, gathered] : ranks_) {
      for (GroupInfo& group : gathered.folded.groups) {
        if (group.name.empty() && group.members.empty()) {
          group.members = {{.first = 0, .stride = 1, .count = std::max(world_size_, most)}};
        }
      }
    }
    std::vector<const FoldedTrace*> folded;
    for (const auto& [rank, gathered] : ranks_) folded.push_back(&gathered.folded);
    std::vector<int64_t> offsets = ClockOffsetsOf(folded);
    // Stamps that begin at 0 must not come to lie before it.
    int64_t lift = 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (folded[i]->folds.empty()) continue;
      const auto first = static_cast<int64_t>(folded[i]->folds.front().start_ns);
      if (folded[i]->folds.front().start_ns < kFirstTimeNs) lift = std::max(lift, offsets[i] - first + kLiftNs);
    }
    size_t i = 0;
    for (auto& [rank, gathered] : ranks_) ShiftClock(offsets[i++] - lift, gathered.folded.folds);
  }

  diagnosis::Report Judge(const StepSeen& on_step) {
    std::vector<std::unique_ptr<FoldedStream>> owned;
    std::vector<FoldStream*> streams;
    std::vector<diagnosis::RankPlace> places;
    std::map<std::string, int> nodes;
    KernelEvidence kernels;
    for (auto& [rank, gathered] : ranks_) {
      kernels.AddRank(rank, gathered.folded);
      owned.push_back(std::make_unique<FoldedStream>(rank, std::move(gathered.folded)));
      streams.push_back(owned.back().get());
      diagnosis::RankPlace place;
      if (!gathered.host.empty()) {
        place.host = ValidUtf8(gathered.host);
        place.node = nodes.try_emplace(gathered.host, static_cast<int>(nodes.size())).first->second;
      }
      places.push_back(std::move(place));
    }
    bool sent = false;
    FoldMerge merge(streams, 1, 0, on_step);
    merge.Run(
        [&](std::vector<diagnosis::RankPlace>& now) {
          if (std::exchange(sent, true)) return false;
          now = places;
          return true;
        },
        nullptr);
    diagnosis::Report report = merge.engine().report();
    for (diagnosis::Verdict& verdict : report.verdicts) {
      if (verdict.since_ns < kFirstTimeNs) verdict.since_ns = 0;
      kernels.AddTo(verdict, merge.engine());
    }
    return report;
  }

  // Before Judge() takes the folds.
  void NoteSteps() {
    std::map<int64_t, int> ranks_of_step;
    for (const auto& [rank, gathered] : ranks_) {
      if (gathered.folded.folds.empty()) ranks_without_steps_.push_back(rank);
      if (!read_[gathered.files[0]].has_times) ranks_without_times_.push_back(rank);
      if (!gathered.folded.has_ops) ranks_without_ops_.push_back(rank);
      counted_ |= gathered.folded.steps == StepSource::kCounted || gathered.folded.steps == StepSource::kOptimizer;
      for (const StepFold& fold : gathered.folded.folds) ++ranks_of_step[fold.step];
    }
    const bool common =
        std::any_of(ranks_of_step.begin(), ranks_of_step.end(), [](auto& step) { return step.second > 1; });
    apart_ = ranks_.size() > 1 && !ranks_of_step.empty() && !common;
  }

  void AddNotes(diagnosis::Report& report) const {
    auto note = [&](std::string text) { report.notes.push_back({diagnosis::NoteKind::kNoData, std::move(text)}); };
    for (const std::string& text : notes_) note(text);
    if (apart_) note("the ranks were profiled at different steps: nobody can be compared with anybody");
    if (counted_) {
      note(
          "the traces do not number their steps: the first one in each file was taken for the same step; profile with "
          "a "
          "schedule and call prof.step() for numbers");
    }
    const auto of = [](const std::vector<int>& ranks) {
      return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanges(ranks));
    };
    if (!ranks_without_steps_.empty()) {
      note(absl::StrCat("the traces of ", of(ranks_without_steps_),
                        " show no steps: call prof.step() once a step, or wrap "
                        "each step in torch.profiler.record_function(f\"step {n}\")"));
    }
    if (!ranks_without_ops_.empty()) {
      note(absl::StrCat("the traces of ", of(ranks_without_ops_),
                        " show no communication: what they wait for counts as "
                        "their own time"));
    }
    if (!ranks_without_times_.empty()) {
      note(absl::StrCat("of ", of(ranks_without_times_),
                        " there are only sums of each step, and no operation: profile with ProfilerLevel.Level1 for "
                        "communication.json"));
    }
    std::vector<int> missing;
    const int size = ranks_.empty() ? 0 : std::max(world_size_, ranks_.rbegin()->first + 1);
    for (int rank = 0; rank < size; ++rank) {
      if (!ranks_.contains(rank)) missing.push_back(rank);
    }
    if (!missing.empty()) note(absl::StrCat("of ", size, " ranks there is no trace of ", of(missing)));
    std::vector<std::string> problems;
    for (size_t i = 0; i < read_.size(); ++i) {
      if (!read_[i].note.empty()) problems.push_back(absl::StrCat(Printable(files_[i].path), ": ", read_[i].note));
    }
    if (problems.empty()) return;
    const size_t more = problems.size() - std::min(problems.size(), kNamedInNote);
    problems.resize(problems.size() - more);
    note(absl::StrCat("not all could be used: ", absl::StrJoin(problems, "; "),
                      more == 0 ? "" : absl::StrCat(" (and ", more, " more)")));
  }

  std::vector<Source> Sources() const {
    std::vector<Source> sources;
    for (size_t i = 0; i < read_.size(); ++i) {
      const ReadFile& file = read_[i];
      if (file.format == SourceFormat::kUnknown && file.note.empty()) continue;  // something else that lies there
      sources.push_back({.path = files_[i].path,
                         .format = Name(file.format),
                         .rank = file.rank,
                         .records = file.records,
                         .note = file.note});
    }
    return sources;
  }

  std::string WhyNothing() const {
    for (size_t i = 0; i < read_.size(); ++i) {
      if (!read_[i].note.empty()) return absl::StrCat(Printable(files_[i].path), ": ", read_[i].note);
    }
    return "nothing could be read";
  }

  static constexpr int64_t kLiftNs = 1'000'000'000;

  const std::vector<SourceFile> files_;
  const int threads_;
  std::vector<ReadFile> read_;  // as files_
  HangTables hang_tables_;
  int world_size_ = 0;  // 0: no file says
  std::map<int, Rank> ranks_;
  std::vector<int> ranks_without_steps_, ranks_without_ops_, ranks_without_times_;
  std::vector<std::string> notes_;
  bool counted_ = false;  // steps have no numbers
  bool apart_ = false;    // no two ranks have a step in common
};

}  // namespace

absl::StatusOr<SourcesDiagnosis> DiagnoseSources(const std::vector<std::string>& paths, int threads,
                                                 const ReadProgress& progress, const StepSeen& on_step) {
  absl::StatusOr<MarkDirectory> directory = ListMarkDirectories(ExpandPatterns(paths));
  if (directory.ok()) {
    absl::StatusOr<diagnosis::Report> report = DiagnoseFiles(*directory, threads, progress, nullptr, on_step);
    if (!report.ok()) return report.status();
    return SourcesDiagnosis{*std::move(report), directory->task, {}, {}};
  }
  const absl::Status& no_marks = directory.status();
  if (!absl::IsInvalidArgument(no_marks)) return absl::InvalidArgumentError(no_marks.message());
  absl::StatusOr<std::vector<SourceFile>> found = FindSourceFiles(paths);
  if (!found.ok()) return found.status();
  std::vector<SourceFile> files = JoinAscendFolders(*std::move(found));
  const bool is_folder = paths.size() == 1 && paths[0] != "-" && !(files.size() == 1 && files[0].path == paths[0]);
  absl::StatusOr<SourcesDiagnosis> diagnosis = Diagnosis(std::move(files), threads).Run(progress, on_step);
  // A folder with nothing that is known: what is said of folders of marks tells most.
  if (absl::IsInvalidArgument(diagnosis.status()) && is_folder) return no_marks;
  if (!diagnosis.ok()) return diagnosis.status();
  std::string job = paths[0];
  while (job.size() > 1 && job.back() == '/') job.pop_back();
  diagnosis->name = job.substr(job.find_last_of('/') + 1);
  return diagnosis;
}

}  // namespace taskd::readers
