// Design:
// 1. The diagnosis runs over the whole folder first: it aligns the clocks and knows whom to accuse.
// 2. What is asked for becomes stretches of time of each rank, from the marks of its steps (a mark does not hold which
//    step it belongs to, and those before a step are read before it).
// 3. The marks of one rank after the other go through TraceWriter into the file.
#include "agent/commands/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "agent/commands/control_client.h"
#include "agent/commands/ended_job.h"
#include "agent/commands/folder_diagnosis.h"
#include "agent/commands/job_flags.h"
#include "agent/commands/output_file.h"
#include "agent/commands/progress.h"
#include "agent/trace/trace_writer.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "diagnosis/verdict.h"
#include "marks/mark_record.h"
#include "marks/step_name.h"
#include "proto/ended_jobs.h"
#include "readers/diagnose_sources.h"
#include "readers/source_marks.h"

namespace taskd::commands {
namespace {

struct TraceOptions {
  std::vector<std::string> from;  // as JobSource::from
  std::string job;                // without `from`; empty: the only one of this user
  std::string ranks;              // "0-7,12"; empty: all
  std::string steps;              // "10-20"; empty: all
  bool suspects = false;          // the ranks that a verdict accuses and who they are compared with, around the onset
  std::string output;             // "-": stdout
};

using diagnosis::Verdict;
using readers::SourceFormat;

constexpr std::chrono::milliseconds kFolderTimeout{5000};
constexpr size_t kMaxSuspects = 16;
constexpr size_t kPeersOfSuspect = 3;
constexpr int64_t kStepsBefore = 5, kStepsAfter = 10;
// Marks of one rank are in the order of time, but for device records and for threads whose marks were read together.
constexpr int kMarksToFirst = 256;
constexpr uint64_t kMarksBetweenProgress = 1 << 16;

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // both ends included

bool Contains(const Spans& spans, int64_t value) {
  return std::any_of(spans.begin(), spans.end(),
                     [&](auto& span) { return span.first <= value && value <= span.second; });
}

// "0-7,12"
std::optional<Spans> ParseSpans(std::string_view text) {
  Spans spans;
  const char* p = text.data();
  const char* end = p + text.size();
  auto number = [&](int64_t& value) {
    if (p == end || *p < '0' || *p > '9') return false;
    auto [rest, error] = std::from_chars(p, end, value);
    p = rest;
    return error == std::errc();
  };
  while (true) {
    int64_t first = 0;
    if (!number(first)) return std::nullopt;
    int64_t last = first;
    if (p != end && *p == '-') {
      ++p;
      if (!number(last) || last < first) return std::nullopt;
    }
    spans.emplace_back(first, last);
    if (p == end) return spans;
    if (*p++ != ',') return std::nullopt;
  }
}

absl::StatusOr<Spans> ParseFlag(const char* flag, const std::string& text, const char* example) {
  if (text.empty()) return Spans();
  if (std::optional<Spans> spans = ParseSpans(text)) return *spans;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": '", text, "' is no list like ", example));
}

// A rank of the folder, and what of it is asked for.
struct Chosen {
  explicit Chosen(const readers::SourceRank& rank) : source(&rank), first_ns(rank.first_ns) {}

  const readers::SourceRank* source;
  std::vector<trace::TraceWindow> windows;
  uint64_t first_ns;  // its earliest mark; UINT64_MAX: none is known
};

// One rank's stretches of time in which the steps that are asked for ran: a window for each list entry and each life of
// the rank, from the end of the step before (or the begin of the life) to the end of the last one.
class StepWindows {
 public:
  explicit StepWindows(const Spans& steps) : steps_(steps) {}

  // In the order of the rank's files.
  void Add(const MarkRecord& mark) {
    if (!mark.device && (life_.first != mark.process_id || life_.second == 0)) life_ = {mark.process_id, mark.time_ns};
    if (mark.phase == MarkRecord::Phase::kEnd) End(mark);
    if (mark.phase == MarkRecord::Phase::kStart && !mark.device) Start(mark);
    last_ns_ = std::max(last_ns_, mark.time_ns);
  }

