#include "ledger/render.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "nlohmann/json.hpp"

namespace taskd::ledger {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarWidth = 30;
constexpr double kMostWallS = 1e9;
constexpr size_t kMaxAdvice = 20;  // entries that are read

// The cause that a sentence names for time lost to the category.
constexpr std::array<const char*, kCategories> kLostTo = {
    "waiting in the queue",
    "waiting for nodes",
    "starting processes",
    "linking up",
    "warm-up",
    "productive steps",
    "the data loader",
    "checkpoints",
    "stragglers",
    "time between steps",
    "redone steps",
    "hangs",
    "restarting",
    "suspension",
    "unmarked time",
    "time that nobody can explain",
};

double Rounded(double value) { return std::isfinite(value) ? std::round(value * 1e6) / 1e6 : 0; }

std::string FormatTime(int64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(unix_ns), absl::UTCTimeZone());
}

// The year 2000: an earlier stamp (a trace that begins at 0) is not a time of day.
constexpr int64_t kFirstTimeNs = 946'684'800'000'000'000;

Json TimeOrNull(int64_t unix_ns) { return unix_ns < kFirstTimeNs ? Json() : Json(FormatTime(unix_ns)); }

int64_t ReadTime(const Json& json) {
  absl::Time time;
  std::string error;
  if (!json.is_string() || !absl::ParseTime(absl::RFC3339_full, json.get<std::string>(), &time, &error)) return 0;
  return absl::ToUnixNanos(time);
}

Json AllToJson(const Seconds& seconds) {
  Json json = Json::object();
  for (size_t i = 0; i < kCategories; ++i) json[Name(static_cast<Category>(i))] = Rounded(seconds[i]);
  return json;
}

Json HopsToJson(const Seconds& seconds) {
  Json json = Json::object();
  for (const auto& [category, rank_s] : Hops(seconds)) json[Name(category)] = Rounded(rank_s);
  return json;
}

Seconds ReadSeconds(const Json& json) {
  Seconds seconds{};
  if (!json.is_object()) return seconds;
  for (size_t i = 0; i < kCategories; ++i) {
    const double value = json.value(Name(static_cast<Category>(i)), 0.0);
    seconds[i] = std::isfinite(value) ? std::max(value, 0.0) : 0;
  }
  return seconds;
}

std::vector<int> ReadNumbers(const Json& json) {
  std::vector<int> numbers;
  if (!json.is_array()) return numbers;
  for (const Json& one : json) {
    if (one.is_number_integer()) numbers.push_back(one.get<int>());
  }
  return numbers;
}

Json IncidentToJson(const Incident& incident) {
  Json json;
  json["number"] = incident.number;
  json["time"] = TimeOrNull(incident.time_ns);
  json["kind"] = Name(incident.kind);
  json["ranks"] = incident.ranks;
  json["nodes"] = incident.nodes;
  json["text"] = incident.text;
  json["seconds"] = HopsToJson(incident.seconds);
  json["rank_s"] = Rounded(Sum(incident.seconds));
  return json;
}

std::string Percent(double part, double all) { return absl::StrFormat("%.1f %%", all > 0 ? 100 * part / all : 0); }

// Whether a table counts hours instead of seconds.
bool CountsHours(double all_rank_s) { return all_rank_s >= 36'000; }

std::string Cell(double rank_s, bool hours) {
  return hours ? absl::StrFormat("%.2f", rank_s / 3600) : absl::StrFormat("%.1f", rank_s);
}

// The ranks for which the other ranks waited during most of `other`; empty if there are none.
std::string WaitedFor(const Report& report) {
  constexpr size_t kMostNamed = 4;
  std::vector<std::pair<double, int>> ranks;
  double all_s = 0;
  for (const auto& [rank, rank_s] : report.waited_for) {
    ranks.emplace_back(-rank_s, rank);
    all_s += rank_s;
  }
  if (2 * all_s < At(report.seconds(), Category::kOther) || !(all_s > 0)) return "";
  std::sort(ranks.begin(), ranks.end());
  const bool cut = ranks.size() > kMostNamed;
  if (cut) ranks.resize(kMostNamed);
  std::vector<std::string> names;
  for (const auto& [rank_s, rank] : ranks) names.push_back(absl::StrCat(rank));
  return absl::StrCat("the ranks wait for rank", names.size() == 1 ? " " : "s ", absl::StrJoin(names, ", "),
                      cut ? " and others" : "");
}

bool IsLost(Category category) {
  return category != Category::kProductive && category != Category::kUnmarked && category != Category::kUnknown;
}

}  // namespace

