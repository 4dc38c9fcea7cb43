// The product of a few rows and a matrix that is stored along the reduction dimension, such as a weight [out, in]. Each
// element is one dot product that reads both operands in place. Packing the weight, which is read once, would take
// longer than the product.
#pragma once

#include "gemm/gemm_kernels.h"
#include "kernels/lanes.h"
#include "simd/elements.h"

namespace mosaic {
namespace {

template <class V>
struct RowProduct {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes;
  static constexpr int numAccumulators =
      L >= 16 || V::isa == Isa::Neon || V::isa == Isa::NeonBf16 ? 16 : 8;  // in registers
  // Rows per tile. Scalar vectors are loops that compilers unroll; with more rows they would be a tenth of the addon's
  // code.
  static constexpr int maxRows = V::isa == Isa::Scalar ? 1 : 8;

  /// Converts a row to float32, padded with zeros to a multiple of 16.
  MOSAIC_NOINLINE void widenRow(const Matrix& a, int64_t row, int64_t columns, float* to) {
    for (int64_t c = 0; c < columns; c += kChunkElements) {
      const int64_t n = minOf(kChunkElements, columns - c);
      const float* from = fetch<V>(a.dtype, at(a, row, c), a.columnStride, n, to + c);
      if (from != to + c) __builtin_memcpy(to + c, from, static_cast<size_t>(n) * sizeof *to);
    }
    for (int64_t c = columns; c % 16 != 0; c++) to[c] = 0;
  }

  MOSAIC_NOINLINE void multiply(const RowDots& dots) {
    switch (dots.b.dtype) {
      case DType::Float32: return multiplyByRows<DType::Float32>(dots);
      case DType::BFloat16: return multiplyByRows<DType::BFloat16>(dots);
      case DType::Float16: return multiplyByRows<DType::Float16>(dots);
    }
  }

 private:
  template <DType dtype>
  MOSAIC_NOINLINE void multiplyByRows(const RowDots& dots) {
    for (int64_t row = 0; row < dots.rows; row += maxRows) {
      const int64_t count = minOf(maxRows, dots.rows - row);
      dispatchByRowCount<dtype, maxRows>(dots, row, count);
    }
  }

  /// Calls `multiplyByColumns` for `count` ≤ `rows` rows.
  template <DType dtype, int rows>
  MOSAIC_INLINE void dispatchByRowCount(const RowDots& dots, int64_t row, int64_t count) {
    if (count == rows) return multiplyByColumns<dtype, rows>(dots, row);
    if constexpr (rows > 1) dispatchByRowCount<dtype, rows - 1>(dots, row, count);
  }

  /// Computes whole rows. Each element is summed in the same order, whatever tile it is in.
  template <DType dtype, int rows>
  MOSAIC_NOINLINE void multiplyByColumns(const RowDots& dots, int64_t row) {
    constexpr int columns = rows == 1                    ? 8
                            : numAccumulators / rows < 1 ? 1
                            : numAccumulators / rows > 4 ? 4
                                                         : numAccumulators / rows;
    int64_t column = 0;
    for (; column + columns <= dots.columns; column += columns) computeTile<dtype, rows, columns>(dots, row, column);
    for (; column < dots.columns; column++) computeTile<dtype, rows, 1>(dots, row, column);
  }

  template <DType dtype, int rows, int columns>
  MOSAIC_INLINE void computeTile(const RowDots& dots, int64_t row, int64_t column) {
    using Element = ElementOf<dtype>;
    const float* a = dots.a + row * dots.aStride;
    const auto* b = reinterpret_cast<const Element*>(at(dots.b, 0, column));
    Vec c[rows][columns];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int j = 0; j < columns; j++) c[r][j] = V::zero();
    }
    int64_t k = 0;
    for (; k + L <= dots.depth; k += L) {
      step<rows, columns>(c, a + k, dots.aStride, [&](int j) {
        const Element* values = b + j * dots.b.columnStride + k;
        // Prefetches the tile after the next one, because rows of a weight are too short for the hardware prefetcher.
        __builtin_prefetch(values + 2 * columns * dots.b.columnStride, 0, 2);
        return loadVector<V, dtype>(values);
      });
    }
    if (k < dots.depth) {
      step<rows, columns>(c, a + k, dots.aStride, [&](int j) {
        Element tail[L] = {};
        __builtin_memcpy(tail, b + j * dots.b.columnStride + k, static_cast<size_t>(dots.depth - k) * sizeof(Element));
        return loadVector<V, dtype>(tail);
      });
    }
    float* out = dots.out + row * dots.outStride + column;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
      for (int j = 0; j < columns; j++) out[r * dots.outStride + j] = V::sum(c[r][j]);
    }
  }

  template <int rows, int columns, class LoadAt>
  MOSAIC_INLINE void step(Vec (&c)[rows][columns], const float* a, int64_t stride, LoadAt load) {
    Vec b[columns];
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++) b[j] = load(j);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const Vec x = V::load(a + r * stride);
#pragma GCC unroll 8
      for (int j = 0; j < columns; j++) c[r][j] = V::fma(x, b[j], c[r][j]);
    }
  }
};

}  // namespace
}  // namespace mosaic
