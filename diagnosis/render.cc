#include "diagnosis/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/printable.h"
#include "common/ranges_text.h"
#include "nlohmann/json.hpp"

namespace taskd::diagnosis {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 120;
// Of one text; a verdict's sentence is far shorter.
constexpr size_t kShownTextBytes = 8192;
constexpr size_t kMostIds = 12;  // runs or pairs of them in a line for people

// JSON has no infinities, and nobody needs more.
double MakeFinite(double value) { return std::isnan(value) ? 0 : std::clamp(value, -1e12, 1e12); }

double RoundTo(double value, int decimals) {
  double factor = std::pow(10, decimals);
  return std::round(MakeFinite(value) * factor) / factor;
}

// Four digits are all that a measurement is good for, of a millisecond as of an hour.
double RoundToFourDigits(double value) {
  return std::strtod(absl::StrFormat("%.4g", MakeFinite(value)).c_str(), nullptr);
}

std::string FormatTime(uint64_t unix_ns) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(static_cast<int64_t>(unix_ns)),
                          absl::UTCTimeZone());
}

Json IdsToJson(Scope scope, const std::vector<int>& ids, const std::vector<Link>& links) {
  Json json = Json::array();
  if (scope == Scope::kLink) {
    for (const Link& link : links) json.push_back(Json::array({link.a, link.b}));
  } else {
    for (int id : ids) json.push_back(id);
  }
  return json;
}

Json VerdictToJson(const Verdict& verdict) {
  Json json;
  json["scope"] = Name(verdict.scope);
  json["ids"] = IdsToJson(verdict.scope, verdict.ids, verdict.links);
  json["alternatives"] = Json::array();
  for (const Alternative& alternative : verdict.alternatives) {
    Json row;
    row["scope"] = Name(alternative.scope);
    row["ids"] = IdsToJson(alternative.scope, alternative.ids, alternative.links);
    row["p"] = RoundTo(alternative.probability, 3);
    if (alternative.cause != Cause::kUnknown) row["cause"] = Name(alternative.cause);
    json["alternatives"].push_back(std::move(row));
  }
  json["cause"] = Name(verdict.cause);
  json["state"] = StateName(verdict);
  if (verdict.left) json["cleared_by"] = "left";
  json["since_step"] = verdict.since_step;
  if (verdict.unjudged) json["until_step"] = verdict.last_step;
  json["since_time"] = verdict.since_ns == 0 ? Json() : Json(FormatTime(verdict.since_ns));
  const auto& slowdown = verdict.slowdown_interval;
  const auto& cost = verdict.cost_interval_ms;
  json["slowdown"] = RoundTo(verdict.slowdown, 3);
  // No end where the whole step may be its doing.
  const Json end = std::isfinite(slowdown[1]) ? Json(RoundTo(slowdown[1], 3)) : Json();
  json["slowdown_interval"] = Json::array({RoundTo(slowdown[0], 3), end});
  json["cost_ms_per_step"] = RoundToFourDigits(verdict.cost_ms_per_step);
  json["cost_interval_ms"] = Json::array({RoundToFourDigits(cost[0]), RoundToFourDigits(cost[1])});
  json["confidence"] = RoundTo(verdict.confidence, 3);
  json["evidence"] = Json::array();
  for (const Evidence& evidence : verdict.evidence) {
    Json row;
    row["feature"] = evidence.feature;
    row["value"] = RoundToFourDigits(evidence.value);
    row["reference"] = RoundToFourDigits(evidence.reference);
    row["peers"] = evidence.peers;
    row["z"] = RoundToFourDigits(evidence.z);
    row["steps"] = Json::array({evidence.first_step, evidence.last_step});
    json["evidence"].push_back(std::move(row));
  }
  json["nodes"] = Json::array();
  for (const AccusedNode& node : verdict.nodes) {
    Json row;
    row["rank"] = node.rank;
    row["host"] = node.host;
    row["pod"] = node.pod;
    row["node_name"] = node.node_name;
    json["nodes"].push_back(std::move(row));
  }
  json["text"] = verdict.text;
  return json;
}

Json ResolutionToJson(const std::optional<Resolution>& resolution) {
  if (!resolution) return {};
  Json json;
  json["ratio"] = RoundToFourDigits(resolution->ratio);
  json["steps"] = resolution->steps;
  json["confidence"] = 0.99;
  json["worst"]["rank"] = resolution->worst_rank;
  json["worst"]["ratio"] = RoundToFourDigits(resolution->worst_ratio);
  return json;
}