std::string RenderJson(const Report& report, const std::string& job) {
  const Seconds seconds = report.seconds();
  const Goodput goodput = GoodputOf(seconds);
  Json json;
  json["schema"] = 1;
  json["job"] = job;
  json["since"] = TimeOrNull(report.since_ns);
  json["until"] = TimeOrNull(report.until_ns);
  json["slots"] = report.slots;
  json["wall_s"] = Rounded(report.wall_s());
  json["rank_s"] = Rounded(report.rank_s);
  json["goodput"] = Rounded(goodput.ratio);
  json["goodput_low"] = Rounded(goodput.low);
  json["goodput_high"] = Rounded(goodput.high);
  json["text"] = Sentence(report);
  json["seconds"] = AllToJson(seconds);
  json["waited_for"] = Json::array();
  for (const auto& [rank, rank_s] : report.waited_for) {
    json["waited_for"].push_back({{"rank", rank}, {"rank_s", Rounded(rank_s)}});
  }
  json["attempts"] = Json::array();
  for (const Attempt& attempt : report.attempts) {
    json["attempts"].push_back({{"number", attempt.number},
                                {"since", TimeOrNull(attempt.since_ns)},
                                {"until", TimeOrNull(attempt.until_ns)},
                                {"slots", attempt.slots},
                                {"outcome", attempt.outcome}});
  }
  json["incidents"] = Json::array();
  for (const Incident& incident : report.incidents) json["incidents"].push_back(IncidentToJson(incident));
  json["older_incidents"] = Json::object();
  for (size_t kind = 0; kind < kIncidentKinds; ++kind) {
    if (report.older.counts[kind] == 0) continue;
    json["older_incidents"][Name(static_cast<IncidentKind>(kind))] = {
        {"count", report.older.counts[kind]}, {"seconds", HopsToJson(report.older.seconds[kind])}};
  }
  json["advice"] = Json::array();
  for (const Advice& advice : report.advice) {
    json["advice"].push_back(
        {{"kind", advice.kind}, {"text", advice.text}, {"saves_rank_s", Rounded(advice.saves_rank_s)}});
  }
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::StatusOr<Report> ReadJson(std::string_view text, std::string* job) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  try {
    if (json.value("schema", 0) != 1) return absl::InvalidArgumentError("its schema is not 1: of a later release");
    Report report;
    *job = json.value("job", "");
    report.since_ns = ReadTime(json.value("since", Json()));
    // `wall_s` is the exact duration of the seconds; `until` has only milliseconds.
    const double wall_s = json.value("wall_s", 0.0);
    report.until_ns = report.since_ns + static_cast<int64_t>(std::clamp(wall_s, 0.0, kMostWallS) * 1e9);
    report.slots = json.value("slots", 0);
    report.closed = ReadSeconds(json.value("seconds", Json()));
    report.rank_s = Sum(report.closed);
    for (const Json& one : json.value("waited_for", Json::array())) {
      if (report.waited_for.size() >= Report::kMaxWaitedFor) break;
      report.waited_for[one.value("rank", -1)] = std::max(one.value("rank_s", 0.0), 0.0);
    }
    for (const Json& one : json.value("attempts", Json::array())) {
      if (report.attempts.size() >= Report::kMaxAttempts) break;
      report.attempts.push_back({one.value("number", 0), ReadTime(one.value("since", Json())),
                                 ReadTime(one.value("until", Json())), one.value("slots", 0),
                                 one.value("outcome", "")});
    }
    for (const Json& one : json.value("incidents", Json::array())) {
      const std::optional<IncidentKind> kind = IncidentKindFromName(one.value("kind", ""));
      const uint64_t number = one.value("number", uint64_t{0});
      const uint64_t next = report.incidents.empty() ? number : report.incidents.back().number + 1;
      if (!kind.has_value() || number == 0 || number != next || report.incidents.size() >= Report::kMaxIncidents) {
        return absl::InvalidArgumentError("an incident of it has no number, or no kind that is known");
      }
      report.incidents.push_back({number, ReadTime(one.value("time", Json())), *kind,
                                  ReadNumbers(one.value("ranks", Json())), ReadNumbers(one.value("nodes", Json())),
                                  one.value("text", ""), ReadSeconds(one.value("seconds", Json()))});
    }
    for (const Json& one : json.value("advice", Json::array())) {
      if (report.advice.size() >= kMaxAdvice) break;
      report.advice.push_back({one.value("kind", ""), one.value("text", ""), one.value("saves_rank_s", 0.0)});
    }
    const Json older = json.value("older_incidents", Json::object());
    for (size_t kind = 0; kind < kIncidentKinds; ++kind) {
      const auto found = older.find(Name(static_cast<IncidentKind>(kind)));
      if (found == older.end()) continue;
      report.older.counts[kind] = found->value("count", uint64_t{0});
      report.older.seconds[kind] = ReadSeconds(found->value("seconds", Json()));
    }
    return report;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("a part of it is of another kind: ", error.what()));
  }
}

