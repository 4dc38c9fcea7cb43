// Flash attention, backward, on tensor cores: every GPU since sm_80.
//
// Two kernels and no atomics, so that sums have one order: one in which a block owns keys and walks over the queries of
// all heads that read them, one in which it owns queries and walks over the keys. With the whole attention's lse and
// delta:
//   P = exp(scale · S − lse), dP = dO Vᵀ, dS = P ∘ (dP − delta), dq += scale · dS K, dk += scale · dSᵀ Q, dv += Pᵀ dO.
// Dao 2023, algorithm 2.
#pragma once

#include "kernels/online.cuh"

namespace mosaic::cuda {

/// Where accumulators' columns begin, and where the matrix ends.
struct Columns {
  int first, end;
};

/// Adds scale · acc to the rows that this warp holds.
template <int M, int N>
DEVICE void addRows(const Sum& into, Place at, int row0, int rows, Columns columns, const float (&acc)[M][N][4],
                    float scale) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int r = row0 + m * 16 + (lane >> 2) + h * 8;
      if (r >= rows) continue;
      float* row = rowOf(into, at.batch, at.head, r);
#pragma unroll
      for (int n = 0; n < N; n++) {
        const int c = columns.first + n * 8 + (lane & 3) * 2;
        const float2 old = loadPair(into, row, c, columns.end);
        storePair(into, row, c, columns.end,
                  make_float2(old.x + acc[m][n][h * 2] * scale, old.y + acc[m][n][h * 2 + 1] * scale));
      }
    }
  }
}

/// Scaled scores of queries row0… that do not see their key become −∞; `key` is the lane's first.
template <int K>
DEVICE void hideRows(const Visible& visible, float (&s)[K][4], int key, int row0) {
  const int first = row0 + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int begin = firstRowBeyond(visible, visible.end, key + h * 8) - first;
    const int end = firstRowBeyond(visible, visible.begin, key + h * 8) - first;
#pragma unroll
    for (int n = 0; n < K; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (n * 8 + e < begin || n * 8 + e >= end) s[n][h * 2 + e] = -infinity();
      }
    }
  }
}

