// Brings operands of matrix multiplication into the order in which they are read.
#pragma once

#include "kernels/gemm_tile.h"
#include "kernels/lanes.h"

namespace mosaic {
namespace {

struct Matrix {
  char* data;
  DType dtype;
  int64_t rowStride, columnStride;
};

MOSAIC_INLINE char* at(const Matrix& m, int64_t row, int64_t column) {
  return m.data + (row * m.rowStride + column * m.columnStride) * dtypeBytes(m.dtype);
}

/// Columns [j, j + n) of b, depths [k, k + depth) → packed [depth][GemmTile::columns], padded with zeros.
template <class T>
MOSAIC_NOINLINE void packColumns(const Matrix& b, int64_t j, int64_t n, int64_t k, int64_t depth, float* packed) {
  constexpr int64_t width = GemmTile<T>::columns;
  if (b.dtype == DType::Float32 && b.columnStride == 1 && n == width) {
    const auto* from = reinterpret_cast<const float*>(at(b, k, j));
    for (int64_t d = 0; d < depth; d++) {
      for (int64_t i = 0; i < width; i += T::lanes) T::store(packed + d * width + i, T::load(from + i));
      from += b.rowStride;
    }
    return;
  }
  if (b.columnStride == 1 || b.rowStride != 1) {
    for (int64_t d = 0; d < depth; d++) {
      float* row = packed + d * width;
      const float* from = fetch<T>(b.dtype, at(b, k + d, j), b.columnStride, n, row);
      if (from != row) {
        for (int64_t i = 0; i < n; i++) row[i] = from[i];
      }
      for (int64_t i = n; i < width; i++) row[i] = 0;
    }
    return;
  }
  // b lies along depth: turn squares of it.
  float square[T::lanes][T::lanes], transposed[T::lanes][T::lanes];
  for (int64_t d = 0; d < depth; d += T::lanes) {
    const int64_t high = minOf(T::lanes, depth - d);
    for (int64_t i = 0; i < width; i += T::lanes) {
      for (int64_t lane = 0; lane < T::lanes; lane++) {
        float* row = square[lane];
        const float* from = i + lane < n ? fetch<T>(b.dtype, at(b, k + d, j + i + lane), 1, high, row) : nullptr;
        for (int64_t e = 0; e < T::lanes; e++) row[e] = from && e < high ? from[e] : 0.0f;
      }
      T::transpose(square[0], T::lanes, transposed[0], T::lanes);
      for (int64_t e = 0; e < high; e++) T::store(packed + (d + e) * width + i, T::load(transposed[e]));
    }
  }
}

/// Rows of a as the tile reads them: along depth if `dense`, else along rows.
struct PackedRows {
  const float* data;
  int64_t rowStride, depthStride;
  bool dense;
};

/// Rows [i, i + m) of a, depths [k, k + depth): where they lie if the tile can read them there, else in `buffer`.
template <class T>
MOSAIC_NOINLINE PackedRows packRows(const Matrix& a, int64_t i, int64_t m, int64_t k, int64_t depth, float* buffer) {
  // Rows a multiple of a page apart would fall into the same few cache sets.
  const bool apart = a.rowStride % 1024 != 0 || m <= 4;
  if (a.dtype == DType::Float32 && a.columnStride == 1 && apart) {
    return {reinterpret_cast<const float*>(at(a, i, k)), a.rowStride, 1, true};
  }
  if (a.dtype == DType::Float32 && a.rowStride == 1 && a.columnStride % 1024 != 0) {
    return {reinterpret_cast<const float*>(at(a, i, k)), 1, a.columnStride, false};
  }
  const bool dense = a.rowStride != 1;
  const int64_t length = dense ? depth : m, count = dense ? m : depth;
  for (int64_t line = 0; line < count; line++) {
    const char* data = dense ? at(a, i + line, k) : at(a, i, k + line);
    float* to = buffer + line * length;
    const float* from = fetch<T>(a.dtype, data, dense ? a.columnStride : 1, length, to);
    if (from != to) __builtin_memcpy(to, from, static_cast<size_t>(length) * sizeof(float));
  }
  return dense ? PackedRows{buffer, depth, 1, true} : PackedRows{buffer, 1, m, false};
}

}  // namespace
}  // namespace mosaic
