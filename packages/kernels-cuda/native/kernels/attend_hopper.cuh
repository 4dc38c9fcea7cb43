// Flash attention, forward, on Hopper: one warpgroup loads with TMA, the others compute with wgmma.
//
// Products overlap with softmax. While the tensor cores compute the next scores and the products with the last values,
// the softmax in between is computed; and while one warpgroup computes its softmax, the products of another one run.
// Shah et al. 2024 (FlashAttention-3), §3.1 and §3.2.
#pragma once

#include "kernels/hopper_tile.cuh"
#include "kernels/online_softmax.cuh"

namespace mosaic::cuda {

template <int D>
struct HopperForward {
  static constexpr HopperShape kShape = forwardHopperShape(D);
  static constexpr int kRows = kShape.ownTileLength, kKeys = kShape.stepTileLength, kGroups = kShape.groups;
  using Tiles = KeyTileIterator<kRows, kKeys>;
  using KvPipeline = TmaPipeline<kPanelsBytes<kKeys, D>>;

  const AttendHopperParameters& p;
  WorkTile work;
  RowRange ownRange;
  int kvHead, row0;
  SharedAddress q = sharedBase(), stages = q + kPanelsBytes<kRows, D>;
  SharedAddress qFullBarrier = stages + 2 * kStages * kPanelsBytes<kKeys, D>;
  KvPipeline keys{stages, qFullBarrier + 8};
  KvPipeline values{stages + kStages * kPanelsBytes<kKeys, D>, qFullBarrier + 8 + 16 * kStages};

  /// Runs the thread that loads: queries once, then keys and values as buffers become free.
  DEVICE void load(Tiles at) const {
    arriveExpectTx(qFullBarrier, kPanelsBytes<kRows, D>);
    loadPanels<kRows, D>(q, p.q, {0, ownRange.first + row0, ownRange.head, ownRange.batch}, qFullBarrier);
    for (int step = 0; at.isValid(); at.next(), step++) {
      const TmaCoordinates coordinates{0, at.firstKey(), kvHead, ownRange.batch};
      keys.producerAcquire(step);
      arriveExpectTx(keys.fullBarrier(step), kPanelsBytes<kKeys, D>);
      loadPanels<kKeys, D>(keys.tile(step), p.k, coordinates, keys.fullBarrier(step));
      values.producerAcquire(step);
      arriveExpectTx(values.fullBarrier(step), kPanelsBytes<kKeys, D>);
      loadPanels<kKeys, D>(values.tile(step), p.v, coordinates, values.fullBarrier(step));
    }
  }

  /// Called before warpgroups start to take turns, because all of them synchronize here.
  DEVICE void zeroInvalidValues(int step, int validRows) const {
    if (validRows >= kKeys) return;
    values.consumerWait(step);
    zeroRowsFrom<kKeys, D, kGroups>(values.tile(step), validRows);
    syncAfterZeroing<kGroups>();
  }

  /// Runs a warpgroup that computes 64 rows, of which this lane holds `row` and row + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, row = row0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    const float scale = p.base.scale;
    const OrderBarrier<kGroups> order{group};
    float s[kKeys / 8][4], acc[D / 8][4], maxScore[2], sum[2], decay[2];
    uint32_t weights[kKeys / 16][4];  // softmax of the last scores, as the left operand of the next product
    loadState(p.base, ownRange, row, acc, maxScore, sum);
    order.init();

    awaitPhase(qFullBarrier, 0);
    keys.consumerWait(0);
    fenceWgmma();
    startMatmulTransposed<T, D, kRows>(s, q, group * 64, keys.tile(0));
    commitWgmma();
    waitWgmma<0>(s);
    keys.consumerRelease(0);
    if (at.needsMask()) maskKeys(at.visible(), s, row, at.key0, -infinity());
    updateOnlineSoftmax(s, scale, maxScore, sum, decay);
    scaleRows(acc, decay);
    packRows<T>(weights, s);

    int step = 0, validRows = at.validRowCount();
    for (at.next(); at.isValid(); at.next()) {
      zeroInvalidValues(step, validRows);
      validRows = at.validRowCount();
      step++;
      keys.consumerWait(step);
      order.wait();
      fenceWgmma();
      startMatmulTransposed<T, D, kRows>(s, q, group * 64, keys.tile(step));
      commitWgmma();
      values.consumerWait(step - 1);
      fenceWgmma();
      startMatmul<T>(acc, weights, values.tile(step - 1));
      commitWgmma();
      order.arrive();

      waitWgmma<1>(s);  // the scores are complete, the product with the values still pending
      keys.consumerRelease(step);
      if (at.needsMask()) maskKeys(at.visible(), s, row, at.key0, -infinity());
      updateOnlineSoftmax(s, scale, maxScore, sum, decay);

      waitWgmma<0>(acc);
      values.consumerRelease(step - 1);
      scaleRows(acc, decay);
      packRows<T>(weights, s);
    }
    zeroInvalidValues(step, validRows);
    values.consumerWait(step);
    fenceWgmma();
    startMatmul<T>(acc, weights, values.tile(step));
    commitWgmma();
    waitWgmma<0>(acc);
    storeState(p.base, work, ownRange, row, acc, maxScore, sum);
  }
};

/// Grid: (row tiles, heads, batch).
template <class T, int D>
DEVICE void attendHopper(const AttendHopperParameters& p) {
  using Forward = HopperForward<D>;
  const WorkTile work = findWorkTile(p.base.parts, blockIdx.x);
  const Part& firstPart = p.base.parts.part[work.first];
  const RowRange ownRange{batchIndex(p.base.parts), static_cast<int>(blockIdx.y), firstPart.row,
                          firstPart.visible.rows};
  const int row0 = tileStartFromEnd(ownRange.length, Forward::kRows, work.tile);
  const typename Forward::Tiles at(p.base.parts, work, row0);
  if (!at.isValid()) return;  // the state is unchanged

  const Forward forward{p, work, ownRange, ownRange.head / p.base.group, row0};
  initBlockBarrier(forward.qFullBarrier, [&] {
    forward.keys.init(1, 4 * Forward::kGroups);
    forward.values.init(1, 4 * Forward::kGroups);
  });
  const int group = warpgroupIndex();
  if (group == 0) {
    releaseRegisters<Forward::kShape.producerRegisters()>();
    if (threadIdx.x == 0) forward.load(at);
  } else {
    allocateRegisters<Forward::kShape.registers()>();
    forward.template compute<T>(at, group - 1);
  }
}

}  // namespace mosaic::cuda