  std::vector<trace::TraceWindow> Take() {
    Settle();
    std::vector<trace::TraceWindow> windows;
    for (const auto& [key, window] : windows_) windows.push_back(window);
    return windows;
  }

 private:
  struct Running {
    uint32_t process_id = 0;
    trace::TraceWindow* window = nullptr;  // null: of a step that is not asked for
  };
  static constexpr size_t kMaxRunning = 65536;
  static constexpr uint64_t kOpen = UINT64_MAX;

  // A step without an end goes up to the last mark of its life.
  void Settle() {
    for (auto& [key, window] : windows_) {
      if (window.last_ns == kOpen) window.last_ns = last_ns_;
    }
  }

  void Start(const MarkRecord& mark) {
    if (!running_.empty()) running_.erase(mark.id);  // the next life of the rank begins its ids again
    const std::optional<int64_t> step = mark.domain == "default" ? StepNumber(mark.name) : std::nullopt;
    if (!step) return;
    if (mark.process_id != process_) {
      Settle();
      previous_end_ns_ = 0;
      process_ = mark.process_id;
    }
    if (running_.size() >= kMaxRunning) running_.clear();
    Running& entry = running_[mark.id] = {process_, nullptr};
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (*step < steps_[i].first || *step > steps_[i].second) continue;
      const uint64_t begin = previous_end_ns_ != 0 ? previous_end_ns_ : std::min(life_.second, mark.time_ns);
      entry.window = &windows_.try_emplace({i, process_}, trace::TraceWindow{begin, 0}).first->second;
      entry.window->last_ns = kOpen;
    }
  }

  void End(const MarkRecord& mark) {
    auto it = running_.find(mark.id);
    if (it == running_.end() || (!mark.device && it->second.process_id != mark.process_id)) return;
    if (!mark.device) previous_end_ns_ = mark.time_ns;
    trace::TraceWindow* window = it->second.window;
    if (window == nullptr) {
      running_.erase(it);
    } else {
      window->last_ns = window->last_ns == kOpen ? mark.time_ns : std::max(window->last_ns, mark.time_ns);
    }
  }

  const Spans& steps_;
  std::map<std::pair<size_t, uint32_t>, trace::TraceWindow> windows_;
  std::unordered_map<uint64_t, Running> running_;  // by id; those in a window stay for their device records
  uint64_t previous_end_ns_ = 0, last_ns_ = 0;
  uint32_t process_ = 0;                         // of the latest step
  std::pair<uint32_t, uint64_t> life_ = {0, 0};  // process of the latest mark, and its first one
};

class Trace {
 public:
  explicit Trace(const TraceOptions& options) : options_(options) {}

  absl::Status Run();

 private:
  absl::Status Diagnose();
  std::string WhyNoTimeline() const;
  void SayWhatIsMissing();
  bool ChooseSuspects();
  absl::Status ChooseRanks(const Spans& wanted);
  absl::Status FindSteps();
  void FindStepsOf(Chosen& rank);
  absl::Status Write(OutputFile& file);
  void WriteRank(trace::TraceWriter& writer, size_t index);

  size_t IndexOf(int rank) const { return readers::IndexOf(rank, ranks()); }
  const std::vector<readers::SourceRank>& ranks() const { return diagnosed_.ranks; }
  trace::TraceSpan SpanOf(const Verdict& verdict) const;
  uint64_t BytesOfChosen() const;
  template <typename Use>
  void ForEachMark(const readers::SourceRank& rank, const char* what, const Use& use);

  const TraceOptions& options_;
  readers::SourcesDiagnosis diagnosed_;
  std::vector<Chosen> chosen_;
  Spans steps_;  // empty: all
  Progress progress_;
  uint64_t read_bytes_ = 0, all_bytes_ = 0;
  std::string unreadable_;  // the first problem
};

