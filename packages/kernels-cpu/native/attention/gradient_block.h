// Backward: what one block of keys and one panel of rows contribute to dq, and a block of keys to dk and dv.
//
// Row statistics are added to the finished product: −lse gives ln p, −delta gives ds / p, and neither costs digits
// while sums are under way. FlashAttention-2 (Dao 2023), algorithm 2.
//
// Of a large lse the difference to a score is taken first, as in the forward (fold_block.h), where the score came out
// with the same bits. Where another kernel rounded it apart p is still at most 1, as it must be: gradients stay finite.
#pragma once

#include "attention/kernels.h"
#include "attention/pack.h"
#include "attention/tile.h"
#include "simd/exp2.h"

namespace mosaic {

template <class V>
struct GradientBlock {
  using Vec = typename V::Vec;
  static constexpr int N = V::tileVectors, R = V::tileRows, L = V::lanes;
  static constexpr int width = N * L;

  MOSAIC_NOINLINE void gradient(const BackwardPanel& panel, const KvRows& keys) {
    computeWeights(panel, keys);
    weightGradients(panel, keys);
    queryGradients(panel, keys);
  }

  MOSAIC_NOINLINE void gradientMasked(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys& visible) {
    computeWeights(panel, keys);
    weightGradients(panel, keys);
    mask(panel, keys, visible);
    if (Pack<V>::finite(keys.k, keys.kStride, keys.count, panel.depth)) {
      queryGradients(panel, keys);
    } else {
      queryGradientsMasked(panel, keys, visible);
    }
  }

  MOSAIC_NOINLINE void keyGradient(const KeyGradient& term) {
    constexpr int wide = V::wideVectors;
    int32_t column = 0;
    for (; column + wide * L <= term.depth; column += wide * L) keyGradientColumns<wide>(term, column);
    for (; column < term.depth; column += L) keyGradientColumns<1>(term, column);
  }

  MOSAIC_NOINLINE void keyGradientMasked(const KeyGradient& term, int32_t firstKey, const VisibleKeys& visible) {
    for (int32_t j = 0; j < term.keyCount; ++j) {
      for (int32_t i = 0; i < term.rowCount; ++i) {
        if (firstKey + j < visible.lo[i] || firstKey + j >= visible.hi[i]) continue;
        const float x = term.factor * term.coefficients[j * term.coefficientStride + i];
        float* out = term.out + j * term.outRowStride;
        for (int32_t d = 0; d < term.depth; ++d) out[d * term.outColumnStride] += x * term.rows[i * term.rowStride + d];
      }
    }
  }

 private:
  MOSAIC_INLINE void computeWeights(const BackwardPanel& panel, const KvRows& keys) {
    if (panel.large) {
      weights<true>(panel, keys);
    } else {
      weights<false>(panel, keys);
    }
  }

  /// (s − lse) · log2 e
  template <bool large>
  MOSAIC_INLINE Vec exponent(Vec s, Vec negLse) {
    const Vec log2e = V::set1(kLog2e);
    return large ? V::min(V::zero(), V::mul(V::add(s, negLse), log2e)) : V::fma(s, log2e, negLse);
  }

  /// p ← e^(s − lse)
  template <bool large>
  MOSAIC_INLINE void weights(const BackwardPanel& panel, const KvRows& keys) {
    forTiles<R>(0, keys.count, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + j * keys.kStride, keys.kStride, 1, panel.q, width, panel.depth);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const Vec negLse = V::load(panel.negLse + n * L);
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          V::store(panel.p + (j + r) * panel.stride + n * L, V::exp2(exponent<large>(c.at[r][n], negLse)));
        }
      }
    });
  }

  /// ds ← p (dOut · v − delta)
  MOSAIC_INLINE void weightGradients(const BackwardPanel& panel, const KvRows& keys) {
    forTiles<R>(0, keys.count, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.v + j * keys.vStride, keys.vStride, 1, panel.dOut, width, panel.depth);
      Tile::addToRows(c, panel.negDelta);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const int64_t at = (j + r) * panel.stride + n * L;
          V::store(panel.ds + at, V::mul(c.at[r][n], V::load(panel.p + at)));
        }
      }
    });
  }

  MOSAIC_INLINE void mask(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys& visible) {
    for (int32_t j = 0; j < keys.count; ++j) {
      for (int n = 0; n < N; ++n) {
        const auto seen = V::inRange(visible.lo + n * L, visible.hi + n * L, keys.first + j);
        const int64_t at = j * panel.stride + n * L;
        V::store(panel.p + at, V::select(seen, V::load(panel.p + at), V::zero()));
        V::store(panel.ds + at, V::select(seen, V::load(panel.ds + at), V::zero()));
      }
    }
  }

  /// dq += k · ds
  MOSAIC_INLINE void queryGradients(const BackwardPanel& panel, const KvRows& keys) {
    forTiles<R>(0, panel.depth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, N>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, keys.k + d, 1, keys.kStride, panel.ds, panel.stride, keys.count);
      Tile::addTo(c, panel.dq + d * width, width);
    });
  }

  /// The same, but a key adds nothing at all to rows that do not see it: 0 · NaN is NaN.
  MOSAIC_NOINLINE void queryGradientsMasked(const BackwardPanel& panel, const KvRows& keys,
                                            const VisibleKeys& visible) {
    for (int32_t d = 0; d < panel.depth; ++d) {
      for (int n = 0; n < N; ++n) {
        Vec dq = V::load(panel.dq + d * width + n * L);
        for (int32_t j = 0; j < keys.count; ++j) {
          const auto seen = V::inRange(visible.lo + n * L, visible.hi + n * L, keys.first + j);
          const Vec term = V::mul(V::set1(keys.k[j * keys.kStride + d]), V::load(panel.ds + j * panel.stride + n * L));
          dq = V::select(seen, V::add(dq, term), dq);
        }
        V::store(panel.dq + d * width + n * L, dq);
      }
    }
  }

  /// All keys of `wide` vectors of columns: lanes are columns here, and the sum runs over rows.
  template <int wide>
  MOSAIC_INLINE void keyGradientColumns(const KeyGradient& term, int32_t column) {
    forTiles<V::wideTileRows>(0, term.keyCount, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, rows, wide>;
      Tile c;
      Tile::clear(c);
      Tile::multiply(c, term.coefficients + j * term.coefficientStride, term.coefficientStride, 1, term.rows + column,
                     term.rowStride, term.rowCount);
      const Vec factor = V::set1(term.factor);
      float* out = term.out + j * term.outRowStride + column * term.outColumnStride;
      if (term.outColumnStride == 1 && column + wide * L <= term.depth) {
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
          for (int n = 0; n < wide; ++n) {
            float* at = out + r * term.outRowStride + n * L;
            V::store(at, V::fma(c.at[r][n], factor, V::load(at)));
          }
        }
      } else {
        float block[rows * wide * L];
        Tile::store(c, block, wide * L);
        const int32_t columns = term.depth - column < wide * L ? term.depth - column : wide * L;
        for (int r = 0; r < rows; ++r) {
          for (int32_t d = 0; d < columns; ++d) {
            out[r * term.outRowStride + d * term.outColumnStride] += term.factor * block[r * wide * L + d];
          }
        }
      }
    });
  }
};

}  // namespace mosaic
