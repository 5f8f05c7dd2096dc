// Reads lists of ranks from PyTorch's texts.
#pragma once

#include <string_view>
#include <vector>

namespace taskd::readers {

// Reads "[0, 1, 2]". Empty: unknown; also if the list is cut ("[0, 1, ...]") or contains no rank.
std::vector<int> ReadRankList(std::string_view text);

}  // namespace taskd::readers
