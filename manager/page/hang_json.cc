#include "manager/page/hang_json.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/ranges_text.h"
#include "manager/supervision/hang_evidence.h"

namespace taskd::manager {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxRuns = 64;  // of ranks in one list

Json TimeOrNull(int64_t unix_ns) {
  if (unix_ns == 0) return {};
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

double ThreeDigits(double value) { return std::round(value * 1000) / 1000; }

Json SourcesToJson(const HangEvidence& answer) {
  Json rows = Json::array();
  for (const HangEvidence::Source& source : answer.sources) {
    Json row;
    row["path"] = source.path;
    row["format"] = source.format;
    row["rank"] = source.rank < 0 ? Json() : Json(source.rank);
    row["records"] = source.records;
    row["note"] = source.note;
    rows.push_back(std::move(row));
  }
  return rows;
}

// As `taskd diagnose --from` answers of dumps.
void AddAnswer(const HangEvidence& answer, int64_t since_ns, Json& json) {
  json["origins"] = answer.origins;
  json["kind"] = answer.kind;
  json["group"] = answer.group;
  json["operation"] = answer.operation;
  json["since_time"] = TimeOrNull(answer.since_ns == 0 ? since_ns : static_cast<int64_t>(answer.since_ns));
  json["waiting"] = answer.waiting;
  json["frames"] = answer.frames;
}

}  // namespace

Json HangToJson(const SupervisionSnapshot& supervision, int64_t since_ns, const std::string& stacks) {
  if (!supervision.hang.has_value()) return {};
  const HangVerdict& hang = *supervision.hang;
  const HangEvidence answer = supervision.hang_answer();
  Json json;
  json["text"] = answer.text;
  json["idle_s"] = ThreeDigits(hang.idle_s);
  json["limit_s"] = ThreeDigits(hang.limit_s);
  json["lowest_step"] = hang.lowest_step;
  json["highest_step"] = hang.highest_step;
  json["ranks"] = hang.ranks;
  json["missing"] = FormatRanges(hang.behind, kMaxRuns);
  json["since"] = TimeOrNull(since_ns);
  AddAnswer(answer, since_ns, json);
  json["evidence"] = answer.notes;
  json["sources"] = SourcesToJson(answer);
  json["more_sources"] = answer.more_sources;
  json["stacks"] = stacks.empty() ? Json() : Json(stacks);
  return json;
}

void AddHang(const SupervisionSnapshot& supervision, int64_t since_ns, Json& report) {
  const HangEvidence answer = supervision.hang_answer();
  report["state"] = "hung";
  AddAnswer(answer, since_ns, report["hang"]);
  report["hang"]["text"] = std::string(absl::StripPrefix(answer.text, "hang: "));  // the state says it
  report["sources"] = SourcesToJson(answer);
}

}  // namespace taskd::manager
