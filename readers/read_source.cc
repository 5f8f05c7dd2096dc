#include "readers/read_source.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "readers/ascend_folder.h"
#include "readers/ascend_profile.h"
#include "readers/byte_source.h"
#include "readers/kineto_trace.h"
#include "readers/pickle.h"

namespace taskd::readers {
namespace {

constexpr size_t kBeginBytes = size_t{64} << 10;  // begin of a file, to detect its format

struct OpenedSource {
  ByteSource source;  // from its begin on
  SourceFormat format;
  std::string seems;  // for an unknown format
};

absl::StatusOr<OpenedSource> OpenSource(const std::string& path) {
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
  std::string seems = format == SourceFormat::kUnknown ? WhatItSeems(begin, path) : "";
  source->PutBack(std::move(begin));
  return OpenedSource{*std::move(source), format, std::move(seems)};
}

// For a pickle of unknown format: the reason why it would be refused. Empty: it is not a pickle.
std::string WhyPickleIsRefused(ByteSource& source) {
  std::string begin(kBeginBytes, '\0');
  begin.resize(source.Read(begin.data(), begin.size()));
  if (!IsPickle(begin)) return "";
  ValueTree tree;
  const std::string problem = ReadPickle(begin, tree);
  return problem.starts_with("opcode") ? absl::StrCat("a pickle of more than plain data: ", problem) : "";
}

// The memory for reading dumps.
struct Dumps {
  HangTables& tables;
  DumpMemory& memory;
};

// Reads a file completely unless it is a profile. Returns false for a profile or an unknown format.
bool ReadOther(ByteSource& source, SourceFormat format, Dumps& dumps, SourceContent& read) {
  if (format == SourceFormat::kNcclInspector) {
    read.inspected = ReadNcclInspector(source);
    read.records = read.inspected.records;
    read.host = read.inspected.host;
    AddNote(read.note, read.inspected.note);
  } else if (format == SourceFormat::kFlightRecorder) {
    read.dump = ReadFlightDump(source, dumps.tables, dumps.memory);
    read.records = read.dump.records;
    read.rank = read.dump.rank;
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

struct Profile {
  TraceRank trace;
  std::vector<GroupInfo> groups;  // groups without an operation
};

// Opens the parts of `file`. In a folder of an Ascend profiler the trace is read only if there are no sums. `dumps`: if
// null, only profiles are read.
void ReadParts(const SourceFile& file, Dumps* dumps, AscendProfile& ascend, size_t max_events, SourceContent& read,
               TraceRank& trace) {
  for (const std::string& path : file.parts.empty() ? std::vector{file.path} : file.parts) {
    absl::StatusOr<OpenedSource> opened = OpenSource(path);
    if (!opened.ok()) {
      AddNote(read.note, std::string(opened.status().message()));
      continue;
    }
    auto& [source, format, seems] = *opened;
    if (dumps != nullptr && ReadOther(source, format, *dumps, read)) return;
    if (format == SourceFormat::kUnknown) {
      AddNote(read.note, source.damage());
      AddNote(read.note, WhyPickleIsRefused(source));
      if (read.seems.empty()) read.seems = std::move(seems);
    } else if (format == SourceFormat::kAscendProfile) {
      ascend.Read(source);
    } else if (format == SourceFormat::kKinetoTrace && ascend.empty()) {
      trace = ReadKinetoTrace(source, max_events);
      if (trace.has_several_ranks && file.parts.empty()) {
        AddNote(
            read.note,
            "left out: it holds the profiles of several ranks in one; name the files of each rank that it was made of");
        trace = {};
        continue;
      }
    } else {
      continue;
    }
    if (read.format == SourceFormat::kUnknown) read.format = format;
  }
}

Profile ReadProfile(const SourceFile& file, size_t max_events, Dumps* dumps, SourceContent& read) {
  Profile profile;
  TraceRank& trace = profile.trace;
  AscendProfile ascend(max_events);
  ReadParts(file, dumps, ascend, max_events, read, trace);
  if (read.format != SourceFormat::kAscendProfile && read.format != SourceFormat::kKinetoTrace) return profile;
  const std::string& path = file.parts.empty() ? file.path : file.parts[0];
  const bool is_in_ascend = read.format == SourceFormat::kAscendProfile || !file.parts.empty();
  AscendRank place;
  if (is_in_ascend) place = FindAscendRank(path);
  read.has_times = read.format != SourceFormat::kAscendProfile || ascend.has_ops();
  if (read.format == SourceFormat::kAscendProfile) trace = ascend.Take();
  NameAscendGroups(place.groups, trace.groups);
  read.records = trace.records;
  AddNote(read.note, trace.note);
  read.rank = trace.rank >= 0 ? trace.rank : place.rank;
  read.world_size = trace.world_size > 0 ? trace.world_size : place.world_size;
  read.host = !trace.host.empty() ? trace.host : !place.host.empty() ? place.host : HostOfPath(path);
  if (!read.has_times && ascend.is_pipeline() && place.groups.empty()) {
    AddNote(read.note, "left out: nothing says of which pipeline stage it is (profiler_metadata.json is not there)");
    trace = {};
  } else if (!read.has_times) {
    profile.groups = std::move(place.groups);
  }
  return profile;
}

}  // namespace

void AddNote(std::string& note, std::string_view more) {
  if (!more.empty()) note.append(note.empty() ? "" : "; ").append(more);
}

SourceContent ReadSource(const SourceFile& file, size_t max_events, HangTables& tables, DumpMemory& memory) {
  SourceContent read;
  read.file = file;
  Dumps dumps{tables, memory};
  Profile profile = ReadProfile(file, max_events, &dumps, read);
  read.folded = FoldTrace(std::move(profile.trace));
  read.folded.groups.insert(read.folded.groups.end(), profile.groups.begin(), profile.groups.end());
  return read;
}

TraceRank ReadEvents(const SourceFile& file, size_t max_events) {
  SourceContent read;
  return ReadProfile(file, max_events, nullptr, read).trace;
}

}  // namespace taskd::readers
