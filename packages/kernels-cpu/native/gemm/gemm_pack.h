// Packs operands of matrix multiplication into the order in which they are read.
#pragma once

#include "gemm/gemm_kernels.h"
#include "kernels/lanes.h"
#include "simd/pair_packing.h"
#include "simd/register_tile.h"

namespace mosaic {
namespace {

/// Lines a multiple of a page apart map to the same few cache sets.
MOSAIC_INLINE bool isPageMultiple(int64_t strideBytes) { return strideBytes % 4096 == 0; }

/// Whether rows `strideBytes` apart can be read in place. If they map to the same cache sets, they are evicted before
/// the next panels read them.
MOSAIC_INLINE bool avoidsCacheConflicts(const MatrixPart& part, int64_t strideBytes, int64_t panels) {
  return !isPageMultiple(strideBytes) || part.rows <= 4 || panels <= 2;
}

template <class V, class E>
struct GemmPack;

template <class V>
struct GemmPack<V, Float32Operands> {
  static constexpr int64_t L = V::lanes, width = V::wideVectors * L;
  static constexpr int32_t depthMultiple = 1, rowMultiple = 1;
  /// Panels for which rows are read from columns of a in place: each step of a tile reads one or two lines, which other
  /// rows share. For more panels, transposing the rows once is faster. Lines of columns a multiple of a page apart come
  /// from the last-level cache; only a step with vectors of 16 lanes takes that long. Scalar has the same number of
  /// lanes, so that it tests the same code.
  static constexpr int64_t kMaxColumnPanels = L == 16 ? 24 : 8;

  /// Packs as [depth][width], padded with zeros.
  MOSAIC_NOINLINE void packColumns(const Matrix& b, const MatrixPart& part, void* panel) {
    auto* packedPanel = static_cast<float*>(panel);
    if (b.dtype == DType::Float32 && b.columnStride == 1 && part.columns == width) {
      const auto* from = reinterpret_cast<const float*>(at(b, part.row, part.column));
      for (int64_t d = 0; d < part.rows; d++, from += b.rowStride) {
        for (int64_t i = 0; i < width; i += L) V::store(packedPanel + d * width + i, V::load(from + i));
      }
    } else if (b.columnStride == 1 || b.rowStride != 1) {
      for (int64_t d = 0; d < part.rows; d++) {
        float* row = packedPanel + d * width;
        const char* data = at(b, part.row + d, part.column);
        const float* from = fetch<V>(b.dtype, data, b.columnStride, part.columns, row);
        if (from != row) __builtin_memcpy(row, from, static_cast<size_t>(part.columns) * sizeof(float));
        for (int64_t i = part.columns; i < width; i++) row[i] = 0;
      }
    } else {
      transposeColumns(b, part, packedPanel);
    }
  }

  MOSAIC_NOINLINE Operand packRows(const Matrix& a, const MatrixPart& part, int64_t panels, void* buffer) {
    const char* first = at(a, part.row, part.column);
    if (a.dtype == DType::Float32 && a.columnStride == 1 && avoidsCacheConflicts(part, a.rowStride * 4, panels)) {
      return {first, a.rowStride, 1};
    }
    if (a.dtype == DType::Float32 && a.rowStride == 1) {
      const bool areColumnsPagesApart = isPageMultiple(a.columnStride * 4);
      if (panels <= kMaxColumnPanels && (L == 16 || !areColumnsPagesApart)) return {first, 1, a.columnStride};
      if (part.rows >= L && part.columns >= L) {
        transposeRows(a, part, static_cast<float*>(buffer));
        return {buffer, part.columns, 1};
      }
      if (!areColumnsPagesApart) return {first, 1, a.columnStride};
    }
    const bool areLinesRows = a.rowStride != 1;
    const int64_t length = areLinesRows ? part.columns : part.rows, count = areLinesRows ? part.rows : part.columns;
    for (int64_t line = 0; line < count; line++) {
      const char* data = areLinesRows ? at(a, part.row + line, part.column) : at(a, part.row, part.column + line);
      float* to = static_cast<float*>(buffer) + line * length;
      const float* from = fetch<V>(a.dtype, data, areLinesRows ? a.columnStride : 1, length, to);
      if (from != to) __builtin_memcpy(to, from, static_cast<size_t>(length) * sizeof(float));
    }
    return areLinesRows ? Operand{buffer, length, 1} : Operand{buffer, 1, length};
  }

 private:
  /// Packs a that is stored along rows, as [rows][depth], by transposing squares of it. The last squares overlap with
  /// those before them. There are at least L rows and L depths.
  MOSAIC_NOINLINE void transposeRows(const Matrix& a, const MatrixPart& part, float* to) {
    const auto* from = reinterpret_cast<const float*>(at(a, part.row, part.column));
    for (int64_t i = 0; i < part.columns; i += L) {
      const int64_t d = minOf(i, part.columns - L);
      for (int64_t j = 0; j < part.rows; j += L) {
        const int64_t r = minOf(j, part.rows - L);
        V::transpose(from + d * a.columnStride + r, a.columnStride, to + r * part.columns + d, part.columns);
      }
    }
  }

