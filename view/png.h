// A picture of few colours as a PNG file (https://www.w3.org/TR/png/).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace taskd::view {

using Color = std::array<uint8_t, 3>;  // red, green, blue

// `pixels`: row after row, each the index of its colour; width times as many as there are rows. At most 16 colours.
std::string EncodePng(size_t width, std::string_view pixels, const std::vector<Color>& colors);

}  // namespace taskd::view
