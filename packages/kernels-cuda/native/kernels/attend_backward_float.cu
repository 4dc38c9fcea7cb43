// Flash attention, backward, in float32 throughout: the two kernels of attend_backward_mma.cuh.
#include "kernels/float_tile.cuh"

using namespace mosaic::cuda;

namespace {

/// Whether the key is visible to the query.
DEVICE bool isVisible(const VisibleInterval& visible, int row, int key) {
  return key >= edgePosition(visible, visible.begin, row) && key < edgePosition(visible, visible.end, row);
}

/// s ← P, dp ← dS, for one query and one key. `derivative` is the derivative of the score with respect to the scaled
/// product.
DEVICE void differentiate(float& s, float& dp, bool isPairVisible, float2 lseAndDelta, float scale, float derivative) {
  const float exponent = roundedProduct(s, scale) - lseAndDelta.x;
  const float weight =
      exp2f((exponent > 0.f ? 0.f : exponent) * kLog2e);  // at most 1, even if the forward rounded the score
                                                          // differently
  s = isPairVisible ? weight : maskedWeight();
  dp = isPairVisible ? weight * (dp - lseAndDelta.y) * derivative : maskedWeight();
}

/// Grid: (key tiles, key heads, batch). Iterates over the queries of all heads that use these keys.
template <int D, class Scores = PlainScores>
DEVICE void attendKeysFloat(const AttendBackwardParameters& p, const Scores& scores = {}) {
  using Tile = FloatTile<D>;
  constexpr int R = Tile::kMicroTileSide;
  const int kvHead = blockIdx.y;
  const WorkTile work = findWorkTile(p.parts, blockIdx.x);
  const Part& firstPart = p.parts.part[work.first];
  const int batch = batchIndex(p.parts);
  const RowRange ownRange{batch, kvHead, firstPart.key, firstPart.visible.keys};
  const int key0 = work.tile * Tile::kSide;
  QueryTileIterator<Tile::kSide, Tile::kSide> at(p.parts, work, key0, kvHead * p.group, p.group);
  if (!at.isValid()) return;
  const SharedAddress k = sharedBase(), v = k + Tile::kBytes, q = v + Tile::kBytes, g = q + Tile::kBytes;
  const SharedAddress square = g + Tile::kBytes, scoreGradientSquare = square + Tile::kSquareBytes;
  const SharedAddress statistics = scoreGradientSquare + Tile::kSquareBytes;  // exponent and delta of each query

  loadFloatTile<D>(k, p.k, ownRange, key0, p.headDim);
  loadFloatTile<D>(v, p.v, ownRange, key0, p.valueHeadDim);
  float dk[R][D / 8] = {}, dv[R][D / 8] = {};
  for (; at.isValid(); at.next()) {
    const RowRange rows = at.range(batch);
    syncBlock();  // all threads have finished reading the previous queries
    loadFloatTile<D>(q, p.q, rows, at.row0, p.headDim);
    loadFloatTile<D>(g, p.dOut, rows, at.row0, p.valueHeadDim);
    if (threadIdx.x < Tile::kSide) {
      const int row = at.row0 + static_cast<int>(threadIdx.x);
      storeShared(statistics + threadIdx.x * 8, loadLse(p.lse, rows, row));
      storeShared(statistics + threadIdx.x * 8 + 4, loadDelta(p.delta, rows, row));
    }
    syncBlock();
    float s[R][R], dp[R][R];
    dotRows<D>(s, k, q, p.headDim);
    dotRows<D>(dp, v, g, p.valueHeadDim);
    const auto modifiers = scores.createPartModifiers(at.part, batch, at.head);
    typename Scores::template Changes<R, R> changes;
    modifiers.modify(s, p.scale, changes, FloatRowsOfKeys{key0, at.row0});
    modifiers.applyDropout(dp, changes);
#pragma unroll
    for (int j = 0; j < R; j++) {
      const float2 rowStatistics = loadShared2(statistics + (threadX() + 8 * j) * 8);
#pragma unroll
      for (int i = 0; i < R; i++) {
        const bool isPairVisible = isVisible(at.visible(), at.row0 + threadX() + 8 * j, key0 + threadY() + 8 * i);
        differentiate(s[i][j], dp[i][j], isPairVisible, rowStatistics, modifiers.scale(p.scale),
                      modifiers.derivative(changes, i, j));
      }
    }
    modifiers.applyDropout(s, changes);
    storeSquare<D>(square, s);
    storeSquare<D>(scoreGradientSquare, dp);
    syncWarp();
    addProduct<D>(dv, square, g, min(Tile::kSide, at.end - at.row0));
    addProduct<D>(dk, scoreGradientSquare, q, min(Tile::kSide, at.end - at.row0));
  }
  addFloatRows<D>(p.dk, ownRange, key0, p.headDim, dk, p.scale);
  addFloatRows<D>(p.dv, ownRange, key0, p.valueHeadDim, dv, 1.f);
}

/// Grid: (query tiles, heads, batch).
template <int D, class Scores = PlainScores>
DEVICE void attendQueriesFloat(const AttendBackwardParameters& p, const Scores& scores = {}) {
  using Tile = FloatTile<D>;
  constexpr int R = Tile::kMicroTileSide;
  const int head = blockIdx.y, kvHead = head / p.group;
  const WorkTile work = findWorkTile(p.parts, blockIdx.x);
  const Part& firstPart = p.parts.part[work.first];
  const int batch = batchIndex(p.parts);
  const RowRange ownRange{batch, head, firstPart.row, firstPart.visible.rows};
  const int row0 = tileStartFromEnd(ownRange.length, Tile::kSide, work.tile);
  KeyTileIterator<Tile::kSide, Tile::kSide> at(p.parts, work, row0);
  if (!at.isValid()) return;
  const SharedAddress q = sharedBase(), g = q + Tile::kBytes, k = g + Tile::kBytes, v = k + Tile::kBytes;
  const SharedAddress square = v + Tile::kBytes;

  loadFloatTile<D>(q, p.q, ownRange, row0, p.headDim);
  loadFloatTile<D>(g, p.dOut, ownRange, row0, p.valueHeadDim);
  float2 statistics[R];
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = row0 + threadY() + 8 * i;
    statistics[i] = make_float2(loadLse(p.lse, ownRange, row), loadDelta(p.delta, ownRange, row));
  }
  float dq[R][D / 8] = {};
  for (; at.isValid(); at.next()) {
    const RowRange keys = at.range(batch, kvHead);
    syncBlock();
    loadFloatTile<D>(k, p.k, keys, at.key0, p.headDim);
    loadFloatTile<D>(v, p.v, keys, at.key0, p.valueHeadDim);
    syncBlock();
    float s[R][R], dp[R][R];
    dotRows<D>(s, q, k, p.headDim);
    dotRows<D>(dp, g, v, p.valueHeadDim);
    const auto modifiers = scores.createPartModifiers(at.part, batch, head);
    typename Scores::template Changes<R, R> changes;
    modifiers.modify(s, p.scale, changes, FloatRowsOfQueries{row0, at.key0});
    modifiers.applyDropout(dp, changes);
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = row0 + threadY() + 8 * i;
#pragma unroll
      for (int j = 0; j < R; j++) {
        const bool isPairVisible = isVisible(at.visible(), row, at.key0 + threadX() + 8 * j);
        differentiate(s[i][j], dp[i][j], isPairVisible, statistics[i], modifiers.scale(p.scale),
                      modifiers.derivative(changes, i, j));
      }
    }
    storeSquare<D>(square, dp);
    syncWarp();
    addProduct<D>(dq, square, k, min(Tile::kSide, at.end - at.key0));
  }
  addFloatRows<D>(p.dq, ownRange, row0, p.headDim, dq, p.scale);
}

}  // namespace

