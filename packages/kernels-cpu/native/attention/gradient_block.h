// Backward: the contribution of one block of keys and one panel of rows to dq, and of a block of keys to dk and dv.
//
// Row statistics are added to the finished product: −lse gives ln p, −delta gives ds / p. Neither is part of the
// running sums, where it would cost digits. FlashAttention-2 (Dao 2023), algorithm 2.
//
// For a large lse, the difference to the score is computed first, as in the forward (fold_block.h), where the score has
// the same bits. If another kernel rounded the score differently, p is still limited to at most 1, so gradients stay
// finite.
#pragma once

#include "attention/attention_kernels.h"
#include "attention/pack.h"
#include "attention/score_block.h"
#include "attention/visible_vectors.h"
#include "simd/exp2.h"
#include "simd/register_tile.h"

namespace mosaic {

template <class V, class E>
struct GradientBlock {
  using Vec = typename V::Vec;
  using Scalar = typename E::Scalar;
  using Shape = typename E::template Shape<V>;
  static constexpr int N = Shape::vectors, R = Shape::rows, L = V::lanes, valuesPerElement = E::valuesPerElement;
  static constexpr int width = N * L;
  using Visible = VisibleVectors<V, N>;
  static constexpr int32_t kPrefetchedRows = 2;  // per tile

  MOSAIC_NOINLINE void computeGradients(const BackwardPanel& panel, const KvRows& keys) {
    const MatrixUnit<V> unit;
    if (skipsVectors(panel) && panel.rowCount <= width - L) {
      return computeVisibleGradients<false>({panel, keys, nullptr}, Visible(panel.rowCount));
    }
    computeWeights(panel, keys, nullptr);
    addQueryGradients(panel, keys);
  }

  MOSAIC_NOINLINE void computeMaskedGradients(const BackwardPanel& panel, const KvRows& keys,
                                              const VisibleKeys& bounds) {
    const MatrixUnit<V> unit;
    if (skipsVectors(panel)) {
      return computeVisibleGradients<true>({panel, keys, &bounds}, Visible(bounds, keys.first, panel.rowCount));
    }
    computeWeights(panel, keys, &bounds);
    addVisibleQueryGradients(panel, keys, bounds);
  }

  MOSAIC_NOINLINE void computeModifiedGradients(const BackwardPanel& panel, const KvRows& keys,
                                                const VisibleKeys* bounds, const ScoreModifiers& modifiers,
                                                const ModifiedScratch& scratch) {
    static_assert(valuesPerElement == 1, "scores are kept as float32");
    panel.isLargeMode ? computeModifiedWeights<true>(panel, keys, bounds, modifiers, scratch)
                      : computeModifiedWeights<false>(panel, keys, bounds, modifiers, scratch);
    float* dropoutMask = scratch.scores;  // no longer needed
    if (modifiers.dropoutThreshold > 0)
      ScoreBlock<V, N>::drawDropoutMask(modifiers, keys.first, keys.count, dropoutMask);
    computeModifiedScoreGradients(panel, keys, bounds, modifiers, scratch);
    if (modifiers.dropoutThreshold > 0) {
      forEachVector(keys.count, [&](int32_t j, int n) {
        float* p = static_cast<float*>(panel.p) + j * panel.stride + n * L;
        V::store(p, V::mul(V::load(p), V::load(dropoutMask + j * width + n * L)));
      });
    }
    bounds ? addVisibleQueryGradients(panel, keys, *bounds) : addQueryGradients(panel, keys);
  }

  MOSAIC_NOINLINE void addKeyGradient(const KeyGradient& term) {
    const MatrixUnit<V> unit;
    constexpr int wideVectors = Shape::wideVectors;
    int32_t column = 0;
    for (; column + wideVectors * L <= term.depth; column += wideVectors * L)
      addKeyGradientColumns<wideVectors>(term, column);
    if constexpr (Shape::wideRows == 32) {
      if (column < term.depth) addKeyGradientColumns<wideVectors>(term, column);
    } else {
      for (; column < term.depth; column += L) addKeyGradientColumns<1>(term, column);
    }
  }