// Characters, as far as one code point is one.
size_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// The byte at which the first `width` characters end.
size_t FindEndOf(std::string_view text, size_t width) {
  size_t i = 0;
  while (i < text.size()) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && width-- == 0) break;
    ++i;
  }
  return i;
}

std::string DescribeEntity(Scope scope, const std::vector<int>& ids, const std::vector<Link>& links) {
  switch (scope) {
    case Scope::kRank:
      return absl::StrCat(ids.size() == 1 ? "rank " : "ranks ", FormatRanges(ids, kMostIds));
    case Scope::kNode:
      return absl::StrCat(ids.size() == 1 ? "node " : "nodes ", FormatRanges(ids, kMostIds));
    case Scope::kGroup:
      return absl::StrCat("the group of ranks ", FormatRanges(ids, kMostIds));
    case Scope::kLink: {
      std::string result = links.size() == 1 ? "the link of ranks " : "the links of ranks ";
      for (size_t i = 0; i < links.size(); ++i) {
        if (i == kMostIds) return absl::StrCat(result, " and ", links.size() - i, " more");
        absl::StrAppend(&result, i == 0 ? "" : ", ", links[i].a, "-", links[i].b);
      }
      return result;
    }
    case Scope::kJob:
      break;
  }
  return "the whole job";
}

std::string DescribeEntity(const Verdict& verdict) { return DescribeEntity(verdict.scope, verdict.ids, verdict.links); }

std::string SentenceOrCause(const Verdict& verdict) {
  return verdict.text.empty() ? absl::StrCat(DescribeEntity(verdict), ": ", Name(verdict.cause)) : verdict.text;
}

// How much longer a step is with it.
std::string FormatSlowdown(double slowdown) { return absl::StrFormat("%.1f %%", 100 * (MakeFinite(slowdown) - 1)); }

// Nothing where it is not known, as of verdicts of an older version.
std::string FormatInterval(const Verdict& verdict) {
  const auto& [low, high] = verdict.slowdown_interval;
  if (high <= low) return "";
  if (!std::isfinite(high)) return absl::StrCat(" (at least ", FormatSlowdown(low), ")");
  return absl::StrFormat(" (%.1f to %s)", 100 * (MakeFinite(low) - 1), FormatSlowdown(high));
}

}  // namespace

std::string FeatureForPeople(const std::string& feature) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"own_time", "self time"}, {"cpu_wait", "wait for a CPU"}, {"save_checkpoint", "checkpoint"}};
  for (const auto& [name, words] : kNames) {
    if (feature == name) return words;
  }
  return feature;
}

