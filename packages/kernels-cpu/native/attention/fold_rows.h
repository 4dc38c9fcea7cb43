// Forward, for so few rows that reading keys and values is what takes time: lanes are features, so that none is empty,
// and values are read where they lie. Scores come from the product of few rows (gemm/row_dots.h).
#pragma once

#include "attention/attention_kernels.h"
#include "simd/exp2.h"
#include "simd/load.h"

namespace mosaic {

template <class V>
struct FoldRows {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes;

  /// weights ← e^(s − m) of the scores there, with m raised to the largest; sum and out follow.
  MOSAIC_NOINLINE void fold(const RowFold& f, const Rows& v, int32_t count) {
    withLoad<V>(v.dtype, [&]<class Load>() __attribute__((always_inline)) { byRows<Load>(f, v, count); });
  }

 private:
  template <class Load>
  MOSAIC_NOINLINE void byRows(const RowFold& f, const Rows& v, int32_t count) {
    for (int32_t row = 0; row < f.rows; ++row) weigh(f, row, count);
    int32_t row = 0;
    for (; row + 4 <= f.rows; row += 4) accumulate<Load, 4, 2>(f, row, v, count);
    for (; row + 2 <= f.rows; row += 2) accumulate<Load, 2, 4>(f, row, v, count);
    for (; row < f.rows; ++row) accumulate<Load, 1, 8>(f, row, v, count);
  }

  /// e^x
  MOSAIC_INLINE Vec exponential(Vec x) { return V::exp2(V::mul(x, V::set1(kLog2e))); }

  MOSAIC_INLINE void weigh(const RowFold& f, int32_t row, int32_t count) {
    float* s = f.weights + row * RowFold::kKeys;
    int32_t end = count;
    for (; end % L != 0; ++end) s[end] = -__builtin_inff();
    Vec top = V::set1(f.max[row]);
    for (int32_t j = 0; j < end; j += L) top = V::max(top, V::load(s + j));
    float lane[L];
    V::store(lane, top);
    float high = lane[0];
    for (int i = 1; i < L; ++i) high = lane[i] > high ? lane[i] : high;
    // 0 where a row has still seen nothing but −∞: a difference of infinities is NaN.
    const float m = high < -__FLT_MAX__ ? 0 : high;
    Vec sum = V::zero();
    for (int32_t j = 0; j < end; j += L) {
      const Vec p = exponential(V::sub(V::load(s + j), V::set1(m)));
      V::store(s + j, p);
      sum = V::add(sum, p);
    }
    if (high != f.max[row]) {
      const Vec shrink = exponential(V::set1(f.max[row] - m));
      V::store(lane, shrink);
      f.sum[row] *= lane[0];
      float* out = f.out + row * f.stride;
      for (int32_t d = 0; d < f.valueDepth; d += L) V::store(out + d, V::mul(V::load(out + d), shrink));
      f.max[row] = high;
    }
    f.sum[row] += V::sum(sum);
  }

  template <class Load, int rows, int keys>
  MOSAIC_INLINE void accumulate(const RowFold& f, int32_t row, const Rows& v, int32_t count) {
    int32_t j = 0;
    for (; j + keys <= count; j += keys) addValues<Load, rows, keys>(f, row, v, j);
    for (; j < count; ++j) addValues<Load, rows, 1>(f, row, v, j);
  }

  /// out += weights · v for some keys from j on.
  template <class Load, int rows, int keys>
  MOSAIC_INLINE void addValues(const RowFold& f, int32_t row, const Rows& v, int32_t j) {
    const auto* from = static_cast<const typename Load::Element*>(v.data) + j * v.rowStride;
    Vec p[rows][keys];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < keys; ++i) p[r][i] = V::set1(f.weights[(row + r) * RowFold::kKeys + j + i]);
    }
    for (int32_t d = 0; d < f.valueDepth; d += L) {
      Vec b[keys];
#pragma GCC unroll 8
      for (int i = 0; i < keys; ++i) b[i] = Load::load(from + i * v.rowStride + d);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        float* out = f.out + (row + r) * f.stride + d;
        Vec sum = V::load(out);
#pragma GCC unroll 8
        for (int i = 0; i < keys; ++i) sum = V::fma(p[r][i], b[i], sum);
        V::store(out, sum);
      }
    }
  }
};

}  // namespace mosaic
