#include "agent/commands/watch_screen.h"

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace taskd::commands {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kNoData = static_cast<char>(255);

char Byte(double ratio) { return static_cast<char>(ratio / 3 * 254); }

// Ranks x steps; all at the median.
v1::Heatmap MakeMap(uint32_t ranks, int steps, uint32_t ranks_per_row = 1) {
  v1::Heatmap map;
  map.set_ranks(ranks);
  map.set_ranks_per_row(ranks_per_row);
  for (int i = 0; i < steps; ++i) map.add_steps(100 + i);
  map.set_cells(std::string((ranks + ranks_per_row - 1) / ranks_per_row * static_cast<size_t>(steps), Byte(1)));
  return map;
}

void SetCell(v1::Heatmap& map, size_t row, size_t step, char byte) {
  (*map.mutable_cells())[row * static_cast<size_t>(map.steps_size()) + step] = byte;
}

v1::JobStatus MakeStatus(const std::string& headline) {
  v1::JobStatus status;
  status.mutable_diagnosis()->set_headline(headline);
  return status;
}

// What a person sees, a line each.
std::vector<std::string> Lines(const std::string& screen) {
  return absl::StrSplit(std::regex_replace(screen, std::regex("\033\\[[0-9;]*m"), ""), '\n');
}

TEST(WatchScreenTest, EachLevelHasACharacterAndAGapIsBlank) {
  v1::Heatmap map = MakeMap(2, 9);
  const std::vector<double> ratios = {0.1, 0.8, 1, 1.1, 1.2, 1.5, 1.9, 3};
  for (size_t i = 0; i < ratios.size(); ++i) SetCell(map, 1, i, Byte(ratios[i]));
  SetCell(map, 1, 8, kNoData);
  const auto lines = Lines(DrawScreen(MakeStatus("ok: 2 ranks"), map, "", {}, false));
  EXPECT_EQ(lines[0], "ok: 2 ranks");
  EXPECT_THAT(lines, Contains("          0 ---------"));
  EXPECT_THAT(lines, Contains("          1 .:-=+*#@ "));
  EXPECT_THAT(lines, Contains("       step 100   108"));
  EXPECT_EQ(lines.back(), "q ends");
}

TEST(WatchScreenTest, GreysAreEightAndAGapIsNone) {
  v1::Heatmap map = MakeMap(1, 3);
  SetCell(map, 0, 1, kNoData);
  SetCell(map, 0, 2, Byte(1.4));
  const std::string screen = DrawScreen(MakeStatus("ok: 1 rank"), map, "", {}, true);
  EXPECT_THAT(screen, HasSubstr("          0 \033[48;5;239m \033[0m.\033[48;5;248m \033[0m\n"));
}

TEST(WatchScreenTest, WithoutColorsThereIsNoEscape) {
  EXPECT_THAT(DrawScreen(MakeStatus("slow: rank 1"), MakeMap(4, 20), "details", {}, false), Not(HasSubstr("\033")));
}

TEST(WatchScreenTest, RowsOfSeveralRanksSayWhich) {
  const auto lines = Lines(DrawScreen(MakeStatus("ok"), MakeMap(16384, 10, 1024), "", {80, 60}, false));
  EXPECT_THAT(lines, Contains("     0-1023 ----------"));
  EXPECT_THAT(lines, Contains("15360-16383 ----------"));
  // The last row may have fewer.
  const auto uneven = Lines(DrawScreen(MakeStatus("ok"), MakeMap(10, 4, 4), "", {80, 60}, false));
  EXPECT_THAT(uneven, Contains("        8-9 ----"));
}

TEST(WatchScreenTest, FitsWhateverTheTerminal) {
  v1::JobStatus status =
      MakeStatus(absl::StrCat("slow: ", std::string(300, 'x'), " and more \x1b[2J words ", std::string(50, 'y')));
  for (int i = 0; i < 20; ++i)
    status.mutable_diagnosis()->add_open_verdicts(absl::StrCat("rank ", i, " ", std::string(200, 'z')));
  std::string details;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&details, "line ", i, " ", std::string(100, 'd'), "\n");
  for (ScreenSize size : {ScreenSize{40, 10}, ScreenSize{80, 24}, ScreenSize{200, 60}, ScreenSize{500, 200}}) {
    const v1::GetHeatmapRequest fits = HeatmapThatFits(size);
    const v1::Heatmap map = MakeMap(fits.rows() * 3, static_cast<int>(fits.steps()), 3);
    for (bool greys : {false, true}) {
      const auto lines = Lines(DrawScreen(status, map, details, size, greys));
      EXPECT_LE(lines.size(), static_cast<size_t>(size.rows));
      for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<size_t>(size.columns)) << line;
      EXPECT_THAT(lines, Each(Not(HasSubstr("\x1b"))));
      EXPECT_THAT(lines.back(), StartsWith("q ends"));
      EXPECT_THAT(lines, Contains(StartsWith("        0-2 ")));
    }
  }
}

TEST(WatchScreenTest, TheHeadlinesVerdictIsNotRepeated) {
  v1::JobStatus status = MakeStatus("slow: rank 1 computes longer; without it 5 ms");
  status.mutable_diagnosis()->add_open_verdicts("rank 1 computes longer");
  status.mutable_diagnosis()->add_open_verdicts("node 3 loads data slowly");
  const auto lines = Lines(DrawScreen(status, MakeMap(4, 4), "diagnosis: slow: rank 1\nnodes: 1\n", {}, false));
  EXPECT_EQ(lines[1], "also: node 3 loads data slowly");
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](auto& line) { return line.find("rank 1") != line.npos; }), 1);
  EXPECT_THAT(lines, Contains("nodes: 1"));
}

TEST(WatchScreenTest, WithoutStepsItSaysWhatToDo) {
  const auto lines = Lines(DrawScreen(MakeStatus("cannot say"), {}, "", {}, false));
  EXPECT_THAT(lines, Contains(HasSubstr("taskd switch step=on communication=on")));
}

}  // namespace
}  // namespace taskd::commands