  MOSAIC_NOINLINE void addMaskedKeyGradient(const KeyGradient& term, int32_t firstKey, const VisibleKeys& bounds) {
    for (int32_t j = 0; j < term.keyCount; ++j) {
      for (int32_t i = 0; i < term.rowCount; ++i) {
        if (firstKey + j < bounds.lo[i] || firstKey + j >= bounds.hi[i]) continue;
        const float p = E::toFloat(static_cast<const Scalar*>(term.coefficients)[j * term.coefficientStride + i]);
        float* out = term.out + j * term.outRowStride;
        for (int32_t d = 0; d < term.depth; ++d) {
          out[d * term.outColumnStride] += term.factor * p * rowElement(term, i, d);
        }
      }
    }
  }

 private:
  /// Whether all of K is finite. The columns of K are stored along depth for float32 products, else along keys.
  MOSAIC_INLINE bool isFinite(const KvRows& keys, int32_t depth) {
    return Pack<V, E, N>::isFinite(keys.k.data, keys.k.rowStride, keys.count, depth);
  }

  MOSAIC_INLINE void computeWeights(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds) {
    if (bounds != nullptr) {
      panel.isLargeMode ? computeWeightTiles<true, true>(panel, keys, bounds)
                        : computeWeightTiles<true, false>(panel, keys, bounds);
    } else {
      panel.isLargeMode ? computeWeightTiles<false, true>(panel, keys, bounds)
                        : computeWeightTiles<false, false>(panel, keys, bounds);
    }
  }

  /// Returns the factor of scores in `exponent`.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec exponentScale(const BackwardPanel& panel) {
    const float scale = valuesPerElement == 1 ? 1 : panel.scale;
    return V::set1(isLargeMode ? scale : scale * kLog2e);
  }

