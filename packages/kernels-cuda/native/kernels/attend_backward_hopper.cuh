// Flash attention, backward, on Hopper: the two kernels of attend_backward_mma.cuh with TMA and wgmma.
//
// Exponentials overlap with dP, and the next scores are started together with the last sums. No product is pending at
// the end of the loop body, and none is started conditionally, because ptxas would then wait for each product
// separately (its note C7515). The last step therefore recomputes its own scores, which are not used.
#pragma once

#include "kernels/gradients.cuh"
#include "kernels/hopper_tile.cuh"

namespace mosaic::cuda {

/// A block owns keys and iterates over the queries of all heads that use them. Products are transposed: rows are keys
/// and columns are queries, so that Pᵀ and dSᵀ are left operands directly from registers.
template <int D>
struct HopperKeys {
  static constexpr HopperShape kShape = keysHopperShape(D);
  static constexpr int kKeys = kShape.ownTileLength, kRows = kShape.stepTileLength, kGroups = kShape.groups;
  static constexpr int kStepTileBytes = kPanelsBytes<kRows, D>, kStageBytes = 2 * kStepTileBytes;  // q and dOut
  using Tiles = QueryTileIterator<kKeys, kRows>;
  using RowStatistics = ColumnStatistics<kRows>;

  const AttendBackwardHopperParameters& p;
  RowRange ownRange;
  int key0;
  SharedAddress k = sharedBase(), v = k + kPanelsBytes<kKeys, D>, stages = v + kPanelsBytes<kKeys, D>;
  SharedAddress statistics = stages + kStages * kStageBytes;
  SharedAddress ownFullBarrier = statistics + kStages * RowStatistics::kBytes;
  TmaPipeline<kStageBytes> pipeline{stages, ownFullBarrier + 8};

  DEVICE RowStatistics statisticsAt(int step) const { return {statistics + step % kStages * RowStatistics::kBytes}; }

  /// Runs the thread that loads tiles.
  DEVICE void load(Tiles at) const {
    const TmaCoordinates coordinates{0, ownRange.first + key0, ownRange.head, ownRange.batch};
    arriveExpectTx(ownFullBarrier, 2 * kPanelsBytes<kKeys, D>);
    loadPanels<kKeys, D>(k, p.k, coordinates, ownFullBarrier);
    loadPanels<kKeys, D>(v, p.v, coordinates, ownFullBarrier);
    for (int step = 0; at.isValid(); at.next(), step++) {
      const RowRange rows = at.range(ownRange.batch);
      const TmaCoordinates from{0, rows.first + at.row0, rows.head, rows.batch};
      pipeline.producerAcquire(step);
      arriveExpectTx(pipeline.fullBarrier(step), kStageBytes);
      loadPanels<kRows, D>(pipeline.tile(step), p.q, from, pipeline.fullBarrier(step));
      loadPanels<kRows, D>(pipeline.tile(step) + kStepTileBytes, p.dOut, from, pipeline.fullBarrier(step));
    }
  }

  /// Runs a warp that loads one of the values of each query to the address that `getDestination` returns. Each value
  /// has its own warp, because loading two needs more registers than a loader has.
  template <class GetDestination, class GetRowValue>
  DEVICE void loadStatistics(Tiles at, GetDestination getDestination, GetRowValue getRowValue) const {
    for (int step = 0; at.isValid(); at.next(), step++) {
      const RowRange rows = at.range(ownRange.batch);
      pipeline.producerAcquire(step);
      for (int i = threadIdx.x & 31; i < kRows; i += 32) {
        storeShared(getDestination(statisticsAt(step)) + i * 4, getRowValue(rows, at.row0 + i));
      }
      arrive(pipeline.fullBarrier(step));
    }
  }

  /// Zeroes invalid rows once the step's tiles have arrived, before products of them start.
  DEVICE void zeroInvalidRows(int step, int validRows) const {
    if (validRows >= kRows) return;
    zeroRowsFrom<kRows, D, kGroups>(pipeline.tile(step), validRows);
    zeroRowsFrom<kRows, D, kGroups>(pipeline.tile(step) + kStepTileBytes, validRows);
    syncAfterZeroing<kGroups>();
  }

  /// Runs a warpgroup that computes 64 keys, of which this lane holds `key` and key + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, key = key0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float s[kRows / 8][4], dp[kRows / 8][4], dk[D / 8][4], dv[D / 8][4];
    uint32_t weights[kRows / 16][4], ds[kRows / 16][4];
    clear(dk);
    clear(dv);

