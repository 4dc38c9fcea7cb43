// Flash attention, backward, in float32 throughout: the two kernels of attend_backward_mma.cuh.
#include "kernels/float_tile.cuh"

using namespace mosaic::cuda;

namespace {

/// Whether the query sees the key.
DEVICE bool sees(const Visible& visible, int row, int key) {
  return key >= edgeOf(visible, visible.begin, row) && key < edgeOf(visible, visible.end, row);
}

/// s ← P, dp ← dS, of one query and one key.
DEVICE void differentiate(float& s, float& dp, bool seen, float2 lseAndDelta, float scale) {
  s = seen ? exp2f(s * scale - lseAndDelta.x) : 0.f;
  dp = s * (dp - lseAndDelta.y);
}

/// Grid: (key tiles, key heads, batch); walks over the queries of all heads that read these keys.
template <int D>
DEVICE void attendKeysFloat(const AttendBackwardParameters& p) {
  using Tile = FloatTile<D>;
  constexpr int R = Tile::kReach;
  const Visible& visible = p.visible;
  const int key0 = static_cast<int>(blockIdx.x) * Tile::kSide, keyEnd = min(key0 + Tile::kSide, visible.keys);
  const int begin = firstRowBeyond(visible, visible.end, key0);
  const int end = firstRowBeyond(visible, visible.begin, keyEnd - 1);
  if (begin >= end) return;
  const int batch = blockIdx.z, headK = blockIdx.y;
  const SharedAddress k = sharedBase(), v = k + Tile::kBytes, q = v + Tile::kBytes, g = q + Tile::kBytes;
  const SharedAddress square = g + Tile::kBytes, square2 = square + Tile::kSquareBytes;
  const SharedAddress numbers = square2 + Tile::kSquareBytes;  // exponent, then delta, of each query

  loadFloatTile<D>(k, p.k, batch * p.k.batch + headK * p.k.head, {key0, visible.keys}, p.headDim);
  loadFloatTile<D>(v, p.v, batch * p.v.batch + headK * p.v.head, {key0, visible.keys}, p.headDim);
  float dk[R][D / 8] = {}, dv[R][D / 8] = {};
  for (int head = headK * p.group; head < (headK + 1) * p.group; head++) {
    for (int row0 = begin; row0 < end; row0 += Tile::kSide) {
      syncBlock();  // nobody reads the last queries any more
      loadFloatTile<D>(q, p.q, batch * p.q.batch + head * p.q.head, {row0, visible.rows}, p.headDim);
      loadFloatTile<D>(g, p.dOut, batch * p.dOut.batch + head * p.dOut.head, {row0, visible.rows}, p.headDim);
      if (threadIdx.x < Tile::kSide) {
        const int row = row0 + static_cast<int>(threadIdx.x);
        storeShared(numbers + threadIdx.x * 8, exponentOf(p.lse, batch, head, row, visible.rows));
        storeShared(numbers + threadIdx.x * 8 + 4, deltaOf(p.delta, batch, head, row, visible.rows));
      }
      syncBlock();
      float s[R][R], dp[R][R];
      dotRows<D>(s, k, q, p.headDim);
      dotRows<D>(dp, v, g, p.headDim);
#pragma unroll
      for (int j = 0; j < R; j++) {
        const float2 own = loadShared2(numbers + (ownX() + 8 * j) * 8);
#pragma unroll
        for (int i = 0; i < R; i++) {
          const bool seen = sees(visible, row0 + ownX() + 8 * j, key0 + ownY() + 8 * i);
          differentiate(s[i][j], dp[i][j], seen, own, p.scale * kLog2e);
        }
      }
      storeSquare<D>(square, s);
      storeSquare<D>(square2, dp);
      syncWarp();
      addProduct<D>(dv, square, g, min(Tile::kSide, end - row0));
      addProduct<D>(dk, square2, q, min(Tile::kSide, end - row0));
    }
  }
  addFloatRows<D>(p.dk, rowOf(p.dk, batch, headK, 0), {key0, visible.keys}, p.headDim, dk, p.scale);
  addFloatRows<D>(p.dv, rowOf(p.dv, batch, headK, 0), {key0, visible.keys}, p.headDim, dv, 1.f);
}

/// Grid: (query tiles, heads, batch).
template <int D>
DEVICE void attendQueriesFloat(const AttendBackwardParameters& p) {
  using Tile = FloatTile<D>;
  constexpr int R = Tile::kReach;
  const Visible& visible = p.visible;
  const int row0 = static_cast<int>(blockIdx.x) * Tile::kSide, rowEnd = min(row0 + Tile::kSide, visible.rows);
  const int begin = edgeOf(visible, visible.begin, row0), end = edgeOf(visible, visible.end, rowEnd - 1);
  if (begin >= end) return;
  const int batch = blockIdx.z, head = blockIdx.y, headK = head / p.group;
  const SharedAddress q = sharedBase(), g = q + Tile::kBytes, k = g + Tile::kBytes, v = k + Tile::kBytes;
  const SharedAddress square = v + Tile::kBytes;

  loadFloatTile<D>(q, p.q, batch * p.q.batch + head * p.q.head, {row0, visible.rows}, p.headDim);
  loadFloatTile<D>(g, p.dOut, batch * p.dOut.batch + head * p.dOut.head, {row0, visible.rows}, p.headDim);
  float2 numbers[R];
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = row0 + ownY() + 8 * i;
    numbers[i] = make_float2(exponentOf(p.lse, batch, head, row, visible.rows),
                             deltaOf(p.delta, batch, head, row, visible.rows));
  }
  float dq[R][D / 8] = {};
  for (int key0 = begin; key0 < end; key0 += Tile::kSide) {
    syncBlock();
    loadFloatTile<D>(k, p.k, batch * p.k.batch + headK * p.k.head, {key0, visible.keys}, p.headDim);
    loadFloatTile<D>(v, p.v, batch * p.v.batch + headK * p.v.head, {key0, visible.keys}, p.headDim);
    syncBlock();
    float s[R][R], dp[R][R];
    dotRows<D>(s, q, k, p.headDim);
    dotRows<D>(dp, g, v, p.headDim);
#pragma unroll
    for (int i = 0; i < R; i++) {
      const int row = row0 + ownY() + 8 * i;
#pragma unroll
      for (int j = 0; j < R; j++) {
        differentiate(s[i][j], dp[i][j], sees(visible, row, key0 + ownX() + 8 * j), numbers[i], p.scale * kLog2e);
      }
    }
    storeSquare<D>(square, dp);
    syncWarp();
    addProduct<D>(dq, square, k, min(Tile::kSide, end - key0));
  }
  addFloatRows<D>(p.dq, rowOf(p.dq, batch, head, 0), {row0, visible.rows}, p.headDim, dq, p.scale);
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
