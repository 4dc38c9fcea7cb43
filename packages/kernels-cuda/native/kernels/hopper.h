// Hopper's attention kernels as the host starts them: Ampere's arguments (attend.h) and TMA's maps of the inputs.
//
// attendHopper_bfloat16_64 takes heads of up to 64: TMA fills the columns that are missing with zeros.
#pragma once

#include "kernels/attend.h"
#include "kernels/tensor_map.h"

namespace mosaic::cuda {

/// Registers of a multiprocessor.
constexpr int kRegisterFileSize = 65536;

/// `groups` warpgroups compute, with 64 rows each; one more loads. Both walk over `stepTileLength` keys (or rows) at a
/// time.
struct HopperShape {
  int ownTileLength, stepTileLength, groups;

  HOST_AND_DEVICE constexpr int threads() const { return (groups + 1) * 128; }
  /// What a thread has when the block starts: what ptxas gives it at most, in eights, so that one block fits.
  HOST_AND_DEVICE constexpr int initialRegisters() const { return kRegisterFileSize / threads() / 8 * 8; }
  /// What threads that load keep, and what those that compute then find in the block's pool. The pool is what the block
  /// started with, not the register file: a request for more waits for ever.
  HOST_AND_DEVICE constexpr int producerRegisters() const { return groups == 3 ? 32 : 24; }
  HOST_AND_DEVICE constexpr int registers() const {
    return ((groups + 1) * initialRegisters() - producerRegisters()) / groups / 8 * 8;
  }
};

/// How many tiles of each kind are under way or in use.
constexpr int kStages = 2;
/// Barriers: one of the block's own tiles; of each stage of two rings, full and free.
constexpr int kBarrierCount = 1 + 4 * kStages, kBarrierBytes = kBarrierCount * 8;

// Shah et al. 2024 (FlashAttention-3) for tiles; FlashAttention's tile sizes for each head size.
HOST_AND_DEVICE constexpr HopperShape forwardHopperShape(int headDim) {
  return headDim <= 64 ? HopperShape{192, 128, 3} : headDim <= 128 ? HopperShape{128, 128, 2} : HopperShape{128, 64, 2};
}

HOST_AND_DEVICE constexpr unsigned forwardHopperBytes(int headDim) {
  const HopperShape shape = forwardHopperShape(headDim);
  return static_cast<unsigned>((shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               kBarrierBytes);
}

struct AttendHopperParameters {
  TensorMap q, k, v;  // boxes of `ownTileLength` rows, and of `stepTileLength`
  AttendParameters base;
};
static_assert(sizeof(AttendHopperParameters) <= kMaxArgumentBytes);

// Gradients, of heads of up to 128: beyond, sums take more registers than there are. Two warpgroups own 128 keys or
// rows.

HOST_AND_DEVICE constexpr HopperShape keysHopperShape(int) { return {128, 64, 2}; }
HOST_AND_DEVICE constexpr HopperShape queriesHopperShape(int) { return {128, 128, 2}; }

/// k and v; q and dOut twice; three numbers of each row (gradients.cuh) twice.
HOST_AND_DEVICE constexpr unsigned keysHopperBytes(int headDim) {
  const HopperShape shape = keysHopperShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               12 * kStages * shape.stepTileLength + kBarrierBytes);
}
/// q and dOut; k and v twice.
HOST_AND_DEVICE constexpr unsigned queriesHopperBytes(int headDim) {
  const HopperShape shape = queriesHopperShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 2 * kStages * shape.stepTileLength) * headDim * 2 +
                               kBarrierBytes);
}

/// Boxes of as many rows as tiles have: of `ownTileLength` where a block owns them, else of `stepTileLength`.
struct AttendBackwardHopperParameters {
  TensorMap q, k, v, dOut;
  AttendBackwardParameters base;
};
static_assert(sizeof(AttendBackwardHopperParameters) <= kMaxArgumentBytes);

}  // namespace mosaic::cuda
