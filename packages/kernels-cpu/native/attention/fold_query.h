// Forward for a few query rows (query_rows.h). Lanes are keys, because lanes along queries would be empty, and because
// panels would convert 16-bit keys. Keys are transposed one vector at a time, so that each score is the same chain of
// multiply-adds as in a panel (fold_block.h) and has the same bits as in the backward. At large scores, a different
// rounding would result in a different weight.
#pragma once

#include "attention/attention_kernels.h"
#include "simd/elements.h"
#include "simd/exp2.h"
#include "simd/inline.h"
#include "simd/integers.h"
#include "simd/register_tile.h"

namespace mosaic {

/// K and V have dtype `kvDType`. With float32 products, 16-bit elements are widened as they are read.
template <class V, class E, DType kvDType>
struct FoldQuery {
  using Vec = typename V::Vec;
  using Scalar = typename E::Scalar;
  using Element = typename E::Element;
  using KvScalar = ElementOf<kvDType>;
  static constexpr bool isWidened = sizeof(KvScalar) < sizeof(Scalar);
  static constexpr bool isWidenedBf16 = isWidened && kvDType == DType::BFloat16;
  static constexpr int L = V::lanes, valuesPerElement = E::valuesPerElement;
  static constexpr int vectors = QueryFold::kVectors, keys = vectors * L;
  // Rows per pass. The sums, four vectors per row, stay in registers: AVX2 and SSE2 have 16, AVX-512 and NEON 32.
  static constexpr int maxRows = V::isa == Isa::Avx2 || V::isa == Isa::Scalar ? 2 : 4;
  // Rows per pass over the values. Where values are widened, more rows share each widened vector.
  static constexpr int maxValueRows = isWidened ? 2 * maxRows : maxRows;
  static constexpr int squareDepth = valuesPerElement * L;  // elements of a key per square, and weights per store
  // Elements of a key that are transposed at a time.
  static constexpr int columnsDepth = QueryFold::kColumnBytes / (4 * keys) * valuesPerElement;

  /// Folds at most `keys` keys, all visible to every row. With bfloat16, an odd number of keys is followed by a row of
  /// zeros.
  MOSAIC_NOINLINE void fold(const QueryFold& f, const KvRows& kv) {
    if (kv.nextK.count > 0 && kv.nextV.count > 0) {
      BlockPrefetch prefetch(f, kv);
      foldRows(f, kv, prefetch);
    } else {
      NoBlockPrefetch prefetch;
      foldRows(f, kv, prefetch);
    }
  }

 private:
  struct DepthRange {
    int32_t begin, end;
  };

  /// Lines prefetched at a step of a pass with `rows` rows.
  MOSAIC_INLINE constexpr int linesPerStep(int rows) {
    constexpr int bytes = isWidened ? 2 : 4;  // per key and step
    return ((rows < maxRows ? rows : maxRows) * bytes + 7) / 8;
  }

  /// Prefetches the next block evenly: its keys while the scores of this block are computed, its values during their
  /// weighted sums. Lines for which there are too few steps are prefetched while keys are transposed.
  struct BlockPrefetch {
    PacedPrefetch k, v;
    int32_t linesOfK, linesOfV;  // lines per transposed square

