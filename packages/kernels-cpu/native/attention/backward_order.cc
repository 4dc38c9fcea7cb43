#include "attention/backward_order.h"

#include <algorithm>

#include "pool/pause.h"

namespace mosaic {

Range BackwardGrid::keyRange(int32_t block) const {
  return {block * keysPerBlock, std::min(keys, (block + 1) * keysPerBlock)};
}

Range BackwardGrid::rowRange(int32_t block) const {
  const int64_t first = block % rowBlocksPerHead() * rowsPerBlock;
  return {first, std::min(rows, first + rowsPerBlock)};
}

std::vector<BackwardStep> backwardSteps(const BackwardGrid& grid, const TileVisibility& visibility) {
  const int32_t keyBlocks = grid.keyBlocks(), rowBlocks = grid.rowBlocks();
  std::vector<int32_t> keyTurn(static_cast<size_t>(keyBlocks)), rowTurn(static_cast<size_t>(rowBlocks));
  std::vector<BackwardStep> steps;
  for (int32_t round = 0; round < rowBlocks; ++round) {
    for (int32_t k = 0; k < keyBlocks; ++k) {
      const int64_t start = int64_t{k} * rowBlocks / keyBlocks;
      const int32_t r = static_cast<int32_t>((start + round) % rowBlocks);
      if (visibility.work(grid.rowRange(r), grid.keyRange(k)) == 0) continue;
      steps.push_back({k, r, keyTurn[static_cast<size_t>(k)]++, rowTurn[static_cast<size_t>(r)]++});
    }
  }
  return steps;
}

void Turns::await(int64_t chain, int32_t turn) const {
  spinUntil([&] { return done_[static_cast<size_t>(chain)].load(std::memory_order_acquire) == turn; });
}

}  // namespace mosaic
