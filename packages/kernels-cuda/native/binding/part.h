// Splits the tile of an attention call into parts, and the parts into launches.
#pragma once

#include <algorithm>
#include <vector>

#include "device/device.h"
#include "kernels/visible.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

struct Range {
  int64_t first, count;
};

/// A part and the positions of its first row and first key.
struct PositionedPart : Part {
  int64_t rowPosition, rowStep, keyPosition;

  /// Meaningless if positions do not fit 31 bits.
  PartPositions positions() const {
    return {static_cast<int32_t>(rowPosition), static_cast<int32_t>(rowStep), static_cast<int32_t>(keyPosition)};
  }
};

/// The visible part for each combination of a row span, a key span and a slice; empty parts are omitted.
struct TileParts {
  std::vector<std::vector<PositionedPart>> samples;  // one entry per batch element, or a single one for all
  unsigned depth;                          // grid size along z: number of batch elements that share the parts
  bool isEmpty() const {
    return std::all_of(samples.begin(), samples.end(), [](const auto& parts) { return parts.empty(); });
  }
};

/// Returns the parts of a tile for some batch elements: one set for all, or one per batch element if their sample masks
/// differ. Throws if a part spans 2³⁰ positions or more, or if there are fewer masks than samples.
TileParts makeParts(const Tile& tile, const Range& batches);

/// The axis that a block owns a range of.
enum class Owner { Rows, Keys };

struct PartLaunch {
  Parts parts;
  PartPositions positions[kMaxParts];
  unsigned blocks, depth;
};

/// Splits parts so that those with overlapping owned ranges have equal ones, and distributes them over launches, the
/// longest work first. A block owns `ownTileLength` rows or keys. Batch elements with different parts have separate
/// launches, so that the batch element is uniform across blocks and takes no register.
std::vector<PartLaunch> makeLaunches(const TileParts& tile, Owner owner, int ownTileLength);

// The mapping of attention kernels to a grid.

/// Returns a grid with the blocks of a launch along x, the heads of the owned tensor along y, and batch elements along
/// z. Heads and batch elements must fit the grid.
inline Grid makePartGrid(const PartLaunch& launch, const TensorView& ownedTensor, int threads, unsigned sharedBytes) {
  const auto heads = static_cast<unsigned>(ownedTensor.shape[1]);
  return {{launch.blocks, heads, launch.depth}, {static_cast<unsigned>(threads)}, sharedBytes};
}

/// Calls launch(batches, heads, kvHeads) for pieces of attention that fit a grid, which is limited to 65 535 along y
/// and z. Heads that share keys are split only if their number alone exceeds the limit.
template <class Start>
void forEachSubgrid(const TensorView& q, const TensorView& k, int64_t maxGridDim, Start launch) {
  const int64_t group = q.shape[1] / k.shape[1], groups = std::max<int64_t>(maxGridDim / group, 1);
  for (int64_t batch = 0; batch < q.shape[0]; batch += maxGridDim) {
    const Range batches{batch, std::min(maxGridDim, q.shape[0] - batch)};
    for (int64_t kvHead = 0; kvHead < k.shape[1]; kvHead += groups) {
      const Range kvHeads{kvHead, std::min(groups, k.shape[1] - kvHead)};
      const int64_t end = (kvHead + kvHeads.count) * group;
      for (int64_t head = kvHead * group; head < end; head += maxGridDim) {
        launch(batches, Range{head, std::min(maxGridDim, end - head)}, kvHeads);
      }
    }
  }
}

/// Returns the view [B,H,…] of some batches and heads.
inline TensorView selectHeads(TensorView x, const Range& batches, const Range& heads) {
  const int64_t first = batches.first * x.stride[0] + heads.first * x.stride[1];
  x.data = static_cast<char*>(x.data) + first * dtypeBytes(x.dtype);
  x.shape[0] = batches.count;
  x.shape[1] = heads.count;
  return x;
}

}  // namespace mosaic::cuda