absl::Status Trace::Diagnose() {
  auto progress = [this](uint64_t done, uint64_t all) { progress_.Show("diagnosing", done, all); };
  absl::StatusOr<readers::SourcesDiagnosis> diagnosed =
      readers::DiagnoseSources(options_.from, ReadingThreads(), progress);
  if (!diagnosed.ok()) {
    return absl::Status(diagnosed.status().code(), absl::StrCat("--from: ", diagnosed.status().message()));
  }
  progress_.Clear();
  SayChoice("trace", *diagnosed);
  diagnosed_ = *std::move(diagnosed);
  std::erase_if(diagnosed_.ranks, [](const readers::SourceRank& rank) { return !rank.has_times; });
  const bool have_times = !ranks().empty() && diagnosed_.steps_format != SourceFormat::kNcclInspector;
  return have_times ? absl::OkStatus() : absl::InvalidArgumentError(WhyNoTimeline());
}

// Of files that say something, but not when.
std::string Trace::WhyNoTimeline() const {
  if (diagnosed_.steps_format == SourceFormat::kAscendProfile) {
    return "--from: there are only sums of each step, and no operation: they have no time line; profile with "
           "ProfilerLevel.Level1 for communication.json";
  }
  return LacksEverywhere(diagnosed_, "no time line");
}

// What of the files is not in the time line.
void Trace::SayWhatIsMissing() {
  std::set<std::string> others;
  for (const readers::Source& source : diagnosed_.sources) {
    if (unreadable_.empty() && !source.note.empty()) unreadable_ = absl::StrCat(source.path, ": ", source.note);
    const bool is_in_it =
        source.format == diagnosed_.steps_format ||
        (diagnosed_.steps_format != SourceFormat::kMarks &&
         (source.format == SourceFormat::kKinetoTrace || source.format == SourceFormat::kAscendProfile));
    if (!is_in_it && source.format != SourceFormat::kUnknown) others.insert(readers::TitleOf(source.format));
  }
  if (!others.empty()) {
    std::cerr << "taskd trace: the time line is of " << readers::TitleOf(diagnosed_.steps_format)
              << " alone, and not of " << absl::StrJoin(others, ", ") << std::endl;
  }
  if (!unreadable_.empty()) {
    std::cerr << "taskd trace: not all could be read: " << Printable(unreadable_, kShownLineBytes) << std::endl;
  }
}

// False: nobody is accused.
bool Trace::ChooseSuspects() {
  std::vector<int> accused;
  std::set<int> chosen;
  auto choose = [&](int rank) {
    if (chosen.size() < kMaxSuspects && IndexOf(rank) != ranks().size()) chosen.insert(rank);
  };
  for (const Verdict& verdict : diagnosed_.verdicts) {  // the most costly first
    const std::vector<int> ranks_of_verdict = readers::AccusedBy(verdict, ranks());
    for (int rank : ranks_of_verdict) {
      choose(rank);
      if (chosen.contains(rank)) accused.push_back(rank);
    }
    if (!ranks_of_verdict.empty()) {
      steps_.emplace_back(std::max<int64_t>(0, verdict.since_step - kStepsBefore), verdict.since_step + kStepsAfter);
    }
  }
  if (accused.empty()) return false;

  auto nearest = [](std::vector<int> ranks, int to) {
    std::erase(ranks, to);
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return std::abs(a - to) < std::abs(b - to); });
    return ranks;
  };
  for (int rank : accused) {
    std::vector<int> peers = nearest(ranks()[IndexOf(rank)].peers, rank);
    for (size_t i = 0; i < std::min(peers.size(), kPeersOfSuspect); ++i) choose(peers[i]);
  }
  // Who waits for them: one more of each group in turn, as long as there is room.
  std::vector<std::vector<int>> groups;
  for (int rank : accused) {
    for (const GroupInfo& group : readers::GroupsOf(ranks()[IndexOf(rank)])) {
      groups.push_back(nearest(ExpandMembers(group.members, diagnosis::kMaxRanks), rank));
    }
  }
  for (size_t i = 0; i < kMaxSuspects; ++i) {
    for (const std::vector<int>& group : groups) {
      if (i < group.size()) choose(group[i]);
    }
  }
  for (int rank : chosen) chosen_.emplace_back(ranks()[IndexOf(rank)]);
  return true;
}

