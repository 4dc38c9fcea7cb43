// Flash attention, backward, on Hopper: the two kernels of attend_backward_mma.cuh with TMA and wgmma.
//
// Exponentials run beside dP, and the next scores are started with the last sums. No product is under way where the
// loop closes, and none is started under a condition: ptxas would wait for each one by itself (its note C7515). So the
// last step computes its own scores once more, for nobody.
#pragma once

#include "kernels/gradients.cuh"
#include "kernels/hopper_tile.cuh"

namespace mosaic::cuda {

/// A block owns keys and walks over the queries of all heads that read them. Products are transposed, rows are keys and
/// columns queries, so that Pᵀ and dSᵀ are left operands straight from registers.
template <int D>
struct HopperKeys {
  static constexpr HopperShape kShape = keysHopperShape(D);
  static constexpr int kKeys = kShape.own, kRows = kShape.other, kGroups = kShape.groups;
  static constexpr int kTile = kPanelsBytes<kRows, D>, kStage = 2 * kTile;  // q and dOut
  using Tiles = QueryTiles<kKeys, kRows>;
  using RowNumbers = Numbers<kRows>;

  const AttendBackwardHopperParameters& p;
  Run own;
  int key0;
  SharedAddress k = sharedBase(), v = k + kPanelsBytes<kKeys, D>, stages = v + kPanelsBytes<kKeys, D>;
  SharedAddress numbers = stages + kStages * kStage, ownFull = numbers + kStages * RowNumbers::kBytes;
  Ring<kStage> ring{stages, ownFull + 8};

  DEVICE RowNumbers numbersAt(int step) const { return {numbers + step % kStages * RowNumbers::kBytes}; }

  /// The thread that loads tiles.
  DEVICE void load(Tiles at) const {
    const BoxAt place{0, own.first + key0, own.head, own.batch};
    arriveExpecting(ownFull, 2 * kPanelsBytes<kKeys, D>);
    loadPanels<kKeys, D>(k, p.k, place, ownFull);
    loadPanels<kKeys, D>(v, p.v, place, ownFull);
    for (int step = 0; at.some(); at.next(), step++) {
      const Run rows = at.run(own.batch);
      const BoxAt from{0, rows.first + at.row0, rows.head, rows.batch};
      ring.awaitFree(step);
      arriveExpecting(ring.full(step), kStage);
      loadPanels<kRows, D>(ring.tile(step), p.q, from, ring.full(step));
      loadPanels<kRows, D>(ring.tile(step) + kTile, p.dOut, from, ring.full(step));
    }
  }

  /// A warp that loads one of the numbers of each query, to where `to` is. One warp for each, for two need more
  /// registers than a loader keeps.
  template <class To, class NumberOf>
  DEVICE void loadNumbers(Tiles at, To to, NumberOf numberOf) const {
    for (int step = 0; at.some(); at.next(), step++) {
      const Run rows = at.run(own.batch);
      ring.awaitFree(step);
      for (int i = threadIdx.x & 31; i < kRows; i += 32) {
        storeShared(to(numbersAt(step)) + i * 4, numberOf(rows, at.row0 + i));
      }
      arrive(ring.full(step));
    }
  }

  /// A warpgroup that computes: 64 keys, of which this lane holds `key` and key + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, key = key0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float s[kRows / 8][4], dp[kRows / 8][4], dk[D / 8][4], dv[D / 8][4];
    uint32_t weights[kRows / 16][4], ds[kRows / 16][4];
    clear(dk);
    clear(dv);

    awaitPhase(ownFull, 0);
    ring.awaitFull(0);
    fenceProducts();
    startTransposed<T, D, kKeys>(s, k, group * 64, ring.tile(0));
    commitProducts();
    waitProducts<0>(s);
    for (int step = 0; at.some(); step++) {
      const SharedAddress q = ring.tile(step), g = q + kTile;
      fenceProducts();
      startTransposed<T, D, kKeys>(dp, v, group * 64, g);
      commitProducts();

      if (at.hides()) hideRows(at.visible(), s, key, at.row0);
      exponentiate(s, p.rest.scale, numbersAt(step));
      packRows<T>(weights, s);
      fenceProducts();
      startProduct<T>(dv, weights, g);
      commitProducts();

      waitProducts<1>(dp);
      multiplyByRest(s, dp, numbersAt(step));
      packRows<T>(ds, s);
      fenceProducts();
      startProduct<T>(dk, ds, q);
      commitProducts();

      at.next();
      const int next = at.some() ? step + 1 : step;
      ring.awaitFull(next);
      fenceProducts();
      startTransposed<T, D, kKeys>(s, k, group * 64, ring.tile(next));
      commitProducts();
      waitProducts<0>(s, dk, dv);
      ring.release(step);
    }
    addRows(p.rest.dk, own, key, {0, p.rest.headDim}, dk, p.rest.scale);
    addRows(p.rest.dv, own, key, {0, p.rest.headDim}, dv, 1.f);
  }
};

/// A block owns queries and walks over the keys that they see.
template <int D>
struct HopperQueries {
  static constexpr HopperShape kShape = queriesHopperShape(D);
  static constexpr int kRows = kShape.own, kKeys = kShape.other, kGroups = kShape.groups;
  static constexpr int kTile = kPanelsBytes<kKeys, D>, kStage = 2 * kTile;  // k and v
  using Tiles = KeyTiles<kRows, kKeys>;

  const AttendBackwardHopperParameters& p;
  Run own;
  int headK, row0;
  SharedAddress q = sharedBase(), g = q + kPanelsBytes<kRows, D>, stages = g + kPanelsBytes<kRows, D>;
  SharedAddress ownFull = stages + kStages * kStage;
  Ring<kStage> ring{stages, ownFull + 8};

