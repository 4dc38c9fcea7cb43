// In which order the backward visits (block of keys, block of rows), so that sums come out the same on any number of
// threads.
//
// A step adds to dk and dv of its keys and to dq of its rows. Steps of one key block, and steps of one row block, must
// therefore follow one another in a fixed order; any others may run at once. Steps are laid out in rounds that walk
// the diagonals of the (keys × rows) grid: within a round they share neither keys nor rows. Each carries its number in
// the chain of its keys and in that of its rows, and waits for its predecessors. They were claimed earlier, so they are
// running or done, and waits are rare and short.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/tile_visibility.h"

namespace mosaic {

struct BackwardStep {
  int32_t keyBlock, rowBlock;
  int32_t keyTurn, rowTurn;  // how many steps of the same keys, and of the same rows, come before
};

/// How the grid is cut. Depends on the shapes alone.
struct BackwardGrid {
  int64_t keys, rows;            // per key head; rows of one query head
  int64_t keysPerBlock, rowsPerBlock;
  int64_t group;                 // query heads per key head: each has its own row blocks

  int32_t keyBlocks() const { return static_cast<int32_t>((keys + keysPerBlock - 1) / keysPerBlock); }
  int32_t rowBlocksPerHead() const { return static_cast<int32_t>((rows + rowsPerBlock - 1) / rowsPerBlock); }
  int32_t rowBlocks() const { return static_cast<int32_t>(rowBlocksPerHead() * group); }
  Range keyRange(int32_t block) const;
  Range rowRange(int32_t block) const;  // within the query head rowHead(block)
  int64_t rowHead(int32_t block) const { return block / rowBlocksPerHead(); }
};

/// The steps with work of one key head.
std::vector<BackwardStep> backwardSteps(const BackwardGrid& grid, const TileVisibility& visibility);

/// Counts the finished steps of every chain.
class Turns {
 public:
  explicit Turns(int64_t chains) : done_(new std::atomic<int32_t>[static_cast<size_t>(chains)]()) {}
  void await(int64_t chain, int32_t turn) const;
  void finish(int64_t chain) { done_[static_cast<size_t>(chain)].fetch_add(1, std::memory_order_release); }

 private:
  std::unique_ptr<std::atomic<int32_t>[]> done_;
};

}  // namespace mosaic
