// What `taskd status --watch` draws on a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "taskd/v1/control.pb.h"

namespace taskd::commands {

struct ScreenSize {
  int columns = 80;
  int rows = 24;
};

// The heat map that fits there.
v1::GetHeatmapRequest HeatmapThatFits(const ScreenSize& size);

// One screen: the verdict, the other open ones, the heat map, then as much of `details` as fits. At most size.rows lines
// of at most size.columns columns, without a line feed after the last. `greys`: the terminal has 256 colors, and they
// are wanted; else levels are characters.
std::string DrawScreen(const v1::JobStatus& status, const v1::Heatmap& map, const std::string& details,
                       const ScreenSize& size, bool greys);

}  // namespace taskd::commands