  /// The thread that loads.
  DEVICE void load(Tiles at) const {
    const BoxAt place{0, own.first + row0, own.head, own.batch};
    arriveExpecting(ownFull, 2 * kPanelsBytes<kRows, D>);
    loadPanels<kRows, D>(q, p.q, place, ownFull);
    loadPanels<kRows, D>(g, p.dOut, place, ownFull);
    for (int step = 0; at.some(); at.next(), step++) {
      const BoxAt from{0, at.place(), headK, own.batch};
      ring.awaitFree(step);
      arriveExpecting(ring.full(step), kStage);
      loadPanels<kKeys, D>(ring.tile(step), p.k, from, ring.full(step));
      loadPanels<kKeys, D>(ring.tile(step) + kTile, p.v, from, ring.full(step));
    }
  }

  /// A warpgroup that computes: 64 rows, of which this lane holds `row` and row + 8.
  template <class T>
  DEVICE void compute(Tiles at, int group) const {
    const int lane = threadIdx.x & 31, row = row0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float s[kKeys / 8][4], dp[kKeys / 8][4], dq[D / 8][4], lse[2], delta[2];
    uint32_t ds[kKeys / 16][4];
    clear(dq);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      lse[h] = exponentOf(p.rest.lse, own, row + h * 8);
      delta[h] = deltaOf(p.rest.delta, own, row + h * 8);
    }

    awaitPhase(ownFull, 0);
    ring.awaitFull(0);
    fenceProducts();
    startTransposed<T, D, kRows>(s, q, group * 64, ring.tile(0));
    commitProducts();
    waitProducts<0>(s);
    for (int step = 0; at.some(); step++) {
      fenceProducts();
      startTransposed<T, D, kRows>(dp, g, group * 64, ring.tile(step) + kTile);
      commitProducts();

      if (at.hides()) hideKeys(at.visible(), s, row, at.key0);
      exponentiateRows(s, p.rest.scale, lse);
      waitProducts<0>(dp);
      multiplyRowsByRest(s, dp, delta);
      packRows<T>(ds, s);
      fenceProducts();
      startProduct<T>(dq, ds, ring.tile(step));
      commitProducts();

      at.next();
      const int next = at.some() ? step + 1 : step;
      ring.awaitFull(next);
      fenceProducts();
      startTransposed<T, D, kRows>(s, q, group * 64, ring.tile(next));
      commitProducts();
      waitProducts<0>(s, dq);
      ring.release(step);
    }
    addRows(p.rest.dq, own, row, {0, p.rest.headDim}, dq, p.rest.scale);
  }
};

/// Grid: key tiles, then key heads and batches.
template <class T, int D>
DEVICE void attendKeysHopper(const AttendBackwardHopperParameters& p) {
  using Keys = HopperKeys<D>;
  const auto [batch, head] = headOf(p.rest.heads);
  if (batch >= p.rest.heads.batches) return;
  const Share share = shareOf(p.rest.parts, blockIdx.x);
  const Part& any = p.rest.parts.part[share.first];
  const Run own{batch, head, any.key, any.visible.keys};
  const int key0 = share.tile * Keys::kKeys;
  const typename Keys::Tiles at(p.rest.parts, share, key0, own.head * p.rest.group, p.rest.group);
  if (!at.some()) return;

  const Keys keys{p, own, key0};
  beginBlock(keys.ownFull, [&] { keys.ring.init(1 + 3 * 32, 4 * Keys::kGroups); });
  const int group = warpgroup(), warp = static_cast<int>(threadIdx.x) / 32;
  if (group == 0) {
    giveRegisters<Keys::kShape.loaderRegisters()>();
    if (threadIdx.x == 0) keys.load(at);
    using Numbers = typename Keys::RowNumbers;
    const auto lse = [&](const Run& rows, int row) { return exponentOf(p.rest.lse, rows, row); };
    const auto lse2 = [&](const Run& rows, int row) { return lse(rows, row) * kLog2e; };
    const auto delta = [&](const Run& rows, int row) { return deltaOf(p.rest.delta, rows, row); };
    if (warp == 1) keys.loadNumbers(at, [](Numbers to) { return to.lse2(); }, lse2);
    if (warp == 2) keys.loadNumbers(at, [](Numbers to) { return to.delta(); }, delta);
    if (warp == 3) keys.loadNumbers(at, [](Numbers to) { return to.lse(); }, lse);
  } else {
    takeRegisters<Keys::kShape.registers()>();
    keys.template compute<T>(at, group - 1);
  }
}

/// Grid: row tiles, then heads and batches.
template <class T, int D>
DEVICE void attendQueriesHopper(const AttendBackwardHopperParameters& p) {
  using Queries = HopperQueries<D>;
  const auto [batch, head] = headOf(p.rest.heads);
  if (batch >= p.rest.heads.batches) return;
  const Share share = shareOf(p.rest.parts, blockIdx.x);
  const Part& any = p.rest.parts.part[share.first];
  const Run own{batch, head, any.row, any.visible.rows};
  const int row0 = lastTileFirst(own.length, Queries::kRows, share.tile);
  const typename Queries::Tiles at(p.rest.parts, share, row0);
  if (!at.some()) return;

  const Queries queries{p, own, own.head / p.rest.group, row0};
  beginBlock(queries.ownFull, [&] { queries.ring.init(1, 4 * Queries::kGroups); });
  const int group = warpgroup();
  if (group == 0) {
    giveRegisters<Queries::kShape.loaderRegisters()>();
    if (threadIdx.x == 0) queries.load(at);
  } else {
    takeRegisters<Queries::kShape.registers()>();
    queries.template compute<T>(at, group - 1);
  }
}

}  // namespace mosaic::cuda
