// Cuts the tile of an attention call into parts, and parts into launches.
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

  /// Of no meaning where they take more than 31 bits.
  PartPositions positions() const {
    return {static_cast<int32_t>(rowPosition), static_cast<int32_t>(rowStep), static_cast<int32_t>(keyPosition)};
  }
};

/// What each slice lets each span of rows see of each span of keys; empty parts left out.
struct TileParts {
  std::vector<std::vector<PositionedPart>> samples;  // of each batch element, or of all alike
  unsigned depth;                          // of a grid: the batch elements that share their parts
  bool isEmpty() const {
    return std::all_of(samples.begin(), samples.end(), [](const auto& parts) { return parts.empty(); });
  }
};

/// The parts of a tile for some batch elements of a call: of all alike, or where they have masks of their own that
/// differ, of each. Throws where a part reaches over 2³⁰ positions or more, and where masks are fewer than samples.
TileParts makeParts(const Tile& tile, const Range& batches);

/// What a block owns.
enum class Owner { Rows, Keys };

struct PartLaunch {
  Parts parts;
  PartPositions positions[kMaxParts];
  unsigned blocks, depth;
};

/// Parts, cut so that those that overlap in what blocks own have exactly that in common; the longest work first. A
/// block owns `ownTileLength` rows or keys. Batch elements whose parts differ have launches of their own: the batch
/// element of a block is then the same in all blocks, and takes no register of the kernels.
std::vector<PartLaunch> makeLaunches(const TileParts& tile, Owner owner, int ownTileLength);

// How attention's kernels are laid out over a GPU.

/// One block after the other along x, then the heads of what blocks own, then batch elements; no more than a grid
/// reaches.
inline Grid makePartGrid(const PartLaunch& launch, const TensorView& ownedTensor, int threads, unsigned sharedBytes) {
  const auto heads = static_cast<unsigned>(ownedTensor.shape[1]);
  return {{launch.blocks, heads, launch.depth}, {static_cast<unsigned>(threads)}, sharedBytes};
}

/// Calls start(batches, heads, kvHeads) for pieces of attention that a grid holds: it reaches 65 535 along y and along
/// z, which heads and batches need not. Heads that share keys are parted only if they alone are too many.
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

/// [B,H,…] of some batches and heads.
inline TensorView selectHeads(TensorView x, const Range& batches, const Range& heads) {
  const int64_t first = batches.first * x.stride[0] + heads.first * x.stride[1];
  x.data = static_cast<char*>(x.data) + first * dtypeBytes(x.dtype);
  x.shape[0] = batches.count;
  x.shape[1] = heads.count;
  return x;
}

}  // namespace mosaic::cuda
