#pragma once

#include <optional>
#include <string_view>

#include "spdlog/common.h"

namespace taskd {

// A level's name, in small or capital letters: trace, debug, info, warning, error, critical, off; also warn, err and
// fatal. Nothing for another word.
std::optional<spdlog::level::level_enum> ParseLogLevel(std::string_view name);

}  // namespace taskd