    awaitPhase(ownFullBarrier, 0);
    pipeline.consumerWait(0);
    zeroInvalidRows(0, at.validRowCount());
    fenceWgmma();
    startMatmulTransposed<T, D, kKeys>(s, k, group * 64, pipeline.tile(0));
    commitWgmma();
    waitWgmma<0>(s);
    for (int step = 0; at.isValid(); step++) {
      const SharedAddress q = pipeline.tile(step), g = q + kStepTileBytes;
      fenceWgmma();
      startMatmulTransposed<T, D, kKeys>(dp, v, group * 64, g);
      commitWgmma();

      computeProbabilitiesByColumn(s, p.base.scale, statisticsAt(step));
      if (at.needsMask()) maskRows(at.visible(), s, key, at.row0);
      packRows<T>(weights, s);
      fenceWgmma();
      startMatmul<T>(dv, weights, g);
      commitWgmma();

      waitWgmma<1>(dp);
      computeScoreGradientsByColumn(s, dp, statisticsAt(step));
      if (at.needsMask()) maskRows(at.visible(), s, key, at.row0);
      packRows<T>(ds, s);
      fenceWgmma();
      startMatmul<T>(dk, ds, q);
      commitWgmma();

      at.next();
      const int next = at.isValid() ? step + 1 : step;
      pipeline.consumerWait(next);
      if (at.isValid()) zeroInvalidRows(next, at.validRowCount());
      fenceWgmma();
      startMatmulTransposed<T, D, kKeys>(s, k, group * 64, pipeline.tile(next));
      commitWgmma();
      waitWgmma<0>(s, dk, dv);
      pipeline.consumerRelease(step);
    }
    addRows(p.base.dk, ownRange, key, {0, p.base.headDim}, dk, p.base.scale);
    addRows(p.base.dv, ownRange, key, {0, p.base.valueHeadDim}, dv, 1.f);
  }
};

/// A block owns queries and iterates over the keys that are visible to them.
template <int D>
struct HopperQueries {
  static constexpr HopperShape kShape = queriesHopperShape(D);
  static constexpr int kRows = kShape.ownTileLength, kKeys = kShape.stepTileLength, kGroups = kShape.groups;
  static constexpr int kStepTileBytes = kPanelsBytes<kKeys, D>, kStageBytes = 2 * kStepTileBytes;  // k and v
  using Tiles = KeyTileIterator<kRows, kKeys>;

  const AttendBackwardHopperParameters& p;
  RowRange ownRange;
  int kvHead, row0;
  SharedAddress q = sharedBase(), g = q + kPanelsBytes<kRows, D>, stages = g + kPanelsBytes<kRows, D>;
  SharedAddress ownFullBarrier = stages + kStages * kStageBytes;
  TmaPipeline<kStageBytes> pipeline{stages, ownFullBarrier + 8};

  /// Runs the thread that loads tiles.
  DEVICE void load(Tiles at) const {
    const TmaCoordinates coordinates{0, ownRange.first + row0, ownRange.head, ownRange.batch};
    arriveExpectTx(ownFullBarrier, 2 * kPanelsBytes<kRows, D>);
    loadPanels<kRows, D>(q, p.q, coordinates, ownFullBarrier);
    loadPanels<kRows, D>(g, p.dOut, coordinates, ownFullBarrier);
    for (int step = 0; at.isValid(); at.next(), step++) {
      const TmaCoordinates from{0, at.firstKey(), kvHead, ownRange.batch};
      pipeline.producerAcquire(step);
      arriveExpectTx(pipeline.fullBarrier(step), kStageBytes);
      loadPanels<kKeys, D>(pipeline.tile(step), p.k, from, pipeline.fullBarrier(step));
      loadPanels<kKeys, D>(pipeline.tile(step) + kStepTileBytes, p.v, from, pipeline.fullBarrier(step));
    }
  }

  /// Zeroes invalid rows once the step's tiles have arrived, before products of them start.
  DEVICE void zeroInvalidRows(int step, int validRows) const {
    if (validRows >= kKeys) return;
    zeroRowsFrom<kKeys, D, kGroups>(pipeline.tile(step), validRows);
    zeroRowsFrom<kKeys, D, kGroups>(pipeline.tile(step) + kStepTileBytes, validRows);
    syncAfterZeroing<kGroups>();
  }

