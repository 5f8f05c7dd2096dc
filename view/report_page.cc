#include "view/report_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/ranges_text.h"
#include "common/utf8.h"
#include "diagnosis/render.h"
#include "diagnosis/text.h"
#include "marks/step_fold.h"
#include "view/actions_section.h"
#include "view/goodput_section.h"
#include "view/html.h"
#include "view/png.h"

namespace taskd::view {
namespace {

using diagnosis::Evidence;
using diagnosis::Verdict;

constexpr int kMaxRows = 256;  // of the heat map
constexpr size_t kMaxColumns = 600;
constexpr size_t kMaxVerdicts = 20;  // open ones, and cleared ones
constexpr size_t kMaxEvidence = 12;  // of a verdict
constexpr size_t kMaxAccused = 20;   // ranks with a row of numbers
constexpr size_t kMaxEvents = 100;
constexpr size_t kMaxStacksBytes = 64 * 1024;

// Of the pictures, in pixels.
constexpr int kLeft = 90, kAcross = 1000, kMapHeight = 420, kRowHeight = 26, kPhasesHeight = 160, kAxis = 24;

constexpr const char* kStyle =
    "body{margin:0;background:#f4f5f7;color:#16202c;font:15px/1.45 system-ui,sans-serif}"
    "main{max-width:1160px;margin:0 auto;padding:16px}"
    "section,header{background:#fff;border:1px solid #d3d8df;border-radius:8px;padding:14px 18px;margin-bottom:14px}"
    "header.slow,header.hung{border-left:6px solid #a84400;background:#fff3e4}header.ok{border-left:6px solid #1d5fa8}"
    "h1{font-size:22px;line-height:1.3;margin:2px 0 10px;overflow-wrap:anywhere}h2{font-size:16px;margin:0 0 8px}"
    "h3{font-size:15px;margin:14px 0 4px;overflow-wrap:anywhere}p{margin:6px 0;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}"
    "th{text-align:left;color:#4d5966;font-weight:500}"
    "th,td{padding:4px 18px 4px 0;border-bottom:1px solid #d3d8df;vertical-align:top;overflow-wrap:anywhere}"
    "td.n,th.n{text-align:right}td.w{white-space:nowrap;overflow-wrap:normal}dl{display:flex;flex-wrap:wrap;gap:6px "
    "30px;margin:0}dt{color:#4d5966;font-size:13px}"
    "dd{margin:0;overflow-wrap:anywhere}.quiet,figcaption,footer{color:#4d5966;font-size:13px}figure{margin:0}"
    "svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#4d5966}"
    "pre{font-size:12px;overflow-x:auto;white-space:pre-wrap}i{display:inline-block;width:12px;height:12px;margin:0 "
    "5px 0 "
    "14px;border:1px solid #d3d8df;vertical-align:-1px}@media print{body{background:#fff}section{break-inside:avoid}}";

// Of the heat map, by the ratio to the step's median: from each bound on. Blue and orange: told apart by everybody.
struct Level {
  double from;
  Color color;
};
constexpr std::array<Level, 12> kLevels = {{{0, {44, 90, 168}},
                                            {0.5, {92, 132, 196}},
                                            {0.75, {150, 180, 220}},
                                            {0.93, {226, 229, 234}},
                                            {1.07, {238, 206, 158}},
                                            {1.15, {246, 185, 92}},
                                            {1.3, {235, 155, 62}},
                                            {1.45, {222, 122, 34}},
                                            {1.6, {206, 94, 18}},
                                            {2.0, {168, 68, 10}},
                                            {2.5, {128, 46, 6}},
                                            {2.95, {92, 28, 4}}}};
constexpr std::array<const char*, kStepPhases.size()> kPhaseColors = {"#b8860b", "#3b6fb6", "#8fa3bd", "#7a4fa3"};
constexpr std::array<const char*, kStepPhases.size()> kPhaseTexts = {"data loader", "compute", "communication",
                                                                     "checkpoint"};

std::string Number(double value) { return std::isfinite(value) ? absl::StrFormat("%.5g", value) : "-"; }
std::string Milliseconds(double ms) { return ms < 0 ? "-" : Number(ms); }

std::string Row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppend(&row, "<", tag, i == 0 ? ">" : " class=\"n\">", cells[i], "</", tag, ">");
  }
  return row + "</tr>\n";
}

// ---- the verdicts

