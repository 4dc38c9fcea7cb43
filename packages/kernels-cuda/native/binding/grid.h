// How attention's kernels are laid out over a GPU.
#pragma once

#include <stdexcept>
#include <string>

#include "device/device.h"
#include "kernels/attend.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// Of what blocks own: q, or k and v.
inline Heads headsOf(const TensorView& owned) {
  return {static_cast<int32_t>(owned.shape[1]), static_cast<int32_t>(owned.shape[0])};
}

/// What each block has.
struct BlockSize {
  int threads;
  unsigned sharedBytes;
};

/// One block after the other along x, then the heads of all batches, along y and, where these are too many, z. The kernel
/// takes them apart (headOf).
inline Grid gridOf(const Device& device, unsigned blocks, const Heads& heads, const BlockSize& size) {
  const uint64_t all = uint64_t{static_cast<uint32_t>(heads.count)} * static_cast<uint32_t>(heads.batches);
  const uint64_t most = device.mostBlocksAcross(), z = (all + most - 1) / most;
  if (z > most) {
    throw std::invalid_argument("attend: expected at most " + std::to_string(most * most) +
                                " heads of all batches, received " + std::to_string(all) + "; cut the batch");
  }
  const auto y = static_cast<unsigned>((all + z - 1) / z);
  return {{blocks, y, static_cast<unsigned>(z)}, {static_cast<unsigned>(size.threads)}, size.sharedBytes};
}

}  // namespace mosaic::cuda
