// Flash attention, forward, in float32 throughout.
#include "kernels/float_tile.cuh"

using namespace mosaic::cuda;

namespace {

/// For each of a thread's rows: the largest scaled score or the state's lse, the thread's part of the sum, and its
/// columns of out.
template <int R, int N>
struct State {
  float m[R], l[R], acc[R][N];
};

DEVICE float octetSum(float x) {
  for (int lanes = 1; lanes < 8; lanes *= 2) x += shuffleXor(x, lanes);
  return x;
}
DEVICE float octetMax(float x) {
  for (int lanes = 1; lanes < 8; lanes *= 2) x = fmaxf(x, shuffleXor(x, lanes));
  return x;
}

template <int R, int N>
DEVICE void loadState(const AttendParameters& p, const RowRange& ownRange, int row0, State<R, N>& state) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + threadY() + 8 * i;
    const float lse = r < ownRange.length ? load(rowOf(p.lse, ownRange, r)) : -infinity();
    const bool hasSeenKeys = lse != -infinity();
    state.m[i] = hasSeenKeys ? lse : -infinity();
    state.l[i] = hasSeenKeys && threadX() == 0 ? 1.f : 0.f;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = threadX() + 8 * n;
      state.acc[i][n] = hasSeenKeys && c < p.valueHeadDim ? load(rowOf(p.out, ownRange, r) + c * p.out.column) : 0.f;
    }
  }
}

/// `s`: products of queries row0… and keys key0… on input, probabilities relative to m on output.
template <int R, int N>
DEVICE void updateOnlineSoftmax(const VisibleInterval& visible, float scale, int row0, int key0, float (&s)[R][R],
                                State<R, N>& state) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + threadY() + 8 * i;
    const int begin = edgePosition(visible, visible.begin, r), end = edgePosition(visible, visible.end, r);
    float maxScore = -infinity();
#pragma unroll
    for (int j = 0; j < R; j++) {
      const int key = key0 + threadX() + 8 * j;
      s[i][j] = key < begin || key >= end ? -infinity() : roundedProduct(s[i][j], scale);
      maxScore = fmaxf(maxScore, s[i][j]);
    }
    const float oldMax = state.m[i], newMax = fmaxf(oldMax, octetMax(maxScore));
    const float baseMax = newMax == -infinity() ? 0.f : newMax;  // −∞ − −∞ would be NaN
    const float decay = exp2f((oldMax - baseMax) * kLog2e);
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < R; j++) {
      s[i][j] = s[i][j] == -infinity() ? maskedWeight() : exp2f((s[i][j] - baseMax) * kLog2e);
      sum += s[i][j];
    }
    state.m[i] = newMax;
    state.l[i] = state.l[i] * decay + sum;
#pragma unroll
    for (int n = 0; n < N; n++) state.acc[i][n] *= decay;
  }
}

/// Writes the state of the rows that attended to at least one key.
template <int R, int N>
DEVICE void storeState(const AttendParameters& p, const WorkTile& work, const RowRange& ownRange, int row0,
                       const State<R, N>& state) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + threadY() + 8 * i;
    const float sum = octetSum(state.l[i]);
    if (r >= ownRange.length || !hasVisibleKeys(p.parts, work, r)) continue;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    if (threadX() == 0) {
      store(rowOf(p.lse, ownRange, r), sum == 0.f ? -infinity() : state.m[i] + log2f(sum) * kLn2);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = threadX() + 8 * n;
      if (c < p.valueHeadDim) store(rowOf(p.out, ownRange, r) + c * p.out.column, state.acc[i][n] * inverse);
    }
  }
}

/// Grid: (row tiles, heads, batch).
template <int D, class Scores = PlainScores>
DEVICE void attendFloat(const AttendParameters& p, const Scores& scores = {}) {
  using Tile = FloatTile<D>;
  const int head = blockIdx.y, kvHead = head / p.group;
  const WorkTile work = findWorkTile(p.parts, blockIdx.x);
  const Part& firstPart = p.parts.part[work.first];
  const int batch = batchIndex(p.parts);
  const RowRange ownRange{batch, head, firstPart.row, firstPart.visible.rows};
  const int row0 = tileStartFromEnd(ownRange.length, Tile::kSide, work.tile);
  KeyTileIterator<Tile::kSide, Tile::kSide> at(p.parts, work, row0);
  if (!at.isValid()) return;  // the state is unchanged
  const SharedAddress q = sharedBase(), k = q + Tile::kBytes, v = k + Tile::kBytes, square = v + Tile::kBytes;

  loadFloatTile<D>(q, p.q, ownRange, row0, p.headDim);
  State<Tile::kMicroTileSide, Tile::kColumns> state;
  loadState(p, ownRange, row0, state);
  for (; at.isValid(); at.next()) {
    const RowRange keys = at.range(batch, kvHead);
    syncBlock();  // all threads have finished reading the previous keys
    loadFloatTile<D>(k, p.k, keys, at.key0, p.headDim);
    loadFloatTile<D>(v, p.v, keys, at.key0, p.valueHeadDim);
    syncBlock();
    float s[Tile::kMicroTileSide][Tile::kMicroTileSide];
    dotRows<D>(s, q, k, p.headDim);
    const auto modifiers = scores.createPartModifiers(at.part, batch, head);
    typename Scores::template Changes<Tile::kMicroTileSide, Tile::kMicroTileSide> changes;
    modifiers.modify(s, p.scale, changes, FloatRowsOfQueries{row0, at.key0});
    updateOnlineSoftmax(at.visible(), modifiers.scale(p.scale), row0, at.key0, s, state);
    modifiers.applyDropout(s, changes);
    storeSquare<D>(square, s);
    syncWarp();
    addProduct<D>(state.acc, square, v, min(Tile::kSide, at.end - at.key0));
  }
  storeState(p, work, ownRange, row0, state);
}

}  // namespace

#define ATTEND(D)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attend_float32_##D(const __grid_constant__ AttendParameters p) {                                               \
    attendFloat<D>(p);                                                                                               \
  }                                                                                                                  \
  EMULATED_KERNEL(attend_float32_##D, AttendParameters)

ATTEND(32)
ATTEND(64)
ATTEND(128)
ATTEND(256)

#undef ATTEND

#define ATTEND_MODIFIED(D)                                                                                           \
  extern "C" __global__ void __launch_bounds__(kFloatThreads)                                                        \
      attendModified_float32_##D(const __grid_constant__ AttendModifiedParameters p) {                               \
    attendFloat<D>(p.base, ModifiedScores<ExactTanh>(p));                                                            \
  }                                                                                                                  \
  EMULATED_KERNEL(attendModified_float32_##D, AttendModifiedParameters)

ATTEND_MODIFIED(64)
ATTEND_MODIFIED(128)
ATTEND_MODIFIED(256)

#undef ATTEND_MODIFIED