  /// Runs a warpgroup that computes 64 rows, of which this lane holds `row` and row + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, row = row0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float s[kKeys / 8][4], dp[kKeys / 8][4], dq[D / 8][4], lse[2], delta[2];
    uint32_t ds[kKeys / 16][4];
    clear(dq);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      lse[h] = loadLse(p.base.lse, ownRange, row + h * 8);
      delta[h] = loadDelta(p.base.delta, ownRange, row + h * 8);
    }

    awaitPhase(ownFullBarrier, 0);
    pipeline.consumerWait(0);
    zeroInvalidRows(0, at.validRowCount());
    fenceWgmma();
    startMatmulTransposed<T, D, kRows>(s, q, group * 64, pipeline.tile(0));
    commitWgmma();
    waitWgmma<0>(s);
    for (int step = 0; at.isValid(); step++) {
      fenceWgmma();
      startMatmulTransposed<T, D, kRows>(dp, g, group * 64, pipeline.tile(step) + kStepTileBytes);
      commitWgmma();

      computeProbabilitiesByRow(s, p.base.scale, lse);
      waitWgmma<0>(dp);
      computeScoreGradientsByRow(s, dp, delta);
      if (at.needsMask()) maskKeys(at.visible(), s, row, at.key0, 0.f);
      packRows<T>(ds, s);
      fenceWgmma();
      startMatmul<T>(dq, ds, pipeline.tile(step));
      commitWgmma();

      at.next();
      const int next = at.isValid() ? step + 1 : step;
      pipeline.consumerWait(next);
      if (at.isValid()) zeroInvalidRows(next, at.validRowCount());
      fenceWgmma();
      startMatmulTransposed<T, D, kRows>(s, q, group * 64, pipeline.tile(next));
      commitWgmma();
      waitWgmma<0>(s, dq);
      pipeline.consumerRelease(step);
    }
    addRows(p.base.dq, ownRange, row, {0, p.base.headDim}, dq, p.base.scale);
  }
};

/// Grid: (key tiles, key heads, batch).
template <class T, int D>
DEVICE void attendKeysHopper(const AttendBackwardHopperParameters& p) {
  using Keys = HopperKeys<D>;
  const WorkTile work = findWorkTile(p.base.parts, blockIdx.x);
  const Part& firstPart = p.base.parts.part[work.first];
  const RowRange ownRange{batchIndex(p.base.parts), static_cast<int>(blockIdx.y), firstPart.key,
                          firstPart.visible.keys};
  const int key0 = work.tile * Keys::kKeys;
  const typename Keys::Tiles at(p.base.parts, work, key0, ownRange.head * p.base.group, p.base.group);
  if (!at.isValid()) return;

  const Keys keys{p, ownRange, key0};
  initBlockBarrier(keys.ownFullBarrier, [&] { keys.pipeline.init(1 + 3 * 32, 4 * Keys::kGroups); });
  const int group = warpgroupIndex(), warp = static_cast<int>(threadIdx.x) / 32;
  if (group == 0) {
    releaseRegisters<Keys::kShape.producerRegisters()>();
    if (threadIdx.x == 0) keys.load(at);
    using ColumnStatistics = typename Keys::RowStatistics;
    const auto lse = [&](const RowRange& rows, int row) { return loadLse(p.base.lse, rows, row); };
    const auto lseLog2 = [&](const RowRange& rows, int row) { return lse(rows, row) * kLog2e; };
    const auto delta = [&](const RowRange& rows, int row) { return loadDelta(p.base.delta, rows, row); };
    if (warp == 1) keys.loadStatistics(at, [](ColumnStatistics to) { return to.lseLog2(); }, lseLog2);
    if (warp == 2) keys.loadStatistics(at, [](ColumnStatistics to) { return to.delta(); }, delta);
    if (warp == 3) keys.loadStatistics(at, [](ColumnStatistics to) { return to.lse(); }, lse);
  } else {
    allocateRegisters<Keys::kShape.registers()>();
    keys.template compute<T>(at, group - 1);
  }
}

/// Grid: (row tiles, heads, batch).
template <class T, int D>
DEVICE void attendQueriesHopper(const AttendBackwardHopperParameters& p) {
  using Queries = HopperQueries<D>;
  const WorkTile work = findWorkTile(p.base.parts, blockIdx.x);
  const Part& firstPart = p.base.parts.part[work.first];
  const RowRange ownRange{batchIndex(p.base.parts), static_cast<int>(blockIdx.y), firstPart.row,
                          firstPart.visible.rows};
  const int row0 = tileStartFromEnd(ownRange.length, Queries::kRows, work.tile);
  const typename Queries::Tiles at(p.base.parts, work, row0);
  if (!at.isValid()) return;

  const Queries queries{p, ownRange, ownRange.head / p.base.group, row0};
  initBlockBarrier(queries.ownFullBarrier, [&] { queries.pipeline.init(1, 4 * Queries::kGroups); });
  const int group = warpgroupIndex();
  if (group == 0) {
    releaseRegisters<Queries::kShape.producerRegisters()>();
    if (threadIdx.x == 0) queries.load(at);
  } else {
    allocateRegisters<Queries::kShape.registers()>();
    queries.template compute<T>(at, group - 1);
  }
}

}  // namespace mosaic::cuda
