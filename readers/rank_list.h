// Lists of ranks as PyTorch writes them into texts.
#pragma once

#include <string_view>
#include <vector>

namespace taskd::readers {

// "[0, 1, 2]". Empty: unknown, also where it is cut ("[0, 1, ...]") or no rank is in it.
std::vector<int> ReadRankList(std::string_view text);

}  // namespace taskd::readers
