#include "agent/route/group_blocks.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <utility>

namespace taskd::route {
namespace {

using Chunk = std::vector<int32_t>;

bool HasNode0(const Chunk& chunk) { return !chunk.empty() && chunk[0] == 0; }

struct Cut {
  std::list<Chunk> blocks;  // whole
  std::vector<Chunk> left;  // each shorter than a block
};

// Blocks out of what several parts have left; the rest stays in `left`.
void Combine(size_t size, Cut& cut) {
  size_t total = 0;
  for (const Chunk& chunk : cut.left) total += chunk.size();
  if (total < size) return;
  std::multimap<size_t, Chunk> chunks;  // by size, of equal ones in order
  for (Chunk& chunk : cut.left) chunks.emplace(chunk.size(), std::move(chunk));
  cut.left.clear();
  for (; total >= size; total -= size) {
    Chunk block;
    while (block.size() < size) {
      const size_t space = size - block.size();
      auto fitting = chunks.upper_bound(space);
      Chunk part;
      if (fitting == chunks.begin()) {
        // All are too long: the end of the shortest.
        part = std::move(fitting->second);
        chunks.erase(fitting);
        Chunk rest(part.begin(), part.end() - static_cast<ptrdiff_t>(space));
        part.erase(part.begin(), part.end() - static_cast<ptrdiff_t>(space));
        const size_t rest_size = rest.size();
        chunks.emplace(rest_size, std::move(rest));
      } else {
        --fitting;
        part = std::move(fitting->second);
        chunks.erase(fitting);
      }
      block.insert(HasNode0(part) ? block.begin() : block.end(), part.begin(), part.end());
    }
    cut.blocks.push_back(std::move(block));
  }
  for (auto& [ignored, chunk] : chunks) cut.left.push_back(std::move(chunk));
}

}  // namespace

std::vector<int32_t> Divisors(int32_t number) {
  std::vector<int32_t> divisors;
  for (int32_t i = 1; int64_t{i} * i <= number; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::vector<int32_t> LeafFills(const JobTree& tree) {
  std::vector<int32_t> fills(static_cast<size_t>(tree.switches()), 0);
  for (int32_t node = 0; node < tree.nodes(); ++node) ++fills[tree.Rails(node)[0]];
  std::erase(fills, 0);
  return fills;
}

std::vector<int32_t> BlockOrder(const JobTree& tree, int32_t size) {
  const size_t block_size = static_cast<size_t>(size);
  std::vector<Cut> cuts(static_cast<size_t>(tree.switches()));
  const absl::Span<const int32_t> preorder = tree.Preorder();
  for (size_t i = preorder.size(); i-- > 0;) {
    Cut& cut = cuts[preorder[i]];
    Chunk own;
    tree.ForEachChild(preorder[i], [&](int32_t item) {
      if (item < 0) {
        own.push_back(~item);
        if (own.size() == block_size) cut.blocks.push_back(std::exchange(own, {}));
        return;
      }
      cut.blocks.splice(cut.blocks.end(), cuts[item].blocks);
      std::move(cuts[item].left.begin(), cuts[item].left.end(), std::back_inserter(cut.left));
      cuts[item].left = {};
    });
    if (!own.empty()) cut.left.push_back(std::move(own));
    Combine(block_size, cut);
  }
  std::list<Chunk>& blocks = cuts[0].blocks;
  Chunk last;
  for (Chunk& chunk : cuts[0].left) {
    last.insert(HasNode0(chunk) ? last.begin() : last.end(), chunk.begin(), chunk.end());
  }
  if (!last.empty()) blocks.push_back(std::move(last));
  // A ring of blocks: it may begin anywhere.
  const auto first = std::find_if(blocks.begin(), blocks.end(), HasNode0);
  blocks.splice(blocks.end(), blocks, blocks.begin(), first);
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(tree.nodes()));
  for (const Chunk& block : blocks) order.insert(order.end(), block.begin(), block.end());
  return order;
}

std::vector<int32_t> TilePositions(int32_t stages, int32_t width, int32_t tile_stages, int32_t tile_width,
                                   bool stages_first) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(stages) * static_cast<size_t>(width));
  const int32_t rows = stages / tile_stages;
  const int32_t columns = width / tile_width;
  for (int32_t tile = 0; tile < rows * columns; ++tile) {
    const int32_t row = stages_first ? tile % rows : tile / columns;
    const int32_t column = stages_first ? tile / rows : tile % columns;
    for (int32_t stage = row * tile_stages; stage < (row + 1) * tile_stages; ++stage) {
      for (int32_t i = column * tile_width; i < (column + 1) * tile_width; ++i) positions.push_back(stage * width + i);
    }
  }
  return positions;
}

}  // namespace taskd::route