namespace {

void AppendEvidence(const Verdict& verdict, std::string& out) {
  if (verdict.evidence.empty()) return;
  size_t width = 12;
  for (const Evidence& evidence : verdict.evidence)
    width = std::max(width, CountCharacters(Printable(FeatureForPeople(evidence.feature))));
  width = std::min<size_t>(width, 30);
  auto pad = [width](const std::string& text) {
    std::string cell = text.substr(0, FindEndOf(text, width));
    return cell + std::string(width - CountCharacters(cell), ' ');
  };
  absl::StrAppend(&out, "     ", pad("evidence"),
                  absl::StrFormat("  %12s %12s  %-12s %8s  %s\n", "ms", "expected", "from", "sigmas", "steps"));
  for (const Evidence& evidence : verdict.evidence) {
    std::string by = evidence.peers == 0   ? "its own past"
                     : evidence.peers == 1 ? "1 peer"
                                           : absl::StrCat(evidence.peers, " peers");
    absl::StrAppend(&out, "     ", pad(Printable(FeatureForPeople(evidence.feature))),
                    absl::StrFormat("  %12.5g %12.5g  %-12s %8.3g  %d-%d\n", MakeFinite(evidence.value),
                                    MakeFinite(evidence.reference), by, MakeFinite(evidence.z), evidence.first_step,
                                    evidence.last_step));
  }
}

void AppendNodes(const Verdict& verdict, std::string& out) {
  if (const std::string nodes = NodesText(verdict); !nodes.empty()) {
    AppendWrapped(absl::StrCat("     ", nodes), 5, out);
  }
}

void AppendOpen(const Verdict& verdict, int number, bool sentence, std::string& out) {
  AppendWrapped(absl::StrCat(absl::StrFormat("%3d. ", number), DescribeEntity(verdict), ": ", Name(verdict.cause),
                             " since step ", verdict.since_step,
                             verdict.since_ns == 0 ? "" : absl::StrCat(" (", FormatTime(verdict.since_ns), ")"),
                             ", confidence ", absl::StrFormat("%.0f %%", 100 * MakeFinite(verdict.confidence))),
                5, out);
  if (sentence) AppendWrapped(absl::StrCat("     ", SentenceOrCause(verdict)), 5, out);
  AppendNodes(verdict, out);
  absl::StrAppendFormat(&out, "     cost: %.4g ms of each step", MakeFinite(verdict.cost_ms_per_step));
  if (verdict.slowdown > 1) {
    absl::StrAppend(&out, "; steps are ", FormatSlowdown(verdict.slowdown), " longer with it", FormatInterval(verdict));
  }
  out += '\n';
  AppendEvidence(verdict, out);
  if (verdict.alternatives.empty()) return;
  std::string others = "     or instead:";
  for (size_t i = 0; i < verdict.alternatives.size() && i < kMostIds; ++i) {
    const Alternative& other = verdict.alternatives[i];
    absl::StrAppend(&others, i == 0 ? " " : ", ", DescribeEntity(other.scope, other.ids, other.links),
                    other.cause == Cause::kUnknown ? "" : absl::StrCat(", ", Name(other.cause)),
                    absl::StrFormat(" (%.0f %%)", 100 * MakeFinite(other.probability)));
  }
  if (verdict.alternatives.size() > kMostIds) absl::StrAppend(&others, " and more");
  AppendWrapped(others, 5, out);
}

void AppendClosed(const Verdict& verdict, std::string& out) {
  const bool restarted = verdict.last_step < verdict.since_step;
  const char* what = verdict.unjudged ? "not judged any more: " : verdict.left ? "left: " : "cleared: ";
  const bool spelled = restarted || verdict.unjudged;
  AppendWrapped(absl::StrCat(what, DescribeEntity(verdict), ": ", Name(verdict.cause),
                             spelled ? ", from step " : ", steps ", verdict.since_step,
                             !spelled           ? "-"
                             : verdict.unjudged ? " until step "
                                                : " to step ",
                             verdict.last_step, restarted ? " of a later attempt" : "",
                             verdict.unjudged ? ", when its marks ended or were switched off" : "",
                             absl::StrFormat(", cost %.4g ms of each step", MakeFinite(verdict.cost_ms_per_step)),
                             verdict.slowdown > 1 ? absl::StrCat(" (", FormatSlowdown(verdict.slowdown), ")") : ""),
                5, out);
}

std::string DescribeSteps(const Report& report) {
  if (report.first_step < 0) return "no steps";
  return absl::StrCat("steps ", report.first_step, "-", report.last_step);
}

// Why nothing can be reported: the engine's notes explain it best.
std::string ExplainUnknown(const Report& report) {
  for (NoteKind kind : {NoteKind::kOff, NoteKind::kShort, NoteKind::kCoverage, NoteKind::kNoData}) {
    for (const Note& note : report.notes) {
      if (note.kind == kind && !note.text.empty()) return note.text;
    }
  }
  if (report.ranks == 0) return "no rank has reported a step yet";
  if (report.first_step < 0) return "no step could be judged yet";
  return absl::StrCat("of ", report.ranks, " ranks too little is known yet");
}

// So long without a step that what was said of the last ones may not be true any more.
bool IsStanding(const Report& report) { return report.idle_s > std::max(5.0, report.step_ms / 100); }

std::string CountRanks(const Report& report) {
  return report.ranks == 1 ? "1 rank" : absl::StrCat(report.ranks, " ranks");
}

void AppendJob(const Report& report, const std::string& job, std::string& out) {
  std::string about = job.empty() ? "" : absl::StrCat("job ", job);
  if (report.state == JobState::kSlow) {
    absl::StrAppend(&about, about.empty() ? "" : ", ", CountRanks(report), ", ", DescribeSteps(report));
  }
  if (report.step_ms > 0) {
    const bool stands = IsStanding(report);
    absl::StrAppend(&about, about.empty() ? "" : ", ",
                    absl::StrFormat("a step %s %.4g ms%s (median of ten)", stands ? "took" : "takes",
                                    MakeFinite(report.step_ms), stands ? "" : " now"));
  }
  if (!about.empty()) AppendWrapped(about, 0, out);
}

}  // namespace

void AppendWrapped(const std::string& unsafe, size_t indent, std::string& out) {
  std::string text = Printable(unsafe, kShownTextBytes);
  std::string_view rest = text;
  size_t room = kColumns;
  while (CountCharacters(rest) > room) {
    size_t end = FindEndOf(rest, room);
    size_t space = rest.rfind(' ', end);
    bool at_space = space != std::string_view::npos && rest.substr(0, space).find_first_not_of(' ') < space;
    size_t cut = at_space ? space : end;
    absl::StrAppend(&out, std::string(rest.substr(0, cut)), "\n", std::string(indent, ' '));
    rest.remove_prefix(cut);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    room = kColumns - indent;
  }
  absl::StrAppend(&out, std::string(rest), "\n");
}