    /// Returns the bytes from one prefetch to the next, for `lines` prefetches.
    MOSAIC_INLINE int64_t stepBytes(const UpcomingReads& reads, int32_t lines) {
      return minOf(ceilDiv(countLines(reads) * kCacheLineBytes, lines), kCacheLineBytes);
    }
    MOSAIC_INLINE int32_t linesPerSquare(const QueryFold& f, const UpcomingReads& reads, int32_t linesOfPasses) {
      const int64_t squares = vectors * (f.depth / squareDepth), lines = countLines(reads) - linesOfPasses;
      return lines > 0 ? static_cast<int32_t>(ceilDiv(lines, squares)) : 0;
    }
    /// Lines prefetched in passes with `steps` steps.
    MOSAIC_INLINE int32_t linesOfPasses(const QueryFold& f, int32_t steps) {
      return linesPerStep(f.rows) * static_cast<int32_t>(ceilDiv(f.rows, maxRows)) * steps;
    }
    MOSAIC_INLINE int32_t linesOfScores(const QueryFold& f) { return linesOfPasses(f, f.depth / valuesPerElement); }
    MOSAIC_INLINE int32_t linesOfValues(const QueryFold& f) {
      return linesOfPasses(f, static_cast<int32_t>(ceilDiv(f.valueDepth, 4 * L)) * (keys / valuesPerElement));
    }
    __attribute__((always_inline)) BlockPrefetch(const QueryFold& f, const KvRows& kv)
        : k(kv.nextK, stepBytes(kv.nextK, linesOfScores(f))),
          v(kv.nextV, stepBytes(kv.nextV, linesOfValues(f))),
          linesOfK(linesPerSquare(f, kv.nextK, linesOfScores(f))),
          linesOfV(linesPerSquare(f, kv.nextV, linesOfValues(f))) {}
    __attribute__((always_inline)) void step(int32_t squares) {
      k.stepLines(squares * linesOfK);
      v.stepLines(squares * linesOfV);
    }
  };
  struct NoBlockPrefetch {
    NoPrefetch k, v;
    __attribute__((always_inline)) void step(int32_t) {}
  };

  template <class P>
  MOSAIC_NOINLINE void foldRows(const QueryFold& f, const KvRows& kv, P& prefetch) {
    for (int32_t d = 0; d < f.depth; d += columnsDepth) {
      const int32_t end = d + columnsDepth < f.depth ? d + columnsDepth : f.depth;
      for (int32_t j = 0; j < keys; j += L) transposeKeys(f, kv, j, {d, end}, prefetch);
      forEachTile<maxRows>(0, f.rows, [&]<int rows>(int32_t row) { scoreRows<rows>(f, row, {d, end}, prefetch.k); });
    }
    for (int32_t row = 0; row < f.rows; ++row) computeWeights(f, row, kv.count);
    forEachTile<maxValueRows>(0, f.rows, [&]<int rows>(int32_t row) { accumulate<rows>(f, row, kv, prefetch.v); });
  }

  /// Returns e^x, where the result is a weight.
  MOSAIC_INLINE Vec exponential(Vec x) { return E::template exp2<V>(V::mul(x, V::set1(kLog2e))); }

  /// Returns the rows of K or V from `row` on.
  MOSAIC_INLINE const KvScalar* rowOf(const Operand& operand, int32_t row) {
    return static_cast<const KvScalar*>(operand.data) + row * operand.rowStride;
  }

  /// Loads a vector of elements: widened values, or the bits of pairs.
  MOSAIC_INLINE Vec loadElements(const KvScalar* from) {
    if constexpr (isWidened || valuesPerElement == 1) {
      return loadVector<V, kvDType>(from);
    } else {
      return V::load(reinterpret_cast<const float*>(from));
    }
  }

  /// columns[d][j …] ← k[j …][d] for a vector of keys and a range of d; zeros for keys past the last.
  template <class P>
  MOSAIC_INLINE void transposeKeys(const QueryFold& f, const KvRows& kv, int32_t j, DepthRange range, P& prefetch) {
    if (j >= kv.count) return;
    int32_t d = range.begin;
    if constexpr (isWidenedBf16) {
      for (; d + 2 * L <= range.end; d += 2 * L) {
        prefetch.step(2);
        transposePairs(kv, j, d, columnAt(f, j, d - range.begin));
      }
    }
    for (; d < range.end; d += squareDepth) {
      prefetch.step(1);
      float* to = columnAt(f, j, d - range.begin);
      const auto load = [&](const KvScalar* from) __attribute__((always_inline)) { return loadElements(from); };
      const auto store = [&](int c, Vec column) __attribute__((always_inline)) { V::store(to + c * keys, column); };
      transposeSquare(kv, j, d, load, store);
    }
  }