absl::Status Trace::ChooseRanks(const Spans& wanted) {
  for (const readers::SourceRank& rank : ranks()) {
    if (wanted.empty() || Contains(wanted, rank.rank)) chosen_.emplace_back(rank);
  }
  if (!chosen_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--ranks: none of ", options_.ranks, " is in ", options_.from[0],
                                                 ", which has ", CountOf(static_cast<int64_t>(ranks().size()), "rank"),
                                                 " from ", ranks().front().rank, " to ", ranks().back().rank));
}

// `use` returns whether it wants more.
template <typename Use>
void Trace::ForEachMark(const readers::SourceRank& rank, const char* what, const Use& use) {
  uint64_t count = 0;
  const absl::Status status = readers::ForEachMark(rank, [&](const MarkRecord& mark, uint64_t bytes) {
    if (!use(mark)) return false;
    if (++count % kMarksBetweenProgress == 0) progress_.Show(what, read_bytes_ + bytes, all_bytes_);
    return true;
  });
  if (unreadable_.empty() && !status.ok()) unreadable_ = std::string(status.message());
  read_bytes_ += rank.bytes;
}

uint64_t Trace::BytesOfChosen() const {
  uint64_t bytes = 0;
  for (const Chosen& rank : chosen_) bytes += rank.source->bytes;
  return bytes;
}

void Trace::FindStepsOf(Chosen& rank) {
  if (steps_.empty() && rank.first_ns != UINT64_MAX) return;
  StepWindows windows(steps_);
  int marks = 0;
  ForEachMark(*rank.source, "looking for steps", [&](const MarkRecord& mark) {
    if (marks < kMarksToFirst) rank.first_ns = std::min(rank.first_ns, mark.time_ns);
    ++marks;
    if (steps_.empty()) return marks < kMarksToFirst;
    windows.Add(mark);
    return true;
  });
  rank.windows = windows.Take();
}

// Also the earliest mark of each rank.
absl::Status Trace::FindSteps() {
  read_bytes_ = 0;
  all_bytes_ = BytesOfChosen();
  for (Chosen& rank : chosen_) FindStepsOf(rank);
  std::erase_if(chosen_, [&](const Chosen& rank) {
    return rank.first_ns == UINT64_MAX || (!steps_.empty() && rank.windows.empty());
  });
  if (!chosen_.empty()) return absl::OkStatus();
  if (steps_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks: ", options_.ranks, " have no marks in ", options_.from[0]));
  }
  std::string known =
      diagnosed_.report.first_step < 0
          ? "no whole steps are there"
          : absl::StrCat("whole steps are from ", diagnosed_.report.first_step, " to ", diagnosed_.report.last_step);
  return absl::InvalidArgumentError(absl::StrCat("--steps: none of ", options_.steps, " is in the marks; ", known));
}

trace::TraceSpan Trace::SpanOf(const Verdict& verdict) const {
  std::string ids;
  for (int id : verdict.ids) absl::StrAppend(&ids, ids.empty() ? "" : ",", id);
  for (const diagnosis::Link& link : verdict.links) absl::StrAppend(&ids, ids.empty() ? "" : ",", link.a, "-", link.b);
  trace::TraceSpan span;
  span.name = absl::StrCat("slow ", Name(verdict.scope), ids.empty() ? "" : " ", ids, ": ", Name(verdict.cause));
  // JSON has no infinite numbers.
  auto number = [](double value) { return absl::StrFormat("%.6g", std::isfinite(value) ? value : 0.0); };
  span.args = absl::StrCat(
      "\"text\":", trace::JsonString(verdict.text), ",\"scope\":\"", Name(verdict.scope), "\",\"ids\":\"", ids,
      "\",\"cause\":\"", Name(verdict.cause), "\",\"state\":\"", StateName(verdict),
      "\",\"since_step\":", verdict.since_step, ",\"slowdown\":", number(verdict.slowdown),
      ",\"cost_ms_per_step\":", number(verdict.cost_ms_per_step), ",\"confidence\":", number(verdict.confidence));
  span.first_step = verdict.since_step;
  span.last_step = verdict.last_step;
  return span;
}

