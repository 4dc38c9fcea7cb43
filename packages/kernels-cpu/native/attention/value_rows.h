// The weighted sum of 16-bit values of a block that are read by rows, in place. Lanes lie along the columns of V, so
// that values are widened, or interleaved with those of the next key into pairs, in registers, a vector at a time. Read
// by columns, they would first be copied as float32, or transposed. The sums of a tile are transposed at its end and
// added to `out`, whose lanes are queries. Each of them is the same chain of multiply-adds as in a tile that reads
// columns (simd/register_tile.h).
#pragma once

#include "attention/attention_kernels.h"
#include "simd/elements.h"
#include "simd/inline.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Sums for panels of N vectors. A tile has L rows and one vector of columns.
template <class V, class E, int N>
struct ValueRows {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, width = N * L, valuesPerElement = E::valuesPerElement;

  /// out += p · v for the first `count` keys, a multiple of `valuesPerElement`. Rows of v have whole vectors and unit
  /// column stride. `prefetch` makes one step per element and tile.
  template <class P>
  MOSAIC_INLINE void accumulate(const ForwardPanel& panel, const Rows& v, int32_t count, P& prefetch) {
    if constexpr (valuesPerElement == 2) {
      addPairs(panel, v, count, prefetch);
    } else {
      v.dtype == DType::BFloat16 ? addRows<DType::BFloat16>(panel, v, count, prefetch)
                                 : addRows<DType::Float16>(panel, v, count, prefetch);
    }
  }

 private:
  /// Every `step`-th column from `first` on.
  struct Columns {
    int32_t first, step;
  };

  template <DType dtype, class P>
  MOSAIC_NOINLINE void addRows(const ForwardPanel& panel, const Rows& v, int32_t count, P& prefetch) {
    using Element = ElementOf<dtype>;
    int32_t d = 0;
    if constexpr (dtype == DType::BFloat16) {
      // Columns with even and those with odd indices are widened by one instruction each.
      for (; d + 2 * L <= panel.valueDepth; d += 2 * L) {
        const auto loadBits = [d](const Element* row) __attribute__((always_inline)) {
          return V::load(reinterpret_cast<const float*>(row + d));
        };
        const auto even = [&](const Element* row) __attribute__((always_inline)) {
          return widenEven<V>(loadBits(row));
        };
        const auto odd = [&](const Element* row) __attribute__((always_inline)) { return widenOdd<V>(loadBits(row)); };
        for (int n = 0; n < N; ++n) {
          addTile<Element>(panel, v, count, Columns{d, 2}, n, even, prefetch);
          addTile<Element>(panel, v, count, Columns{d + 1, 2}, n, odd, prefetch);
        }
      }
    }
    for (; d < panel.valueDepth; d += L) {
      const auto load = [d](const Element* row) __attribute__((always_inline)) {
        return loadVector<V, dtype>(row + d);
      };
      for (int n = 0; n < N; ++n) addTile<Element>(panel, v, count, Columns{d, 1}, n, load, prefetch);
    }
  }

  /// Adds products of pairs.
  template <class P>
  MOSAIC_NOINLINE void addPairs(const ForwardPanel& panel, const Rows& v, int32_t count, P& prefetch) {
    for (int32_t d = 0; d < panel.valueDepth; d += L) {
      const auto load = [&](const uint16_t* row) __attribute__((always_inline)) {
        return V::interleave(V::joinRows(row + d, row + v.rowStride + d));
      };
      for (int n = 0; n < N; ++n) addTile<uint16_t>(panel, v, count, Columns{d, 1}, n, load, prefetch);
    }
  }

  /// Adds the columns that `load` returns of a row of v, or of a pair of rows, for vector n of the rows of the panel.
  template <class Element, class Load, class P>
  MOSAIC_INLINE void addTile(const ForwardPanel& panel, const Rows& v, int32_t count, const Columns& columns, int n,
                             const Load& load, P& prefetch) {
    Vec sum[L];
#pragma GCC unroll 16
    for (int r = 0; r < L; ++r) sum[r] = V::zero();
    const auto* row = static_cast<const Element*>(v.data);
    const auto* p = static_cast<const typename E::Scalar*>(panel.p) + n * L * valuesPerElement;
    const int64_t rowStride = valuesPerElement * v.rowStride;
    auto sweep = prefetch.sweep(count / valuesPerElement);
#pragma GCC unroll 2
    for (int32_t j = 0; j < count; j += valuesPerElement, row += rowStride, p += width * valuesPerElement) {
      sweep.step();
      const auto values = load(row);
#pragma GCC unroll 16
      for (int r = 0; r < L; ++r) sum[r] = E::template multiplyAdd<V>(p + r * valuesPerElement, values, sum[r]);
    }
    float* out = panel.out + columns.first * width + n * L;
    const auto rowSum = [&](int r) __attribute__((always_inline)) { return sum[r]; };
    const auto addColumn = [&](int c, Vec column) __attribute__((always_inline)) {
      float* to = out + c * columns.step * width;
      V::store(to, V::add(V::load(to), column));
    };
    V::transposeRows(rowSum, addColumn);
  }
};

}  // namespace mosaic
