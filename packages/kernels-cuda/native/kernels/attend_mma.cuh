// Flash attention, forward, on tensor cores: every GPU since sm_80 (mma.sync, ldmatrix, cp.async).
#pragma once

#include "kernels/online.cuh"

namespace mosaic::cuda {

/// A block owns consecutive rows of one head; each warp takes an equal part of them. Grid: (row tiles, heads, batch).
template <class T, int D>
DEVICE void attendTile(const AttendParameters& p) {
  constexpr BlockShape kShape = forwardShape(D);
  constexpr int kRows = kShape.own, kKeys = kShape.other, kThreads = kShape.threads();
  constexpr int M = kRows / (16 * kShape.warps), K = kKeys / 8, N = D / 8;
  static_assert(M >= 1 && kRows == M * 16 * kShape.warps);
  const Visible& visible = p.visible;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row0 = (gridDim.x - 1 - blockIdx.x) * kRows;  // under a causal mask the longest rows first
  const int rowEnd = min(row0 + kRows, visible.rows);
  const Place at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};

  const int first = edgeOf(visible, visible.begin, row0);
  const int tiles = (edgeOf(visible, visible.end, rowEnd - 1) - first + kKeys - 1) / kKeys;
  if (tiles <= 0) return;  // the state stays as it is
  // These keys are seen by every row.
  const int fullBegin = edgeOf(visible, visible.begin, rowEnd - 1), fullEnd = edgeOf(visible, visible.end, row0);

  const int headK = at.head / p.group;
  const Source k = sourceOf(p.k, at.batch, headK, visible.keys, p.headDim);
  const Source v = sourceOf(p.v, at.batch, headK, visible.keys, p.headDim);
  const SharedAddress qTile = sharedBase(), kTile = qTile + kTileBytes<kRows, D>, vTile = kTile + kTileBytes<kKeys, D>;
  loadTile<kRows, D, kThreads>(qTile, sourceOf(p.q, at.batch, at.head, visible.rows, p.headDim), row0);
  loadTile<kKeys, D, kThreads>(kTile, k, first);
  commitCopies();

  const auto row = [&](int m) { return row0 + (warp * M + m) * 16 + (lane >> 2); };  // this lane's first
  float acc[M][N][4], top[M][2], sum[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) seedState(p, at, row(m), acc[m], top[m], sum[m]);

  for (int j = 0; j < tiles; j++) {
    const int key0 = first + j * kKeys;
    waitCopies<0>();
    syncBlock();  // the keys are here; nobody reads the last values any more
    loadTile<kKeys, D, kThreads>(vTile, v, key0);
    commitCopies();

    float s[M][K][4];
    clear(s);
    multiplyTransposed<T, D>(s, qTile, warp * M * 16, kTile);

    waitCopies<0>();
    syncBlock();  // the values are here; nobody reads these keys any more
    if (j + 1 < tiles) loadTile<kKeys, D, kThreads>(kTile, k, key0 + kKeys);
    commitCopies();

    const bool hides = key0 < fullBegin || key0 + kKeys > fullEnd;
#pragma unroll
    for (int m = 0; m < M; m++) {
      scaleScores(s[m], p.scale * kLog2e);
      if (hides) hideKeys(visible, s[m], row(m), key0);
      foldScores(s[m], acc[m], top[m], sum[m]);
    }
    multiply<T, D>(acc, s, vTile);
  }
#pragma unroll
  for (int m = 0; m < M; m++) storeState(p, at, row(m), acc[m], top[m], sum[m]);
}

}  // namespace mosaic::cuda
