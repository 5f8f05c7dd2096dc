#include "agent/commands/folder_diagnosis.h"

#include <cstdint>
#include <iostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/commands/progress.h"
#include "common/printable.h"

namespace taskd::commands {

absl::StatusOr<readers::SourcesDiagnosis> DiagnoseFolder(const JobSource& source, const readers::StepSeen& on_step,
                                                         const readers::EngineSeen& on_engine) {
  Progress progress;
  absl::StatusOr<readers::SourcesDiagnosis> read = readers::DiagnoseSources(
      source.from, ReadingThreads(), [&](uint64_t done, uint64_t all) { progress.Show("reading", done, all); }, on_step,
      on_engine);
  progress.Clear();
  if (!read.ok()) return absl::Status(read.status().code(), absl::StrCat("--from: ", read.status().message()));
  if (!source.job.empty()) read->name = source.job;
  return read;
}

void SayChoice(const std::string& command, const readers::SourcesDiagnosis& diagnosed) {
  if (diagnosed.choice.empty()) return;
  std::cerr << "taskd " << command << ": " << Printable(diagnosed.choice, kShownLineBytes) << std::endl;
}

std::string LacksEverywhere(const readers::SourcesDiagnosis& diagnosed, std::string_view what) {
  std::set<std::string> titles;
  for (const readers::Source& source : diagnosed.sources) {
    if (source.format != readers::SourceFormat::kUnknown) titles.insert(readers::TitleOf(source.format));
  }
  return absl::StrCat("--from: ", std::string(what), " is in what is there (",
                      titles.empty() ? readers::TitleOf(readers::SourceFormat::kMarks) : absl::StrJoin(titles, ", "),
                      "); taskd diagnose says what it proves");
}

}  // namespace taskd::commands