std::string EvidenceTable(const Verdict& verdict) {
  if (verdict.evidence.empty()) return "";
  std::string table = "<table>\n" + Row({"evidence", "ms", "expected", "from", "sigmas", "steps"}, "th");
  for (size_t i = 0; i < std::min(verdict.evidence.size(), kMaxEvidence); ++i) {
    const Evidence& evidence = verdict.evidence[i];
    const std::string from = evidence.peers == 0   ? "its own past"
                             : evidence.peers == 1 ? "1 peer"
                                                   : absl::StrCat(evidence.peers, " peers");
    absl::StrAppend(&table, Row({Html(diagnosis::FeatureForPeople(evidence.feature), 64), Number(evidence.value),
                                 Number(evidence.reference), from, Number(evidence.z),
                                 absl::StrCat(evidence.first_step, "-", evidence.last_step)}));
  }
  return table + "</table>\n";
}

std::string VerdictText(const Verdict& verdict) {
  std::string html = absl::StrCat("<h3>", Html(verdict.text), "</h3>\n<p class=\"quiet\">cause ", Name(verdict.cause),
                                  ", since step ", verdict.since_step);
  if (verdict.since_ns != 0) absl::StrAppend(&html, " (", TimeText(static_cast<int64_t>(verdict.since_ns)), ")");
  if (verdict.unjudged) {
    absl::StrAppend(&html, ", until step ", verdict.last_step,
                    ", when its marks ended or were switched off: not judged since");
  } else if (!verdict.open) {
    absl::StrAppend(&html, ", last seen in step ", verdict.last_step);
  }
  if (const std::string nodes = diagnosis::NodesText(verdict); !nodes.empty()) {
    absl::StrAppend(&html, "; ", Html(nodes));
  }
  absl::StrAppendFormat(&html, "; costs %s ms of each step; confidence %.0f %%</p>\n", Number(verdict.cost_ms_per_step),
                        100 * verdict.confidence);
  return html + EvidenceTable(verdict);
}

std::string Verdicts(const diagnosis::Report& report, bool open, const char* title) {
  std::string html;
  size_t shown = 0, more = 0;
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.open != open) continue;
    if (++shown > kMaxVerdicts) {
      ++more;
    } else {
      absl::StrAppend(&html, VerdictText(verdict));
    }
  }
  if (html.empty()) return "";
  if (more != 0) absl::StrAppend(&html, "<p>and ", more, " more</p>\n");
  return absl::StrCat("<section><h2>", title, "</h2>\n", html, "</section>\n");
}

// Those that open verdicts name, the dearest verdict's first.
std::vector<int> AccusedRanks(const diagnosis::Report& report) {
  std::vector<int> ranks;
  std::set<int> seen;
  auto add = [&](int rank) {
    if (ranks.size() < kMaxAccused && seen.insert(rank).second) ranks.push_back(rank);
  };
  for (const Verdict& verdict : report.verdicts) {
    if (!verdict.open) continue;
    if (verdict.scope == diagnosis::Scope::kRank || verdict.scope == diagnosis::Scope::kGroup) {
      for (int rank : verdict.ids) add(rank);
    }
    for (const diagnosis::Link& link : verdict.links) add(link.a), add(link.b);
  }
  return ranks;
}

// ---- the pictures

// Steps that are one column.
struct Columns {
  explicit Columns(size_t steps) : steps(steps), per_column((steps + kMaxColumns - 1) / kMaxColumns) {}

  size_t count() const { return per_column == 0 ? 0 : (steps + per_column - 1) / per_column; }
  size_t end(size_t column) const { return std::min((column + 1) * per_column, steps); }

  size_t steps;
  size_t per_column;
};

char LevelOf(uint8_t byte) {
  if (byte == History::kNoData) return static_cast<char>(kLevels.size());
  const double ratio = byte / 254.0 * History::kMaxRatio;
  size_t level = 0;
  while (level + 1 < kLevels.size() && ratio >= kLevels[level + 1].from) ++level;
  return static_cast<char>(level);
}

// A pixel a cell; of several steps the largest.
std::string Picture(const History::Heatmap& map, const Columns& columns) {
  const size_t rows = map.steps.empty() ? 0 : map.cells.size() / map.steps.size();
  std::string pixels;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns.count(); ++column) {
      int largest = -1;
      for (size_t step = column * columns.per_column; step < columns.end(column); ++step) {
        const auto byte = static_cast<uint8_t>(map.cells[row * map.steps.size() + step]);
        if (byte != History::kNoData) largest = std::max<int>(largest, byte);
      }
      pixels += LevelOf(largest < 0 ? History::kNoData : static_cast<uint8_t>(largest));
    }
  }
  std::vector<Color> colors;
  for (const Level& level : kLevels) colors.push_back(level.color);
  colors.push_back({255, 255, 255});
  return EncodePng(columns.count(), pixels, colors);
}

