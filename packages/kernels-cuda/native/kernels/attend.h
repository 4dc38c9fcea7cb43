// Attention's kernels as the host starts them: what they are given, how they are cut into blocks, how much they share.
//
// One launch folds a list of parts (visible.h); more parts than it holds take several launches, for the state is
// carried. Names end in the dtype of the inputs and the head size that is provided for: attend_bfloat16_64 takes heads
// of up to 64, of keys and of values. attendModified_bfloat16_64 also modifies scores (score_modifiers.h).
#pragma once

#include "kernels/visible.h"
#include "mosaic/view.h"

namespace mosaic::cuda {

/// q and k [B,H,S,D], v and dOut [B,H,S,Dv]: strides count elements, along D it is 1.
struct Matrix {
  const void* data;
  int64_t batch, head, row;
  DType dtype;
  bool isAligned;  // rows begin at multiples of 16 bytes, and are as long
};

/// What is read and written, float32: out and dv [B,H,S,Dv], dq and dk [B,H,S,D].
struct Accumulator {
  float* data;
  int64_t batch, head, row, column;
  bool isFloat2Aligned;  // columns 2i and 2i + 1 are 8 aligned bytes
};

/// One float32 a row, [B,H,S]: lse, delta.
struct RowValues {
  float* data;
  int64_t batch, head, row;
};

struct AttendParameters {
  Matrix q, k, v;
  Accumulator out;
  RowValues lse;
  int32_t headDim, valueHeadDim;  // D and Dv
  int32_t group;                  // heads of queries to a head of keys
  float scale;                    // above 0, on tensor cores
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

/// A block owns `ownTileLength` rows (or keys) and walks over the others `stepTileLength` at a time.
struct BlockShape {
  int ownTileLength, stepTileLength, warps;
  /// Into how many parts its columns are split, a block each.
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
/// k and v; q and dOut twice; three numbers of each row (gradients.cuh) twice.
HOST_AND_DEVICE constexpr unsigned keysBytes(int headDim) {
  const BlockShape shape = keysShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 4 * shape.stepTileLength) * headDim * 2 +
                               24 * shape.stepTileLength);
}
/// q and dOut; k and v twice.
HOST_AND_DEVICE constexpr unsigned queriesBytes(int headDim) {
  const BlockShape shape = queriesShape(headDim);
  return static_cast<unsigned>((2 * shape.ownTileLength + 4 * shape.stepTileLength) * headDim * 2);
}

// ── float32, or a mixture: every thread has floatMicroTileSide(D)² products of 8 × 8 threads

HOST_AND_DEVICE constexpr int floatMicroTileSide(int headDim) { return headDim <= 128 ? 4 : 2; }
HOST_AND_DEVICE constexpr BlockShape floatShape(int headDim) {
  const int tile = 8 * floatMicroTileSide(headDim);
  return {tile, tile, 2};
}
/// `tiles` of rows, and `squares` of products, each row one longer against bank conflicts; 2 numbers a row.
HOST_AND_DEVICE constexpr unsigned floatBytes(int headDim, int tiles, int squares) {
  const int tile = floatShape(headDim).ownTileLength;
  return static_cast<unsigned>((tiles * tile * (headDim + 1) + squares * tile * (tile + 1) + 2 * tile) * 4);
}

}  // namespace mosaic::cuda