  /// Transposes 2 L columns of bfloat16 keys as pairs of elements and widens them afterwards, which halves the number
  /// of shuffles.
  MOSAIC_INLINE void transposePairs(const KvRows& kv, int32_t j, int32_t d, float* to) {
    const auto load = [&](const KvScalar* from) __attribute__((always_inline)) {
      return V::load(reinterpret_cast<const float*>(from));
    };
    const auto store = [&](int c, Vec pairs) __attribute__((always_inline)) {
      V::store(to + 2 * c * keys, widenEven<V>(pairs));
      V::store(to + (2 * c + 1) * keys, widenOdd<V>(pairs));
    };
    transposeSquare(kv, j, d, load, store);
  }

  MOSAIC_INLINE float* columnAt(const QueryFold& f, int32_t j, int32_t d) {
    return reinterpret_cast<float*>(static_cast<Element*>(f.columns) + d / valuesPerElement * keys + j);
  }

  /// Stores the columns of L keys from column d on; zeros for keys past the last.
  template <class Load, class Store>
  MOSAIC_INLINE void transposeSquare(const KvRows& kv, int32_t j, int32_t d, const Load& load, const Store& store) {
    const int32_t presentKeys = kv.count - j;
    const KvScalar* from = rowOf(kv.k, j) + d;
    const auto row = [&](int i) __attribute__((always_inline)) { return load(from + i * kv.k.rowStride); };
    const auto presentRow = [&](int i) __attribute__((always_inline)) { return i < presentKeys ? row(i) : V::zero(); };
    presentKeys >= L ? V::transposeRows(row, store) : V::transposeRows(presentRow, store);
  }

