// Forward: one step of the online softmax (Milakov and Gimelshein 2018), which folds a block of keys into a panel.
//
// The running maximum m is *lazy*: e^(s − m) is computed at once, in registers, with the current m. Only if some s − m
// exceeds kRescaleThreshold is m raised and the block repeated. This is exact, because the exponent range of float32
// has room for sums of 2^kRescaleThreshold, and the relative precision does not depend on m. On real data it happens in
// the first few blocks of a row, if at all. m is subtracted after the product and is not the initial value of the sum,
// because partial sums as large as m would lose digits.
//
// Exponentials use base 2: (s − m) · log2 e. For ordinary m, up to kLargeThreshold, this is one multiply-add: the
// product m · log2 e is rounded once, and the sums are relative to the rounded value. For a large m the rounding error
// is itself an exponent, of up to 2^64 for m = 1e9. In that case m is kept as a score and is subtracted first, which is
// exact where the difference is small.
#pragma once

#include "attention/attention_kernels.h"
#include "attention/pack.h"
#include "attention/score_block.h"
#include "attention/value_sum.h"
#include "attention/visible_vectors.h"
#include "simd/exp2.h"
#include "simd/integers.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Kernels for panels of N vectors.
template <class V, class E, int vectors>
struct FoldBlock {
  using Vec = typename V::Vec;
  static constexpr int N = vectors, R = kTileRows<V, E, N>;
  static constexpr int L = V::lanes, valuesPerElement = E::valuesPerElement;
  static constexpr int width = N * L;
  using Values = ValueSum<V, E, N>;
  using Visible = VisibleVectors<V, N>;
  static constexpr bool readsValueRows = Values::readsValueRows;
  static constexpr float kRescaleThreshold = 40;     // in units of (s − m) · log2 e
  /// A block whose sum is larger has an exponent above kRescaleThreshold, because it has at most 2⁸ keys.
  static constexpr float kMaxBlockSum = 0x1p48f;
  static constexpr int32_t kFirstKeys = E::valuesPerElement == 1 ? 16 : 32;  // keys that determine the first m of a row
  static constexpr int32_t kPrefetchedRows = 4;  // per tile
  static constexpr float kMinSum = 0.5f;   // a sum is 0 or at least about 1, because m is the score of one of its keys

  MOSAIC_NOINLINE void fold(ForwardPanel& panel, const KvRows& keys) {
    const MatrixUnit<V> unit;
    int32_t doneKeys = 0;
    if (isEmpty(panel)) {
      doneKeys = keys.count < kFirstKeys ? keys.count : kFirstKeys;
      scoreAndRescale(panel, keys, 0, doneKeys);
    }
    const bool prefetches = keys.nextK.count > 0 && keys.nextV.count > 0;
    prefetches ? foldAndPrefetch(panel, keys, doneKeys) : foldRest(panel, keys, doneKeys);
  }

  MOSAIC_NOINLINE void foldMasked(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds) {
    const MatrixUnit<V> unit;
    const Visible visible(bounds, keys.first);
    int32_t doneKeys = 0;
    for (; doneKeys < keys.count && isEmpty(panel); doneKeys += kFirstKeys) {
      scoreAndRescaleMasked(panel, keys, bounds, doneKeys,
                            doneKeys + kFirstKeys < keys.count ? doneKeys + kFirstKeys : keys.count);
    }
    if (doneKeys < keys.count && !foldVisible(panel, keys, {doneKeys, &bounds}, visible)) {
      scoreAndRescaleMasked(panel, keys, bounds, doneKeys, keys.count);
    }
    Values::accumulateVisible(panel, keys, bounds, visible);
  }

  MOSAIC_NOINLINE void foldModified(ForwardPanel& panel, const KvRows& keys, const VisibleKeys* bounds,
                                    const ScoreModifiers& modifiers) {
    static_assert(valuesPerElement == 1, "dropout is applied to float32 weights");
    float blockMax[width];
    computeScores(panel, keys, 0, keys.count, blockMax);
    ScoreBlock<V, N>::modify(modifiers, keys.first, keys.count, panel.scores, nullptr);
    bounds ? applyMask(panel, keys, *bounds, 0, keys.count, blockMax) : findMax(panel, keys.count, blockMax);
    rescale(panel, 0, keys.count, blockMax);
    if (modifiers.dropoutThreshold > 0) applyDropout(panel, keys, modifiers);
    bounds ? Values::accumulateVisible(panel, keys, *bounds, Visible(*bounds, keys.first))
           : Values::accumulate(panel, keys);
  }

