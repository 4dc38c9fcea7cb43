// Forward: one step of the online softmax (Milakov and Gimelshein 2018), which folds a block of keys into a panel.
//
// The running maximum m is *lazy*: e^(s − m) is taken at once, in registers, with the m at hand. Only if some s − m
// exceeds kRescaleThreshold is the block done again with m raised. That is exact: float32 has exponents to spare for
// sums of 2^kRescaleThreshold, and relative precision does not depend on m. On real data it happens in the first few
// blocks of a row, if at all. m is subtracted after the product, not where it starts: partial sums as large as m would
// cost digits.
//
// Exponents are taken for base 2: (s − m) · log2 e. Of ordinary m, up to kLargeThreshold, that is one multiply-add: the
// product m · log2 e is rounded once, and what is summed is relative to the rounded one. Of a large m that rounding is
// itself an exponent, of up to 2^64 for m = 1e9. There m stays as it is, a score or the lse of a state, and is
// subtracted first: exactly, where the difference is small.
#pragma once

#include "attention/kernels.h"
#include "attention/pack.h"
#include "attention/tile.h"
#include "simd/exp2.h"

namespace mosaic {

template <class V>
struct FoldBlock {
  using Vec = typename V::Vec;
  static constexpr int N = V::tileVectors, R = V::tileRows, L = V::lanes;
  static constexpr int width = N * L;
  static constexpr float kRescaleThreshold = 40;     // of (s − m) · log2 e
  static constexpr int32_t kFirstKeys = 16;  // keys that give a row its first m
  static constexpr float kMinSum = 0.5f;   // a sum is 0 or, as m is the score of a key in it, about 1 or more

  MOSAIC_NOINLINE void fold(ForwardPanel& panel, const KvRows& keys) {
    int32_t done = 0;
    if (isEmpty(panel)) {
      done = keys.count < kFirstKeys ? keys.count : kFirstKeys;
      scoreAndRescale(panel, keys, 0, done);
    }
    if (isEmpty(panel) || !(panel.large ? foldFused<true>(panel, keys, done) : foldFused<false>(panel, keys, done))) {
      scoreAndRescale(panel, keys, done, keys.count);
    }
    accumulate(panel, keys);
  }

  MOSAIC_NOINLINE void foldMasked(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& visible) {
    float blockMax[width];
    scores(panel, keys, 0, keys.count, blockMax);
    mask(panel, keys, visible, blockMax);
    rescale(panel, 0, keys.count, blockMax);
    if (Pack<V>::finite(keys.v, keys.vStride, keys.count, panel.depth)) {
      accumulate(panel, keys);
    } else {
      accumulateMasked(panel, keys, visible);
    }
  }

 private:
  /// Whether some row has seen nothing and has no m yet.
  MOSAIC_INLINE bool isEmpty(const ForwardPanel& panel) {
    bool any = false;
    for (int n = 0; n < N; ++n) any |= V::any(V::less(V::load(panel.sum + n * L), V::set1(kMinSum)));
    return any;
  }

  /// (s − m) · log2 e
  template <bool large>
  MOSAIC_INLINE Vec exponent(Vec s, Vec negMax) {
    return large ? V::mul(V::add(s, negMax), V::set1(kLog2e)) : V::fma(s, V::set1(kLog2e), negMax);
  }

