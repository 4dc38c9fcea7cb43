// Reduction over any axes, matrix product, merging of states, and their arguments.
#pragma once

#include "kernels/operand.h"
#include "mosaic/device_port.h"
#include "mosaic/kernel_enums.h"

namespace mosaic::cuda {

/// A reduction. "reduce" uses a warp per output. "reduceColumns" uses a lane per output, or, if adjacent outputs reduce
/// adjacent elements, per kVectorLength outputs.
///
/// `kept` iterates over the kept axes (out, x), `inner` over the reduced ones (x). Each block reduces `splitLength`
/// elements of inner, selected by its y index. If `partial` is not null, the results of each split are stored there, as
/// [splits, kept], instead of to out.
struct ReduceParameters {
  Loop<2> kept;
  Loop<1> inner;
  ReduceKind kind;
  int32_t outputsPerLane;  // for reduceColumns; else 0
  int64_t splitLength;
  float* partial;
};

/// out [.., M, N] ← a [.., M, K] · b [.., K, N] (+ out). `batch` iterates over the leading axes; strides are those of
/// the last two axes. A block of 256 threads computes 64 × 64 results, selected by its x index, and its y index selects
/// the product of the batch.
struct MatmulParameters {
  Loop<3> batch;  // out, a, b
  int64_t m, n, k;
  int64_t outStride[2], aStride[2], bStride[2];
  int32_t accumulate;
};
constexpr int kMatmulTileSide = 64, kMatmulDepth = 16, kMatmulThreads = 256;
constexpr int kMatmulSharedBytes = 2 * kMatmulDepth * (kMatmulTileSide + 1) * 4;

// Reductions over ranks.

/// out ← the reduction of all ranks' operands, in rank order. `own` is the operand of `rank`; the others are stored one
/// after the other.
struct ReduceRanksParameters {
  Operand out, own, others;
  int64_t count;
  int32_t ranks, rank;
  MosaicReduceOp op;
};

}  // namespace mosaic::cuda
