// Flash attention, forward, on Hopper: one warpgroup loads with TMA, the others compute with wgmma.
//
// The products of a step do not wait for its softmax: while the tensor cores work on the next scores and on the last
// values, the softmax in between is done; and while one warpgroup does its softmax, another one's products run.
// Shah et al. 2024 (FlashAttention-3), §3.1 and §3.2.
#pragma once

#include "kernels/hopper_tile.cuh"
#include "kernels/online.cuh"

namespace mosaic::cuda {

template <int D>
struct HopperForward {
  static constexpr HopperShape kShape = forwardHopperShape(D);
  static constexpr int kRows = kShape.own, kKeys = kShape.other, kGroups = kShape.groups;
  using Tiles = KeyTiles<kRows, kKeys>;
  using KeyRing = Ring<kPanelsBytes<kKeys, D>>;

  const AttendHopperParameters& p;
  Share share;
  Run own;
  int headK, row0;
  SharedAddress q = sharedBase(), stages = q + kPanelsBytes<kRows, D>;
  SharedAddress qFull = stages + 2 * kStages * kPanelsBytes<kKeys, D>;
  KeyRing keys{stages, qFull + 8}, values{stages + kStages * kPanelsBytes<kKeys, D>, qFull + 8 + 16 * kStages};

  /// The thread that loads: queries once, then keys and values as room becomes free.
  DEVICE void load(Tiles at) const {
    arriveExpecting(qFull, kPanelsBytes<kRows, D>);
    loadPanels<kRows, D>(q, p.q, {0, own.first + row0, own.head, own.batch}, qFull);
    for (int step = 0; at.some(); at.next(), step++) {
      const BoxAt place{0, at.place(), headK, own.batch};
      keys.awaitFree(step);
      arriveExpecting(keys.full(step), kPanelsBytes<kKeys, D>);
      loadPanels<kKeys, D>(keys.tile(step), p.k, place, keys.full(step));
      values.awaitFree(step);
      arriveExpecting(values.full(step), kPanelsBytes<kKeys, D>);
      loadPanels<kKeys, D>(values.tile(step), p.v, place, values.full(step));
    }
  }

  /// A warpgroup that computes: 64 rows, of which this lane holds `row` and row + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, row = row0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    const float scale = p.rest.scale;
    const Turns<kGroups> turns{group};
    float s[kKeys / 8][4], acc[D / 8][4], top[2], sum[2], keep[2];
    uint32_t weights[kKeys / 16][4];  // the softmax of the last scores, as the left operand of the next product
    seedState(p.rest, own, row, acc, top, sum);
    turns.begin();

    awaitPhase(qFull, 0);
    keys.awaitFull(0);
    fenceProducts();
    startTransposed<T, D, kRows>(s, q, group * 64, keys.tile(0));
    commitProducts();
    waitProducts<0>(s);
    keys.release(0);
    if (at.hides()) hideKeys(at.visible(), s, row, at.key0);
    foldScores(s, scale, top, sum, keep);
    scaleRows(acc, keep);
    packRows<T>(weights, s);

    int step = 0;
    for (at.next(); at.some(); at.next()) {
      step++;
      keys.awaitFull(step);
      turns.take();
      fenceProducts();
      startTransposed<T, D, kRows>(s, q, group * 64, keys.tile(step));
      commitProducts();
      values.awaitFull(step - 1);
      fenceProducts();
      startProduct<T>(acc, weights, values.tile(step - 1));
      commitProducts();
      turns.pass();

      waitProducts<1>(s);  // the scores are here, the values still under way
      keys.release(step);
      if (at.hides()) hideKeys(at.visible(), s, row, at.key0);
      foldScores(s, scale, top, sum, keep);

      waitProducts<0>(acc);
      values.release(step - 1);
      scaleRows(acc, keep);
      packRows<T>(weights, s);
    }
    values.awaitFull(step);
    fenceProducts();
    startProduct<T>(acc, weights, values.tile(step));
    commitProducts();
    waitProducts<0>(acc);
    storeState(p.rest, share, own, row, acc, top, sum);
  }
};

/// Grid: row tiles, then heads and batches.
template <class T, int D>
DEVICE void attendHopper(const AttendHopperParameters& p) {
  using Forward = HopperForward<D>;
  const auto [batch, head] = headOf(p.rest.heads);
  if (batch >= p.rest.heads.batches) return;
  const Share share = shareOf(p.rest.parts, blockIdx.x);
  const Part& any = p.rest.parts.part[share.first];
  const Run own{batch, head, any.row, any.visible.rows};
  const int row0 = lastTileFirst(own.length, Forward::kRows, share.tile);
  const typename Forward::Tiles at(p.rest.parts, share, row0);
  if (!at.some()) return;  // the state stays as it is

  const Forward forward{p, share, own, own.head / p.rest.group, row0};
  beginBlock(forward.qFull, [&] {
    forward.keys.init(1, 4 * Forward::kGroups);
    forward.values.init(1, 4 * Forward::kGroups);
  });
  const int group = warpgroup();
  if (group == 0) {
    giveRegisters<Forward::kShape.loaderRegisters()>();
    if (threadIdx.x == 0) forward.load(at);
  } else {
    takeRegisters<Forward::kShape.registers()>();
    forward.template compute<T>(at, group - 1);
  }
}

}  // namespace mosaic::cuda
