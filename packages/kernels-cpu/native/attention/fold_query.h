// Forward, for one query of few heads: lanes are keys, as lanes along queries would be empty. Keys are transposed a
// vector at a time, so that each score is the same chain of multiply-adds as in a panel (fold_block.h), with the same
// bits as in the backward: of large scores one that is rounded otherwise is another weight.
#pragma once

#include "attention/attention_kernels.h"
#include "simd/exp2.h"
#include "simd/inline.h"

namespace mosaic {

template <class V>
struct FoldQuery {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes;
  static constexpr int vectors = QueryFold::kVectors, keys = vectors * L;

  /// Keys that every row sees, at most `keys` of them.
  MOSAIC_NOINLINE void fold(const QueryFold& f, const KvRows& kv) {
    computeScores(f, kv);
    for (int32_t row = 0; row < f.rows; ++row) computeWeights(f, row, kv.count);
    int32_t row = 0;
    for (; row + 2 <= f.rows; row += 2) accumulate<2>(f, row, kv);
    if (row < f.rows) accumulate<1>(f, row, kv);
  }

 private:
  /// e^x
  MOSAIC_INLINE Vec exponential(Vec x) { return V::exp2(V::mul(x, V::set1(kLog2e))); }

  /// Rows from `row` on of K or V.
  MOSAIC_INLINE const float* rowOf(const Operand& operand, int32_t row) {
    return static_cast<const float*>(operand.data) + row * operand.rowStride;
  }

  MOSAIC_INLINE void prefetch(const Operand& operand, int32_t row, int32_t depth) {
    const float* values = rowOf(operand, row);
    for (int32_t d = 0; d < depth; d += 16) __builtin_prefetch(values + d, 0, 2);
  }

  /// weights ← q · k
  MOSAIC_INLINE void computeScores(const QueryFold& f, const KvRows& kv) {
    for (int32_t j = 0; j < keys; j += L) transposeKeys(f, kv, j);
    int32_t row = 0;
    for (; row + 2 <= f.rows; row += 2) scoreRows<2>(f, row);
    if (row < f.rows) scoreRows<1>(f, row);
  }

  /// columns[d][j …] ← k[j …][d] for a vector of keys; of those past the last, whatever is there. Prefetches the values
  /// of these keys, and the keys of the next call.
  MOSAIC_INLINE void transposeKeys(const QueryFold& f, const KvRows& kv, int32_t j) {
    const int32_t remainingKeys = kv.count - j;
    if (remainingKeys <= 0) return;
    for (int32_t i = 0; i < L && i < remainingKeys; ++i) {
      prefetch(kv.v, j + i, f.valueDepth);
      prefetch(kv.k, j + i + keys, f.depth);
    }
    for (int32_t d = 0; d < f.depth; d += L) {
      float* to = f.columns + d * keys + j;
      if (remainingKeys >= L) {
        V::transpose(rowOf(kv.k, j) + d, kv.k.rowStride, to, keys);
      } else {
        float block[L * L] = {};
        for (int32_t i = 0; i < remainingKeys; ++i) V::store(block + i * L, V::load(rowOf(kv.k, j + i) + d));
        V::transpose(block, L, to, keys);
      }
    }
  }

  template <int rows>
  MOSAIC_INLINE void scoreRows(const QueryFold& f, int32_t row) {
    Vec sum[rows][vectors];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[r][n] = V::zero();
    }
    const float* q = f.q + row * f.depth;
    for (int32_t d = 0; d < f.depth; ++d) {
      const float* transposedKeyRow = f.columns + d * keys;
#pragma GCC unroll 2
      for (int r = 0; r < rows; ++r) {
        const Vec x = V::set1(q[r * f.depth + d]);
#pragma GCC unroll 4
        for (int n = 0; n < vectors; ++n) sum[r][n] = V::fma(x, V::load(transposedKeyRow + n * L), sum[r][n]);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) V::store(f.weights + (row + r) * keys + n * L, sum[r][n]);
    }
  }

  /// weights ← e^(s − m) of the scores there, with m raised to the largest; sum and out follow.
  MOSAIC_INLINE void computeWeights(const QueryFold& f, int32_t row, int32_t count) {
    float* s = f.weights + row * keys;
    int32_t end = count;
    for (; end % L != 0; ++end) s[end] = -__builtin_inff();
    Vec maxScore = V::set1(f.max[row]);
    for (int32_t j = 0; j < end; j += L) maxScore = V::max(maxScore, V::load(s + j));
    float lanes[L];
    V::store(lanes, maxScore);
    float newMax = lanes[0];
    for (int i = 1; i < L; ++i) newMax = lanes[i] > newMax ? lanes[i] : newMax;
    // 0 where a row has still seen nothing but −∞: a difference of infinities is NaN.
    const float m = newMax < -__FLT_MAX__ ? 0 : newMax;
    Vec sum = V::zero();
    for (int32_t j = 0; j < end; j += L) {
      const Vec p = exponential(V::sub(V::load(s + j), V::set1(m)));
      V::store(s + j, p);
      sum = V::add(sum, p);
    }
    if (newMax != f.max[row]) {
      const Vec scaleFactor = exponential(V::set1(f.max[row] - m));
      V::store(lanes, scaleFactor);
      f.sum[row] *= lanes[0];
      float* out = f.out + row * f.valueDepth;
      for (int32_t d = 0; d < f.valueDepth; d += L) V::store(out + d, V::mul(V::load(out + d), scaleFactor));
      f.max[row] = newMax;
    }
    f.sum[row] += V::sum(sum);
  }

  /// out += weights · v
  template <int rows>
  MOSAIC_INLINE void accumulate(const QueryFold& f, int32_t row, const KvRows& kv) {
    int32_t d = 0;
    for (; d + 4 * L <= f.valueDepth; d += 4 * L) addValues<rows, 4>(f, row, kv, d);
    for (; d < f.valueDepth; d += L) addValues<rows, 1>(f, row, kv, d);
  }

  template <int rows, int columns>
  MOSAIC_INLINE void addValues(const QueryFold& f, int32_t row, const KvRows& kv, int32_t d) {
    Vec sum[rows][columns];
    float* out = f.out + row * f.valueDepth + d;
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) sum[r][n] = V::load(out + r * f.valueDepth + n * L);
    }
    const float* p = f.weights + row * keys;
    const float* v = rowOf(kv.v, 0) + d;
    for (int32_t j = 0; j < kv.count; ++j, v += kv.v.rowStride) {
#pragma GCC unroll 2
      for (int r = 0; r < rows; ++r) {
        const Vec x = V::set1(p[r * keys + j]);
#pragma GCC unroll 4
        for (int n = 0; n < columns; ++n) sum[r][n] = V::fma(x, V::load(v + n * L), sum[r][n]);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < columns; ++n) V::store(out + r * f.valueDepth + n * L, sum[r][n]);
    }
  }
};

}  // namespace mosaic
