// Online softmax on accumulators. The state (out, lse) is float32 and is carried over, so that folding keys block by
// block gives the same result as all at once. It starts from m = lse, l = 1, acc = out; or, if the row has attended to
// no key yet, from m = −∞, l = 0, acc = 0.
//
// All functions work on 16 rows of a warp. Lane t holds rows t/4 and t/4 + 8 (h = 0, 1) and columns n·8 + t%4·2 + e at
// [n][h·2 + e]. m is the largest scaled score or the state's lse, l is a lane's part of the sum. `row` is the lane's
// first row.
// Milakov and Gimelshein 2018; Dao 2023, algorithm 1.
#pragma once

#include "kernels/accumulator.cuh"
#include "kernels/tile.cuh"

namespace mosaic::cuda {

DEVICE float quadSum(float x) {
  x += shuffleXor(x, 1);
  return x + shuffleXor(x, 2);
}
DEVICE float quadMax(float x) {
  x = fmaxf(x, shuffleXor(x, 1));
  return fmaxf(x, shuffleXor(x, 2));
}

template <int N>
DEVICE void loadState(const AttendParameters& p, const RowRange& ownRange, int row, float (&acc)[N][4], float (&m)[2],
                      float (&l)[2]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + h * 8;
    m[h] = -infinity();
    l[h] = 0.f;
#pragma unroll
    for (int n = 0; n < N; n++) acc[n][h * 2] = acc[n][h * 2 + 1] = 0.f;
    const float lse = r < ownRange.length ? load(rowOf(p.lse, ownRange, r)) : -infinity();
    if (lse == -infinity()) continue;  // out is not read
    m[h] = lse;
    l[h] = (lane & 3) == 0 ? 1.f : 0.f;
    const float* out = rowOf(p.out, ownRange, r);
#pragma unroll
    for (int n = 0; n < N; n++) {
      const float2 x = loadPair(p.out, out, n * 8 + (lane & 3) * 2, p.valueHeadDim);
      acc[n][h * 2] = x.x;
      acc[n][h * 2 + 1] = x.y;
    }
  }
}

/// Replaces elements whose key (from key0 on) is not visible to their row by `maskedValue`: scores by −∞, weights by 0,
/// whatever their value.
template <int K>
DEVICE void maskKeys(const VisibleInterval& visible, float (&s)[K][4], int row, int key0, float maskedValue) {
  const int first = key0 + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int begin = edgePosition(visible, visible.begin, row + h * 8) - first;
    const int end = edgePosition(visible, visible.end, row + h * 8) - first;
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (n * 8 + e < begin || n * 8 + e >= end) s[n][h * 2 + e] = maskedValue;
      }
    }
  }
}

/// `s`: scores on input, probabilities relative to m on output. `scale` is positive. The caller must multiply previous
/// sums by `decay`.
template <int K>
DEVICE void updateOnlineSoftmax(float (&s)[K][4], float scale, float (&m)[2], float (&l)[2], float (&decay)[2]) {
  float baseMax[2], sum[2] = {};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float maxScore = -infinity();
#pragma unroll
    for (int n = 0; n < K; n++) maxScore = fmaxf(maxScore, fmaxf(s[n][h * 2], s[n][h * 2 + 1]));
    const float oldMax = m[h], newMax = fmaxf(oldMax, roundedProduct(quadMax(maxScore), scale));
    baseMax[h] = newMax == -infinity() ? 0.f : newMax;  // −∞ − −∞ would be NaN
    decay[h] = fastExp2((oldMax - baseMax[h]) * kLog2e);
    m[h] = newMax;
  }
  if (anyLane(isLarge(baseMax[0]) || isLarge(baseMax[1]))) {
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i >> 1] += s[n][i] = scaledExp(s[n][i], scale, baseMax[i >> 1]);
    }
  } else {
    const float scaleLog2 = scale * kLog2e, baseMaxLog2[] = {baseMax[0] * kLog2e, baseMax[1] * kLog2e};
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i >> 1] += s[n][i] = fastExp2(fmaf(s[n][i], scaleLog2, -baseMaxLog2[i >> 1]));
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) l[h] = l[h] * decay[h] + sum[h];
}

template <int N>
DEVICE void scaleRows(float (&acc)[N][4], const float (&decay)[2]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) acc[n][i] *= decay[i >> 1];
  }
}

/// Writes the state of the rows that attended to at least one key.
template <int N>
DEVICE void storeState(const AttendParameters& p, const WorkTile& work, const RowRange& ownRange, int row,
                       const float (&acc)[N][4], const float (&m)[2], const float (&l)[2]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + h * 8;
    const float sum = quadSum(l[h]);  // before any lane exits
    if (r >= ownRange.length || !hasVisibleKeys(p.parts, work, r)) continue;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    if ((lane & 3) == 0) {
      store(rowOf(p.lse, ownRange, r), sum == 0.f ? -infinity() : m[h] + fastLog2(sum) * kLn2);
    }
    float* out = rowOf(p.out, ownRange, r);
#pragma unroll
    for (int n = 0; n < N; n++) {
      storePair(p.out, out, n * 8 + (lane & 3) * 2, p.valueHeadDim,
                make_float2(acc[n][h * 2] * inverse, acc[n][h * 2 + 1] * inverse));
    }
  }
}

}  // namespace mosaic::cuda