/// P from scaled scores; `lse` is that of the columns, in shared memory.
template <int K>
DEVICE void exponentiate(float (&s)[K][4], SharedAddress lse) {
#pragma unroll
  for (int n = 0; n < K; n++) {
    const float2 own = loadShared2(lse + (n * 8 + (threadIdx.x & 3) * 2) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = fastExp2(s[n][i] - (i & 1 ? own.y : own.x));
  }
}

/// dS = P ∘ (dP − delta), into P.
template <int K>
DEVICE void multiplyByRest(float (&s)[K][4], const float (&dp)[K][4], SharedAddress delta) {
#pragma unroll
  for (int n = 0; n < K; n++) {
    const float2 own = loadShared2(delta + (n * 8 + (threadIdx.x & 3) * 2) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] *= dp[n][i] - (i & 1 ? own.y : own.x);
  }
}

/// Grid: (key tiles × column parts, key heads, batch). All products are transposed, rows are keys and columns queries,
/// so that Pᵀ and dSᵀ go into the next product straight from registers.
template <class T, int D>
DEVICE void attendKeysTile(const AttendBackwardParameters& p) {
  constexpr BlockShape kShape = keysShape(D);
  constexpr int kKeys = kShape.own, kRows = kShape.other, kThreads = kShape.threads(), kColumns = D / kShape.parts;
  constexpr int M = kKeys / (16 * kShape.warps), K = kRows / 8, N = kColumns / 8;
  static_assert(M >= 1 && kKeys == M * 16 * kShape.warps && kRows <= kThreads);
  const Visible& visible = p.visible;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int key0 = static_cast<int>(blockIdx.x) / kShape.parts * kKeys;
  const int column0 = static_cast<int>(blockIdx.x) % kShape.parts * kColumns;
  const int keyEnd = min(key0 + kKeys, visible.keys);
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};

  const int first = firstRowBeyond(visible, visible.end, key0);
  const int tiles = (firstRowBeyond(visible, visible.begin, keyEnd - 1) - first + kRows - 1) / kRows;
  if (tiles <= 0 || column0 >= p.headDim) return;
  // These queries see every key of the block.
  const int fullBegin = firstRowBeyond(visible, visible.end, keyEnd - 1);
  const int fullEnd = firstRowBeyond(visible, visible.begin, key0);

  const SharedAddress kTile = sharedBase(), vTile = kTile + kTileBytes<kKeys, D>;
  const SharedAddress stages = vTile + kTileBytes<kKeys, D>, numbers = stages + 4 * kTileBytes<kRows, D>;
  const auto qTile = [&](int step) { return stages + (step & 1) * 2 * kTileBytes<kRows, D>; };
  const auto gTile = [&](int step) { return qTile(step) + kTileBytes<kRows, D>; };
  const auto numbersAt = [&](int step) { return numbers + (step & 1) * 8 * kRows; };  // lse for base 2, then delta
  const auto loadStep = [&](int step) {  // query head step / tiles, query tile step % tiles
    const int head = at.head * p.group + step / tiles, row0 = first + step % tiles * kRows;
    loadTile<kRows, D, kThreads>(qTile(step), sourceOf(p.q, at.batch, head, visible.rows, p.headDim), row0);
    loadTile<kRows, D, kThreads>(gTile(step), sourceOf(p.dOut, at.batch, head, visible.rows, p.headDim), row0);
    if (threadIdx.x < kRows) {
      const int r = row0 + static_cast<int>(threadIdx.x);
      const SharedAddress to = numbersAt(step) + threadIdx.x * 4;
      storeShared(to, exponentOf(p.lse, at.batch, head, r, visible.rows));
      storeShared(to + kRows * 4, deltaOf(p.delta, at.batch, head, r, visible.rows));
    }
  };
  loadTile<kKeys, D, kThreads>(kTile, sourceOf(p.k, at.batch, at.head, visible.keys, p.headDim), key0);
  loadTile<kKeys, D, kThreads>(vTile, sourceOf(p.v, at.batch, at.head, visible.keys, p.headDim), key0);
  loadStep(0);
  commitCopies();

  float dk[M][N][4], dv[M][N][4];
  clear(dk);
  clear(dv);
  for (int step = 0; step < p.group * tiles; step++) {
    waitCopies<0>();
    syncBlock();  // this step is here; nobody reads the last one any more
    if (step + 1 < p.group * tiles) loadStep(step + 1);
    commitCopies();

    const int row0 = first + step % tiles * kRows;
    const bool hides = row0 < fullBegin || row0 + kRows > fullEnd;
    float s[M][K][4], dp[M][K][4];
    clear(s);
    multiplyTransposed<T, D>(s, kTile, warp * M * 16, qTile(step));
#pragma unroll
    for (int m = 0; m < M; m++) {
      scaleScores(s[m], p.scale * kLog2e);
      if (hides) hideRows(visible, s[m], key0 + (warp * M + m) * 16 + (lane >> 2), row0);
      exponentiate(s[m], numbersAt(step));
    }
    multiply<T, D>(dv, s, gTile(step), column0 / 8);
    clear(dp);
    multiplyTransposed<T, D>(dp, vTile, warp * M * 16, gTile(step));
#pragma unroll
    for (int m = 0; m < M; m++) multiplyByRest(s[m], dp[m], numbersAt(step) + kRows * 4);
    multiply<T, D>(dk, s, qTile(step), column0 / 8);
  }
  const Columns columns{column0, p.headDim};
  addRows(p.dk, at, key0 + warp * M * 16, visible.keys, columns, dk, p.scale);
  addRows(p.dv, at, key0 + warp * M * 16, visible.keys, columns, dv, 1.f);
}

