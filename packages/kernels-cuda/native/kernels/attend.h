// Host interface of the attention kernels: their arguments, their blocks, and their shared memory.
//
// One launch folds a list of parts (visible.h). If there are more parts than it can hold, several launches follow each
// other, which the carried state allows. Names end in the dtype of the inputs and the maximum head size:
// attend_bfloat16_64 supports heads of up to 64, for keys and for values. attendModified_bfloat16_64 also modifies
// scores (score_modifiers.h).
#pragma once

#include "kernels/visible.h"
#include "mosaic/view.h"

namespace mosaic::cuda {

/// q and k [B,H,S,D], v and dOut [B,H,S,Dv]. Strides count elements; the stride along D is 1.
struct Matrix {
  const void* data;
  int64_t batch, head, row;
  DType dtype;
  bool isAligned;  // the starts and lengths of rows are multiples of 16 bytes
};

/// The float32 tensors that are read and written: out and dv [B,H,S,Dv], dq and dk [B,H,S,D].
struct Accumulator {
  float* data;
  int64_t batch, head, row, column;
  bool isFloat2Aligned;  // columns 2i and 2i + 1 are contiguous and aligned to 8 bytes
};

/// One float32 per row, [B,H,S]: lse, delta.
struct RowValues {
  float* data;
  int64_t batch, head, row;
};

struct AttendParameters {
  Matrix q, k, v;
  Accumulator out;
  RowValues lse;
  int32_t headDim, valueHeadDim;  // D and Dv
  int32_t group;                  // query heads per key head
  float scale;                    // positive for tensor core kernels
  Parts parts;
};

struct AttendBackwardParameters {
  Matrix q, k, v, dOut;
  RowValues lse, delta;  // of the whole attention
  Accumulator dq, dk, dv;
  int32_t headDim, valueHeadDim, group;
  float scale;
  Parts parts;
};

/// A block owns `ownTileLength` rows (or keys) and iterates over keys (or rows), `stepTileLength` at a time.
struct BlockShape {
  int ownTileLength, stepTileLength, warps;
  /// Number of parts that the columns are split into, one block each.
  int parts = 1;

  HOST_AND_DEVICE constexpr int threads() const { return warps * 32; }
};

// ── 16-bit inputs, tensor cores: the head size is rounded up to 32, 64, 128 or 256

HOST_AND_DEVICE constexpr BlockShape forwardShape(int headDim) {
  return headDim <= 64 ? BlockShape{128, 64, 4} : headDim <= 128 ? BlockShape{128, 64, 8} : BlockShape{128, 32, 8};
}
HOST_AND_DEVICE constexpr BlockShape keysShape(int headDim) {
  return headDim <= 64 ? BlockShape{128, 64, 8} : headDim <= 128 ? BlockShape{128, 32, 8} : BlockShape{64, 32, 4, 2};
}
HOST_AND_DEVICE constexpr BlockShape queriesShape(int headDim) {
  if (headDim == 64) return {128, 32, 8};
  return headDim <= 128 ? BlockShape{128, 64, 8} : BlockShape{64, 32, 4};
}

HOST_AND_DEVICE constexpr unsigned forwardBytes(int headDim) {
  const BlockShape shape = forwardShape(headDim);
  return static_cast<unsigned>((shape.ownTileLength + 2 * shape.stepTileLength) * headDim * 2);
}
/// Shared memory for k and v; q and dOut twice; three values per row (gradients.cuh) twice.
HOST_AND_DEVICE constexpr unsigned keysBytes(int headDim) {
  const BlockShape shape = keysShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 4 * shape.stepTileLength) * headDim * 2 +
                               24 * shape.stepTileLength);
}
/// Shared memory for q and dOut; k and v twice.
HOST_AND_DEVICE constexpr unsigned queriesBytes(int headDim) {
  const BlockShape shape = queriesShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 4 * shape.stepTileLength) * headDim * 2);
}

// ── float32 or mixed dtypes: 8 × 8 threads, each with floatMicroTileSide(D)² products

HOST_AND_DEVICE constexpr int floatMicroTileSide(int headDim) { return headDim <= 128 ? 4 : 2; }
HOST_AND_DEVICE constexpr BlockShape floatShape(int headDim) {
  const int tile = 8 * floatMicroTileSide(headDim);
  return {tile, tile, 2};
}
/// Shared memory for `tiles` tiles of rows and `squares` squares of products, with rows padded by one element against
/// bank conflicts; and 2 values per row.
HOST_AND_DEVICE constexpr unsigned floatBytes(int headDim, int tiles, int squares) {
  const int tile = floatShape(headDim).ownTileLength;
  return static_cast<unsigned>((tiles * tile * (headDim + 1) + squares * tile * (tile + 1) + 2 * tile) * 4);
}

}  // namespace mosaic::cuda