  /// Packs b that is stored along depth, by transposing squares of it.
  MOSAIC_NOINLINE void transposeColumns(const Matrix& b, const MatrixPart& part, float* packedPanel) {
    float square[L][L], transposed[L][L];
    for (int64_t d = 0; d < part.rows; d += L) {
      const int64_t count = minOf(L, part.rows - d);
      for (int64_t i = 0; i < width; i += L) {
        for (int64_t lane = 0; lane < L; lane++) {
          float* row = square[lane];
          const bool isPresent = i + lane < part.columns;
          const char* data = at(b, part.row + d, part.column + i + lane);
          const float* from = isPresent ? fetch<V>(b.dtype, data, 1, count, row) : nullptr;
          for (int64_t e = 0; e < L; e++) row[e] = from && e < count ? from[e] : 0.0f;
        }
        V::transpose(square[0], L, transposed[0], L);
        for (int64_t e = 0; e < count; e++) V::store(packedPanel + (d + e) * width + i, V::load(transposed[e]));
      }
    }
  }
};

/// Packing for products whose operands are both bfloat16.
template <class V>
struct GemmPack<V, Bf16Operands> {
  static constexpr int64_t L = V::lanes, width = PairShape<V>::wideVectors * L;
  static constexpr int32_t depthMultiple = 2 * V::lanes;
  static constexpr int32_t rowMultiple = PairShape<V>::wideRows == 32 ? 32 : 1;

  /// Packs as pairs: [depth / 2][width], padded with zeros to `depthMultiple`.
  MOSAIC_NOINLINE void packColumns(const Matrix& b, const MatrixPart& part, void* panel) {
    auto* packedPanel = static_cast<uint32_t*>(panel);
    if (b.columnStride != 1 && b.rowStride == 1) return transposeColumns(b, part, packedPanel);
    for (int64_t d = 0; d < roundUp(part.rows, depthMultiple); d += 2) {
      uint16_t copy[2][width];
      const uint16_t* rows[2];
      for (int64_t i = 0; i < 2; i++) {
        const bool isPresent = d + i < part.rows;
        const auto* from = reinterpret_cast<const uint16_t*>(at(b, part.row + d + i, part.column));
        if (isPresent && b.columnStride == 1 && part.columns == width) {
          rows[i] = from;
          continue;
        }
        for (int64_t c = 0; c < width; c++) copy[i][c] = isPresent && c < part.columns ? from[c * b.columnStride] : 0;
        rows[i] = copy[i];
      }
      PairPacking<V>::pairRows(rows[0], rows[1], packedPanel + d / 2 * width, width);
    }
  }

  MOSAIC_NOINLINE Operand packRows(const Matrix& a, const MatrixPart& part, int64_t panels, void* buffer) {
    const bool isAligned = part.rows % rowMultiple == 0 && part.columns % (rowMultiple == 1 ? 2 : depthMultiple) == 0;
    if (a.columnStride == 1 && isAligned && avoidsCacheConflicts(part, a.rowStride * 2, panels)) {
      return {at(a, part.row, part.column), a.rowStride, 1};
    }
    const int64_t stride = roundUp(part.columns, depthMultiple);
    auto* to = static_cast<uint16_t*>(buffer);
    if (a.rowStride == 1 && a.columnStride != 1) {
      transposeRows(a, part, to, stride);
    } else {
      for (int64_t r = 0; r < part.rows; r++) {
        const auto* from = reinterpret_cast<const uint16_t*>(at(a, part.row + r, part.column));
        gather(from, a.columnStride, to + r * stride, part.columns);
        for (int64_t c = part.columns; c < stride; c++) to[r * stride + c] = 0;
      }
    }
    const int64_t padding = ceilDiv(part.rows, rowMultiple) * rowMultiple - part.rows;
    __builtin_memset(to + part.rows * stride, 0, static_cast<size_t>(padding * stride) * sizeof *to);
    return {to, stride, 1};
  }

 private:
  /// Packs b that is stored along depth.
  MOSAIC_NOINLINE void transposeColumns(const Matrix& b, const MatrixPart& part, uint32_t* packedPanel) {
    for (int64_t d = 0; d < part.rows; d += depthMultiple) {
      const int64_t count = minOf(depthMultiple, part.rows - d);
      for (int64_t i = 0; i < width; i += L) {
        uint16_t copies[L][depthMultiple];
        PairPacking<V>::transpose(
            [&](int64_t lane) {
              return readLine(at(b, part.row + d, part.column + i + lane), i + lane < part.columns, count,
                              copies[lane]);
            },
            packedPanel + d / 2 * width + i, width);
      }
    }
  }

  /// Packs a that is stored along rows.
  MOSAIC_NOINLINE void transposeRows(const Matrix& a, const MatrixPart& part, uint16_t* to, int64_t stride) {
    for (int64_t c = 0; c < part.columns; c += depthMultiple) {
      for (int64_t r = 0; r < part.rows; r += L) {
        const int64_t count = minOf(L, part.rows - r);
        uint16_t copies[depthMultiple][L];
        PairPacking<V>::transposeRows(
            [&](int64_t i) {
              return readLine<L>(at(a, part.row + r, part.column + c + i), c + i < part.columns, count, copies[i]);
            },
            to + r * stride + c, stride, count);
      }
    }
  }

  /// Returns n of `total` elements: in place, or copied to `copy` and padded with zeros; null if the line is not
  /// present.
  template <int total = depthMultiple>
  MOSAIC_INLINE const uint16_t* readLine(const char* data, bool isLinePresent, int64_t n, uint16_t (&copy)[total]) {
    if (!isLinePresent) return nullptr;
    if (n == total) return reinterpret_cast<const uint16_t*>(data);
    for (int64_t i = 0; i < total; i++) copy[i] = 0;
    __builtin_memcpy(copy, data, static_cast<size_t>(n) * sizeof *copy);
    return copy;
  }
};

}  // namespace
}  // namespace mosaic
