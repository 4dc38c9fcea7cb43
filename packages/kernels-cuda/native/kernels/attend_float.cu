// Flash attention, forward, in float32 throughout.
#include "kernels/float_tile.cuh"

using namespace mosaic::cuda;

namespace {

/// Of each of a thread's rows: the largest score (for base 2), the thread's part of the sum, its columns of out.
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
DEVICE void seed(const AttendParameters& p, int row0, State<R, N>& state) {
  const int batch = blockIdx.z, head = blockIdx.y;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + ownY() + 8 * i;
    const float lse = r < p.visible.rows ? load(rowOf(p.lse, batch, head, r)) : -infinity();
    const bool seen = lse != -infinity();
    state.m[i] = seen ? lse * kLog2e : -infinity();
    state.l[i] = seen && ownX() == 0 ? 1.f : 0.f;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = ownX() + 8 * n;
      state.acc[i][n] = seen && c < p.headDim ? load(rowOf(p.out, batch, head, r) + c * p.out.column) : 0.f;
    }
  }
}

/// `s`: products of queries row0… and keys key0… on entry, probabilities relative to m on return.
template <int R, int N>
DEVICE void fold(const AttendParameters& p, int row0, int key0, float (&s)[R][R], State<R, N>& state) {
  const Visible& visible = p.visible;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + ownY() + 8 * i;
    const int begin = edgeOf(visible, visible.begin, r), end = edgeOf(visible, visible.end, r);
    float top = -infinity();
#pragma unroll
    for (int j = 0; j < R; j++) {
      const int key = key0 + ownX() + 8 * j;
      s[i][j] = key < begin || key >= end ? -infinity() : s[i][j] * (p.scale * kLog2e);
      top = fmaxf(top, s[i][j]);
    }
    const float was = state.m[i], now = fmaxf(was, octetMax(top));
    const float base = now == -infinity() ? 0.f : now;  // −∞ − −∞ would be NaN
    const float keep = exp2f(was - base);
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < R; j++) sum += s[i][j] = exp2f(s[i][j] - base);
    state.m[i] = now;
    state.l[i] = state.l[i] * keep + sum;
#pragma unroll
    for (int n = 0; n < N; n++) state.acc[i][n] *= keep;
  }
}

/// Writes the state of the rows that saw something.
template <int R, int N>
DEVICE void finish(const AttendParameters& p, int row0, const State<R, N>& state) {
  const int batch = blockIdx.z, head = blockIdx.y;
  const Visible& visible = p.visible;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + ownY() + 8 * i;
    const float sum = octetSum(state.l[i]);
    if (r >= visible.rows || edgeOf(visible, visible.begin, r) >= edgeOf(visible, visible.end, r)) continue;
    const float inverse = sum == 0.f ? 0.f : 1.f / sum;
    if (ownX() == 0) {
      store(rowOf(p.lse, batch, head, r), sum == 0.f ? -infinity() : (state.m[i] + log2f(sum)) * kLn2);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int c = ownX() + 8 * n;
      if (c < p.headDim) store(rowOf(p.out, batch, head, r) + c * p.out.column, state.acc[i][n] * inverse);
    }
  }
}

/// Grid: (row tiles, heads, batch).
template <int D>
DEVICE void attendFloat(const AttendParameters& p) {
  using Tile = FloatTile<D>;
  const Visible& visible = p.visible;
  const int row0 = static_cast<int>(blockIdx.x) * Tile::kSide, rowEnd = min(row0 + Tile::kSide, visible.rows);
  const int begin = edgeOf(visible, visible.begin, row0), end = edgeOf(visible, visible.end, rowEnd - 1);
  if (begin >= end) return;  // the state stays as it is
  const int64_t batch = blockIdx.z, head = blockIdx.y, headK = head / p.group;
  const SharedAddress q = sharedBase(), k = q + Tile::kBytes, v = k + Tile::kBytes, square = v + Tile::kBytes;

  loadFloatTile<D>(q, p.q, batch * p.q.batch + head * p.q.head, {row0, visible.rows}, p.headDim);
  State<Tile::kReach, Tile::kColumns> state;
  seed(p, row0, state);
  for (int key0 = begin; key0 < end; key0 += Tile::kSide) {
    syncBlock();  // nobody reads the last keys any more
    loadFloatTile<D>(k, p.k, batch * p.k.batch + headK * p.k.head, {key0, visible.keys}, p.headDim);
    loadFloatTile<D>(v, p.v, batch * p.v.batch + headK * p.v.head, {key0, visible.keys}, p.headDim);
    syncBlock();
    float s[Tile::kReach][Tile::kReach];
    dotRows<D>(s, q, k, p.headDim);
    fold(p, row0, key0, s, state);
    storeSquare<D>(square, s);
    syncWarp();
    addProduct<D>(state.acc, square, v, min(Tile::kSide, end - key0));
  }
  finish(p, row0, state);
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
