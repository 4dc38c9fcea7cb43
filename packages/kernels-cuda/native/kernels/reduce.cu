#include "kernels/reduce.h"

#include "kernels/element.cuh"

using namespace mosaic;
using namespace mosaic::cuda;

namespace {

DEVICE float maxNan(float a, float b) { return a != a || b != b ? a + b : fmaxf(a, b); }

struct Reduction {
  ReduceKind kind;

  DEVICE float identity() const { return kind == ReduceKind::Sum ? 0.f : -infinity(); }
  DEVICE float combine(float a, float b) const { return kind == ReduceKind::Sum ? a + b : maxNan(a, b); }
};

/// Returns the offset of element i of inner, relative to an output's first element.
DEVICE int64_t innerOffset(const Loop<1>& inner, int64_t i) {
  if (inner.extent.rank <= 1) return i * inner.operand[0].stride[0];
  int64_t offset[1];
  offsetsOf(inner.extent, inner.operand, i, offset);
  return offset[0];
}

/// Calls use(v) with WIDTH elements from each of first, first + stride, … before `end` of inner, with several loads in
/// flight. Past the end, elements are loaded again but not used.
template <int WIDTH, class Use>
DEVICE void forEachInnerElement(const ReduceParameters& p, int64_t x, int64_t first, int64_t end, int64_t stride,
                                Use use) {
  constexpr int kLoads = 4;
  const Operand& operand = p.kept.operand[1];
  const int64_t last = first + (end - 1 - first) / stride * stride;
#pragma unroll 1
  for (int64_t i = first; i < end; i += kLoads * stride) {
    Raw<WIDTH> raw[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; j++) {
      raw[j] = Raw<WIDTH>::load(operand, x + innerOffset(p.inner, min(i + j * stride, last)));
    }
#pragma unroll
    for (int j = 0; j < kLoads; j++) {
      if (i + j * stride >= end) break;
      float v[WIDTH];
      raw[j].decode(operand.dtype, v);
      use(v);
    }
  }
}

DEVICE void storeReducedValue(const ReduceParameters& p, int64_t index, int64_t out, float value) {
  if (p.partial)
    store(p.partial + blockIdx.y * p.kept.extent.count + index, value);
  else
    storeElement(p.kept.operand[0], out, value);
}

/// The range of inner that a block reduces.
struct Split {
  int64_t begin, end;
};
DEVICE Split splitOf(const ReduceParameters& p) {
  const int64_t begin = blockIdx.y * p.splitLength;
  return {begin, min(begin + p.splitLength, p.inner.extent.count)};
}

// The order in which elements are combined depends only on shape and strides.

/// Reduces one output. Elements are distributed over the warp's lanes, WIDTH contiguous elements at a time.
template <int WIDTH>
DEVICE void reduceOutput(const ReduceParameters& p, int64_t index) {
  int64_t at[2];
  offsetsOf(p.kept.extent, p.kept.operand, index, at);
  const int lane = threadIdx.x % 32;
  const auto [begin, end] = splitOf(p);
  const Reduction reduction{p.kind};
  float value = reduction.identity();
  forEachInnerElement<WIDTH>(p, at[1], begin + lane * WIDTH, end, 32 * WIDTH, [&](const float(&v)[WIDTH]) {
#pragma unroll
    for (const float element : v) value = reduction.combine(value, element);
  });
  for (int lanes = 16; lanes > 0; lanes /= 2) value = reduction.combine(value, shuffleXor(value, lanes));
  if (lane == 0) storeReducedValue(p, index, at[0], value);
}

/// Reduces this lane's WIDTH outputs from `index` on.
template <int WIDTH>
DEVICE void reduceOwnOutputs(const ReduceParameters& p, int64_t index) {
  int64_t at[2];
  offsetsOf(p.kept.extent, p.kept.operand, index, at);
  const auto [begin, end] = splitOf(p);
  const Reduction reduction{p.kind};
  float value[WIDTH];
#pragma unroll
  for (float& element : value) element = reduction.identity();
  forEachInnerElement<WIDTH>(p, at[1], begin, end, 1, [&](const float(&v)[WIDTH]) {
#pragma unroll
    for (int w = 0; w < WIDTH; w++) value[w] = reduction.combine(value[w], v[w]);
  });
  const int last = p.kept.extent.rank - 1;
#pragma unroll
  for (int w = 0; w < WIDTH; w++) {
    storeReducedValue(p, index + w, at[0] + w * (last < 0 ? 0 : p.kept.operand[0].stride[last]), value[w]);
  }
}

/// Computes a tile in float32, 4 × 4 results per thread. Used if cuBLASLt is missing or does not support the strides.
DEVICE void multiplyTile(const MatmulParameters& p, int64_t index) {
  const auto& [out, a, b] = p.batch.operand;
  int64_t at[3];
  offsetsOf(p.batch.extent, p.batch.operand, index, at);
  const int64_t columnTiles = (p.n + kMatmulTileSide - 1) / kMatmulTileSide;
  const int64_t row0 = blockIdx.x / columnTiles * kMatmulTileSide, column0 = blockIdx.x % columnTiles * kMatmulTileSide;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const SharedAddress aTile = sharedBase(), bTile = aTile + kMatmulDepth * (kMatmulTileSide + 1) * 4;
  const auto elementAddress = [](SharedAddress tile, int depth, int i) {
    return tile + (depth * (kMatmulTileSide + 1) + i) * 4;
  };
  float sum[4][4] = {};
  for (int64_t k0 = 0; k0 < p.k; k0 += kMatmulDepth) {
    for (int i = threadIdx.x; i < kMatmulDepth * kMatmulTileSide; i += kMatmulThreads) {
      const int depthA = i % kMatmulDepth, rowA = i / kMatmulDepth;
      const int depthB = i / kMatmulTileSide, columnB = i % kMatmulTileSide;
      const bool isInBoundsA = row0 + rowA < p.m && k0 + depthA < p.k,
                 isInBoundsB = column0 + columnB < p.n && k0 + depthB < p.k;
      const int64_t offsetA = at[1] + (row0 + rowA) * p.aStride[0] + (k0 + depthA) * p.aStride[1];
      const int64_t offsetB = at[2] + (k0 + depthB) * p.bStride[0] + (column0 + columnB) * p.bStride[1];
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
      const int64_t to = at[0] + row * p.outStride[0] + column * p.outStride[1];
      storeElement(out, to, sum[i][j] + (p.accumulate ? loadElement(out, to) : 0.f));
    }
  }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(kBlockThreads, 3) reduce(const __grid_constant__ ReduceParameters p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
#pragma unroll 1
  for (int64_t index = first; index < p.kept.extent.count; index += step) {
    if (p.inner.isVectorized)
      reduceOutput<kVectorLength>(p, index);
    else
      reduceOutput<1>(p, index);
  }
}

__global__ void __launch_bounds__(kBlockThreads, 3) reduceColumns(const __grid_constant__ ReduceParameters p) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * p.outputsPerLane;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * p.outputsPerLane;
#pragma unroll 1
  for (int64_t index = first; index < p.kept.extent.count; index += step) {
    if (p.outputsPerLane == kVectorLength)
      reduceOwnOutputs<kVectorLength>(p, index);
    else
      reduceOwnOutputs<1>(p, index);
  }
}

__global__ void matmul(const __grid_constant__ MatmulParameters p) {
  for (int64_t i = blockIdx.y; i < p.batch.extent.count; i += gridDim.y) multiplyTile(p, i);
}

/// Adds in float32, in rank order, and rounds once, so that every rank has the same bits with any transport.
__global__ void reduceRanks(const __grid_constant__ ReduceRanksParameters p) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.count; i += threads) {
    float sum = 0.f;
    for (int32_t rank = 0; rank < p.ranks; rank++) {
      const int64_t operandIndex = rank - (rank > p.rank ? 1 : 0);
      const float x = rank == p.rank ? loadElement(p.own, i) : loadElement(p.others, operandIndex * p.count + i);
      if (rank == 0)
        sum = x;
      else if (p.op == MOSAIC_REDUCE_MAX)
        sum = sum > x || sum != sum ? sum : x;
      else
        sum += x;
    }
    storeElement(p.out, i, p.op == MOSAIC_REDUCE_MEAN ? sum / static_cast<float>(p.ranks) : sum);
  }
}

}  // extern "C"

EMULATED_KERNEL(reduce, ReduceParameters)
EMULATED_KERNEL(reduceColumns, ReduceParameters)
EMULATED_KERNEL(matmul, MatmulParameters)
EMULATED_KERNEL(reduceRanks, ReduceRanksParameters)