 private:
  /// Folds the keys after the first `doneKeys`, all of which are visible to every row.
  MOSAIC_NOINLINE void foldRest(ForwardPanel& panel, const KvRows& keys, int32_t doneKeys) {
    NoPrefetch prefetch;
    foldRest(panel, keys, doneKeys, prefetch, prefetch);
  }

  /// Like `foldRest`, and prefetches the rows of the next block: keys during the scores, values during the weighted
  /// sum. Both loops have at least as many steps as there are lines to prefetch. With few queries, reading dominates
  /// the run time, and the hardware prefetcher does not detect short rows and columns.
  MOSAIC_NOINLINE void foldAndPrefetch(ForwardPanel& panel, const KvRows& keys, int32_t doneKeys) {
    const auto steps = [](int64_t rows, int64_t depth) {
      return ceilDiv(rows, R) * ceilDiv(depth, valuesPerElement);
    };
    TilePrefetch nextK(keys.nextK, steps(keys.count, panel.depth));
    TilePrefetch nextV(keys.nextV, steps(panel.valueDepth, keys.count));
    foldRest(panel, keys, doneKeys, nextK, nextV);
  }

  template <class P>
  MOSAIC_INLINE void foldRest(ForwardPanel& panel, const KvRows& keys, int32_t doneKeys, P& nextK, P& nextV) {
    if (isEmpty(panel) || !foldFused<false>(panel, keys, {doneKeys, nullptr}, nextK)) {
      scoreAndRescale(panel, keys, doneKeys, keys.count);
    }
    Values::accumulate(panel, keys, nextV);
  }

  /// Returns K as an operand of `rowsAt`. Staged rows are converted for each tile.
  MOSAIC_INLINE auto keyRows(const ForwardPanel& panel, const KvRows& keys) {
    return [&](int64_t row) __attribute__((always_inline)) -> Operand {
      const StagedRows& staged = keys.stagedK;
      if (valuesPerElement != 1 || staged.rows.data == nullptr) return rowsAt<E>(keys.k, row);
      static_assert(valuesPerElement != 1 || R <= StagedRows::kMaxTileRows);
      const int64_t count = keys.count - row < R ? keys.count - row : R;
      const char* from = static_cast<const char*>(staged.rows.data);
      const int64_t skippedBytes = row * staged.rows.rowStride * dtypeBytes(staged.rows.dtype);
      const Rows rows{from + skippedBytes, staged.rows.dtype, staged.rows.rowStride, 1};
      Pack<V, E, N>::unpack(rows, count, panel.depth, staged.part, panel.depth);
      return {staged.part, panel.depth, 1};
    };
  }

  /// Whether some row has not attended to any key and has no m yet.
  MOSAIC_INLINE bool isEmpty(const ForwardPanel& panel) {
    bool hasEmptyRow = false;
    for (int n = 0; n < N; ++n) hasEmptyRow |= V::any(V::lessThan(V::load(panel.sum + n * L), V::set1(kMinSum)));
    return hasEmptyRow;
  }

