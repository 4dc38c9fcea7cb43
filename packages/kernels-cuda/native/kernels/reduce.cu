#include "kernels/reduce.h"

#include "kernels/element.cuh"

using namespace mosaic;
using namespace mosaic::cuda;

namespace {

DEVICE float maxNan(float a, float b) { return a != a || b != b ? a + b : fmaxf(a, b); }

/// Every thread takes every blockDim-th element; then halves of the block combine, so the order depends on nothing.
DEVICE void reduceElement(const ReduceParameters& p, int64_t index) {
  int64_t at[2];
  offsetsOf(p.kept.extent, p.kept.operand, index, at);
  const bool isSum = p.kind == ReduceKind::Sum;
  float value = isSum ? 0.f : -infinity();
  for (int64_t i = threadIdx.x; i < p.inner.extent.count; i += blockDim.x) {
    int64_t inner[1];
    offsetsOf(p.inner.extent, p.inner.operand, i, inner);
    const float x = loadElement(p.kept.operand[1], at[1] + inner[0]);
    value = isSum ? value + x : maxNan(value, x);
  }
  const SharedAddress ownSlot = sharedBase() + threadIdx.x * 4;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    storeShared(ownSlot, value);
    syncBlock();
    if (threadIdx.x < half) {
      const float otherValue = loadShared(ownSlot + half * 4);
      value = isSum ? value + otherValue : maxNan(value, otherValue);
    }
    syncBlock();
  }
  if (threadIdx.x == 0) storeElement(p.kept.operand[0], at[0], value);
}

/// float32 throughout, 4 × 4 results a thread; for where cuBLASLt is missing or does not take the strides.
DEVICE void multiplyTile(const MatmulParameters& p, int64_t index) {
  const auto& [out, a, b] = p.batch.operand;
  int64_t at[3];
  offsetsOf(p.batch.extent, p.batch.operand, index, at);
  const int64_t columnTiles = (p.n + kMatmulTile - 1) / kMatmulTile;
  const int64_t row0 = blockIdx.x / columnTiles * kMatmulTile, column0 = blockIdx.x % columnTiles * kMatmulTile;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const SharedAddress aTile = sharedBase(), bTile = aTile + kMatmulDepth * (kMatmulTile + 1) * 4;
  const auto elementAddress = [](SharedAddress tile, int depth, int i) {
    return tile + (depth * (kMatmulTile + 1) + i) * 4;
  };
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kMatmulDepth) {
    for (int i = threadIdx.x; i < kMatmulDepth * kMatmulTile; i += kMatmulThreads) {
      const int depthA = i % kMatmulDepth, rowA = i / kMatmulDepth, depthB = i / kMatmulTile, columnB = i % kMatmulTile;
      const bool isInBoundsA = row0 + rowA < p.m && k0 + depthA < p.k,
                 isInBoundsB = column0 + columnB < p.n && k0 + depthB < p.k;
      const int64_t offsetA = at[1] + (row0 + rowA) * p.aStep[0] + (k0 + depthA) * p.aStep[1];
      const int64_t offsetB = at[2] + (k0 + depthB) * p.bStep[0] + (column0 + columnB) * p.bStep[1];
      storeShared(elementAddress(aTile, depthA, rowA), isInBoundsA ? loadElement(a, offsetA) : 0.f);
      storeShared(elementAddress(bTile, depthB, columnB), isInBoundsB ? loadElement(b, offsetB) : 0.f);
    }
    syncBlock();
    for (int depth = 0; depth < kMatmulDepth; depth++) {
      float left[4], right[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        left[i] = loadShared(elementAddress(aTile, depth, y + 16 * i));
        right[i] = loadShared(elementAddress(bTile, depth, x + 16 * i));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
      }
    }
    syncBlock();
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int64_t row = row0 + y + 16 * i, column = column0 + x + 16 * j;
      if (row >= p.m || column >= p.n) continue;
      const int64_t to = at[0] + row * p.outStep[0] + column * p.outStep[1];
      storeElement(out, to, sum[i][j] + (p.accumulate ? loadElement(out, to) : 0.f));
    }
  }
}

}  // namespace

extern "C" {

__global__ void reduce(const __grid_constant__ ReduceParameters p) {
  for (int64_t i = blockIdx.x; i < p.kept.extent.count; i += gridDim.x) reduceElement(p, i);
}

__global__ void matmul(const __grid_constant__ MatmulParameters p) {
  for (int64_t i = blockIdx.y; i < p.batch.extent.count; i += gridDim.y) multiplyTile(p, i);
}

/// Float32, one addition after the other, rounded once: every rank gets the same bits, whatever moved the operands.
__global__ void reduceRanks(const __grid_constant__ ReduceRanksParameters p) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += threads) {
    float sum = 0.f;
    for (int32_t rank = 0; rank < p.ranks; rank++) {
      const int64_t operandIndex = rank - (rank > p.rank ? 1 : 0);
      const float x = rank == p.rank ? loadElement(p.own, i) : loadElement(p.others, operandIndex * p.count + i);
      if (rank == 0) sum = x;
      else if (p.op == MOSAIC_REDUCE_MAX) sum = sum > x || sum != sum ? sum : x;
      else sum += x;
    }
    storeElement(p.out, i, p.op == MOSAIC_REDUCE_MEAN ? sum / static_cast<float>(p.ranks) : sum);
  }
}

}  // extern "C"

EMULATED_KERNEL(reduce, ReduceParameters)
EMULATED_KERNEL(matmul, MatmulParameters)
EMULATED_KERNEL(reduceRanks, ReduceRanksParameters)