/// Grid: (query tiles, heads, batch).
template <class T, int D>
DEVICE void attendQueriesTile(const AttendBackwardParameters& p) {
  constexpr BlockShape kShape = queriesShape(D);
  constexpr int kRows = kShape.own, kKeys = kShape.other, kThreads = kShape.threads();
  constexpr int M = kRows / (16 * kShape.warps), K = kKeys / 8, N = D / 8;
  static_assert(M >= 1 && kRows == M * 16 * kShape.warps);
  const Visible& visible = p.visible;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row0 = (gridDim.x - 1 - blockIdx.x) * kRows;
  const int rowEnd = min(row0 + kRows, visible.rows);
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};

  const int first = edgeOf(visible, visible.begin, row0);
  const int tiles = (edgeOf(visible, visible.end, rowEnd - 1) - first + kKeys - 1) / kKeys;
  if (tiles <= 0) return;
  const int fullBegin = edgeOf(visible, visible.begin, rowEnd - 1), fullEnd = edgeOf(visible, visible.end, row0);

  const int headK = at.head / p.group;
  const Source k = sourceOf(p.k, at.batch, headK, visible.keys, p.headDim);
  const Source v = sourceOf(p.v, at.batch, headK, visible.keys, p.headDim);
  const SharedAddress qTile = sharedBase(), gTile = qTile + kTileBytes<kRows, D>, stages = gTile + kTileBytes<kRows, D>;
  const auto kTile = [&](int step) { return stages + (step & 1) * 2 * kTileBytes<kKeys, D>; };
  const auto vTile = [&](int step) { return kTile(step) + kTileBytes<kKeys, D>; };
  const auto loadStep = [&](int step) {
    loadTile<kKeys, D, kThreads>(kTile(step), k, first + step * kKeys);
    loadTile<kKeys, D, kThreads>(vTile(step), v, first + step * kKeys);
  };
  loadTile<kRows, D, kThreads>(qTile, sourceOf(p.q, at.batch, at.head, visible.rows, p.headDim), row0);
  loadTile<kRows, D, kThreads>(gTile, sourceOf(p.dOut, at.batch, at.head, visible.rows, p.headDim), row0);
  loadStep(0);
  commitCopies();

  const auto row = [&](int m) { return row0 + (warp * M + m) * 16 + (lane >> 2); };
  float dq[M][N][4], lse[M][2], delta[M][2];
  clear(dq);
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      lse[m][h] = exponentOf(p.lse, at.batch, at.head, row(m) + h * 8, visible.rows);
      delta[m][h] = deltaOf(p.delta, at.batch, at.head, row(m) + h * 8, visible.rows);
    }
  }

  for (int step = 0; step < tiles; step++) {
    waitCopies<0>();
    syncBlock();
    if (step + 1 < tiles) loadStep(step + 1);
    commitCopies();

    const int key0 = first + step * kKeys;
    const bool hides = key0 < fullBegin || key0 + kKeys > fullEnd;
    float s[M][K][4], dp[M][K][4];
    clear(s);
    clear(dp);
    multiplyTransposed<T, D>(s, qTile, warp * M * 16, kTile(step));
    multiplyTransposed<T, D>(dp, gTile, warp * M * 16, vTile(step));
#pragma unroll
    for (int m = 0; m < M; m++) {
      scaleScores(s[m], p.scale * kLog2e);
      if (hides) hideKeys(visible, s[m], row(m), key0);
#pragma unroll
      for (int n = 0; n < K; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          s[m][n][i] = fastExp2(s[m][n][i] - lse[m][i >> 1]) * (dp[m][n][i] - delta[m][i >> 1]);
        }
      }
    }
    multiply<T, D>(dq, s, kTile(step));
  }
  addRows(p.dq, at, row0 + warp * M * 16, visible.rows, Columns{0, p.headDim}, dq, p.scale);
}

}  // namespace mosaic::cuda
