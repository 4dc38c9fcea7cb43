// Flash attention, forward, on tensor cores: every GPU since sm_80 (mma.sync, ldmatrix, cp.async).
#pragma once

#include "kernels/fragment_pairs.cuh"
#include "kernels/online_softmax.cuh"
#include "kernels/score_modifiers.cuh"

namespace mosaic::cuda {

/// A block owns consecutive rows of one head, divided equally among its warps. Grid: (row tiles, heads, batch).
template <class T, int D, class Scores = PlainScores>
DEVICE void attendTile(const AttendParameters& p, const Scores& scores = {}) {
  constexpr BlockShape kShape = forwardShape(D);
  constexpr int kRows = kShape.ownTileLength, kKeys = kShape.stepTileLength, kThreads = kShape.threads();
  constexpr int M = kRows / (16 * kShape.warps), K = kKeys / 8, N = D / 8;
  static_assert(M >= 1 && kRows == M * 16 * kShape.warps);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int head = blockIdx.y, kvHead = head / p.group;
  const WorkTile work = findWorkTile(p.parts, blockIdx.x);
  const Part& firstPart = p.parts.part[work.first];
  const int batch = batchIndex(p.parts);
  const RowRange ownRange{batch, head, firstPart.row, firstPart.visible.rows};
  const int row0 = tileStartFromEnd(ownRange.length, kRows, work.tile);
  KeyTileIterator<kRows, kKeys> at(p.parts, work, row0);
  if (!at.isValid()) return;  // the state is unchanged

  const auto source = [&](const Matrix& x, int columns) { return makeSource(x, at.range(batch, kvHead), columns); };
  const SharedAddress qTile = sharedBase(), kTile = qTile + kTileBytes<kRows, D>, vTile = kTile + kTileBytes<kKeys, D>;
  loadTile<kRows, D, kThreads>(qTile, makeSource(p.q, ownRange, p.headDim), row0);
  loadTile<kKeys, D, kThreads>(kTile, source(p.k, p.headDim), at.key0);
  commitCopies();

  const auto row = [&](int m) { return row0 + (warp * M + m) * 16 + (lane >> 2); };  // this lane's first row
  float acc[M][N][4], maxScore[M][2], sum[M][2];
#pragma unroll
  for (int m = 0; m < M; m++) loadState(p, ownRange, row(m), acc[m], maxScore[m], sum[m]);

  while (at.isValid()) {
    waitCopies<0>();
    syncBlock();  // the keys have arrived; the previous values are no longer read
    loadTile<kKeys, D, kThreads>(vTile, source(p.v, p.valueHeadDim), at.key0);
    commitCopies();

    float s[M][K][4];
    clear(s);
    multiplyTransposed<T, D>(s, qTile, warp * M * 16, kTile);
    const auto modifiers = scores.createPartModifiers(at.part, batch, head);
    typename Scores::template Changes<K, 4> changes[M];
#pragma unroll
    for (int m = 0; m < M; m++) modifiers.modify(s[m], p.scale, changes[m], RowsOfQueries{row(m), at.key0});
    if (at.needsMask()) {
#pragma unroll
      for (int m = 0; m < M; m++) maskKeys(at.visible(), s[m], row(m), at.key0, -infinity());
    }

    waitCopies<0>();
    syncBlock();  // the values have arrived; these keys are no longer read
    at.next();
    if (at.isValid()) loadTile<kKeys, D, kThreads>(kTile, source(p.k, p.headDim), at.key0);
    commitCopies();

#pragma unroll
    for (int m = 0; m < M; m++) {
      float decay[2];
      updateOnlineSoftmax(s[m], modifiers.scale(p.scale), maxScore[m], sum[m], decay);
      scaleRows(acc[m], decay);
      modifiers.applyDropout(s[m], changes[m]);
    }
    multiply<T, D>(acc, s, vTile);
  }
#pragma unroll
  for (int m = 0; m < M; m++) storeState(p, work, ownRange, row(m), acc[m], maxScore[m], sum[m]);
}

}  // namespace mosaic::cuda
