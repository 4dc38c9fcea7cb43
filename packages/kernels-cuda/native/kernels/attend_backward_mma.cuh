// Flash attention, backward, on tensor cores: every GPU since sm_80.
//
// Two kernels without atomics, so that the order of each sum is fixed. In one, a block owns keys and iterates over the
// queries of all heads that use them; in the other, it owns queries and iterates over the keys. With lse and delta of
// the whole attention:
//   P = exp(scale · S − lse), dP = dO Vᵀ, dS = P ∘ (dP − delta), dq += scale · dS K, dk += scale · dSᵀ Q, dv += Pᵀ dO.
// Dao 2023, algorithm 2.
#pragma once

#include "kernels/fragment_pairs.cuh"
#include "kernels/gradients.cuh"
#include "kernels/score_modifiers.cuh"

namespace mosaic::cuda {

template <int K>
DEVICE void copy(float (&to)[K][4], const float (&from)[K][4]) {
#pragma unroll
  for (int n = 0; n < K; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) to[n][i] = from[n][i];
  }
}

/// Converts gradients of modified scores to gradients of scaled scores.
template <int K, class Modifiers, class Changes>
DEVICE void differentiate(float (&ds)[K][4], const Modifiers& modifiers, const Changes& changes) {
#pragma unroll
  for (int n = 0; n < K; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) ds[n][i] *= modifiers.derivative(changes, n, i);
  }
}

/// Grid: (key tiles × column parts, key heads, batch). All products are transposed: rows are keys and columns are
/// queries, so that Pᵀ and dSᵀ are used in the next product directly from registers.
template <class T, int D, class Scores = PlainScores>
DEVICE void attendKeysTile(const AttendBackwardParameters& p, const Scores& scores = {}) {
  constexpr BlockShape kShape = keysShape(D);
  constexpr int kKeys = kShape.ownTileLength, kRows = kShape.stepTileLength, kThreads = kShape.threads(),
                kColumns = D / kShape.parts;
  constexpr int M = kKeys / (16 * kShape.warps), K = kRows / 8, N = kColumns / 8;
  static_assert(M >= 1 && kKeys == M * 16 * kShape.warps && kRows <= kThreads);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int kvHead = blockIdx.y, column0 = static_cast<int>(blockIdx.x) % kShape.parts * kColumns;
  const WorkTile work = findWorkTile(p.parts, static_cast<int>(blockIdx.x) / kShape.parts);
  const Part& firstPart = p.parts.part[work.first];
  const int batch = batchIndex(p.parts);
  const RowRange ownRange{batch, kvHead, firstPart.key, firstPart.visible.keys};
  const int key0 = work.tile * kKeys;
  QueryTileIterator<kKeys, kRows> at(p.parts, work, key0, kvHead * p.group, p.group);
  if (!at.isValid() || column0 >= max(p.headDim, p.valueHeadDim)) return;

  const SharedAddress kTile = sharedBase(), vTile = kTile + kTileBytes<kKeys, D>;
  const SharedAddress stages = vTile + kTileBytes<kKeys, D>, statistics = stages + 4 * kTileBytes<kRows, D>;
  const auto qTile = [&](int step) { return stages + (step & 1) * 2 * kTileBytes<kRows, D>; };
  const auto dOutTile = [&](int step) { return qTile(step) + kTileBytes<kRows, D>; };
  using RowStatistics = ColumnStatistics<kRows>;
  const auto statisticsAt = [&](int step) { return RowStatistics{statistics + (step & 1) * RowStatistics::kBytes}; };
  const auto loadStep = [&](int step, const QueryTileIterator<kKeys, kRows>& iterator) {
    const RowRange rows = iterator.range(batch);
    loadTile<kRows, D, kThreads>(qTile(step), makeSource(p.q, rows, p.headDim), iterator.row0);
    loadTile<kRows, D, kThreads>(dOutTile(step), makeSource(p.dOut, rows, p.valueHeadDim), iterator.row0);
    if (threadIdx.x < kRows) {
      const int r = iterator.row0 + static_cast<int>(threadIdx.x);
      const RowStatistics to = statisticsAt(step);
      const float lse = loadLse(p.lse, rows, r);
      storeShared(to.lseLog2() + threadIdx.x * 4, lse * kLog2e);
      storeShared(to.delta() + threadIdx.x * 4, loadDelta(p.delta, rows, r));
      storeShared(to.lse() + threadIdx.x * 4, lse);
    }
  };
  loadTile<kKeys, D, kThreads>(kTile, makeSource(p.k, ownRange, p.headDim), key0);
  loadTile<kKeys, D, kThreads>(vTile, makeSource(p.v, ownRange, p.valueHeadDim), key0);
  loadStep(0, at);
  commitCopies();

  const auto key = [&](int m) { return key0 + (warp * M + m) * 16 + (lane >> 2); };  // this lane's first key
  float dk[M][N][4], dv[M][N][4];
  clear(dk);
  clear(dv);
  for (int step = 0; at.isValid(); step++) {
    waitCopies<0>();
    syncBlock();  // this step's tiles have arrived; the previous ones are no longer read
    const QueryTileIterator<kKeys, kRows> currentTile = at;
    at.next();
    if (at.isValid()) loadStep(step + 1, at);
    commitCopies();

    float s[M][K][4], dp[M][K][4];
    clear(s);
    multiplyTransposed<T, D>(s, kTile, warp * M * 16, qTile(step));
    const auto modifiers = scores.createPartModifiers(currentTile.part, batch, currentTile.head);
    typename Scores::template Changes<K, 4> changes[M];
    float weights[M][K][4];  // with dropout applied
#pragma unroll
    for (int m = 0; m < M; m++) {
      modifiers.modify(s[m], p.scale, changes[m], RowsOfKeys{key(m), currentTile.row0});
      computeProbabilitiesByColumn(s[m], modifiers.scale(p.scale), statisticsAt(step));
      if (currentTile.needsMask()) maskRows(currentTile.visible(), s[m], key(m), currentTile.row0);
      copy(weights[m], s[m]);
      modifiers.applyDropout(weights[m], changes[m]);
    }
    multiply<T, D>(dv, weights, dOutTile(step), column0 / 8);
    clear(dp);
    multiplyTransposed<T, D>(dp, vTile, warp * M * 16, dOutTile(step));
#pragma unroll
    for (int m = 0; m < M; m++) {
      modifiers.applyDropout(dp[m], changes[m]);
      computeScoreGradientsByColumn(s[m], dp[m], statisticsAt(step));
      differentiate(s[m], modifiers, changes[m]);
      if (currentTile.needsMask()) maskRows(currentTile.visible(), s[m], key(m), currentTile.row0);
    }
    multiply<T, D>(dk, s, qTile(step), column0 / 8);
  }
#pragma unroll
  for (int m = 0; m < M; m++) {
    addRows(p.dk, ownRange, key(m), {column0, p.headDim}, dk[m], p.scale);
    addRows(p.dv, ownRange, key(m), {column0, p.valueHeadDim}, dv[m], 1.f);
  }
}