#define ATTEND_BACKWARD(D)                                                                                           \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attendKeys_float32_##D(const __grid_constant__ AttendBackwardParameters p) {                                   \
    attendKeysFloat<D>(p);                                                                                           \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attendQueries_float32_##D(const __grid_constant__ AttendBackwardParameters p) {                                \
    attendQueriesFloat<D>(p);                                                                                        \
  }                                                                                                                  \
  EMULATED_KERNEL(attendKeys_float32_##D, AttendBackwardParameters)                                                  \
  EMULATED_KERNEL(attendQueries_float32_##D, AttendBackwardParameters)

ATTEND_BACKWARD(32)
ATTEND_BACKWARD(64)
ATTEND_BACKWARD(128)
ATTEND_BACKWARD(256)

#undef ATTEND_BACKWARD

#define ATTEND_BACKWARD_MODIFIED(D)                                                                                  \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attendKeysModified_float32_##D(const __grid_constant__ AttendBackwardModifiedParameters p) {                   \
    attendKeysFloat<D>(p.base, ModifiedScores<ExactTanh>(p));                                                        \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attendQueriesModified_float32_##D(const __grid_constant__ AttendBackwardModifiedParameters p) {                \
    attendQueriesFloat<D>(p.base, ModifiedScores<ExactTanh>(p));                                                     \
  }                                                                                                                  \
  EMULATED_KERNEL(attendKeysModified_float32_##D, AttendBackwardModifiedParameters)                                  \
  EMULATED_KERNEL(attendQueriesModified_float32_##D, AttendBackwardModifiedParameters)

ATTEND_BACKWARD_MODIFIED(64)
ATTEND_BACKWARD_MODIFIED(128)
ATTEND_BACKWARD_MODIFIED(256)

#undef ATTEND_BACKWARD_MODIFIED
