// Flash attention, forward, on tensor cores: every GPU since sm_80 (mma.sync, ldmatrix, cp.async).
#pragma once

#include "kernels/online.cuh"

namespace mosaic::cuda {

/// A block owns consecutive rows of one head; each warp takes an equal part of them. Grid: row tiles, then heads and batches.
template <class T, int D>
DEVICE void attendTile(const AttendParameters& p) {
  constexpr BlockShape kShape = forwardShape(D);
  constexpr int kRows = kShape.own, kKeys = kShape.other, kThreads = kShape.threads();
  constexpr int M = kRows / (16 * kShape.warps), K = kKeys / 8, N = D / 8;
  static_assert(M >= 1 && kRows == M * 16 * kShape.warps);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const auto [batch, head] = headOf(p.heads);
  if (batch >= p.heads.batches) return;
  const int headK = head / p.group;
  const Share share = shareOf(p.parts, blockIdx.x);
  const Part& any = p.parts.part[share.first];
  const Run own{batch, head, any.row, any.visible.rows};
  const int row0 = lastTileFirst(own.length, kRows, share.tile);
  KeyTiles<kRows, kKeys> at(p.parts, share, row0);
  if (!at.some()) return;  // the state stays as it is

  const auto source = [&](const Matrix& x) {
    return sourceOf(x, {batch, headK, p.parts.part[at.part].key, at.visible().keys}, p.headDim);
  };
  const SharedAddress qTile = sharedBase(), kTile = qTile + kTileBytes<kRows, D>, vTile = kTile + kTileBytes<kKeys, D>;
  loadTile<kRows, D, kThreads>(qTile, sourceOf(p.q, own, p.headDim), row0);
  loadTile<kKeys, D, kThreads>(kTile, source(p.k), at.key0);
  commitCopies();

  const auto row = [&](int m) { return row0 + (warp * M + m) * 16 + (lane >> 2); };  // this lane's first
  float acc[M][N][4], top[M][2], sum[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) seedState(p, own, row(m), acc[m], top[m], sum[m]);

  while (at.some()) {
    waitCopies<0>();
    syncBlock();  // the keys are here; nobody reads the last values any more
    loadTile<kKeys, D, kThreads>(vTile, source(p.v), at.key0);
    commitCopies();

    float s[M][K][4];
    clear(s);
    multiplyTransposed<T, D>(s, qTile, warp * M * 16, kTile);
    if (at.hides()) {
#pragma unroll
      for (int m = 0; m < M; m++) hideKeys(at.visible(), s[m], row(m), at.key0);
    }

    waitCopies<0>();
    syncBlock();  // the values are here; nobody reads these keys any more
    at.next();
    if (at.some()) loadTile<kKeys, D, kThreads>(kTile, source(p.k), at.key0);
    commitCopies();

#pragma unroll
    for (int m = 0; m < M; m++) {
      float keep[2];
      foldScores(s[m], p.scale, top[m], sum[m], keep);
      scaleRows(acc[m], keep);
    }
    multiply<T, D>(acc, s, vTile);
  }
#pragma unroll
  for (int m = 0; m < M; m++) storeState(p, share, own, row(m), acc[m], top[m], sum[m]);
}

}  // namespace mosaic::cuda
