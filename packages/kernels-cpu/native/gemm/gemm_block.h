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
    const int64_t steps = RegisterTile<V, E, Shape::wideRows, N>::numSteps(block.depth);
    const int64_t tiles = ceilDiv(block.columns, width) * ceilDiv(block.rows, Shape::wideRows);
    Prefetches prefetches{ceilDiv(Shape::wideRows * block.panelBytes, block.rows * steps),
                          PacedPrefetch(block.nextRows, kCacheLineBytes),
                          static_cast<int32_t>(ceilDiv(countLines(block.nextRows), tiles))};
    for (int64_t j = 0; j < block.columns; j += width) multiplyPanel<N>(block, j, prefetches);
  }

 private:
  /// Whether the first line of each column of a is prefetched, kColumnDistance steps before it is read. With shorter
  /// vectors, whose steps are shorter, lines would be evicted before they are read. Scalar has 16 lanes, too.
  static constexpr bool prefetchesColumns = L == 16 && E::valuesPerElement == 1;
  static constexpr int64_t kColumnDistance = 10;

  /// What the tiles of a block prefetch.
  struct Prefetches {
    int64_t panelStep;  // bytes of the next panel per step of a tile
    PacedPrefetch nextRows;
    int32_t lines;  // of nextRows, per tile
  };

  /// Uses tiles of fewer vectors and more rows if the columns do not fill a panel.
  template <int vectors>
  MOSAIC_INLINE void multiplyPanel(const GemmBlock& block, int64_t j, Prefetches& prefetches) {
    if constexpr (vectors > 1 && !RegisterTile<V, E, Shape::wideRows, N>::isAsynchronous) {
      if (block.columns - j <= (vectors - 1) * L) return multiplyPanel<vectors - 1>(block, j, prefetches);
    }
    const void* panel = static_cast<const char*>(block.panels) + j / width * block.panelBytes;
    const bool areRowsCached = j > 0 || block.areRowsPacked || block.a.step != 1;
    forEachTile<Shape::wideRows * N / vectors>(0, static_cast<int32_t>(block.rows), [&]<int rows>(int32_t i) {
      prefetches.nextRows.stepLines(prefetches.lines);
      const LineSweep sweep = nextPanel<rows, vectors>(block, panel, {i, j}, prefetches);
      if (vectors == N && areRowsCached && (j > 0 || block.next.part.rows == 0)) {
        return computeTile<rows, vectors>(block, panel, i, j, sweep);
      }
      computeTileAndPack<rows, vectors>(block, panel, i, j, sweep);
    });
  }

  struct TilePosition {
    int32_t i;
    int64_t j;
  };

  /// Returns the part of the next panel that a tile prefetches; of the same panel if it is the last.
  template <int rows, int vectors>
  MOSAIC_INLINE LineSweep nextPanel(const GemmBlock& block, const void* panel, const TilePosition& tile,
                                    const Prefetches& prefetches) {
    const int64_t distance = tile.j + width < block.columns ? block.panelBytes : 0;
    const int64_t bytes = prefetches.panelStep * RegisterTile<V, E, rows, vectors>::numSteps(block.depth);
    return {static_cast<const char*>(panel) + distance + tile.i / Shape::wideRows * bytes, prefetches.panelStep};
  }

  template <int rows, int vectors>
  MOSAIC_NOINLINE void computeTile(const GemmBlock& block, const void* panel, int32_t i, int64_t j, LineSweep sweep) {
    if constexpr (prefetchesColumns) {
      if (block.a.step != 1) {
        const int64_t stride = block.a.step * static_cast<int64_t>(sizeof(typename E::Scalar));
        const char* column = static_cast<const char*>(rowsAt<E>(block.a, i).data);
        ColumnSweep prefetch{sweep, column + kColumnDistance * stride, stride};
        return multiplyAndStore<rows, vectors>(block, panel, i, j, prefetch);
      }
    }
    multiplyAndStore<rows, vectors>(block, panel, i, j, sweep);
  }

  /// Computes a tile of the first panel, or of one that is not full. Also prefetches rows of the next tile, which no
  /// panel has read before. If there is a block to pack next, a share of it is prefetched instead of the next panel,
  /// and packed at once. Rows that are a multiple of a page apart map to so few sets of a cache that a whole block of
  /// them would evict itself.
  template <int rows, int vectors>
  MOSAIC_NOINLINE void computeTileAndPack(const GemmBlock& block, const void* panel, int32_t i, int64_t j,
                                          LineSweep sweep) {
    const MatrixPart share = shareOf(block.next.part, i, minOf(i + rows, block.rows), block.rows);
    constexpr int64_t elementBytes = sizeof(typename E::Scalar);
    const int64_t rowBytes = i + rows < block.rows ? block.a.rowStride * elementBytes : 0;
    SweepPair prefetch{{sweep.line, 0, INT64_MAX, 0, sweep.stride},
                       {static_cast<const char*>(rowsAt<E>(block.a, i).data) + rows * rowBytes, rowBytes}};
    if (share.rows > 0) {
      const UpcomingReads reads = readsOf(block.next.b, share);
      const int64_t steps = RegisterTile<V, E, rows, vectors>::numSteps(block.depth);
      const int64_t stepBytes = minOf(kCacheLineBytes, ceilDiv(reads.count * reads.bytes, steps));
      prefetch.ranges = {static_cast<const char*>(reads.data), 0, reads.bytes, reads.stride, stepBytes};
    }
    multiplyAndStore<rows, vectors>(block, panel, i, j, prefetch);
    if (share.rows == 0) return;
    const int64_t offset = (share.row - block.next.part.row) * width * elementBytes;
    GemmPack<V, E>::packColumns(block.next.b, share, static_cast<char*>(block.next.panel) + offset);
  }

  template <int rows, int vectors, class P>
  MOSAIC_INLINE void multiplyAndStore(const GemmBlock& block, const void* panel, int32_t i, int64_t j, P& prefetch) {
    using Tile = RegisterTile<V, E, rows, vectors>;
    prefetchOut(block, {i, minOf(rows, block.rows - i), j, minOf(vectors * L, block.columns - j)});
    Tile c;
    Tile::product(c, rowsAt<E>(block.a, i), panel, width, block.depth, prefetch);
    const int64_t remainingRows = block.rows - i;
    const int presentRows = rows == 32 && remainingRows < rows ? static_cast<int>(remainingRows) : rows;
    const GemmEpilogue* e = block.epilogue;
    const bool hasOnlyColumnBias = !e || !(e->hasActivation || e->rowBias || e->gate || e->preActivation);
    const bool isPlain = j + vectors * L <= block.columns && hasOnlyColumnBias;
    if (isPlain && block.out.dtype == DType::Float32 && block.sum == nullptr) {
      storeFullTile<rows, vectors>(block, c, i, j, presentRows);
    } else if (isPlain && block.out.dtype == DType::BFloat16 && !block.add) {
      storeFullBf16Tile<rows, vectors>(block, c, i, j, presentRows);
    } else {
      storeThroughMemory<rows, vectors>(block, c, i, j, presentRows);
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

  /// Returns the share of the depths of `part` for rows [from, to) out of `rows`, in whole cache lines except for the
  /// last.
  MOSAIC_INLINE MatrixPart shareOf(const MatrixPart& part, int64_t from, int64_t to, int64_t rows) {
    constexpr int64_t unit = 2 * L;  // depth of squares of pairs
    const int64_t units = ceilDiv(part.rows, unit), first = from * units / rows * unit;
    return {part.row + first, minOf(to * units / rows * unit, part.rows) - first, part.column, part.columns};
  }

  /// Calls fn(row) for the rows of a tile that are present. All rows of a register tile are present. They are the
  /// constants of an unrolled loop, because an array that a variable indexes lies in memory, not in registers.
  template <int rows, class Tile, class Fn>
  MOSAIC_INLINE void forEachRow(int presentRows, const Fn& fn) {
    if constexpr (Tile::isAsynchronous) {
      for (int r = 0; r < presentRows; r++) fn(r);
    } else {
#pragma GCC unroll 32
      for (int r = 0; r < rows; r++) fn(r);
    }
  }

  template <int rows, int vectors, class Tile>
  MOSAIC_INLINE void storeFullTile(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    auto* out = reinterpret_cast<float*>(at(block.out, i, j));
    const int64_t stride = block.out.rowStride;
    const float* bias = block.epilogue ? block.epilogue->columnBias : nullptr;
    const auto store = [&](const auto& finish) __attribute__((always_inline)) {
      forEachRow<rows, Tile>(presentRows, [&](int r) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) V::store(out + n * L, finish(Tile::get(c, r, n), n));
        out += stride;
      });
    };
    const auto addBias = [&](Vec x, int n) __attribute__((always_inline)) {
      return V::add(x, V::load(bias + j + n * L));
    };
    const auto addOut = [&](Vec x, int n) __attribute__((always_inline)) { return V::add(V::load(out + n * L), x); };
    if (block.add && bias) {
      store([&](Vec x, int n) __attribute__((always_inline)) { return addBias(addOut(x, n), n); });
    } else if (block.add) {
      store(addOut);
    } else if (bias) {
      store(addBias);
    } else {
      store([](Vec x, int) __attribute__((always_inline)) { return x; });
    }
  }

  template <int rows, int vectors, class Tile>
  MOSAIC_INLINE void storeFullBf16Tile(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    auto* out = reinterpret_cast<uint16_t*>(at(block.out, i, j));
    const int64_t stride = block.out.rowStride;
    const float* bias = block.epilogue ? block.epilogue->columnBias : nullptr;
    const float* sum = block.sum ? block.sum + i * block.sumStride + j : nullptr;
    forEachRow<rows, Tile>(presentRows, [&](int r) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) {
        Vec x = Tile::get(c, r, n);
        if (sum) x = V::add(x, V::load(sum + r * block.sumStride + n * L));
        if (bias) x = V::add(x, V::load(bias + j + n * L));
        V::storeBf16(out + n * L, x);
      }
      out += stride;
    });
  }

  /// Stores a tile that may be partial, to any dtype, with any epilogue: through memory, row by row, in one function,
  /// because it needs tens of instructions.
  template <int rows, int vectors, class Tile>
  MOSAIC_INLINE void storeThroughMemory(const GemmBlock& block, const Tile& c, int32_t i, int64_t j, int presentRows) {
    constexpr int tileWidth = vectors * L;
    alignas(64) float sums[sizeof(Tile) / sizeof(float)];
    Matrix out = block.out;
    out.data = at(out, i, j);
    GemmEpilogue epilogue =
        block.epilogue ? epilogueAt(*block.epilogue, i, j, out.data - block.out.data) : GemmEpilogue{};
    const float* earlier = block.sum ? block.sum + i * block.sumStride + j : nullptr;
    // Bias is added to sums in registers if they are complete.
    const float* bias = !earlier && !block.add && j + tileWidth <= block.columns ? epilogue.columnBias : nullptr;
    if (bias) epilogue.columnBias = nullptr;
    forEachRow<rows, Tile>(presentRows, [&](int r) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int n = 0; n < vectors; n++) {
        Vec x = Tile::get(c, r, n);
        if (bias) x = V::add(x, V::load(bias + n * L));
        V::store(sums + r * tileWidth + n * L, x);
      }
    });
    SumsStore<V>::run({sums, presentRows, minOf(tileWidth, block.columns - j), tileWidth, earlier, block.sumStride},
                      out, block.add, block.epilogue ? &epilogue : nullptr);
  }
};

}  // namespace
}  // namespace mosaic