void Trace::WriteRank(trace::TraceWriter& writer, size_t index) {
  const Chosen& chosen = chosen_[index];
  const readers::SourceRank& source = *chosen.source;
  trace::TraceRank rank;
  rank.rank = source.rank;
  rank.name = absl::StrCat("rank ", rank.rank);
  if (source.node >= 0) {
    absl::StrAppend(&rank.name, " (node ", source.node, source.host.empty() ? "" : ", ", source.host, ")");
  }
  rank.sort_index = static_cast<int>(index);
  rank.clock_offset_ns = source.clock_offset_ns;
  rank.groups = readers::GroupsOf(source);
  rank.windows = chosen.windows;

  struct Line {
    trace::TraceSpan span;
    uint64_t time_ns;
  };
  std::vector<Line> lines;  // of verdicts that this rank is the first of
  for (const Verdict& verdict : diagnosed_.verdicts) {
    const std::vector<int> accused = readers::AccusedBy(verdict, ranks());
    auto is_accused = [&](const Chosen& other) {
      return std::count(accused.begin(), accused.end(), other.source->rank) != 0;
    };
    trace::TraceSpan span = SpanOf(verdict);
    auto first = std::find_if(chosen_.begin(), chosen_.end(), is_accused);
    size_t bearer = first == chosen_.end() ? 0 : static_cast<size_t>(first - chosen_.begin());
    uint64_t own_ns = verdict.since_ns + static_cast<uint64_t>(source.clock_offset_ns);
    bool seen = rank.windows.empty() || std::any_of(rank.windows.begin(), rank.windows.end(), [&](auto& window) {
                  return window.first_ns <= own_ns && own_ns <= window.last_ns;
                });
    if (bearer == index && verdict.since_ns != 0 && seen) lines.push_back({span, verdict.since_ns});
    if (is_accused(chosen)) rank.spans.push_back(std::move(span));
  }
  writer.BeginRank(std::move(rank));
  for (const Line& line : lines) writer.GlobalInstant(line.span.name, line.span.args, line.time_ns);
  ForEachMark(source, "writing", [&](const MarkRecord& mark) {
    writer.Add(mark);
    return writer.status().ok();
  });
  writer.EndRank();
}

