// Host interface of Hopper's attention kernels: the arguments of the Ampere kernels (attend.h) and TMA descriptors.
//
// attendHopper_bfloat16_64 supports heads of up to 64; TMA fills missing columns with zeros.
#pragma once

#include "kernels/attend.h"
#include "kernels/tensor_map.h"

namespace mosaic::cuda {

/// Number of registers per multiprocessor.
constexpr int kRegisterFileSize = 65536;

/// `groups` warpgroups compute 64 rows each, and one more loads. Both iterate over keys (or rows), `stepTileLength` at
/// a time.
struct HopperShape {
  int ownTileLength, stepTileLength, groups;

  HOST_AND_DEVICE constexpr int threads() const { return (groups + 1) * 128; }
  /// Registers per thread at the start of the block: the maximum that ptxas assigns, in multiples of eight, if one
  /// block has the multiprocessor.
  HOST_AND_DEVICE constexpr int initialRegisters() const { return kRegisterFileSize / threads() / 8 * 8; }
  /// Registers that threads which load keep, and registers that the block's pool then has for threads which compute.
  /// The pool is what the block started with, not the register file, so a request for more would never complete.
  HOST_AND_DEVICE constexpr int producerRegisters() const { return groups == 3 ? 32 : 24; }
  HOST_AND_DEVICE constexpr int registers() const {
    return ((groups + 1) * initialRegisters() - producerRegisters()) / groups / 8 * 8;
  }
};

/// Number of tiles of each kind that are in flight or in use.
constexpr int kStages = 2;
/// Barriers: one for the block's own tiles; full and empty for each stage of two rings.
constexpr int kBarrierCount = 1 + 4 * kStages, kBarrierBytes = kBarrierCount * 8;

// Tile sizes of FlashAttention-3 (Shah et al. 2024) for each head size.
HOST_AND_DEVICE constexpr HopperShape forwardHopperShape(int headDim) {
  return headDim <= 64 ? HopperShape{192, 128, 3} : headDim <= 128 ? HopperShape{128, 128, 2} : HopperShape{128, 64, 2};
}

HOST_AND_DEVICE constexpr unsigned forwardHopperBytes(int headDim) {
  const HopperShape shape = forwardHopperShape(headDim);
  return static_cast<unsigned>((shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               kBarrierBytes);
}

struct AttendHopperParameters {
  TensorMap q, k, v;  // boxes of `ownTileLength` rows (q) and of `stepTileLength` rows (k, v)
  AttendParameters base;
};
static_assert(sizeof(AttendHopperParameters) <= kMaxArgumentBytes);

// Gradients, for heads of up to 128; for larger heads, the accumulators do not fit the registers. Two warpgroups own
// 128 keys or rows.

HOST_AND_DEVICE constexpr HopperShape keysHopperShape(int) { return {128, 64, 2}; }
HOST_AND_DEVICE constexpr HopperShape queriesHopperShape(int) { return {128, 128, 2}; }

/// Shared memory for k and v; q and dOut twice; three values per row (gradients.cuh) twice.
HOST_AND_DEVICE constexpr unsigned keysHopperBytes(int headDim) {
  const HopperShape shape = keysHopperShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               12 * kStages * shape.stepTileLength + kBarrierBytes);
}
/// Shared memory for q and dOut; k and v twice.
HOST_AND_DEVICE constexpr unsigned queriesHopperBytes(int headDim) {
  const HopperShape shape = queriesHopperShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               kBarrierBytes);
}

/// TMA boxes have as many rows as tiles: `ownTileLength` for tensors that a block owns, else `stepTileLength`.
struct AttendBackwardHopperParameters {
  TensorMap q, k, v, dOut;
  AttendBackwardParameters base;
};
static_assert(sizeof(AttendBackwardHopperParameters) <= kMaxArgumentBytes);

}  // namespace mosaic::cuda
