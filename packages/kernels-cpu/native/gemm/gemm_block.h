// The product of packed blocks, tile by tile, and the epilogue of a tile before it is stored.
#pragma once

#include "gemm/gemm_epilogue.h"
#include "gemm/gemm_kernels.h"
#include "gemm/gemm_pack.h"
#include "kernels/lanes.h"
#include "simd/register_tile.h"

namespace mosaic {
namespace {

template <class V, class E>
struct BlockProduct {
  using Vec = typename V::Vec;
  using Shape = typename E::template Shape<V>;
  static constexpr int L = V::lanes, N = Shape::wideVectors, width = N * L;

  MOSAIC_NOINLINE void multiply(const GemmBlock& block) {
    const MatrixUnit<V> unit;
    for (int64_t j = 0; j < block.columns; j += width) multiplyPanel<N>(block, j);
  }

 private:
  /// Uses tiles of fewer vectors and more rows if the columns do not fill a panel.
  template <int vectors>
  MOSAIC_INLINE void multiplyPanel(const GemmBlock& block, int64_t j) {
    if constexpr (vectors > 1 && !RegisterTile<V, E, Shape::wideRows, N>::isAsynchronous) {
      if (block.columns - j <= (vectors - 1) * L) return multiplyPanel<vectors - 1>(block, j);
    }
    const void* panel = static_cast<const char*>(block.panels) + j / width * block.panelBytes;
    forEachTile<Shape::wideRows * N / vectors>(0, static_cast<int32_t>(block.rows), [&]<int rows>(int32_t i) {
      if (vectors == N && j > 0) return computeTile<rows, vectors>(block, panel, i, j);
      computeTileAndPack<rows, vectors>(block, panel, i, j);
    });
  }

  /// Computes a tile and prefetches part of the next panel, which follows in memory.
  template <int rows, int vectors>
  MOSAIC_NOINLINE void computeTile(const GemmBlock& block, const void* panel, int32_t i, int64_t j) {
    const UpcomingReads share = nextPanel(block, j, i, i + rows);
    LineSweep sweep{static_cast<const char*>(share.data),
                    share.bytes / RegisterTile<V, E, rows, vectors>::numSteps(block.depth)};
    computeTile<rows, vectors>(block, panel, i, j, sweep);
  }

  /// Computes a tile of the first panel, or of one that is not full. Also prefetches rows of the next tile, which no
  /// panel has read before. If there is a block to pack next, a share of it is prefetched instead of the next panel,
  /// and packed at once. Rows that are a multiple of a page apart map to so few sets of a cache that a whole block of
  /// them would evict itself.
  template <int rows, int vectors>
  MOSAIC_NOINLINE void computeTileAndPack(const GemmBlock& block, const void* panel, int32_t i, int64_t j) {
    const MatrixPart share = shareOf(block.next.part, i, minOf(i + rows, block.rows), block.rows);
    PrefetchPair prefetch{Prefetch(nextRows(block, i + rows, minOf(rows, block.rows - i - rows))),
                          Prefetch(share.rows > 0 ? readsOf(block.next.b, share) : nextPanel(block, j, i, i + rows))};
    computeTile<rows, vectors>(block, panel, i, j, prefetch);
    if (share.rows == 0) return;
    const int64_t offset = (share.row - block.next.part.row) * width * static_cast<int64_t>(sizeof(typename E::Scalar));
    GemmPack<V, E>::packColumns(block.next.b, share, static_cast<char*>(block.next.panel) + offset);
  }

  template <int rows, int vectors, class P>
  MOSAIC_INLINE void computeTile(const GemmBlock& block, const void* panel, int32_t i, int64_t j, P& prefetch) {
    using Tile = RegisterTile<V, E, rows, vectors>;
    prefetchOut(block, {i, minOf(rows, block.rows - i), j, minOf(vectors * L, block.columns - j)});
    Tile c;
    Tile::product(c, rowsAt<E>(block.a, i), panel, width, block.depth, prefetch);
    const int64_t remainingRows = block.rows - i;
    const int presentRows = rows == 32 && remainingRows < rows ? static_cast<int>(remainingRows) : rows;
    const bool isWhole = j + vectors * L <= block.columns;
    const GemmEpilogue* e = block.epilogue;
    if (e && (e->hasActivation || e->rowBias || e->gate || e->preActivation)) {
      storeWithEpilogue<vectors>(block, c, i, j, presentRows);
    } else if (isWhole && block.out.dtype == DType::Float32 && block.sum == nullptr) {
      storeFullTile<vectors>(block, c, i, j, presentRows);
    } else if (isWhole && block.out.dtype == DType::BFloat16 && !block.add) {
      storeFullBf16Tile<vectors>(block, c, i, j, presentRows);
    } else {
      storePartialTile<vectors>(block, c, i, j, presentRows);
    }
  }

  /// Prefetches the memory that a tile is stored to, and its gate, so that lines arrive while the tile is computed and
  /// its stores do not delay the next tile.
  MOSAIC_INLINE void prefetchOut(const GemmBlock& block, const MatrixPart& part) {
    const int64_t bytes = part.columns * dtypeBytes(block.out.dtype);
    const char* gate = block.epilogue ? block.epilogue->gate : nullptr;
    for (int64_t r = 0; r < part.rows; r++) {
      const char* row = at(block.out, part.row + r, part.column);
      for (int64_t b = 0; b < bytes; b += kCacheLineBytes) __builtin_prefetch(row + b, 1);
      if (!gate) continue;
      const char* gateRow = gate + (row - block.out.data);
      for (int64_t b = 0; b < bytes; b += kCacheLineBytes) __builtin_prefetch(gateRow + b);
    }
  }

