// The epilogue of finished sums between a buffer and out: bias, activation and gate.
#pragma once

#include "gemm/gemm_kernels.h"
#include "kernels/elementwise.h"
#include "simd/elements.h"

namespace mosaic {
namespace {

/// Finished sums in a buffer that may be overwritten: [rows][width], of which `columns` are used.
struct FinishedSums {
  float* values;
  int64_t rows, columns, width;  // width is a multiple of the lanes
  const float* earlier;          // [rows][columns], added to the sums; or null
  int64_t earlierStride;
};

/// out ← sums, + out if `add`, and the epilogue, which is null or starts at the first row and column of out.
template <class V>
class SumsStore {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes;

 public:
  MOSAIC_NOINLINE void run(const FinishedSums& sums, const Matrix& out, bool add, const GemmEpilogue* epilogue) {
    const bool areSumsComplete =
        !sums.earlier && !add && !(epilogue && (epilogue->columnBias || epilogue->rowBias || epilogue->preActivation));
    for (int64_t row = 0; !areSumsComplete && row < sums.rows; row++) completeRow(sums, row, out, add, epilogue);
    const char* gate = epilogue ? epilogue->gate : nullptr;
    if (!epilogue || !epilogue->hasActivation) return storeRows(sums, out, gate, [](Vec x) { return x; });
    visitUnary<V>(epilogue->activation, [&](const auto& activation) __attribute__((always_inline)) {
      storeRows(sums, out, gate, activation);
    });
  }

 private:
  /// Calls fn(first column, number of columns) for one vector at a time. The number is a constant for full vectors.
  template <class Fn>
  MOSAIC_INLINE void forEachVector(int64_t columns, const Fn& fn) {
    int64_t c = 0;
    for (; c + L <= columns; c += L) fn(c, L);
    if (c < columns) fn(c, static_cast<int>(columns - c));
  }

  MOSAIC_INLINE Vec loadLanes(const float* from, int n) { return n == L ? V::load(from) : V::loadPartial(from, n); }

  MOSAIC_INLINE void completeRow(const FinishedSums& sums, int64_t row, const Matrix& out, bool add,
                                 const GemmEpilogue* epilogue) {
    float* values = sums.values + row * sums.width;
    const float* earlier = sums.earlier ? sums.earlier + row * sums.earlierStride : nullptr;
    const float* columnBias = epilogue ? epilogue->columnBias : nullptr;
    const float* rowBias = epilogue ? epilogue->rowBias : nullptr;
    char* preActivation = epilogue ? epilogue->preActivation : nullptr;
    forEachVector(sums.columns, [&](int64_t c, int n) __attribute__((always_inline)) {
      Vec x = V::load(values + c);
      if (earlier) x = V::add(x, loadLanes(earlier + c, n));
      if (add) x = V::add(loadElements<V>(out.dtype, at(out, row, c), out.columnStride, n), x);
      if (columnBias) x = V::add(x, loadLanes(columnBias + c, n));
      if (rowBias) x = V::add(x, V::set1(rowBias[row]));
      if (preActivation)
        storeElements<V>(out.dtype, preActivation + (at(out, row, c) - out.data), out.columnStride, x, n);
      V::store(values + c, x);
    });
  }

  /// Stores complete sums: activated, or multiplied by their activated gates.
  template <class Activation>
  MOSAIC_INLINE void storeRows(const FinishedSums& sums, const Matrix& out, const char* gate,
                               const Activation& activation) {
    for (int64_t row = 0; row < sums.rows; row++) {
      const float* values = sums.values + row * sums.width;
      char* to = at(out, row, 0);
      const int64_t step = out.columnStride * dtypeBytes(out.dtype);
      for (int64_t c = 0; c < sums.columns; c += L, to += L * step) {
        const int n = static_cast<int>(minOf(L, sums.columns - c));
        const Vec x = V::load(values + c);
        const Vec gates = gate ? loadElements<V>(out.dtype, gate + (to - out.data), out.columnStride, n) : x;
        const Vec activated = activation(gates);
        storeElements<V>(out.dtype, to, out.columnStride, gate ? V::mul(x, activated) : activated, n);
      }
    }
  }
};

/// Stores products that were computed in float32, to any dtype and strides.
template <class V>
class ProductStore {
  static constexpr int64_t L = V::lanes, kLineElements = 64;  // elements of a column at a time

 public:
  MOSAIC_NOINLINE void run(const GemmStore& store) {
    if (store.out.columnStride != 1 && store.out.rowStride == 1) return storeColumns(store);
    for (int64_t r = 0; r < store.rows; r++) storeRow(store.sums + r * store.sumStride, store, r);
  }

 private:
  /// Stores to an out whose columns are dense: its columns are written as rows of a transposed block of sums.
  MOSAIC_NOINLINE void storeColumns(const GemmStore& store) {
    alignas(64) float block[L * kLineElements];
    const auto& [sums, sumStride, rows, columns, out, add, epilogue] = store;
    for (int64_t r = 0; r < rows; r += kLineElements) {
      for (int64_t c = 0; c < columns; c += L) {
        const MatrixPart part{r, minOf(kLineElements, rows - r), c, minOf(L, columns - c)};
        transposeSums(store, part, block);
        const Matrix lines{at(out, r, c), out.dtype, out.columnStride, out.rowStride};
        const GemmEpilogue lineEpilogue =
            epilogue ? transposed(epilogueAt(*epilogue, r, c, lines.data - out.data)) : GemmEpilogue{};
        const GemmStore lineStore{
            block, kLineElements, part.columns, part.rows, lines, add, epilogue ? &lineEpilogue : nullptr};
        for (int64_t i = 0; i < part.columns; i++) storeRow(block + i * kLineElements, lineStore, i);
      }
    }
  }

  /// [columns of the part, at most a vector of them][kLineElements] ← the transposed part of the sums.
  MOSAIC_INLINE void transposeSums(const GemmStore& store, const MatrixPart& part, float* to) {
    for (int64_t r = 0; r < part.rows; r += L) {
      const float* from = store.sums + (part.row + r) * store.sumStride + part.column;
      if (part.columns == L && r + L <= part.rows) {
        V::transpose(from, store.sumStride, to + r, kLineElements);
        continue;
      }
      for (int64_t i = 0; i < minOf(L, part.rows - r); i++) {
        for (int64_t c = 0; c < part.columns; c++) to[c * kLineElements + r + i] = from[i * store.sumStride + c];
      }
    }
  }

  MOSAIC_NOINLINE void storeRow(const float* values, const GemmStore& store, int64_t row) {
    const Matrix& out = store.out;
    for (int64_t j = 0; j < store.columns; j += kChunkElements) {
      const int64_t n = minOf(kChunkElements, store.columns - j), paddedColumns = roundUp(n, L);
      Matrix chunkOut = out;
      chunkOut.data = at(out, row, j);
      if (!store.add && !store.epilogue) {
        flush<V>(out.dtype, chunkOut.data, out.columnStride, n, values + j);
        continue;
      }
      alignas(64) float sums[kChunkElements];
      __builtin_memcpy(sums, values + j, static_cast<size_t>(n) * sizeof *sums);
      for (int64_t c = n; c < paddedColumns; c++) sums[c] = 0;
      const GemmEpilogue epilogue =
          store.epilogue ? epilogueAt(*store.epilogue, row, j, chunkOut.data - out.data) : GemmEpilogue{};
      SumsStore<V>::run({sums, 1, n, paddedColumns, nullptr, 0}, chunkOut, store.add,
                        store.epilogue ? &epilogue : nullptr);
    }
  }
};

}  // namespace
}  // namespace mosaic