// Step numbers below a picture of `height`.
std::string StepAxis(const History::Heatmap& map, const Columns& columns, int height) {
  constexpr size_t kTicks = 6;
  std::string svg;
  const size_t count = columns.count();
  for (size_t i = 0; i < std::min(kTicks, count); ++i) {
    const size_t column = count == 1 ? 0 : i * (count - 1) / (std::min(kTicks, count) - 1);
    const double x = kLeft + (static_cast<double>(column) + 0.5) * kAcross / static_cast<double>(count);
    absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x, height + 17,
                          map.steps[column * columns.per_column].id.step);
  }
  return svg;
}

std::string RankLabel(int row, int rows, int height, const std::string& text) {
  return absl::StrFormat("<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", kLeft - 8,
                         std::max((row + 0.5) * height / rows + 4, 11.0), text);  // the topmost is not cut off
}

std::string RankAxis(const History::Heatmap& map, int rows, int height, const std::vector<int>& accused) {
  constexpr int kRoom = 15;  // that a label takes
  std::set<int> labelled;    // rows
  std::string svg;
  auto label = [&](int rank) {
    const int row = rank / map.ranks_per_row;
    const bool crowded = std::any_of(labelled.begin(), labelled.end(),
                                     [&](int other) { return std::abs(other - row) * height < kRoom * rows; });
    if (rank >= map.ranks || crowded) return;
    labelled.insert(row);
    const int last = std::min(rank / map.ranks_per_row * map.ranks_per_row + map.ranks_per_row, map.ranks) - 1;
    absl::StrAppend(
        &svg, RankLabel(row, rows, height,
                        map.ranks_per_row == 1 || last == rank ? absl::StrCat("rank ", rank)
                                                               : absl::StrCat(row * map.ranks_per_row, "-", last)));
  };
  for (int rank : accused) label(rank);
  label(0);
  label(map.ranks - 1);
  constexpr int kMostOthers = 12;
  for (int rank = 0; rank < map.ranks; rank += std::max(1, map.ranks / kMostOthers)) label(rank);
  return svg;
}

std::string Legend() {
  std::string html = "<p class=\"quiet\">self time, by the step's median over the ranks:";
  for (size_t i : {size_t{0}, size_t{2}, size_t{3}, size_t{5}, size_t{8}, size_t{11}}) {
    const Level& level = kLevels[i];
    absl::StrAppendFormat(&html, "<i style=\"background:#%02x%02x%02x\"></i>%s", level.color[0], level.color[1],
                          level.color[2],
                          i == 3   ? "1 ×"
                          : i == 0 ? "less"
                                   : absl::StrFormat("%g ×", level.from));
  }
  return html + "<i></i>no data</p>\n";
}

std::string HeatMap(const History::Heatmap& map, const Columns& columns, const std::vector<int>& accused) {
  const int rows = (map.ranks + map.ranks_per_row - 1) / map.ranks_per_row;
  const int height = std::min(kMapHeight, rows * kRowHeight);
  std::string html = absl::StrFormat(
      "<section><h2>Ranks × steps</h2>\n<figure><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"self time of each "
      "rank "
      "and step\">\n<image x=\"%d\" y=\"0\" width=\"%d\" height=\"%d\" preserveAspectRatio=\"none\" "
      "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,%s\"/>\n",
      kLeft + kAcross + 40, height + kAxis, kLeft, kAcross, height, absl::Base64Escape(Picture(map, columns)));
  absl::StrAppend(&html, RankAxis(map, rows, height, accused), StepAxis(map, columns, height), "</svg></figure>\n",
                  Legend());
  if (map.ranks_per_row > 1 || columns.per_column > 1) {
    absl::StrAppend(&html, "<p class=\"quiet\">A cell is ", CountOf(map.ranks_per_row, "rank"), " and ",
                    CountOf(columns.per_column, "step"), ", and shows the largest of them.</p>\n");
  }
  return html + "</section>\n";
}