  /// Returns `count` rows of a from `first` on; empty if a is stored along rows.
  MOSAIC_INLINE UpcomingReads nextRows(const GemmBlock& block, int64_t first, int64_t count) {
    if (block.a.step != 1 || count <= 0) return {};
    constexpr int64_t elementBytes = sizeof(typename E::Scalar);
    return {rowsAt<E>(block.a, first).data, count, block.a.rowStride * elementBytes, block.depth * elementBytes};
  }

  /// Returns the share of the panel after that of column j for rows [from, to); empty after the last panel.
  MOSAIC_INLINE UpcomingReads nextPanel(const GemmBlock& block, int64_t j, int64_t from, int64_t to) {
    if (j + width >= block.columns) return {};
    const char* next = static_cast<const char*>(block.panels) + (j / width + 1) * block.panelBytes;
    const int64_t begin = from * block.panelBytes / block.rows, end = to * block.panelBytes / block.rows;
    return {next + begin, 1, 0, end - begin};
  }

  /// Returns the share of the depths of `part` for rows [from, to) out of `rows`, in whole cache lines except for the
  /// last.
  MOSAIC_INLINE MatrixPart shareOf(const MatrixPart& part, int64_t from, int64_t to, int64_t rows) {
    constexpr int64_t unit = 2 * L;  // depth of squares of pairs
    const int64_t units = ceilDiv(part.rows, unit), first = from * units / rows * unit;
    return {part.row + first, minOf(to * units / rows * unit, part.rows) - first, part.column, part.columns};
  }

  /// Returns the memory that packing `part` of b reads; empty if neither rows nor columns are dense.
  MOSAIC_INLINE UpcomingReads readsOf(const Matrix& b, const MatrixPart& part) {
    if (part.rows == 0) return {};
    const int64_t elementSize = dtypeBytes(b.dtype);
    const char* data = at(b, part.row, part.column);
    if (b.rowStride == 1) return {data, part.columns, b.columnStride * elementSize, part.rows * elementSize};
    return {data, part.rows, b.rowStride * elementSize, b.columnStride == 1 ? part.columns * elementSize : 0};
  }

  template <int vectors, class Tile>
  MOSAIC_INLINE void storeFullTile(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    auto* out = reinterpret_cast<float*>(at(block.out, i, j));
    const float* bias = block.epilogue ? block.epilogue->columnBias : nullptr;
    for (int r = 0; r < presentRows; r++, out += block.out.rowStride) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) {
        Vec x = Tile::get(c, r, n);
        if (block.add) x = V::add(V::load(out + n * L), x);
        if (bias) x = V::add(x, V::load(bias + j + n * L));
        V::store(out + n * L, x);
      }
    }
  }

  template <int vectors, class Tile>
  MOSAIC_INLINE void storeFullBf16Tile(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    auto* out = reinterpret_cast<uint16_t*>(at(block.out, i, j));
    const float* bias = block.epilogue ? block.epilogue->columnBias : nullptr;
    const float* sum = block.sum ? block.sum + i * block.sumStride + j : nullptr;
    for (int r = 0; r < presentRows; r++, out += block.out.rowStride) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) {
        Vec x = Tile::get(c, r, n);
        if (sum) x = V::add(x, V::load(sum + r * block.sumStride + n * L));
        if (bias) x = V::add(x, V::load(bias + j + n * L));
        V::storeBf16(out + n * L, x);
      }
    }
  }

  /// Stores a tile that may be partial, to any dtype.
  template <int vectors, class Tile>
  MOSAIC_INLINE void storePartialTile(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    for (int r = 0; r < presentRows; r++) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) {
        const int64_t column = j + n * L, remainingColumns = block.columns - column;
        if (remainingColumns <= 0) break;
        const int laneCount = remainingColumns < L ? static_cast<int>(remainingColumns) : L;
        Vec x = Tile::get(c, r, n);
        if (block.sum) x = V::add(x, V::loadPartial(block.sum + (i + r) * block.sumStride + column, laneCount));
        const float* bias = block.epilogue ? block.epilogue->columnBias : nullptr;
        storeVector(block, at(block.out, i + r, column), x, {bias ? bias + column : nullptr, laneCount});
      }
    }
  }

  /// Stores a tile through memory, row by row, in one function, because it needs tens of instructions.
  template <int vectors, class Tile>
  MOSAIC_INLINE void storeWithEpilogue(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    constexpr int tileWidth = vectors * L;
    alignas(64) float sums[sizeof(Tile) / sizeof(float)];
    for (int r = 0; r < presentRows; r++) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) V::store(sums + r * tileWidth + n * L, Tile::get(c, r, n));
    }
    Matrix out = block.out;
    out.data = at(out, i, j);
    const GemmEpilogue epilogue = epilogueAt(*block.epilogue, i, j, out.data - block.out.data);
    const float* earlier = block.sum ? block.sum + i * block.sumStride + j : nullptr;
    SumsStore<V>::run({sums, presentRows, minOf(tileWidth, block.columns - j), tileWidth, earlier, block.sumStride},
                      out, block.add, &epilogue);
  }

  /// The first `count` lanes of a vector.
  struct Lanes {
    const float* bias;  // or null
    int count;
  };

  MOSAIC_INLINE void storeVector(const GemmBlock& block, char* to, Vec x, const Lanes& lanes) {
    if (block.add) x = V::add(loadElements<V>(block.out.dtype, to, 1, lanes.count), x);
    if (lanes.bias) x = V::add(x, V::loadPartial(lanes.bias, lanes.count));
    storeElements<V>(block.out.dtype, to, 1, x, lanes.count);
  }
};

}  // namespace
}  // namespace mosaic
