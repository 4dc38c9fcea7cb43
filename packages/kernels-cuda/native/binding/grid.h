// How attention's kernels are laid out over a GPU.
#pragma once

#include "device/device.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// One block after the other along x, then the heads and batches of what blocks own.
inline Grid gridOf(unsigned blocks, const TensorView& owned, int threads, unsigned sharedBytes) {
  const auto heads = static_cast<unsigned>(owned.shape[1]), batch = static_cast<unsigned>(owned.shape[0]);
  return {{blocks, heads, batch}, {static_cast<unsigned>(threads)}, sharedBytes};
}

}  // namespace mosaic::cuda