  /// scores += q · k for a range of the depth; the first range overwrites them.
  template <int rows, class P>
  MOSAIC_INLINE void scoreRows(const QueryFold& f, int32_t row, DepthRange range, P& prefetch) {
    Vec sum[rows][vectors];
    float* scores = f.scores + row * keys;
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[r][n] = range.begin == 0 ? V::zero() : V::load(scores + r * keys + n * L);
    }
    const Scalar* q = static_cast<const Scalar*>(f.q) + row * f.depth;
    const Element* column = static_cast<const Element*>(f.columns);
    for (int32_t d = range.begin; d < range.end; d += valuesPerElement, column += keys) {
      for (int i = 0; i < linesPerStep(rows); ++i) prefetch.step();
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int n = 0; n < vectors; ++n) {
          const auto k = E::template load<V>(column + n * L);
          sum[r][n] = E::template multiplyAdd<V>(q + r * f.depth + d, k, sum[r][n]);
        }
      }
    }
    const bool isComplete = range.end == f.depth;
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) {
        const Vec score = isComplete ? E::template scaleScore<V>(sum[r][n], V::set1(f.scale)) : sum[r][n];
        V::store(scores + r * keys + n * L, score);
      }
    }
  }

  /// weights ← e^(s − m), after raising m to the largest score; updates the sums and rescales out.
  MOSAIC_INLINE void computeWeights(const QueryFold& f, int32_t row, int32_t count) {
    float* s = f.scores + row * keys;
    int32_t end = count;
    for (; end % squareDepth != 0; ++end) s[end] = -__builtin_inff();
    Vec maxScore = V::set1(f.max[row]);
    for (int32_t j = 0; j < end; j += L) maxScore = V::max(maxScore, V::load(s + j));
    const float newMax = V::maxLane(maxScore);
    // 0 if all scores of the row are −∞ so far, because a difference of infinities is NaN.
    const float m = newMax < -__FLT_MAX__ ? 0 : newMax;
    if (newMax != f.max[row]) raiseMax(f, row, m, newMax);
    Vec sum = V::zero(), weights = V::zero();
    for (int32_t j = 0; j < end; j += squareDepth) {
      Vec p[valuesPerElement];
#pragma GCC unroll 2
      for (int i = 0; i < valuesPerElement; ++i) {
        p[i] = exponential(V::sub(V::load(s + j + i * L), V::set1(m)));
        sum = V::add(sum, p[i]);
      }
      weights = storeWeights(f, row * keys + j, p, weights);
    }
    f.sum[row] += V::sum(sum);
    if (valuesPerElement == 2) f.weightSum[row] += V::sum(weights);
  }

  MOSAIC_INLINE void raiseMax(const QueryFold& f, int32_t row, float m, float newMax) {
    float lanes[L];
    const Vec scaleFactor = V::exp2(V::mul(V::set1(f.max[row] - m), V::set1(kLog2e)));
    V::store(lanes, scaleFactor);
    f.sum[row] *= lanes[0];
    if (valuesPerElement == 2) f.weightSum[row] *= lanes[0];
    float* out = f.out + row * f.valueDepth;
    for (int32_t d = 0; d < f.valueDepth; d += L) V::store(out + d, V::mul(V::load(out + d), scaleFactor));
    f.max[row] = newMax;
  }

  /// Stores the weights of `squareDepth` keys. Returns `weights` plus the stored, rounded weights.
  MOSAIC_INLINE Vec storeWeights(const QueryFold& f, int32_t at, const Vec (&p)[valuesPerElement], Vec weights) {
    if constexpr (valuesPerElement == 1) {
      V::store(static_cast<float*>(f.weights) + at, p[0]);
      return weights;
    } else {
      const auto pairs = V::roundToPairs(p[0], p[1]);
      V::storePairs(static_cast<uint32_t*>(f.weights) + at / 2, pairs);
      return V::dot(pairs, V::setPairs(0x3f803f80u), weights);
    }
  }

  /// out += weights · v
  template <int rows, class P>
  MOSAIC_INLINE void accumulate(const QueryFold& f, int32_t row, const KvRows& kv, P& prefetch) {
    constexpr int columns = rows > maxRows ? 2 : 4;
    int32_t d = 0;
    for (; d + columns * L <= f.valueDepth; d += columns * L) addValues<rows, columns>(f, row, kv, d, prefetch);
    for (; d < f.valueDepth; d += L) addValues<rows, 1>(f, row, kv, d, prefetch);
  }

  /// Loads a vector of a key's values; for pairs, interleaved with those of the next key.
  MOSAIC_INLINE auto loadValues(const KvScalar* v, int64_t rowStride) {
    if constexpr (valuesPerElement == 1) {
      return loadElements(v);
    } else {
      return V::interleave(V::joinRows(v, v + rowStride));
    }
  }

  template <int rows, int columns, class P>
  MOSAIC_INLINE void addValues(const QueryFold& f, int32_t row, const KvRows& kv, int32_t d, P& prefetch) {
    constexpr bool areUnzipped = isWidenedBf16 && columns % 2 == 0;
    Vec sum[rows][columns];
    float* out = f.out + row * f.valueDepth + d;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) sum[r][n] = V::load(out + r * f.valueDepth + n * L);
      if constexpr (areUnzipped) {
#pragma GCC unroll 2
        for (int n = 0; n < columns; n += 2) V::unzip(sum[r][n], sum[r][n + 1]);
      }
    }
    const Scalar* p = static_cast<const Scalar*>(f.weights) + row * keys;
    const KvScalar* v = rowOf(kv.v, 0) + d;
    for (int32_t j = 0; j < kv.count; j += valuesPerElement, v += valuesPerElement * kv.v.rowStride) {
      for (int i = 0; i < linesPerStep(rows); ++i) prefetch.step();
      decltype(loadValues(v, kv.v.rowStride)) y[columns];
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) {
        if constexpr (areUnzipped) {
          const Vec pairs = V::load(reinterpret_cast<const float*>(v + n / 2 * 2 * L));
          y[n] = n % 2 == 0 ? widenEven<V>(pairs) : widenOdd<V>(pairs);
        } else {
          y[n] = loadValues(v + n * L, kv.v.rowStride);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int n = 0; n < columns; ++n) sum[r][n] = E::template multiplyAdd<V>(p + r * keys + j, y[n], sum[r][n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      if constexpr (areUnzipped) {
#pragma GCC unroll 2
        for (int n = 0; n < columns; n += 2) V::zip(sum[r][n], sum[r][n + 1]);
      }
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) V::store(out + r * f.valueDepth + n * L, sum[r][n]);
    }
  }
};

}  // namespace mosaic
