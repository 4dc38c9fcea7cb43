// Reduction over any axes, matrix product, merging of states; and their arguments.
#pragma once

#include "kernels/operand.h"
#include "mosaic/device_port.h"
#include "mosaic/kernel_enums.h"

namespace mosaic::cuda {

/// How a reduction is shared: "reduce" has a warp for each output, "reduceColumns" a lane for one output or, where
/// neighbouring outputs are of elements side by side, kVectorLength of them.
///
/// `kept` walks over the axes that stay (out, x), `inner` over those that go (x). Each block reduces `splitLength`
/// elements of inner: those of its number in y. Where `partial` is given, it receives the results of each split,
/// [splits, kept], instead of out.
struct ReduceParameters {
  Loop<2> kept;
  Loop<1> inner;
  ReduceKind kind;
  int32_t outputsPerLane;  // of reduceColumns; else 0
  int64_t splitLength;
  float* partial;
};

/// out [.., M, N] ← a [.., M, K] · b [.., K, N] (+ out). `batch` walks over the leading axes; strides are those of
/// the last two axes. A block of 256 threads computes 64 × 64: its number in x selects which, in y which of the batch.
struct MatmulParameters {
  Loop<3> batch;  // out, a, b
  int64_t m, n, k;
  int64_t outStride[2], aStride[2], bStride[2];
  int32_t accumulate;
};
constexpr int kMatmulTileSide = 64, kMatmulDepth = 16, kMatmulThreads = 256;
constexpr int kMatmulSharedBytes = 2 * kMatmulDepth * (kMatmulTileSide + 1) * 4;

// Reductions over ranks.

/// out ← the operands of all ranks, in rank order. `own` is that of `rank`; the others lie one behind the other.
struct ReduceRanksParameters {
  Operand out, own, others;
  int64_t count;
  int32_t ranks, rank;
  MosaicReduceOp op;
};

}  // namespace mosaic::cuda