  /// Returns (s − lse) · log2 e.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec exponent(Vec s, Vec negLse, Vec scale) {
    if (!isLargeMode) return V::fma(s, scale, negLse);
    if constexpr (valuesPerElement == 2) s = V::preventFusion(V::mul(s, scale));
    return V::min(V::zero(), V::mul(V::add(s, negLse), V::set1(kLog2e)));
  }

  /// A block of keys whose gradients are computed.
  struct Block {
    const BackwardPanel& panel;
    const KvRows& keys;
    const VisibleKeys* bounds;  // null: every key is visible to every row
  };

  /// Whether vectors of rows are skipped that attend to no key of a tile.
  MOSAIC_INLINE bool skipsVectors(const BackwardPanel& panel) { return valuesPerElement == 1 && !panel.isLargeMode; }

  template <bool isMasked>
  MOSAIC_INLINE void computeVisibleGradients(const Block& block, const Visible& visible) {
    if constexpr (valuesPerElement == 1) {
      const auto computeStrip = [&]<int count>(const KeyStrip& strip) __attribute__((always_inline)) {
        if constexpr (isMasked) clearOtherVectors(block.panel, strip, count);
        if constexpr (count > 0) computeStripWeights<isMasked, count>(block, strip);
      };
      visible.template forEachStrip<R>(0, block.keys.count, computeStrip);
      if (isMasked && !isFinite(block.keys, block.panel.depth)) {
        return addMaskedQueryGradients(block.panel, block.keys, *block.bounds);
      }
      const auto addStrip = [&]<int count>(const KeyStrip& strip) __attribute__((always_inline)) {
        if constexpr (count > 0) addStripQueryGradients<count>(block, strip);
      };
      visible.template forEachStrip<R>(0, block.keys.count, addStrip);
    }
  }

  /// Clears p and ds of the keys of a strip for the vectors of rows that attend to none of them.
  MOSAIC_NOINLINE void clearOtherVectors(const BackwardPanel& panel, const KeyStrip& strip, int count) {
    for (int n = 0; n < N; ++n) {
      if (n >= strip.first && n < strip.first + count) continue;
      for (void* matrix : {panel.p, panel.ds}) {
        float* row = static_cast<float*>(matrix) + n * L;
        for (int32_t j = strip.begin; j < strip.end; ++j) V::store(row + j * panel.stride, V::zero());
      }
    }
  }

  /// Computes p and ds of a strip.
  template <bool isMasked, int count>
  MOSAIC_NOINLINE void computeStripWeights(const Block& block, const KeyStrip& strip) {
    const BackwardPanel& panel = block.panel;
    const auto forEachStripTile = [&](const Operand& a, const void* b, int32_t depth, const auto& epilogue)
        __attribute__((always_inline)) {
      const auto* panelColumns = static_cast<const typename E::Element*>(b) + strip.first * L;
      forEachTile<kTileRows<V, E, count>>(strip.begin, strip.end, [&]<int rows>(int32_t j)
                                          __attribute__((always_inline)) {
        RegisterTile<V, E, rows, count> c;
        RegisterTile<V, E, rows, count>::product(c, rowsAt<E>(a, j), panelColumns, width, depth);
        epilogue(c, j);
      });
    };
    forEachStripTile(block.keys.k, panel.q, panel.depth, [&](const auto& c, int32_t j) __attribute__((always_inline)) {
      storeKeyWeights<isMasked, false>(block, c, j, strip.first);
    });
    forEachStripTile(block.keys.v, panel.dOut, panel.valueDepth,
                     [&](const auto& c, int32_t j) __attribute__((always_inline)) {
                       storeScoreGradientTile<isMasked>(block, c, j, strip.first);
                     });
  }

  /// dq += k · ds for a strip.
  template <int count>
  MOSAIC_NOINLINE void addStripQueryGradients(const Block& block, const KeyStrip& strip) {
    const BackwardPanel& panel = block.panel;
    const Operand& k = block.keys.columns;
    const Operand columns{static_cast<const float*>(k.data) + strip.begin * k.step, k.rowStride, k.step};
    const float* ds = static_cast<const float*>(panel.ds) + strip.begin * panel.stride + strip.first * L;
    float* dq = panel.dq + strip.first * L;
    forEachTile<kTileRows<V, E, count>>(0, panel.depth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      RegisterTile<V, E, rows, count>::addProduct(dq + d * width, width, rowsAt<E>(columns, d), ds, panel.stride,
                                                  strip.end - strip.begin);
    });
  }

  template <bool isMasked, bool isLargeMode>
  MOSAIC_NOINLINE void computeWeightTiles(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds) {
    const Block block{panel, keys, bounds};
    forEachProductTile<V, E, R, N>(0, keys.count, keys.k, panel.q, panel.depth,
                                   [&]<int rows>(const RegisterTile<V, E, rows, N>& c, int32_t j)
                                       __attribute__((always_inline)) {
                                         storeKeyWeights<isMasked, isLargeMode>(block, c, j, 0);
                                       });
    forEachProductTile<V, E, R, N>(0, keys.count, keys.v, panel.dOut, panel.valueDepth,
                                   [&]<int rows>(const RegisterTile<V, E, rows, N>& c, int32_t j)
                                       __attribute__((always_inline)) {
                                         storeScoreGradientTile<isMasked>(block, c, j, 0);
                                       });
  }

  /// p ← e^(s − lse), 0 for masked pairs, for a tile of keys from key j on and vectors of rows from `first` on.
  template <bool isMasked, bool isLargeMode, int rows, int count>
  MOSAIC_INLINE void storeKeyWeights(const Block& block, const RegisterTile<V, E, rows, count>& c, int32_t j,
                                     int first) {
    using Tile = RegisterTile<V, E, rows, count>;
    const BackwardPanel& panel = block.panel;
    const Vec scale = exponentScale<isLargeMode>(panel);
    panel.upcoming->step(kPrefetchedRows);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const int n = first + i;
      const Vec negLse = V::load(panel.negLse + n * L);
#pragma GCC unroll 16
      for (int r = 0; r < rows; r += valuesPerElement) {
        Vec p[valuesPerElement];
#pragma GCC unroll 2
        for (int k = 0; k < valuesPerElement; ++k) {
          p[k] = E::template exp2<V>(exponent<isLargeMode>(Tile::get(c, r + k, i), negLse, scale));
          if (isMasked) p[k] = V::select(visibleMask(*block.bounds, block.keys.first + j + r + k, n), p[k], V::zero());
          if (valuesPerElement == 2) V::store(panel.weights + (j + r + k) * width + n * L, p[k]);
        }
        storeRows(panel.p, panel.stride, j + r, n, p);
      }
    }
  }

  /// ds ← p (dOut · v − delta), 0 for masked pairs, for a tile as in `storeKeyWeights`.
  template <bool isMasked, int rows, int count>
  MOSAIC_INLINE void storeScoreGradientTile(const Block& block, const RegisterTile<V, E, rows, count>& c, int32_t j,
                                            int first) {
    using Tile = RegisterTile<V, E, rows, count>;
    const BackwardPanel& panel = block.panel;
    const float* weights = valuesPerElement == 1 ? static_cast<const float*>(panel.p) : panel.weights;
    const int64_t stride = valuesPerElement == 1 ? panel.stride : width;
    panel.upcoming->step(kPrefetchedRows);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const int n = first + i;
      const Vec negDelta = V::load(panel.negDelta + n * L);
#pragma GCC unroll 16
      for (int r = 0; r < rows; r += valuesPerElement) {
        Vec ds[valuesPerElement];
#pragma GCC unroll 2
        for (int k = 0; k < valuesPerElement; ++k) {
          const Vec p = V::load(weights + (j + r + k) * stride + n * L);
          ds[k] = V::mul(V::add(Tile::get(c, r + k, i), negDelta), p);
          if (!isMasked) continue;
          ds[k] = V::select(visibleMask(*block.bounds, block.keys.first + j + r + k, n), ds[k], V::zero());
        }
        storeScoreGradients(panel, j + r, n, ds);
      }
    }
  }

  template <class Fn>
  MOSAIC_INLINE void forEachVector(int32_t keys, const Fn& fn) {
    for (int32_t j = 0; j < keys; ++j) {
      for (int n = 0; n < N; ++n) fn(j, n);
    }
  }

  /// Like `computeKeyWeights` for modified scores, which pass through memory.
  template <bool isLargeMode>
  MOSAIC_INLINE void computeModifiedWeights(const BackwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                                            const ScoreModifiers& modifiers, const ModifiedScratch& scratch) {
    const auto storeScores = [&]<int rows>(const RegisterTile<V, E, rows, N>& c,
                                           int32_t j) __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) {
        for (int r = 0; r < rows; ++r) {
          V::store(scratch.scores + (j + r) * width + n * L, RegisterTile<V, E, rows, N>::get(c, r, n));
        }
      }
    };
    forEachProductTile<V, E, R, N>(0, keys.count, keys.k, panel.q, panel.depth, storeScores);
    ScoreBlock<V, N>::modify(modifiers, keys.first, keys.count, scratch.scores, scratch.derivative);
    const Vec scale = exponentScale<isLargeMode>(panel);
    forEachVector(keys.count, [&](int32_t j, int n) {
      const Vec s = V::load(scratch.scores + j * width + n * L);
      Vec p = V::exp2(exponent<isLargeMode>(s, V::load(panel.negLse + n * L), scale));
      if (bounds) p = V::select(visibleMask(*bounds, keys.first + j, n), p, V::zero());
      V::store(static_cast<float*>(panel.p) + j * panel.stride + n * L, p);
    });
  }

  /// ds ← p (mask · dOut · v − delta) · derivative, 0 for masked pairs. `scratch.scores` holds the dropout mask.
  MOSAIC_INLINE void computeModifiedScoreGradients(const BackwardPanel& panel, const KvRows& keys,
                                                   const VisibleKeys* bounds, const ScoreModifiers& modifiers,
                                                   const ModifiedScratch& scratch) {
    const auto storeScoreGradientTile = [&]<int rows>(const RegisterTile<V, E, rows, N>& c, int32_t j)
        __attribute__((always_inline)) {
      for (int n = 0; n < N; ++n) {
        const Vec negDelta = V::load(panel.negDelta + n * L);
        for (int r = 0; r < rows; ++r) {
          const int64_t pair = (j + r) * int64_t{width} + n * L, offset = (j + r) * panel.stride + n * L;
          Vec dp = RegisterTile<V, E, rows, N>::get(c, r, n);
          if (modifiers.dropoutThreshold > 0) {
            const Vec scale = V::load(scratch.scores + pair);
            dp = V::select(V::lessThan(V::zero(), scale), V::mul(dp, scale), V::zero());
          }
          Vec ds = V::mul(V::add(dp, negDelta), V::load(static_cast<const float*>(panel.p) + offset));
          if (modifiers.softcap > 0) ds = V::mul(ds, V::load(scratch.derivative + pair));
          if (bounds) ds = V::select(visibleMask(*bounds, keys.first + j + r, n), ds, V::zero());
          V::store(static_cast<float*>(panel.ds) + offset, ds);
        }
      }
    };
    forEachProductTile<V, E, R, N>(0, keys.count, keys.v, panel.dOut, panel.valueDepth, storeScoreGradientTile);
  }

  /// Stores ds of `valuesPerElement` keys from key j on, in both layouts that products of pairs require.
  MOSAIC_INLINE void storeScoreGradients(const BackwardPanel& panel, int32_t j, int n,
                                         const Vec (&ds)[valuesPerElement]) {
    storeRows(panel.ds, panel.stride, j, n, ds);
    if constexpr (valuesPerElement == 2) {
      auto* pairs = static_cast<uint32_t*>(panel.dsPanel) + j / 2 * panel.dsPanelStride + n * L;
      V::storePairs(pairs, V::interleave(V::roundToPairs(ds[0], ds[1])));
    }
  }

  MOSAIC_INLINE typename V::Mask visibleMask(const VisibleKeys& bounds, int32_t key, int n) {
    return V::inRange(bounds.lo + n * L, bounds.hi + n * L, key);
  }

  /// Stores vector n of the rows of p or ds, for `valuesPerElement` keys from key j on.
  MOSAIC_INLINE void storeRows(void* matrix, int64_t stride, int32_t j, int n, const Vec (&values)[valuesPerElement]) {
    Scalar* row = static_cast<Scalar*>(matrix) + j * stride + n * L;
    if constexpr (valuesPerElement == 1) {
      V::store(row, values[0]);
    } else {
      V::storeRows(row, row + stride, V::roundToPairs(values[0], values[1]));
    }
  }

  MOSAIC_INLINE void addVisibleQueryGradients(const BackwardPanel& panel, const KvRows& keys,
                                              const VisibleKeys& bounds) {
    if (isFinite(keys, panel.depth)) {
      addQueryGradients(panel, keys);
    } else {
      addMaskedQueryGradients(panel, keys, bounds);
    }
  }

  /// dq += k · ds
  MOSAIC_INLINE void addQueryGradients(const BackwardPanel& panel, const KvRows& keys) {
    forEachTile<R>(0, panel.depth, [&]<int rows>(int32_t d) __attribute__((always_inline)) {
      RegisterTile<V, E, rows, N>::addProduct(panel.dq + d * width, width, rowsAt<E>(keys.columns, d), panel.dsPanel,
                                              panel.dsPanelStride, keys.count);
    });
  }

  /// Like `addQueryGradients`, but a key adds nothing to rows that do not attend to it, because 0 · NaN is NaN.
  MOSAIC_NOINLINE void addMaskedQueryGradients(const BackwardPanel& panel, const KvRows& keys,
                                               const VisibleKeys& bounds) {
    for (int32_t d = 0; d < panel.depth; ++d) {
      for (int n = 0; n < N; ++n) {
        Vec dq = V::load(panel.dq + d * width + n * L);
        for (int32_t j = 0; j < keys.count; ++j) {
          const Scalar* k = static_cast<const Scalar*>(keys.k.data) + j * keys.k.rowStride;
          const Scalar* ds = static_cast<const Scalar*>(panel.ds) + j * panel.stride + n * L;
          const Vec term = V::mul(V::set1(E::toFloat(k[d])), E::template toVector<V>(ds));
          dq = V::select(visibleMask(bounds, keys.first + j, n), V::add(dq, term), dq);
        }
        V::store(panel.dq + d * width + n * L, dq);
      }
    }
  }

  /// Returns an element of row i. With products of pairs, the row is interleaved with its neighbour.
  MOSAIC_INLINE float rowElement(const KeyGradient& term, int32_t i, int32_t d) {
    const int64_t offset = i / valuesPerElement * term.rowStride + d;
    return E::toFloat(static_cast<const Scalar*>(term.rows)[offset * valuesPerElement + i % valuesPerElement]);
  }

  /// Adds the columns of `wideVectors` vectors for all keys. Lanes are columns here, and the reduction is over rows. A
  /// tile of one vector has more rows, because six sums are too few to hide the latency of a multiply-add.
  template <int wideVectors>
  MOSAIC_INLINE void addKeyGradientColumns(const KeyGradient& term, int32_t column) {
    constexpr int tileRows = wideVectors == 1 ? Shape::narrowRows : Shape::wideRows;
    forEachTile<tileRows>(0, term.keyCount, [&]<int rows>(int32_t j) __attribute__((always_inline)) {
      using Tile = RegisterTile<V, E, rows, wideVectors>;
      const Operand a{static_cast<const Scalar*>(term.coefficients) + j * term.coefficientStride,
                      term.coefficientStride, 1};
      Tile c;
      Tile::product(c, a, static_cast<const typename E::Element*>(term.rows) + column, term.rowStride, term.rowCount);
      const Vec factor = V::set1(term.factor);
      const int32_t remainingKeys = term.keyCount - j,
                    presentKeys = rows == 32 && remainingKeys < rows ? remainingKeys : rows;
      float* out = term.out + j * term.outRowStride + column * term.outColumnStride;
      if (term.outColumnStride == 1 && column + wideVectors * L <= term.depth) {
#pragma GCC unroll 16
        for (int r = 0; r < presentKeys; ++r) {
#pragma GCC unroll 8
          for (int n = 0; n < wideVectors; ++n) {
            float* row = out + r * term.outRowStride + n * L;
            V::store(row, V::fma(Tile::get(c, r, n), factor, V::load(row)));
          }
        }
      } else {
        float block[rows * wideVectors * L];
        for (int r = 0; r < rows; ++r) {
          for (int n = 0; n < wideVectors; ++n) V::store(block + (r * wideVectors + n) * L, Tile::get(c, r, n));
        }
        const int32_t columns = term.depth - column < wideVectors * L ? term.depth - column : wideVectors * L;
        for (int r = 0; r < presentKeys; ++r) {
          for (int32_t d = 0; d < columns; ++d) {
            out[r * term.outRowStride + d * term.outColumnStride] += term.factor * block[r * wideVectors * L + d];
          }
        }
      }
    });
  }
};

}  // namespace mosaic