std::string Amount(double rank_s) {
  if (rank_s < 600) return absl::StrFormat("%.0f rank-seconds", rank_s);
  const double hours = rank_s / 3600;
  return absl::StrFormat("%.*f rank-hours", hours < 10 ? 2 : 0, hours);
}

namespace {

// Counts the incidents that restarted processes. A failure that ended the job restarted none.
uint64_t CountRestarts(const Report& report) {
  const auto restarts = [](IncidentKind kind) {
    return kind == IncidentKind::kRankExit || kind == IncidentKind::kNodeLost || kind == IncidentKind::kOrdered;
  };
  uint64_t count = 0;
  for (size_t kind = 0; kind < kIncidentKinds; ++kind) {
    if (restarts(static_cast<IncidentKind>(kind))) count += report.older.counts[kind];
  }
  for (const Incident& incident : report.incidents) {
    const bool started = At(incident.seconds, Category::kLaunch) > 0 || At(incident.seconds, Category::kLinkUp) > 0 ||
                         At(incident.seconds, Category::kWarmUp) > 0;
    if (started && restarts(incident.kind)) ++count;
  }
  return count;
}

}  // namespace

std::string Sentence(const Report& report) {
  const Seconds seconds = report.seconds();
  const double all = Sum(seconds);
  if (all <= 0) return "no rank has lived yet";
  const double unmarked = At(seconds, Category::kUnmarked), unknown = At(seconds, Category::kUnknown);
  const double productive = At(seconds, Category::kProductive), unsure = unmarked + unknown;
  const bool mostly_unsure = 2 * unsure > all;
  std::string text = absl::StrCat(Percent(productive, all), " of ", Amount(all), " were productive");
  if (mostly_unsure) {
    const char* why = 2 * unmarked > unsure ? ": steps were not marked (taskd switch all=on, or taskd run --marks all)"
                      : productive > 0      ? ""
                                            : ": no rank has marked a step (docs/marks.md)";
    text = absl::StrCat("of ", Percent(unsure, all), " of ", Amount(all), " nobody can tell", why, "; ",
                        Percent(productive, all), " were productive");
  }
  Category most = Category::kProductive;
  double lost = 0;
  for (size_t i = 0; i < kCategories; ++i) {
    if (!IsLost(static_cast<Category>(i)) || seconds[i] <= lost) continue;
    lost = seconds[i];
    most = static_cast<Category>(i);
  }
  if (lost >= (mostly_unsure ? 0.01 : 0.0005) * all) {
    absl::StrAppend(&text, mostly_unsure ? "; of the rest most was lost to " : "; most was lost to ",
                    kLostTo[static_cast<size_t>(most)], " (", Percent(lost, all));
    const uint64_t restarts = CountRestarts(report);
    const bool of_restarts = most == Category::kRedone || most == Category::kRestart || most == Category::kWaiting ||
                             most == Category::kLaunch || most == Category::kLinkUp || most == Category::kWarmUp;
    if (of_restarts && restarts > 0) absl::StrAppend(&text, ": ", CountOf(static_cast<int64_t>(restarts), "restart"));
    const std::string waited_for = most == Category::kOther ? WaitedFor(report) : "";
    if (!waited_for.empty()) absl::StrAppend(&text, ": ", waited_for);
    absl::StrAppend(&text, ")");
  }
  if (!mostly_unsure && unsure >= 0.01 * all) absl::StrAppend(&text, "; of ", Percent(unsure, all), " nobody can tell");
  return text;
}