std::string Phases(const History::Heatmap& map, const Columns& columns) {
  // Shares of each column, summed up from below; a column without periods keeps what was before it.
  std::array<std::vector<double>, kStepPhases.size()> tops;
  for (size_t column = 0; column < columns.count(); ++column) {
    std::array<double, kStepPhases.size()> sums{};
    double all = 0;
    for (size_t i = column * columns.per_column; i < columns.end(column); ++i) {
      const History::StepSummary& step = map.steps[i];
      const std::array<double, kStepPhases.size()> phases = {step.dataloader_ms, step.compute_ms, step.communication_ms,
                                                             step.checkpoint_ms};
      for (size_t phase = 0; phase < phases.size(); ++phase) sums[phase] += phases[phase], all += phases[phase];
    }
    double top = 0;
    for (size_t phase = 0; phase < sums.size(); ++phase) {
      top += all > 0 ? sums[phase] / all : 0;
      tops[phase].push_back(all > 0 || tops[phase].empty() ? top : tops[phase].back());
    }
  }
  if (std::all_of(tops.back().begin(), tops.back().end(), [](double top) { return top == 0; })) return "";
  std::string svg, keys;
  // From the top: each covers the lower part of the one before it.
  for (size_t phase = kStepPhases.size(); phase-- > 0;) {
    absl::StrAppendFormat(&svg, "<path fill=\"%s\" d=\"M%d %d", kPhaseColors[phase], kLeft, kPhasesHeight);
    for (size_t column = 0; column < columns.count(); ++column) {
      const double width = static_cast<double>(kAcross) / static_cast<double>(columns.count());
      const double y = (1 - tops[phase][column]) * kPhasesHeight;
      absl::StrAppendFormat(&svg, "L%.1f %.1fL%.1f %.1f", kLeft + width * static_cast<double>(column), y,
                            kLeft + width * static_cast<double>(column + 1), y);
    }
    absl::StrAppendFormat(&svg, "L%d %dZ\"/>\n", kLeft + kAcross, kPhasesHeight);
  }
  for (size_t phase = 0; phase < kStepPhases.size(); ++phase) {
    absl::StrAppend(&keys, "<i style=\"background:", kPhaseColors[phase], "\"></i>", kPhaseTexts[phase]);
  }
  return absl::StrCat("<section><h2>Where a step's time goes</h2>\n<figure><svg viewBox=\"0 0 ", kLeft + kAcross + 40,
                      " ", kPhasesHeight + kAxis, "\" role=\"img\" aria-label=\"share of each phase\">\n", svg,
                      "<text x=\"", kLeft - 8, "\" y=\"12\" text-anchor=\"end\">100 %</text><text x=\"", kLeft - 8,
                      "\" y=\"", kPhasesHeight, "\" text-anchor=\"end\">0</text>\n",
                      StepAxis(map, columns, kPhasesHeight),
                      "</svg></figure>\n<p class=\"quiet\">mean over the ranks:", keys, "</p></section>\n");
}

// ---- numbers

// Mean over the steps in which the value is known; below 0: none.
double Mean(const std::vector<History::RankStep>& steps, float History::RankStep::*value) {
  double sum = 0;
  int count = 0;
  for (const History::RankStep& step : steps) {
    if (step.*value < 0) continue;
    sum += step.*value;
    ++count;
  }
  return count == 0 ? -1 : sum / count;
}

std::string Accused(const History& history, const std::vector<int>& ranks) {
  if (ranks.empty()) return "";
  std::string medians;
  std::vector<std::string> cells = {"median of all"};
  for (History::Value value : {History::Value::kOwnTime, History::Value::kDataloader, History::Value::kCommunication,
                               History::Value::kPeriod}) {
    const History::Heatmap map = history.Draw(value, 0, INT64_MAX, History::kRecentSteps, 1);
    double sum = 0;
    int count = 0;
    for (const History::StepSummary& step : map.steps) {
      if (step.median_ms > 0) sum += step.median_ms, ++count;
    }
    cells.push_back(Milliseconds(count == 0 ? -1 : sum / count));
  }
  std::string table =
      "<table>\n" + Row({"rank", "self time ms", "data loader ms", "communication ms", "step ms"}, "th") + Row(cells);
  for (int rank : ranks) {
    const std::vector<History::RankStep> steps = history.RecentSteps(rank);
    absl::StrAppend(&table, Row({absl::StrCat(rank), Milliseconds(Mean(steps, &History::RankStep::own_ms)),
                                 Milliseconds(Mean(steps, &History::RankStep::dataloader_ms)),
                                 Milliseconds(Mean(steps, &History::RankStep::communication_ms)),
                                 Milliseconds(Mean(steps, &History::RankStep::period_ms))}));
  }
  return absl::StrCat("<section><h2>The accused ranks' last ", History::kRecentSteps, " steps</h2>\n", table,
                      "</table></section>\n");
}

