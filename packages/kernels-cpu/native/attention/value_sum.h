// The weighted sum of values in the forward: out += v · p for the keys of a block.
#pragma once

#include "attention/attention_kernels.h"
#include "attention/pack.h"
#include "attention/value_rows.h"
#include "attention/visible_vectors.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Sums for panels of N vectors.
template <class V, class E, int N>
struct ValueSum {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, R = kTileRows<V, E, N>, valuesPerElement = E::valuesPerElement;
  static constexpr int width = N * L;
  /// Whether values can be read by rows: a tile of L rows then has as many sums as one that reads columns.
  static constexpr bool readsValueRows = R * N == L;

  /// Adds every key.
  template <class P>
  MOSAIC_INLINE void accumulate(const ForwardPanel& panel, const KvRows& keys, P& prefetch) {
    if constexpr (readsValueRows) {
      if (keys.valueRows.data != nullptr) {
        return ValueRows<V, E, N>::accumulate(panel, keys.valueRows, keys.count, prefetch);
      }
    }
    forEachTile<R>(
        0, panel.valueDepth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
          RegisterTile<V, E, rows, N>::addProduct(panel.out + d * width, width, rowsAt<E>(keys.columns, d), panel.p,
                                                  width, keys.count, prefetch);
        });
  }
  MOSAIC_INLINE void accumulate(const ForwardPanel& panel, const KvRows& keys) {
    NoPrefetch prefetch;
    accumulate(panel, keys, prefetch);
  }

  /// Adds the keys that are visible to some rows. The weights of masked pairs of `visible` vectors are 0.
  MOSAIC_INLINE void accumulateVisible(const ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds,
                                       const VisibleVectors<V, N>& visible) {
    if (!areValuesFinite(keys, panel.valueDepth)) {
      accumulateMasked(panel, keys, bounds);
    } else if constexpr (valuesPerElement == 1) {
      visible.template forEachStrip<R>(0, keys.count, [&]<int count>(const KeyStrip& strip)
                                       __attribute__((always_inline)) {
        if constexpr (count > 0) addStrip<count>(panel, keys, strip);
      });
    } else {
      accumulate(panel, keys);
    }
  }

 private:
  /// Adds the keys of a strip to its vectors of rows.
  template <int count>
  MOSAIC_NOINLINE void addStrip(const ForwardPanel& panel, const KvRows& keys, const KeyStrip& strip) {
    const Operand& v = keys.columns;
    const Operand columns{static_cast<const float*>(v.data) + strip.begin * v.step, v.rowStride, v.step};
    const float* p = static_cast<const float*>(panel.p) + strip.begin * width + strip.first * L;
    float* out = panel.out + strip.first * L;
    forEachTile<kTileRows<V, E, count>>(0, panel.valueDepth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      RegisterTile<V, E, rows, count>::addProduct(out + d * width, width, rowsAt<E>(columns, d), p, width,
                                                  strip.end - strip.begin);
    });
  }

  /// Whether all of V is finite. V is stored along depth for float32 products, else along keys.
  MOSAIC_INLINE bool areValuesFinite(const KvRows& keys, int32_t depth) {
    const Operand& v = keys.columns;
    return valuesPerElement == 1 ? Pack<V, E, N>::isFinite(v.data, v.step, keys.count, depth)
                                 : Pack<V, E, N>::isFinite(v.data, v.rowStride, depth, keys.count);
  }

  /// Like `accumulate`, but a key adds nothing to rows that do not attend to it, because 0 · NaN is NaN.
  MOSAIC_NOINLINE void accumulateMasked(const ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds) {
    const Operand& v = keys.columns;
    for (int32_t d = 0; d < panel.valueDepth; ++d) {
      for (int n = 0; n < N; ++n) {
        Vec out = V::load(panel.out + d * width + n * L);
        for (int32_t j = 0; j < keys.count; ++j) {
          const auto visibleMask = V::inRange(bounds.lo + n * L, bounds.hi + n * L, keys.first + j);
          const float x = E::toFloat(static_cast<const typename E::Scalar*>(v.data)[d * v.rowStride + j * v.step]);
          const Vec term = V::mul(V::set1(x), loadWeights(panel, j, n));
          out = V::select(visibleMask, V::add(out, term), out);
        }
        V::store(panel.out + d * width + n * L, out);
      }
    }
  }

  /// Loads the weights of one key.
  MOSAIC_INLINE Vec loadWeights(const ForwardPanel& panel, int32_t j, int n) {
    if constexpr (valuesPerElement == 1) {
      return V::load(static_cast<const float*>(panel.p) + j * width + n * L);
    } else {
      const auto* pairs = static_cast<const uint32_t*>(panel.p) + j / 2 * width + n * L;
      uint16_t row[L];
      for (int i = 0; i < L; ++i) row[i] = static_cast<uint16_t>(pairs[i] >> (j % 2 * 16));
      return V::loadBf16(row);
    }
  }
};

}  // namespace mosaic