absl::Status Trace::Write(OutputFile& file) {
  uint64_t base_ns = UINT64_MAX;
  for (const Chosen& rank : chosen_) {
    base_ns = std::min(base_ns, rank.first_ns - static_cast<uint64_t>(rank.source->clock_offset_ns));
  }
  // By node; ranks on unknown nodes last.
  std::stable_sort(chosen_.begin(), chosen_.end(), [](const Chosen& a, const Chosen& b) {
    return static_cast<unsigned>(a.source->node) < static_cast<unsigned>(b.source->node);
  });
  read_bytes_ = 0;
  all_bytes_ = BytesOfChosen();
  trace::TraceWriter writer(base_ns, [&](std::string_view data) { return file.Write(data); });
  for (size_t i = 0; i < chosen_.size() && writer.status().ok(); ++i) WriteRank(writer, i);
  absl::Status status =
      writer.Finish(absl::StrCat("\"task\":", trace::JsonString(diagnosed_.name), ",\"ranks\":\"", chosen_.size(),
                                 "\",\"verdicts\":\"", diagnosed_.verdicts.size(), "\""));
  if (status.ok()) status = file.Commit();
  if (!status.ok()) return status;
  progress_.Clear();
  SayWhatIsMissing();
  if (writer.left_out() != 0) {
    std::cerr << "taskd trace: " << writer.left_out() << " ranges were left out: more than " << trace::TraceLanes::kMax
              << " overlapped on one track" << std::endl;
  }
  if (options_.output != "-") {
    std::cout << options_.output << ": " << CountOf(static_cast<int64_t>(chosen_.size()), "rank") << ", "
              << writer.events() << " events; open it with https://ui.perfetto.dev or chrome://tracing" << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Trace::Run() {
  if (std::count(options_.from.begin(), options_.from.end(), "-") != 0) {
    return absl::InvalidArgumentError("--from: -: files are read twice, and standard input is there once: name a file");
  }
  if (options_.output.empty()) return absl::InvalidArgumentError("-o: a file is needed, or - for stdout");
  absl::StatusOr<Spans> ranks = ParseFlag("--ranks", options_.ranks, "0-7,12");
  if (!ranks.ok()) return ranks.status();
  absl::StatusOr<Spans> steps = ParseFlag("--steps", options_.steps, "10-20");
  if (!steps.ok()) return steps.status();
  if (options_.suspects && (!ranks->empty() || !steps->empty())) {
    return absl::InvalidArgumentError("--suspects: chooses ranks and steps itself, leave out --ranks and --steps");
  }
  // Before the long part, since it may be refused.
  absl::StatusOr<OutputFile> file = OutputFile::Create(options_.output);
  if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("-o: ", file.status().message()));
  absl::Status status = Diagnose();
  progress_.Clear();
  if (!status.ok()) return status;
  if (options_.suspects) {
    if (!ChooseSuspects()) {
      (options_.output == "-" ? std::cerr : std::cout) << "taskd trace: no rank of " << Printable(diagnosed_.name)
                                                       << " is accused, nothing was written" << std::endl;
      return absl::OkStatus();
    }
  } else {
    steps_ = *std::move(steps);
    status = ChooseRanks(*ranks);
    if (!status.ok()) return status;
  }
  status = FindSteps();
  if (status.ok()) status = Write(*file);
  progress_.Clear();
  return status;
}

// Returns the folder with the marks of the only job that this user runs on this machine, or the only one named `job` if
// that is not empty. If none runs, of the last one that has ended.
absl::StatusOr<std::string> MarkFolderOfJob(const std::string& job) {
  proto::Security security;
  security.secret = TokenOfEnvironment();
  absl::StatusOr<ControlClient> client = ControlClient::Make("", job, std::move(security));
  std::string folder;
  if (std::optional<v1::EndedJob> ended = AskEndedJob(client.status(), job, std::cerr)) {
    folder = ended->mark_folder();
  } else if (client.ok()) {
    v1::JobStatus status;
    grpc::ClientContext context;
    ControlClient::SetTimeout(context, kFolderTimeout);
    const grpc::Status called = ReadParts(client->stub().StatusInParts(&context, {}), &status);
    if (!called.ok()) return absl::UnavailableError(client->Describe(called));
    folder = proto::MarkFolderOf(status);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "--from: a task's folder of mark files, or what a profiler wrote, is needed: ", client.status().message()));
  }
  return CheckMarkFolder(folder);
}

// INVALID_ARGUMENT: wrong usage, a folder without marks, or nothing in it is asked for; any other error: FILE could not
// be written, and is as it was, or the job's manager does not answer.
absl::Status RunTrace(TraceOptions options) {
  if (options.from.empty()) {
    absl::StatusOr<std::string> folder = MarkFolderOfJob(options.job);
    if (!folder.ok()) return folder.status();
    options.from = {*std::move(folder)};
  }
  return Trace(options).Run();
}

class TraceCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    flags.Add("--from", options_.from,
              absl::StrCat(kFromHelp, " [the marks of this user's job, or of the last that ended]"));
    flags.Add("--job", options_.job, "NAMESPACE/NAME; without --from the job to find").JobName();
    flags.Add("--ranks", options_.ranks, "only these, as 0-7,12");
    flags.Add("--steps", options_.steps, "only these, as 10-20");
    flags.Add(
        "--suspects", options_.suspects,
        "only accused ranks, peers, and who waits for them (16 ranks at most), from 5 steps before the onset to 10 "
        "after it; when nobody is accused, says so and writes no file");
    flags.Add("-o,--output", options_.output, "where it goes, - for stdout").FromEnvironment({"TASKD_OUTPUT"});
  }

  absl::StatusOr<bool> Run() override {
    if (absl::Status status = RunTrace(options_); !status.ok()) return status;
    return true;
  }

 private:
  TraceOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() { return std::make_unique<TraceCommand>(); }

}  // namespace taskd::commands