std::string Notes(const diagnosis::Report& report) {
  if (report.notes.empty()) return "";
  std::string html = "<section><h2>Notes</h2>\n";
  for (const diagnosis::Note& note : report.notes) {
    absl::StrAppend(&html, "<p>", Name(note.kind), ": ", Html(note.text), "</p>\n");
  }
  return html + "</section>\n";
}

std::string Nearest(const diagnosis::Report& report) {
  if (report.nearest.empty()) return "";
  std::string html = "<section><h2>The ranks nearest to a verdict</h2>\n";
  for (const std::string& text : report.nearest) absl::StrAppend(&html, "<p>", Html(text), "</p>\n");
  return html + "</section>\n";
}

std::string Events(const std::vector<ReportEvent>& events) {
  if (events.empty()) return "";
  const size_t first = events.size() - std::min(events.size(), kMaxEvents);
  std::string html = "<section><h2>Events</h2>\n<table>\n<tr><th>time</th><th>event</th><th></th></tr>\n";
  for (size_t i = events.size(); i-- > first;) {
    absl::StrAppend(&html, "<tr><td class=\"w\">", TimeText(events[i].time_ns), "</td><td class=\"w\">",
                    Html(events[i].kind), "</td><td>", Html(events[i].text), "</td></tr>\n");
  }
  absl::StrAppend(&html, "</table>\n");
  if (first > 0) absl::StrAppend(&html, "<p class=\"quiet\">and ", first, " before them</p>\n");
  return html + "</section>\n";
}

std::string Hang(const ReportPage& page) {
  if (page.hang.empty()) return "";
  std::string html = absl::StrCat("<section><h2>The job hangs</h2>\n<p>", Html(page.hang), "</p>\n");
  if (!page.stacks.empty()) {
    absl::StrAppend(&html, "<pre>", HtmlLines(CutUtf8(page.stacks, kMaxStacksBytes)), "</pre>\n");
  }
  return html + "</section>\n";
}

std::string Head(const ReportPage& page) {
  const diagnosis::Report& report = page.report;
  const std::string headline = diagnosis::WriteHeadline(report);
  std::vector<std::pair<std::string, std::string>> facts = {{"job", page.job.empty() ? "(no name)" : page.job},
                                                            {"ranks", absl::StrCat(report.ranks)}};
  if (report.last_step >= 0) {
    facts.emplace_back("judged steps", absl::StrCat(report.first_step, "-", report.last_step));
    facts.emplace_back("step time", absl::StrCat(Number(report.step_ms), " ms"));
  }
  facts.insert(facts.end(), page.facts.begin(), page.facts.end());
  std::string html = absl::StrCat("<header class=\"", page.hang.empty() ? Name(report.state) : "hung", "\">\n<h1>",
                                  Html(page.hang.empty() ? headline : "hangs: " + page.hang), "</h1>\n<dl>\n");
  for (const auto& [name, value] : facts) {
    absl::StrAppend(&html, "<div><dt>", Html(name), "</dt><dd>", Html(value), "</dd></div>\n");
  }
  return html + "</dl></header>\n";
}

}  // namespace

std::string RenderReportPage(const ReportPage& page, const History& history) {
  const std::vector<int> accused = AccusedRanks(page.report);
  const History::Heatmap map = history.Draw(History::Value::kOwnTime, 0, INT64_MAX, History::kMaxSteps, kMaxRows);
  const Columns columns(map.steps.size());
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta http-equiv=\""
      "Content-Security-Policy\" content=\"",
      kReportPagePolicy, "\">\n<title>TaskD: ", Html(page.job), "</title>\n<style>", kStyle, kGoodputStyle,
      "</style></head><body><main>\n");
  absl::StrAppend(&html, Head(page), Hang(page), Verdicts(page.report, true, "Who is slow"));
  if (map.steps.empty()) {
    absl::StrAppend(&html,
                    "<section><h2>Ranks × steps</h2>\n<p>No step has been marked: taskd switch step=on "
                    "communication=on</p></section>\n");
  } else {
    absl::StrAppend(&html, HeatMap(map, columns, accused), Phases(map, columns));
  }
  if (page.actions.has_value()) absl::StrAppend(&html, ActionsSection(*page.actions));
  if (page.goodput.has_value()) absl::StrAppend(&html, GoodputSection(*page.goodput));
  absl::StrAppend(&html, Accused(history, accused), Notes(page.report), Nearest(page.report),
                  Verdicts(page.report, false, "What was slow before"), Events(page.events));
  return absl::StrCat(html, "<footer>Made ", TimeText(page.made_ns), " by TaskD ", Html(page.version), " from ",
                      Html(page.source), ".</footer>\n</main></body></html>\n");
}

}  // namespace taskd::view
