// Accumulator operations shared by both families of gradient kernels: 16 rows of a warp, laid out as in
// online_softmax.cuh.
#pragma once

#include "kernels/online_softmax.cuh"

namespace mosaic::cuda {

/// The first column of the accumulators, and the end of the matrix.
struct Columns {
  int first, end;
};

/// Adds scale · acc to 16 rows of this warp; `row` is the lane's first row.
template <int N>
DEVICE void addRows(const Accumulator& into, const RowRange& ownRange, int row, Columns columns,
                    const float (&acc)[N][4], float scale) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (row + h * 8 >= ownRange.length) continue;
    float* to = rowOf(into, ownRange, row + h * 8);
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = columns.first + n * 8 + (threadIdx.x & 3) * 2;
      const float2 old = loadPair(into, to, c, columns.end);
      storePair(into, to, c, columns.end,
                make_float2(old.x + acc[n][h * 2] * scale, old.y + acc[n][h * 2 + 1] * scale));
    }
  }
}

/// Sets the weights of queries row0… to 0, even if NaN, where the key is not visible to them; `key` is the lane's first
/// key.
template <int K>
DEVICE void maskRows(const VisibleInterval& visible, float (&s)[K][4], int key, int row0) {
  const int first = row0 + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int begin = firstRowBeyond(visible, visible.end, key + h * 8) - first;
    const int end = firstRowBeyond(visible, visible.begin, key + h * 8) - first;
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (n * 8 + e < begin || n * 8 + e >= end) s[n][h * 2 + e] = 0.f;
      }
    }
  }
}

/// The values per column of a tile, in shared memory: lse for base 2, delta, lse, one array after the other.
template <int COLUMNS>
struct ColumnStatistics {
  static constexpr int kBytes = 12 * COLUMNS;
  SharedAddress at;

  DEVICE SharedAddress lseLog2() const { return at; }
  DEVICE SharedAddress delta() const { return at + 4 * COLUMNS; }
  DEVICE SharedAddress lse() const { return at + 8 * COLUMNS; }
  /// Whether the lse of any column is large.
  DEVICE bool hasLargeLse() const {
    static_assert(COLUMNS == 32 || COLUMNS == 64);
    const int lane = threadIdx.x & 31;
    if constexpr (COLUMNS == 32) return anyLane(isLarge(loadShared(lse() + lane * 4)));
    const float2 pair = loadShared2(lse() + lane * 8);
    return anyLane(isLarge(pair.x) || isLarge(pair.y));
  }
};

// P from scores, then dS = P ∘ (dP − delta) in its place. Masked pairs are set to 0 in both, because they may be NaN.

/// `statistics` belong to the columns.
template <int K>
DEVICE void computeProbabilitiesByColumn(float (&s)[K][4], float scale, const ColumnStatistics<K * 8>& statistics) {
  const int first = (threadIdx.x & 3) * 2;
  if (statistics.hasLargeLse()) {
#pragma unroll
    for (int n = 0; n < K; n++) {
      const float2 pair = loadShared2(statistics.lse() + (n * 8 + first) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = scaledExp(s[n][i], scale, i & 1 ? pair.y : pair.x);
    }
    return;
  }
  const float scaleLog2 = scale * kLog2e;
#pragma unroll
  for (int n = 0; n < K; n++) {
    const float2 pair = loadShared2(statistics.lseLog2() + (n * 8 + first) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = fastExp2(fmaf(s[n][i], scaleLog2, -(i & 1 ? pair.y : pair.x)));
  }
}

/// `statistics` belong to the columns.
template <int K>
DEVICE void computeScoreGradientsByColumn(float (&s)[K][4], const float (&dp)[K][4],
                                          const ColumnStatistics<K * 8>& statistics) {
#pragma unroll
  for (int n = 0; n < K; n++) {
    const float2 pair = loadShared2(statistics.delta() + (n * 8 + (threadIdx.x & 3) * 2) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - (i & 1 ? pair.y : pair.x);
  }
}

/// `lse` belongs to the rows.
template <int K>
DEVICE void computeProbabilitiesByRow(float (&s)[K][4], float scale, const float (&lse)[2]) {
  if (anyLane(isLarge(lse[0]) || isLarge(lse[1]))) {
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = scaledExp(s[n][i], scale, lse[i >> 1]);
    }
    return;
  }
  const float scaleLog2 = scale * kLog2e, lseLog2[] = {lse[0] * kLog2e, lse[1] * kLog2e};
#pragma unroll
  for (int n = 0; n < K; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = fastExp2(fmaf(s[n][i], scaleLog2, -lseLog2[i >> 1]));
  }
}

/// `delta` belongs to the rows.
template <int K>
DEVICE void computeScoreGradientsByRow(float (&s)[K][4], const float (&dp)[K][4], const float (&delta)[2]) {
#pragma unroll
  for (int n = 0; n < K; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - delta[i >> 1];
  }
}

}  // namespace mosaic::cuda