std::string RenderText(const Report& report, const std::string& job, size_t incidents) {
  const Seconds seconds = report.seconds();
  const double all = Sum(seconds);
  const Goodput goodput = GoodputOf(seconds);
  std::string text = absl::StrCat(Sentence(report), "\n\n");
  const std::string when = report.since_ns < kFirstTimeNs
                               ? absl::StrFormat("%.1f s at no known time of day", report.wall_s())
                               : absl::StrCat(FormatTime(report.since_ns), " to ", FormatTime(report.until_ns));
  absl::StrAppendFormat(&text, "job %s  %s  %s  goodput %.4f (%.4f to %.4f)\n\n", Printable(job), when,
                        CountOf(report.slots, "slot"), goodput.ratio, goodput.low, goodput.high);
  const bool hours = CountsHours(all);
  absl::StrAppendFormat(&text, "%-12s %14s %8s\n", "category", hours ? "rank-hours" : "rank-seconds", "share");
  for (size_t i = 0; i < kCategories; ++i) {
    const int bar = all > 0 ? static_cast<int>(std::lround(kBarWidth * seconds[i] / all)) : 0;
    std::string line = absl::StrFormat("%-12s %14s %8s", Name(static_cast<Category>(i)), Cell(seconds[i], hours),
                                       Percent(seconds[i], all));
    if (bar > 0) absl::StrAppend(&line, "  ", std::string(static_cast<size_t>(bar), '#'));
    const std::string waited_for = static_cast<Category>(i) == Category::kOther ? WaitedFor(report) : "";
    if (!waited_for.empty()) absl::StrAppend(&line, "  ", waited_for);
    absl::StrAppend(&text, line, "\n");
  }
  absl::StrAppendFormat(&text, "%-12s %14s\n", "sum", Cell(all, hours));

  if (!report.advice.empty()) absl::StrAppend(&text, "\nwhat would pay:\n");
  for (const Advice& advice : report.advice) {
    absl::StrAppendFormat(&text, "* %s (up to %s)\n", Printable(advice.text), Amount(advice.saves_rank_s));
  }

  std::vector<const Incident*> dearest;
  for (const Incident& incident : report.incidents) dearest.push_back(&incident);
  std::stable_sort(dearest.begin(), dearest.end(),
                   [](const Incident* a, const Incident* b) { return Sum(a->seconds) > Sum(b->seconds); });
  if (dearest.size() > incidents) dearest.resize(incidents);
  if (!dearest.empty()) absl::StrAppend(&text, "\nincidents that cost most, of ", report.incidents.size(), ":\n");
  for (const Incident* incident : dearest) {
    const std::string when = incident->time_ns < kFirstTimeNs ? "" : FormatTime(incident->time_ns) + " ";
    absl::StrAppendFormat(&text, "#%d %s%s: %s\n", incident->number, when, Name(incident->kind),
                          Printable(incident->text));
    std::vector<std::string> hops;
    for (const auto& [category, rank_s] : Hops(incident->seconds)) {
      hops.push_back(absl::StrFormat("%s %.1f", Name(category), rank_s));
    }
    absl::StrAppendFormat(&text, "   %.1f rank-seconds%s\n", Sum(incident->seconds),
                          hops.empty() ? "" : absl::StrCat(": ", absl::StrJoin(hops, ", ")));
  }
  return text;
}

}  // namespace taskd::ledger
