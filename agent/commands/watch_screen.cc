#include "agent/commands/watch_screen.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/printable.h"

namespace taskd::commands {
namespace {

constexpr int kMinColumns = 40, kMinRows = 10;
constexpr int kLabel = 12;  // "16320-16383 "
constexpr int kMaxMapRows = 16;
constexpr size_t kHeadlineLines = 3;

// Of a cell, by its ratio to the step's median: from each bound on.
struct Level {
  double from;
  char character;
  int grey;  // of the 256 colors
};
constexpr std::array<Level, 8> kLevels = {{{0, '.', 235},
                                           {0.75, ':', 237},
                                           {0.93, '-', 239},
                                           {1.07, '=', 242},
                                           {1.15, '+', 245},
                                           {1.3, '*', 248},
                                           {1.6, '#', 251},
                                           {2.2, '@', 255}}};
constexpr uint8_t kNoData = 255;
constexpr double kRatioOfByte = 3.0 / 254;
constexpr char kBold[] = "\033[1m", kPlain[] = "\033[0m";

const Level& LevelOf(uint8_t byte) {
  const Level* level = kLevels.data();
  while (level != &kLevels.back() && byte * kRatioOfByte >= (level + 1)->from) ++level;
  return *level;
}

// Of the ranks of a row.
std::string RowLabel(const v1::Heatmap& map, int row) {
  const uint32_t first = static_cast<uint32_t>(row) * map.ranks_per_row();
  const uint32_t last = std::min(first + map.ranks_per_row(), map.ranks()) - 1;
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

std::string Grey(int grey) { return absl::StrCat("\033[48;5;", grey, "m"); }

std::string Row(std::string_view cells, bool greys) {
  std::string text;
  int now = -1;
  for (const char cell : cells) {
    const auto byte = static_cast<uint8_t>(cell);
    if (byte == kNoData) {
      if (now >= 0) text += kPlain;
      now = -1;
      text += greys ? '.' : ' ';
      continue;
    }
    const Level& level = LevelOf(byte);
    if (greys && level.grey != now) absl::StrAppend(&text, Grey(now = level.grey));
    // On a light terminal white is a gap, too: with a character the highest level is none.
    text += greys && &level != &kLevels.back() ? ' ' : level.character;
  }
  return now >= 0 ? text + kPlain : text;
}

// As much as there is room for.
std::string Legend(bool greys, size_t columns) {
  std::string text = "self time by the step's median:";
  size_t shown = text.size();
  auto add = [&](const std::string& level, const std::string& meaning) {
    shown += 2 + meaning.size();
    if (shown <= columns) absl::StrAppend(&text, " ", level, meaning);
  };
  for (size_t i : {size_t{0}, size_t{2}, size_t{4}, size_t{5}, size_t{6}, size_t{7}}) {
    const Level& level = kLevels[i];
    add(greys ? absl::StrCat(Grey(level.grey), i == 7 ? "@" : " ", kPlain) : std::string(1, level.character),
        i == 0   ? " less"
        : i == 2 ? " 1"
                 : absl::StrFormat(" %g", level.from));
  }
  add(greys ? "." : " ", greys ? " no data" : " blank: no data");
  return text;
}

std::vector<std::string> DrawMap(const v1::Heatmap& map, size_t columns, bool greys) {
  const auto steps = static_cast<size_t>(map.steps_size());
  if (steps == 0) return {"no step is marked: taskd switch step=on communication=on"};
  std::vector<std::string> lines = {Legend(greys, columns)};
  const std::string_view cells = map.cells();
  const size_t rows = cells.size() / steps;
  for (size_t row = 0; row < rows; ++row) {
    lines.push_back(absl::StrFormat("%*s %s", kLabel - 1, RowLabel(map, static_cast<int>(row)),
                                    Row(cells.substr(row * steps, steps), greys)));
  }
  const std::string first = absl::StrCat(map.steps(0)), last = absl::StrCat(map.steps(map.steps_size() - 1));
  std::string axis = absl::StrFormat("%*s %s", kLabel - 1, "step", first);
  if (steps > first.size() + last.size()) axis += std::string(steps - first.size() - last.size(), ' ') + last;
  lines.push_back(axis);
  return lines;
}

// Text of words in lines of at most `columns`; the last one may be cut.
std::vector<std::string> Wrap(const std::string& text, size_t columns, size_t most_lines) {
  std::vector<std::string> lines;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    const bool last_line = lines.size() == most_lines;
    if (lines.empty() || (lines.back().size() + 1 + word.size() > columns && !last_line)) {
      lines.push_back(word);
    } else {
      absl::StrAppend(&lines.back(), " ", word);
    }
  }
  return lines;
}

}  // namespace

v1::GetHeatmapRequest HeatmapThatFits(const ScreenSize& size) {
  v1::GetHeatmapRequest request;
  request.set_rows(static_cast<uint32_t>(std::clamp(std::max(size.rows, kMinRows) / 3, 1, kMaxMapRows)));
  request.set_steps(static_cast<uint32_t>(std::clamp(std::max(size.columns, kMinColumns) - kLabel - 1, 1, 1024)));
  return request;
}

std::string DrawScreen(const v1::JobStatus& status, const v1::Heatmap& map, const std::string& details,
                       const ScreenSize& size, bool greys) {
  // "…" takes three bytes more.
  const auto columns = static_cast<size_t>(std::max(size.columns, kMinColumns)) - 3;
  const auto rows = static_cast<size_t>(std::max(size.rows, kMinRows));
  std::vector<std::string> lines;
  const std::string headline = Printable(status.diagnosis().headline(), kShownLineBytes);
  for (const std::string& line : Wrap(headline, columns, kHeadlineLines)) {
    const std::string shown = Printable(line, columns);
    lines.push_back(greys ? absl::StrCat(kBold, shown, kPlain) : shown);
  }
  const size_t most_others = rows / 6;
  size_t others = 0;
  for (const std::string& verdict : status.diagnosis().open_verdicts()) {
    if (absl::StrContains(status.diagnosis().headline(), verdict)) continue;
    if (++others <= most_others) lines.push_back(Printable(absl::StrCat("also: ", verdict), columns));
  }
  if (others > most_others) lines.push_back(absl::StrCat("and ", others - most_others, " more: taskd diagnose"));
  lines.emplace_back();
  for (std::string& line : DrawMap(map, columns, greys)) lines.push_back(std::move(line));
  lines.emplace_back();
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(details, '\n', absl::SkipEmpty()))) {
    if (!absl::StartsWith(line, "diagnosis: ")) lines.push_back(Printable(line, columns));
  }
  const bool all = lines.size() < rows;
  lines.resize(std::min(lines.size(), rows - 1));
  lines.emplace_back(all ? "q ends" : "q ends; a higher terminal shows more");
  std::string screen;
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&screen, i == 0 ? "" : "\n", lines[i]);
  return screen;
}

}  // namespace taskd::commands