  /// Returns (s − m) · log2 e for a score s as computed by the product.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec exponent(Vec s, Vec negMax, Vec scale) {
    return isLargeMode ? V::mul(V::add(E::template scaleScore<V>(s, scale), negMax), V::set1(kLog2e))
                       : V::fma(s, scale, negMax);
  }

  /// Returns the factor of scores in `exponent`.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec exponentScale(const ForwardPanel& panel) {
    const float scale = valuesPerElement == 1 ? 1 : panel.scale;
    return V::set1(isLargeMode ? scale : scale * kLog2e);
  }

  /// Stores the weights of `valuesPerElement` keys from key j on, for vector n of the rows. Returns `weights` plus the
  /// stored, rounded weights.
  MOSAIC_INLINE Vec storeWeights(const ForwardPanel& panel, int32_t j, int n, const Vec (&p)[valuesPerElement],
                                 Vec weights) {
    if constexpr (valuesPerElement == 1) {
      V::store(static_cast<float*>(panel.p) + j * width + n * L, p[0]);
      return weights;
    } else {
      const auto pairs = V::interleave(V::roundToPairs(p[0], p[1]));
      V::storePairs(static_cast<uint32_t*>(panel.p) + j / 2 * width + n * L, pairs);
      return V::dot(pairs, V::setPairs(0x3f803f80u), weights);
    }
  }

  /// The first key of a block to fold, and the visibility of keys; null: every key is visible to every row.
  struct FoldedKeys {
    int32_t from;
    const VisibleKeys* bounds;
  };

  /// Sums of a block, which are added to those of the panel at the end.
  struct BlockSums {
    float maxExponent[width], sum[width], weights[width];
    __attribute__((always_inline)) BlockSums() {
      for (int n = 0; n < N; ++n) {
        for (float* sums : {maxExponent, sum, weights}) V::store(sums + n * L, V::zero());
      }
    }
  };

  /// A block while it is folded in one pass.
  struct BlockPass {
    const ForwardPanel& panel;
    const KvRows& keys;
    const VisibleKeys* bounds;  // null: every key is visible to every row
    Vec scale;
    BlockSums sums{};
  };

  template <bool isMasked, class P>
  MOSAIC_INLINE bool foldFused(const ForwardPanel& panel, const KvRows& keys, const FoldedKeys& folded, P& prefetch) {
    return panel.isLargeMode ? foldInOnePass<isMasked, true>(panel, keys, folded, prefetch)
                             : foldInOnePass<isMasked, false>(panel, keys, folded, prefetch);
  }

  /// p ← e^(s − m), sum += p for the keys from the first on, in one pass; p is 0 for masked pairs. Returns false, and
  /// leaves the sum unchanged, if m lags too far behind.
  template <bool isMasked, bool isLargeMode, class P>
  MOSAIC_INLINE bool foldInOnePass(const ForwardPanel& panel, const KvRows& keys, const FoldedKeys& folded,
                                   P& prefetch) {
    BlockPass pass{panel, keys, folded.bounds, exponentScale<isLargeMode>(panel)};
    const auto exponentiateTile =
        [&]<int rows>(const RegisterTile<V, E, rows, N>& c, int32_t j) __attribute__((always_inline)) {
      if (panel.upcoming != nullptr) panel.upcoming->step(kPrefetchedRows);
      exponentiate<isMasked, isLargeMode>(pass, c, j, 0);
    };
    forEachProductTile<V, E, R, N>(folded.from, keys.count, keyRows(panel, keys), panel.q, panel.depth, prefetch,
                                   exponentiateTile);
    return addBlockSums(pass);
  }

  /// Like `foldInOnePass` for a block that is partly visible. Skips vectors of rows that attend to no key of a tile,
  /// whose weights are not set.
  MOSAIC_INLINE bool foldVisible(const ForwardPanel& panel, const KvRows& keys, const FoldedKeys& folded,
                                 const Visible& visible) {
    NoPrefetch prefetch;
    if (valuesPerElement == 2 || panel.isLargeMode) return foldFused<true>(panel, keys, folded, prefetch);
    if constexpr (valuesPerElement == 1) {
      BlockPass pass{panel, keys, folded.bounds, exponentScale<false>(panel)};
      visible.template forEachStrip<R>(folded.from, keys.count, [&]<int count>(const KeyStrip& strip)
                                       __attribute__((always_inline)) {
        if constexpr (count > 0) foldStrip<count>(pass, strip);
      });
      return addBlockSums(pass);
    }
  }

  /// p ← e^(s − m), sum += p for the keys and vectors of a strip.
  template <int count>
  MOSAIC_NOINLINE void foldStrip(BlockPass& pass, const KeyStrip& strip) {
    const ForwardPanel& panel = pass.panel;
    const auto* q = static_cast<const typename E::Element*>(panel.q) + strip.first * L;
    forEachTile<kTileRows<V, E, count>>(strip.begin, strip.end, [&]<int rows>(int32_t j)
                                        __attribute__((always_inline)) {
      if (panel.upcoming != nullptr) panel.upcoming->step(kPrefetchedRows);
      RegisterTile<V, E, rows, count> c;
      RegisterTile<V, E, rows, count>::product(c, rowsAt<E>(pass.keys.k, j), q, width, panel.depth);
      exponentiate<true, false>(pass, c, j, strip.first);
    });
  }

  /// p ← e^(s − m), sum += p for a tile of keys from key j on and vectors of rows from `first` on.
  template <bool isMasked, bool isLargeMode, int rows, int count>
  MOSAIC_INLINE void exponentiate(BlockPass& pass, const RegisterTile<V, E, rows, count>& c, int32_t j, int first) {
    using Tile = RegisterTile<V, E, rows, count>;
    BlockSums& sums = pass.sums;
#pragma GCC unroll 8
    for (int n = 0; n < count; ++n) {
      const int row = (first + n) * L;
      const Vec negMax = V::load(pass.panel.negMax + row);
      Vec maxExponent = V::load(sums.maxExponent + row), sum = V::load(sums.sum + row),
          weights = V::load(sums.weights + row);
#pragma GCC unroll 16
      for (int r = 0; r < rows; r += valuesPerElement) {
        Vec p[valuesPerElement];
#pragma GCC unroll 2
        for (int i = 0; i < valuesPerElement; ++i) {
          Vec x = exponent<isLargeMode>(Tile::get(c, r + i, n), negMax, pass.scale);
          if (isMasked) {
            const auto visibleMask =
                V::inRange(pass.bounds->lo + row, pass.bounds->hi + row, pass.keys.first + j + r + i);
            x = V::select(visibleMask, x, V::set1(-__builtin_inff()));
          }
          if (!V::isExp2Saturating) maxExponent = V::max(maxExponent, x);
          p[i] = E::template exp2<V>(x);
          sum = V::add(sum, p[i]);
        }
        weights = storeWeights(pass.panel, j + r, first + n, p, weights);
      }
      V::store(sums.maxExponent + row, maxExponent);
      V::store(sums.sum + row, sum);
      V::store(sums.weights + row, weights);
    }
  }

  /// Adds the sums of a block to those of the panel. Returns false instead if m lags too far behind.
  MOSAIC_INLINE bool addBlockSums(const BlockPass& pass) {
    bool exceedsRescaleThreshold = false;
    for (int n = 0; n < N; ++n) {
      const float* values = V::isExp2Saturating ? pass.sums.sum : pass.sums.maxExponent;
      const Vec threshold = V::set1(V::isExp2Saturating ? kMaxBlockSum : kRescaleThreshold);
      exceedsRescaleThreshold |= V::any(V::lessThan(threshold, V::load(values + n * L)));
    }
    if (exceedsRescaleThreshold) return false;
    for (int n = 0; n < N; ++n) {
      addSums(pass.panel, n, V::load(pass.sums.sum + n * L), V::load(pass.sums.weights + n * L));
    }
    return true;
  }

  /// Like `foldInOnePass` for keys [from, to), but first raises m where necessary.
  MOSAIC_NOINLINE void scoreAndRescale(ForwardPanel& panel, const KvRows& keys, int32_t from, int32_t to) {
    float blockMax[width];
    computeScores(panel, keys, from, to, blockMax);
    rescale(panel, from, to, blockMax);
  }

  /// Like `scoreAndRescale` for keys that are partly visible.
  MOSAIC_NOINLINE void scoreAndRescaleMasked(ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds,
                                             int32_t from, int32_t to) {
    float blockMax[width];
    computeScores(panel, keys, from, to, blockMax);
    applyMask(panel, keys, bounds, from, to, blockMax);
    rescale(panel, from, to, blockMax);
  }

  /// Computes scores and their maximum over keys [from, to).
  MOSAIC_INLINE void computeScores(const ForwardPanel& panel, const KvRows& keys, int32_t from, int32_t to,
                                   float* blockMax) {
    for (int n = 0; n < N; ++n) V::store(blockMax + n * L, V::set1(-__builtin_inff()));
    const auto storeScores = [&]<int rows>(const RegisterTile<V, E, rows, N>& c, int32_t j)
                                 __attribute__((always_inline)) {
                                   if (panel.upcoming != nullptr) panel.upcoming->step(kPrefetchedRows);
                                   using Tile = RegisterTile<V, E, rows, N>;
#pragma GCC unroll 8
                                   for (int n = 0; n < N; ++n) {
                                     Vec maxScore = V::load(blockMax + n * L);
#pragma GCC unroll 16
                                     for (int r = 0; r < rows; ++r) {
                                       const Vec s =
                                           E::template scaleScore<V>(Tile::get(c, r, n), V::set1(panel.scale));
                                       maxScore = V::max(maxScore, s);
                                       V::store(panel.scores + (j + r) * width + n * L, s);
                                     }
                                     V::store(blockMax + n * L, maxScore);
                                   }
                                 };
    forEachProductTile<V, E, R, N>(from, to, keyRows(panel, keys), panel.q, panel.depth, storeScores);
  }

  /// Sets the scores of masked pairs of keys [from, to) to −∞ and recomputes the maximum over the visible ones.
  MOSAIC_INLINE void applyMask(const ForwardPanel& panel, const KvRows& keys, const VisibleKeys& bounds, int32_t from,
                               int32_t to, float* blockMax) {
    const Vec negInf = V::set1(-__builtin_inff());
    for (int n = 0; n < N; ++n) {
      Vec maxScore = negInf;
      for (int32_t j = from; j < to; ++j) {
        float* score = panel.scores + j * width + n * L;
        const auto visibleMask = V::inRange(bounds.lo + n * L, bounds.hi + n * L, keys.first + j);
        const Vec s = V::select(visibleMask, V::load(score), negInf);
        maxScore = V::max(maxScore, s);
        V::store(score, s);
      }
      V::store(blockMax + n * L, maxScore);
    }
  }

  /// Computes the maximum of modified scores.
  MOSAIC_INLINE void findMax(const ForwardPanel& panel, int32_t count, float* blockMax) {
    for (int n = 0; n < N; ++n) {
      Vec maxScore = V::set1(-__builtin_inff());
      for (int32_t j = 0; j < count; ++j) maxScore = V::max(maxScore, V::load(panel.scores + j * width + n * L));
      V::store(blockMax + n * L, maxScore);
    }
  }

  /// Sets dropped weights to 0; they still count in the sums. The scale of the other weights is applied when `out` is
  /// divided by the sum.
  MOSAIC_INLINE void applyDropout(const ForwardPanel& panel, const KvRows& keys, const ScoreModifiers& modifiers) {
    constexpr int32_t kStrip = 8;
    float dropoutMask[kStrip * width];
    for (int32_t first = 0; first < keys.count; first += kStrip) {
      const int32_t count = keys.count - first < kStrip ? keys.count - first : kStrip;
      ScoreBlock<V, N>::drawDropoutMask(modifiers, keys.first + first, count, dropoutMask);
      float* weights = static_cast<float*>(panel.p) + first * width;
      for (int32_t i = 0; i < count * width; i += L) {
        V::store(weights + i,
                 V::select(V::lessThan(V::zero(), V::load(dropoutMask + i)), V::load(weights + i), V::zero()));
      }
    }
  }

  MOSAIC_INLINE void scaleRows(float* rows, int32_t count, Vec factor) {
    for (int32_t i = 0; i < count; ++i) V::store(rows + i * width, V::mul(V::load(rows + i * width), factor));
  }

  /// Scales the weights of the first `count` keys, which were computed with a lower m and are not yet added to `out`.
  MOSAIC_INLINE void scaleWeights(const ForwardPanel& panel, int n, int32_t count, Vec factor) {
    if constexpr (valuesPerElement == 1) {
      scaleRows(static_cast<float*>(panel.p) + n * L, count, factor);
    } else {
      auto* pairs = static_cast<uint32_t*>(panel.p) + n * L;
      for (int32_t j = 0; j < count; j += 2, pairs += width) {
        uint16_t rows[2][L];
        for (int i = 0; i < L; ++i) rows[0][i] = static_cast<uint16_t>(pairs[i]), rows[1][i] = pairs[i] >> 16;
        const Vec p[] = {V::mul(V::loadBf16(rows[0]), factor), V::mul(V::loadBf16(rows[1]), factor)};
        storeWeights(panel, j, n, p, V::zero());
      }
    }
  }

  /// Raises m where necessary, then p ← e^(s − m), sum += p.
  MOSAIC_INLINE void rescale(ForwardPanel& panel, int32_t from, int32_t to, const float* blockMax) {
    if (!panel.isLargeMode && needsLargeMode(panel, blockMax)) switchToLargeMode(panel, from);
    if (panel.isLargeMode) {
      rescaleRows<true>(panel, from, to, blockMax);
    } else {
      rescaleRows<false>(panel, from, to, blockMax);
    }
  }

  /// Returns the new m of rows whose m is set or raised, in stored form; 0 for a row without visible keys so far.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec newMax(Vec maxScore) {
    const Vec m = V::select(V::lessThan(maxScore, V::set1(-__FLT_MAX__)), V::zero(), maxScore);
    return isLargeMode ? m : V::mul(m, V::set1(kLog2e));
  }

  /// Returns (s − m) · log2 e for a score that is already scaled.
  template <bool isLargeMode>
  MOSAIC_INLINE Vec scaledDifference(Vec s, Vec negMax) {
    const Vec log2e = V::set1(kLog2e);
    return isLargeMode ? V::mul(V::add(s, negMax), log2e) : V::fma(s, log2e, negMax);
  }

  template <bool isLargeMode>
  MOSAIC_INLINE void rescaleRows(const ForwardPanel& panel, int32_t from, int32_t to, const float* blockMax) {
    for (int n = 0; n < N; ++n) {
      const Vec maxScore = V::load(blockMax + n * L), oldSum = V::load(panel.sum + n * L);
      const Vec oldNegMax = V::load(panel.negMax + n * L);
      const auto emptyRows = V::lessThan(oldSum, V::set1(kMinSum)),
                 laggingRows =
                     V::lessThan(V::set1(kRescaleThreshold), scaledDifference<isLargeMode>(maxScore, oldNegMax));
      const Vec nextNegMax = V::sub(V::zero(), newMax<isLargeMode>(maxScore));
      const Vec negMax = V::select(emptyRows, nextNegMax, V::select(laggingRows, nextNegMax, oldNegMax));
      V::store(panel.negMax + n * L, negMax);
      if (V::any(laggingRows)) {
        const Vec negMaxIncrease = V::sub(negMax, oldNegMax);
        const Vec decay = V::exp2(isLargeMode ? V::mul(negMaxIncrease, V::set1(kLog2e)) : negMaxIncrease);
        const Vec scaleFactor = V::select(emptyRows, V::zero(), decay);
        scaleSums(panel, n, scaleFactor);
        scaleRows(panel.out + n * L, panel.valueDepth, scaleFactor);
        scaleWeights(panel, n, from, scaleFactor);
      }
      Vec sum = V::zero(), weights = V::zero();
#pragma GCC unroll 2
      for (int32_t j = from; j < to; j += valuesPerElement) {
        Vec p[valuesPerElement];
        for (int i = 0; i < valuesPerElement; ++i) {
          const Vec s = V::load(panel.scores + (j + i) * width + n * L);
          p[i] = E::template exp2<V>(scaledDifference<isLargeMode>(s, negMax));
          sum = V::add(sum, p[i]);
        }
        weights = storeWeights(panel, j, n, p, weights);
      }
      addSums(panel, n, sum, weights);
    }
  }

  /// Whether the m of some row is about to become large.
  MOSAIC_INLINE bool needsLargeMode(const ForwardPanel& panel, const float* blockMax) {
    bool hasLargeMax = false;
    for (int n = 0; n < N; ++n) {
      const Vec maxScore = V::load(blockMax + n * L);
      const auto emptyRows = V::lessThan(V::load(panel.sum + n * L), V::set1(kMinSum));
      const auto laggingRows =
          V::lessThan(V::set1(kRescaleThreshold), scaledDifference<false>(maxScore, V::load(panel.negMax + n * L)));
      const Vec nextMax = V::select(emptyRows, newMax<true>(maxScore), V::select(laggingRows, maxScore, V::zero()));
      hasLargeMax |= V::any(V::lessThan(V::set1(kLargeThreshold), nextMax)) ||
                     V::any(V::lessThan(nextMax, V::set1(-kLargeThreshold)));
    }
    return hasLargeMax;
  }

  /// Stores every m unscaled from now on. The sums are relative to the rounded m and are corrected by the difference.
  MOSAIC_NOINLINE void switchToLargeMode(ForwardPanel& panel, int32_t from) {
    panel.isLargeMode = true;
    float factors[width];
    for (int32_t r = 0; r < width; ++r) {
      constexpr double kLog2eDouble = 1.4426950408889634;
      const double oldNegMax = panel.negMax[r];
      panel.negMax[r] = static_cast<float>(oldNegMax / kLog2eDouble);
      const float factor = static_cast<float>(__builtin_exp2(panel.negMax[r] * kLog2eDouble - oldNegMax));
      for (int32_t d = 0; d < panel.valueDepth; ++d) panel.out[d * width + r] *= factor;
      factors[r] = factor;
    }
    for (int n = 0; n < N; ++n) {
      scaleSums(panel, n, V::load(factors + n * L));
      scaleWeights(panel, n, from, V::load(factors + n * L));
    }
  }

  MOSAIC_INLINE void addSums(const ForwardPanel& panel, int n, Vec sum, Vec weights) {
    V::store(panel.sum + n * L, V::add(V::load(panel.sum + n * L), sum));
    if (valuesPerElement == 2) V::store(panel.weightSum + n * L, V::add(V::load(panel.weightSum + n * L), weights));
  }

  MOSAIC_INLINE void scaleSums(const ForwardPanel& panel, int n, Vec factor) {
    V::store(panel.sum + n * L, V::mul(V::load(panel.sum + n * L), factor));
    if (valuesPerElement == 2) V::store(panel.weightSum + n * L, V::mul(V::load(panel.weightSum + n * L), factor));
  }
};

}  // namespace mosaic
