#include "readers/render_sources.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "diagnosis/render.h"
#include "nlohmann/json.hpp"
#include "readers/source_files.h"

namespace taskd::readers {

using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kMostRanges = 12;

std::string TimeOf(uint64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(static_cast<int64_t>(unix_ns)),
                          absl::UTCTimeZone());
}

std::string RangesOf(const std::vector<int>& ranks) {
  return FormatAllRanges(std::set<int>(ranks.begin(), ranks.end()));
}

std::vector<std::string> FramesOf(const diagnosis::Hang& hang) {
  if (hang.frames.empty()) return {};
  return absl::StrSplit(hang.frames, '\n');
}

Json HangToJson(const diagnosis::Hang& hang) {
  Json json;
  json["origins"] = hang.origins;
  json["kind"] = hang.kind;
  json["group"] = hang.group;
  json["operation"] = hang.operation;
  json["since_time"] = hang.since_ns == 0 ? Json() : Json(TimeOf(hang.since_ns));
  json["waiting"] = RangesOf(hang.waiting);
  json["frames"] = FramesOf(hang);
  json["text"] = hang.text;
  return json;
}

void AppendHang(const SourcesDiagnosis& diagnosis, const std::string& job, std::string& out) {
  const diagnosis::Hang& hang = *diagnosis.hang;
  diagnosis::AppendWrapped(absl::StrCat("hung: ", hang.text), 6, out);
  diagnosis::AppendWrapped(absl::StrCat("job ", job, ", ", CountOf(diagnosis.report.ranks, "rank"),
                                        hang.since_ns == 0 ? "" : ", since " + TimeOf(hang.since_ns)),
                           6, out);
  if (!hang.waiting.empty()) {
    diagnosis::AppendWrapped(absl::StrCat(hang.waiting.size() == 1 ? "waiting: rank " : "waiting: ranks ",
                                          FormatRanges(hang.waiting, kMostRanges)),
                             6, out);
  }
  if (!hang.frames.empty()) absl::StrAppend(&out, "rank ", hang.origins[0], " was last in\n");
  for (const std::string& frame : FramesOf(hang)) diagnosis::AppendWrapped(absl::StrCat("      ", frame), 8, out);
}

// Lists the location of each format's files, if there are several formats.
void AppendFormats(const std::vector<Source>& sources, std::string& out) {
  std::vector<SourceFormat> formats;
  for (const Source& source : sources) {
    const bool is_new = std::find(formats.begin(), formats.end(), source.format) == formats.end();
    if (is_new && source.format != SourceFormat::kUnknown) formats.push_back(source.format);
  }
  if (formats.size() < 2) return;
  for (SourceFormat format : formats) {
    const auto is_of = [format](const Source& source) { return source.format == format; };
    const auto first = std::find_if(sources.begin(), sources.end(), is_of);
    const auto count = std::count_if(sources.begin(), sources.end(), is_of);
    diagnosis::AppendWrapped(absl::StrCat(TitleOf(format), ": ", Printable(first->path),
                                          count == 1 ? "" : absl::StrCat(" and ", count - 1, " more")),
                             6, out);
  }
}

}  // namespace

std::string RenderJson(const SourcesDiagnosis& diagnosis, const std::string& job) {
  std::string text = diagnosis::RenderJson(diagnosis.report, job);
  if (diagnosis.sources.empty() && !diagnosis.hang) return text;
  Json json = Json::parse(text);
  for (size_t i = 0; i < diagnosis.proved_by.size(); ++i) {
    for (SourceFormat format : diagnosis.proved_by[i]) json["verdicts"][i]["proved_by"].push_back(Name(format));
  }
  if (diagnosis.hang) {
    json["state"] = "hung";
    json["hang"] = HangToJson(*diagnosis.hang);
    if (diagnosis.hang_proved_by != SourceFormat::kUnknown) {
      json["hang"]["proved_by"] = Json::array({Name(diagnosis.hang_proved_by)});
    }
  }
  json["sources"] = Json::array();
  for (const Source& source : diagnosis.sources) {
    Json row;
    row["path"] = source.path;
    row["format"] = Name(source.format);
    row["rank"] = source.rank < 0 ? Json() : Json(source.rank);
    row["records"] = source.records;
    row["note"] = source.note;
    json["sources"].push_back(std::move(row));
  }
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string RenderText(const SourcesDiagnosis& diagnosis, const std::string& job) {
  std::string out;
  if (diagnosis.hang) AppendHang(diagnosis, job, out);
  // The report on steps is added if there is one and it says more than that the steps were healthy before the hang.
  const bool says_more = diagnosis.report.first_step >= 0 && diagnosis.report.state != diagnosis::JobState::kOk;
  if (!diagnosis.hang || says_more) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", diagnosis::RenderText(diagnosis.report, job));
  } else {
    for (const diagnosis::Note& note : diagnosis.report.notes) diagnosis::AppendWrapped("note: " + note.text, 6, out);
  }
  AppendFormats(diagnosis.sources, out);
  return out;
}

}  // namespace taskd::readers