std::string NodesText(const Verdict& verdict) {
  constexpr size_t kMostNodes = 4;
  std::string text;
  for (const AccusedNode& node : verdict.nodes) {
    if (&node == &verdict.nodes[0] + kMostNodes) {
      return absl::StrCat(text, " and ", verdict.nodes.size() - kMostNodes, " more");
    }
    absl::StrAppend(&text, text.empty() ? "on " : ", ", Printable(node.node_name.empty() ? node.host : node.node_name));
    if (!node.node_name.empty() && node.host != node.node_name)
      absl::StrAppend(&text, " (host ", Printable(node.host), ")");
  }
  return text;
}

std::string RenderJson(const Report& report, const std::string& job) {
  Json json;
  json["schema"] = 1;
  json["job"] = job;
  json["ranks"] = report.ranks;
  json["steps"]["first"] = report.first_step;
  json["steps"]["last"] = report.last_step;
  json["state"] = Name(report.state);
  json["verdicts"] = Json::array();
  for (const Verdict& verdict : report.verdicts) json["verdicts"].push_back(VerdictToJson(verdict));
  json["notes"] = Json::array();
  for (const Note& note : report.notes) {
    Json row;
    row["kind"] = Name(note.kind);
    row["since_step"] = note.since_step < 0 ? Json() : Json(note.since_step);
    row["until_step"] = note.until_step < 0 ? Json() : Json(note.until_step);
    row["text"] = note.text;
    json["notes"].push_back(std::move(row));
  }
  json["coverage"] = Json::array();
  for (const RankCoverage& rank : report.coverage) {
    Json row;
    row["rank"] = rank.rank;
    row["ratio"] = RoundTo(rank.ratio, 3);
    row["sufficient"] = rank.sufficient;
    row["resolution"] = rank.resolution > 0 ? Json(RoundToFourDigits(rank.resolution)) : Json();
    json["coverage"].push_back(std::move(row));
  }
  json["resolution"]["own_time"] = ResolutionToJson(report.own_time);
  json["resolution"]["dataloader"] = ResolutionToJson(report.dataloader);
  json["resolution"]["transfer"] = ResolutionToJson(report.transfer);
  return PrintableJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string WriteWhyUnknown(const Report& report) { return absl::StrCat("cannot say: ", ExplainUnknown(report)); }

namespace {

std::string WriteFinding(const Report& report) {
  const std::string job = absl::StrCat(CountRanks(report), ", ", DescribeSteps(report));
  if (report.state == JobState::kOk) {
    const std::string by =
        report.own_time ? absl::StrFormat(" by %.2g %% or more", 100 * MakeFinite(report.own_time->ratio)) : "";
    return absl::StrCat("ok: ", job, ", nobody is slow", by);
  }
  if (report.state == JobState::kUnknown) return absl::StrCat("unknown: ", job, ", ", WriteWhyUnknown(report));
  const auto costliest =
      std::find_if(report.verdicts.begin(), report.verdicts.end(), [](const Verdict& verdict) { return verdict.open; });
  return absl::StrCat("slow: ", costliest == report.verdicts.end() ? "but nobody can be named; the notes tell more"
                                                                   : SentenceOrCause(*costliest));
}

}  // namespace

std::string WriteHeadline(const Report& report) {
  const std::string stands = IsStanding(report) ? absl::StrFormat("; no step has ended for %.0f s", report.idle_s) : "";
  return absl::StrCat(WriteFinding(report), stands);
}

std::string RenderText(const Report& report, const std::string& job) {
  std::string out;
  const std::string headline = WriteHeadline(report);
  AppendWrapped(headline, headline.find(' ') + 1, out);
  AppendJob(report, job, out);

  int number = 0;
  for (const Verdict& verdict : report.verdicts) {
    if (!verdict.open) continue;
    out += '\n';
    ++number;
    // The first one's sentence stands at the top.
    bool at_top = report.state == JobState::kSlow && number == 1;
    AppendOpen(verdict, number, !at_top, out);
  }
  bool separated = false;
  auto separate = [&] {
    if (!separated) out += '\n';
    separated = true;
  };
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.open) continue;
    separate();
    AppendClosed(verdict, out);
  }
  for (const Note& note : report.notes) {
    if (report.state == JobState::kUnknown && headline.ends_with(note.text)) continue;  // it is the reason
    separate();
    AppendWrapped(absl::StrCat("note: ", note.text), 6, out);
  }
  return out;
}

}  // namespace taskd::diagnosis