  /// p ← e^(s − m), sum += p for the keys from `from` on, in one pass. False, with sum as before, if m lags too far.
  template <bool large>
  MOSAIC_INLINE bool foldFused(const ForwardPanel& panel, const KvRows& keys, int32_t from) {
    float blockMax[width], blockSum[width];
    for (int n = 0; n < N; ++n) {
      V::store(blockSum + n * L, V::zero());
      V::store(blockMax + n * L, V::zero());
    }
    forTiles<R>(from, keys.count, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + j * keys.kStride, keys.kStride, 1, panel.q, width, panel.depth);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const Vec negMax = V::load(panel.negMax + n * L);
        Vec top = V::load(blockMax + n * L), sum = V::load(blockSum + n * L);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          const Vec x = exponent<large>(c.at[r][n], negMax);
          top = V::max(top, x);
          const Vec p = V::exp2(x);
          sum = V::add(sum, p);
          V::store(panel.p + (j + r) * width + n * L, p);
        }
        V::store(blockMax + n * L, top);
        V::store(blockSum + n * L, sum);
      }
    });
    bool high = false;
    for (int n = 0; n < N; ++n) high |= V::any(V::less(V::set1(kRescaleThreshold), V::load(blockMax + n * L)));
    if (high) return false;
    for (int n = 0; n < N; ++n) addSum(panel, n, V::load(blockSum + n * L));
    return true;
  }

  /// The same for keys [from, to), first raising m where it must be.
  MOSAIC_NOINLINE void scoreAndRescale(ForwardPanel& panel, const KvRows& keys, int32_t from, int32_t to) {
    float blockMax[width];
    scores(panel, keys, from, to, blockMax);
    rescale(panel, from, to, blockMax);
  }

  /// p ← s and its maximum over keys [from, to).
  MOSAIC_INLINE void scores(const ForwardPanel& panel, const KvRows& keys, int32_t from, int32_t to,
                            float* blockMax) {
    for (int n = 0; n < N; ++n) V::store(blockMax + n * L, V::set1(-__builtin_inff()));
    forTiles<R>(from, to, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + j * keys.kStride, keys.kStride, 1, panel.q, width, panel.depth);
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
  MOSAIC_INLINE void mask(const ForwardPanel& panel, const KvRows& keys, const VisibleKeys& visible, float* blockMax) {
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

  MOSAIC_INLINE void scaleRows(float* at, int32_t count, Vec factor) {
    for (int32_t i = 0; i < count; ++i) V::store(at + i * width, V::mul(V::load(at + i * width), factor));
  }

  /// Raises m where it must be, then p ← e^(s − m), sum += p.
  MOSAIC_INLINE void rescale(ForwardPanel& panel, int32_t from, int32_t to, const float* blockMax) {
    if (!panel.large && needsLargeMode(panel, blockMax)) switchToLargeMode(panel, from);
    if (panel.large) {
      rescaleRows<true>(panel, from, to, blockMax);
    } else {
      rescaleRows<false>(panel, from, to, blockMax);
    }
  }

  /// The m of rows that get one or a higher one, as it is held; 0 where a row has still seen nothing.
  template <bool large>
  MOSAIC_INLINE Vec newMax(Vec top) {
    const Vec m = V::select(V::less(top, V::set1(-__FLT_MAX__)), V::zero(), top);
    return large ? m : V::mul(m, V::set1(kLog2e));
  }

  template <bool large>
  MOSAIC_INLINE void rescaleRows(const ForwardPanel& panel, int32_t from, int32_t to, const float* blockMax) {
    for (int n = 0; n < N; ++n) {
      const Vec top = V::load(blockMax + n * L), before = V::load(panel.sum + n * L);
      const Vec old = V::load(panel.negMax + n * L);
      const auto fresh = V::less(before, V::set1(kMinSum)),
                 lags = V::less(V::set1(kRescaleThreshold), exponent<large>(top, old));
      const Vec next = V::sub(V::zero(), newMax<large>(top));
      const Vec negMax = V::select(fresh, next, V::select(lags, next, old));
      V::store(panel.negMax + n * L, negMax);
      if (V::any(lags)) {
        const Vec rise = V::sub(negMax, old);
        const Vec kept = V::exp2(large ? V::mul(rise, V::set1(kLog2e)) : rise);
        const Vec shrink = V::select(fresh, V::zero(), kept);
        V::store(panel.sum + n * L, V::mul(before, shrink));
        scaleRows(panel.out + n * L, panel.depth, shrink);
        scaleRows(panel.p + n * L, from, shrink);  // taken with the old m, not yet in `out`
      }
      Vec sum = V::zero();
#pragma GCC unroll 2
      for (int32_t j = from; j < to; ++j) {
        float* at = panel.p + j * width + n * L;
        const Vec p = V::exp2(exponent<large>(V::load(at), negMax));
        sum = V::add(sum, p);
        V::store(at, p);
      }
      addSum(panel, n, sum);
    }
  }

  /// Whether the m of some row is about to be large.
  MOSAIC_INLINE bool needsLargeMode(const ForwardPanel& panel, const float* blockMax) {
    bool any = false;
    for (int n = 0; n < N; ++n) {
      const Vec top = V::load(blockMax + n * L);
      const auto fresh = V::less(V::load(panel.sum + n * L), V::set1(kMinSum));
      const auto lags = V::less(V::set1(kRescaleThreshold), exponent<false>(top, V::load(panel.negMax + n * L)));
      const Vec next = V::select(fresh, newMax<true>(top), V::select(lags, top, V::zero()));
      any |= V::any(V::less(V::set1(kLargeThreshold), next)) || V::any(V::less(next, V::set1(-kLargeThreshold)));
    }
    return any;
  }

  /// Holds every m as it is from now on. The sums, relative to what it was rounded to, change by the difference.
  MOSAIC_NOINLINE void switchToLargeMode(ForwardPanel& panel, int32_t from) {
    panel.large = true;
    for (int32_t r = 0; r < width; ++r) {
      constexpr double kLog2eExact = 1.4426950408889634;
      const double held = panel.negMax[r];
      panel.negMax[r] = static_cast<float>(held / kLog2eExact);
      const float factor = static_cast<float>(__builtin_exp2(panel.negMax[r] * kLog2eExact - held));
      panel.sum[r] *= factor;
      for (int32_t d = 0; d < panel.depth; ++d) panel.out[d * width + r] *= factor;
      for (int32_t j = 0; j < from; ++j) panel.p[j * width + r] *= factor;
    }
  }

  MOSAIC_INLINE void addSum(const ForwardPanel& panel, int n, Vec sum) {
    V::store(panel.sum + n * L, V::add(V::load(panel.sum + n * L), sum));
  }

  /// out += v · p
  MOSAIC_INLINE void accumulate(const ForwardPanel& panel, const KvRows& keys) {
    forTiles<R>(0, panel.depth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.v + d, 1, keys.vStride, panel.p, width, keys.count);
      Tile::addTo(c, panel.out + d * width, width);
    });
  }

  /// The same, but a key adds nothing at all to rows that do not see it: 0 · NaN is NaN.
  MOSAIC_NOINLINE void accumulateMasked(const ForwardPanel& panel, const KvRows& keys, const VisibleKeys& visible) {
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
