// Forward: folding one block of keys into a panel.
//
// The running maximum is *lazy*: 2^(s − m) is taken at once, in registers, with the m at hand. Only if some s − m
// exceeds kLazy is the block done again with m raised. That is exact: float32 has exponents to spare for sums of
// 2^kLazy, and relative precision does not depend on m. On real data it happens in the first few blocks of a row, if at
// all. m is subtracted after the product, not where it starts: partial sums as large as m would cost digits.
#pragma once

#include "attention/kernels.h"
#include "attention/pack.h"
#include "attention/tile.h"

namespace mosaic {

template <class V>
struct FoldBlock {
  using Vec = typename V::Vec;
  static constexpr int N = V::tileVectors, R = V::tileRows, L = V::lanes;
  static constexpr int width = N * L;
  static constexpr float kLazy = 40;       // log2 units
  static constexpr int32_t kFirst = 16;    // keys that give a row its first m
  static constexpr float kSeen = 1e-30f;   // any sum over at least one key is far larger
  static constexpr float kLowest = -3e38f;

  MOSAIC_NOINLINE void fold(const ForwardPanel& panel, const KeyBlock& keys) {
    int32_t done = 0;
    if (fresh(panel)) {
      done = keys.count < kFirst ? keys.count : kFirst;
      settleKeys(panel, keys, 0, done);
    }
    if (fresh(panel) || !foldFused(panel, keys, done)) settleKeys(panel, keys, done, keys.count);
    accumulate(panel, keys);
  }

  MOSAIC_NOINLINE void foldMasked(const ForwardPanel& panel, const KeyBlock& keys, const Visible& visible) {
    float blockMax[width];
    scores(panel, keys, 0, keys.count, blockMax);
    mask(panel, keys, visible, blockMax);
    settle(panel, 0, keys.count, blockMax);
    if (Pack<V>::finite(keys.v, keys.vStride, keys.count, panel.depth)) {
      accumulate(panel, keys);
    } else {
      accumulateMasked(panel, keys, visible);
    }
  }

 private:
  /// Whether some row has seen nothing and has no m yet.
  MOSAIC_INLINE bool fresh(const ForwardPanel& panel) {
    bool any = false;
    for (int n = 0; n < N; ++n) any |= V::any(V::less(V::load(panel.sum + n * L), V::set1(kSeen)));
    return any;
  }