/// Grid: (query tiles, heads, batch).
template <class T, int D, class Scores = PlainScores>
DEVICE void attendQueriesTile(const AttendBackwardParameters& p, const Scores& scores = {}) {
  constexpr BlockShape kShape = queriesShape(D);
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
  if (!at.isValid()) return;

  const SharedAddress qTile = sharedBase(), dOutTile = qTile + kTileBytes<kRows, D>;
  const SharedAddress stages = dOutTile + kTileBytes<kRows, D>;
  const auto kTile = [&](int step) { return stages + (step & 1) * 2 * kTileBytes<kKeys, D>; };
  const auto vTile = [&](int step) { return kTile(step) + kTileBytes<kKeys, D>; };
  const auto loadStep = [&](int step) {
    const RowRange keys = at.range(batch, kvHead);
    loadTile<kKeys, D, kThreads>(kTile(step), makeSource(p.k, keys, p.headDim), at.key0);
    loadTile<kKeys, D, kThreads>(vTile(step), makeSource(p.v, keys, p.valueHeadDim), at.key0);
  };
  loadTile<kRows, D, kThreads>(qTile, makeSource(p.q, ownRange, p.headDim), row0);
  loadTile<kRows, D, kThreads>(dOutTile, makeSource(p.dOut, ownRange, p.valueHeadDim), row0);
  loadStep(0);
  commitCopies();

  const auto row = [&](int m) { return row0 + (warp * M + m) * 16 + (lane >> 2); };
  float dq[M][N][4], lse[M][2], delta[M][2];
  clear(dq);
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      lse[m][h] = loadLse(p.lse, ownRange, row(m) + h * 8);
      delta[m][h] = loadDelta(p.delta, ownRange, row(m) + h * 8);
    }
  }

  for (int step = 0; at.isValid(); step++) {
    waitCopies<0>();
    syncBlock();
    const KeyTileIterator<kRows, kKeys> currentTile = at;
    at.next();
    if (at.isValid()) loadStep(step + 1);
    commitCopies();

    float s[M][K][4], dp[M][K][4];
    clear(s);
    clear(dp);
    multiplyTransposed<T, D>(s, qTile, warp * M * 16, kTile(step));
    multiplyTransposed<T, D>(dp, dOutTile, warp * M * 16, vTile(step));
    const auto modifiers = scores.createPartModifiers(currentTile.part, batch, head);
#pragma unroll
    for (int m = 0; m < M; m++) {
      typename Scores::template Changes<K, 4> changes;
      modifiers.modify(s[m], p.scale, changes, RowsOfQueries{row(m), currentTile.key0});
      computeProbabilitiesByRow(s[m], modifiers.scale(p.scale), lse[m]);
      modifiers.applyDropout(dp[m], changes);
      computeScoreGradientsByRow(s[m], dp[m], delta[m]);
      differentiate(s[m], modifiers, changes);
      if (currentTile.needsMask()) maskKeys(currentTile.visible(), s[m], row(m), currentTile.key0, 0.f);
    }
    multiply<T, D>(dq, s, kTile(step));
  }
#pragma unroll
  for (int m = 0; m < M; m++) addRows(p.dq, ownRange, row(m), {0, p.headDim}, dq[m], p.scale);
}

}  // namespace mosaic::cuda