  /// p ← 2^(s − m), sum += p for the keys from `from` on, in one pass. False, with sum as before, if m lags too far.
  MOSAIC_INLINE bool foldFused(const ForwardPanel& panel, const KeyBlock& keys, int32_t from) {
    float blockMax[width], blockSum[width];
    for (int n = 0; n < N; ++n) {
      V::store(blockSum + n * L, V::zero());
      V::store(blockMax + n * L, V::set1(kLowest));
    }
    forTiles<R>(from, keys.count, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + j * keys.kStride, keys.kStride, 1, panel.q, width, panel.depth);
      Tile::addToRows(c, panel.negMax);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        Vec top = V::load(blockMax + n * L), sum = V::load(blockSum + n * L);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          top = V::max(top, c.at[r][n]);
          const Vec p = V::exp2(c.at[r][n]);
          sum = V::add(sum, p);
          V::store(panel.p + (j + r) * width + n * L, p);
        }
        V::store(blockMax + n * L, top);
        V::store(blockSum + n * L, sum);
      }
    });
    bool high = false;
    for (int n = 0; n < N; ++n) high |= V::any(V::less(V::set1(kLazy), V::load(blockMax + n * L)));
    if (high) return false;
    for (int n = 0; n < N; ++n) addSum(panel, n, V::load(blockSum + n * L));
    return true;
  }

  /// The same for keys [from, to), first raising m where it must be.
  MOSAIC_NOINLINE void settleKeys(const ForwardPanel& panel, const KeyBlock& keys, int32_t from, int32_t to) {
    float blockMax[width];
    scores(panel, keys, from, to, blockMax);
    settle(panel, from, to, blockMax);
  }

  /// p ← s − m and its maximum over keys [from, to).
  MOSAIC_INLINE void scores(const ForwardPanel& panel, const KeyBlock& keys, int32_t from, int32_t to,
                            float* blockMax) {
    for (int n = 0; n < N; ++n) V::store(blockMax + n * L, V::set1(-__builtin_inff()));
    forTiles<R>(from, to, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + j * keys.kStride, keys.kStride, 1, panel.q, width, panel.depth);
      Tile::addToRows(c, panel.negMax);
      Tile::store(c, panel.p + j * width, width);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        Vec top = V::load(blockMax + n * L);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) top = V::max(top, c.at[r][n]);
        V::store(blockMax + n * L, top);
      }
    });
  }

  /// Unseen pairs get −∞; the maximum is taken again over the seen ones.
  MOSAIC_INLINE void mask(const ForwardPanel& panel, const KeyBlock& keys, const Visible& visible, float* blockMax) {
    const Vec never = V::set1(-__builtin_inff());
    for (int n = 0; n < N; ++n) {
      Vec top = never;
      for (int32_t j = 0; j < keys.count; ++j) {
        float* p = panel.p + j * width + n * L;
        const auto seen = V::inRange(visible.lo + n * L, visible.hi + n * L, keys.first + j);
        const Vec s = V::select(seen, V::load(p), never);
        top = V::max(top, s);
        V::store(p, s);
      }
      V::store(blockMax + n * L, top);
    }
  }

  MOSAIC_INLINE void shrinkRows(float* at, int32_t count, Vec factor) {
    for (int32_t i = 0; i < count; ++i) V::store(at + i * width, V::mul(V::load(at + i * width), factor));
  }

  /// Raises m where it must be, then p ← 2^(s − m), sum += p.
  MOSAIC_INLINE void settle(const ForwardPanel& panel, int32_t from, int32_t to, const float* blockMax) {
    for (int n = 0; n < N; ++n) {
      const Vec top = V::load(blockMax + n * L), before = V::load(panel.sum + n * L);
      const auto fresh = V::less(before, V::set1(kSeen));
      const Vec first = V::select(V::less(top, V::set1(kLowest)), V::zero(), top);  // −∞: still nothing seen
      const Vec later = V::select(V::less(V::set1(kLazy), top), top, V::zero());
      const Vec rise = V::select(fresh, first, later);
      V::store(panel.negMax + n * L, V::sub(V::load(panel.negMax + n * L), rise));
      if (V::any(V::less(V::zero(), later))) {
        const Vec shrink = V::select(fresh, V::zero(), V::exp2(V::sub(V::zero(), later)));
        V::store(panel.sum + n * L, V::mul(before, shrink));
        shrinkRows(panel.out + n * L, panel.depth, shrink);
        shrinkRows(panel.p + n * L, from, shrink);  // taken with the old m, not yet in `out`
      }
      Vec sum = V::zero();
#pragma GCC unroll 2
      for (int32_t j = from; j < to; ++j) {
        float* at = panel.p + j * width + n * L;
        const Vec p = V::exp2(V::sub(V::load(at), rise));
        sum = V::add(sum, p);
        V::store(at, p);
      }
      addSum(panel, n, sum);
    }
  }

  MOSAIC_INLINE void addSum(const ForwardPanel& panel, int n, Vec sum) {
    V::store(panel.sum + n * L, V::add(V::load(panel.sum + n * L), sum));
  }

  /// out += v · p
  MOSAIC_INLINE void accumulate(const ForwardPanel& panel, const KeyBlock& keys) {
    forTiles<R>(0, panel.depth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.v + d, 1, keys.vStride, panel.p, width, keys.count);
      Tile::addTo(c, panel.out + d * width, width);
    });
  }

  /// The same, but a key adds nothing at all to rows that do not see it: 0 · NaN is NaN.
  MOSAIC_NOINLINE void accumulateMasked(const ForwardPanel& panel, const KeyBlock& keys, const Visible& visible) {
    for (int32_t d = 0; d < panel.depth; ++d) {
      for (int n = 0; n < N; ++n) {
        Vec out = V::load(panel.out + d * width + n * L);
        for (int32_t j = 0; j < keys.count; ++j) {
          const auto seen = V::inRange(visible.lo + n * L, visible.hi + n * L, keys.first + j);
          const Vec term = V::mul(V::set1(keys.v[j * keys.vStride + d]), V::load(panel.p + j * width + n * L));
          out = V::select(seen, V::add(out, term), out);
        }
        V::store(panel.out + d * width + n * L, out);
      }
    }
  }
};

}  // namespace mosaic
