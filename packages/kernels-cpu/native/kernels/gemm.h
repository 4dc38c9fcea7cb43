// Matrix multiplication: out [.., M, N] ← a [.., M, K] · b [.., K, N].
//
// b is packed once into panels as wide as a register tile, a is read in place where it can be (Goto and van de Geijn
// 2008, without packing a). Sums run over blocks of kDepth in order, whatever the number of threads: each element of
// the product is always added up in the same way.
#pragma once

#include "kernels/copy.h"
#include "kernels/elementwise.h"
#include "kernels/gemm_batch.h"

namespace mosaic {
namespace {

constexpr int64_t kDepth = 256;           // of a block: a panel of b, 16 columns wide, takes half of a 32 KiB cache
constexpr int64_t kRows = 192;            // of a block of a: 192 KiB, well within a second-level cache
constexpr int64_t kPackedFloats = 1 << 21;  // of b at a time: 8 MiB
constexpr int64_t kWideTileFloats = 1 << 24;    // of a float32 copy of out at a time: 64 MiB, which the arena keeps
constexpr int64_t kParallelProducts = 1 << 17;

/// Memory for one product: packed b, and for each worker a block of a.
struct GemmWorkspace {
  float* packed;
  float** rows;
};

/// Runs tasks in a loop on the calling worker, as `Pool::parallelFor` does on all.
struct SingleThread {
  int worker;
  template <class Fn>
  MOSAIC_INLINE void each(const SingleThread& self, int64_t tasks, Fn&& fn) {
    for (int64_t task = 0; task < tasks; task++) fn(task, self.worker);
  }
};

struct PooledThreads {
  Pool& pool;
  template <class Fn>
  MOSAIC_INLINE void each(const PooledThreads& self, int64_t tasks, Fn&& fn) {
    self.pool.parallelFor(tasks, fn);
  }
};

/// Columns [j, j + n), depths [k, k + depth) of the product; out is float32 with dense rows.
struct Part {
  int64_t j, n, k, depth;
};

template <class T>
MOSAIC_NOINLINE void multiplyBlock(const Product& p, const Part& part, int64_t i, int64_t m, const float* packed,
                                   float* rows) {
  constexpr int64_t width = GemmTile<T>::columns, high = GemmTile<T>::rows;
  for (int64_t k = 0; k < part.depth; k += kDepth) {
    const int64_t depth = minOf(kDepth, part.depth - k);
    const PackedRows a = packRows<T>(p.a, i, m, part.k + k, depth, rows);
    TileArgs args;
    args.rowStride = a.rowStride;
    args.depthStride = a.depthStride;
    args.depth = depth;
    args.cStride = p.out.rowStride;
    args.add = p.accumulate || part.k + k > 0;
    for (int64_t j = 0; j < part.n; j += width) {
      args.columns = minOf(width, part.n - j);
      args.b = packed + j * part.depth + k * width;
      for (int64_t r = 0; r < m; r += high) {
        args.a = a.data + r * a.rowStride;
        args.c = reinterpret_cast<float*>(at(p.out, i + r, part.j + j));
        if (a.dense) {
          multiplyRows<T, true>(args, minOf(high, m - r));
        } else {
          multiplyRows<T, false>(args, minOf(high, m - r));
        }
      }
    }
  }
}

/// out is float32 with dense rows.
template <class T, class Runner>
MOSAIC_NOINLINE void multiply(const Product& p, const GemmWorkspace& workspace, int64_t rowsPerTask,
                              const Runner& runner) {
  constexpr int64_t width = GemmTile<T>::columns;
  const int64_t depths = minOf(p.k, 4 * kDepth);
  const int64_t columns = maxOf(width, kPackedFloats / depths / width * width);
  for (int64_t j = 0; j < p.n; j += columns) {
    for (int64_t k = 0; k < p.k; k += depths) {
      const Part part{j, minOf(columns, p.n - j), k, minOf(depths, p.k - k)};
      Runner::each(runner, ceilDiv(part.n, width), [&](int64_t panel, int) {
        const int64_t first = panel * width;
        float* packed = workspace.packed + first * part.depth;
        packColumns<T>(p.b, j + first, minOf(width, part.n - first), k, part.depth, packed);
      });
      Runner::each(runner, ceilDiv(p.m, rowsPerTask), [&](int64_t task, int worker) {
        const int64_t i = task * rowsPerTask;
        multiplyBlock<T>(p, part, i, minOf(rowsPerTask, p.m - i), workspace.packed, workspace.rows[worker]);
      });
    }
  }
}

template <class T>
MOSAIC_INLINE int64_t packedFloats(int64_t n, int64_t k) {
  constexpr int64_t width = GemmTile<T>::columns;
  const int64_t depths = minOf(k, 4 * kDepth);
  const int64_t columns = maxOf(width, kPackedFloats / depths / width * width);
  return minOf(columns, ceilDiv(n, width) * width) * depths;
}

/// Rows of out that are copied at a time: all, or a strip of them.
MOSAIC_INLINE int64_t wideTileRows(const Product& p) { return minOf(p.m, maxOf(kRows, kWideTileFloats / p.n)); }

/// Rows of the product by way of a float32 copy of them.
template <class T, class Runner>
MOSAIC_NOINLINE void multiplyStrip(Product p, const GemmWorkspace& workspace, float* wide, int64_t rowsPerTask,
                                   const Runner& runner) {
  const Matrix out = p.out;
  const bool accumulate = p.accumulate;
  p.out = {reinterpret_cast<char*>(wide), DType::Float32, p.n, 1};
  p.accumulate = false;
  multiply<T>(p, workspace, rowsPerTask, runner);
  Runner::each(runner, p.m, [&](int64_t row, int) {
    for (int64_t j = 0; j < p.n; j += kChunkElements) {
      const int64_t n = minOf(kChunkElements, p.n - j);
      float before[kChunkElements], sum[kChunkElements];
      const float* values = wide + row * p.n + j;
      if (accumulate) {
        const float* old = fetch<T>(out.dtype, at(out, row, j), out.columnStride, n, before);
        applyBinary<T>(BinaryOp::Add, sum, values, old, n);
        values = sum;
      }
      flush<T>(out.dtype, at(out, row, j), out.columnStride, n, values);
    }
  });
}

/// The product, by way of a float32 copy of out if out is not float32 with dense rows.
template <class T, class Runner>
MOSAIC_NOINLINE void multiplyInto(const Product& p, const GemmWorkspace& workspace, float* wide, int64_t rowsPerTask,
                                  const Runner& runner) {
  if (!wide) return multiply<T>(p, workspace, rowsPerTask, runner);
  const int64_t rows = wideTileRows(p);
  for (int64_t first = 0; first < p.m; first += rows) {
    Product strip = p;
    strip.m = minOf(rows, p.m - first);
    strip.a.data = at(p.a, first, 0);
    strip.out.data = at(p.out, first, 0);
    multiplyStrip<T>(strip, workspace, wide, rowsPerTask, runner);
  }
}

template <class T>
MOSAIC_INLINE GemmWorkspace allocateWorkspace(const Product& p, Pool& pool) {
  GemmWorkspace workspace;
  Arena& arena = pool.arena(0);
  workspace.packed = arena.allocate<float>(packedFloats<T>(p.n, p.k));
  workspace.rows = arena.allocate<float*>(pool.threads());
  return workspace;
}

template <class T>
void matmul(const MatmulArguments& args, Pool& pool) {
  const Batch batch = makeBatch(args);
  const Product& p = batch.product;
  if (batch.count == 0 || p.m == 0 || p.n == 0) return;
  if (p.k == 0) return args.accumulate ? void() : fill<T>({args.out, 0.0f}, pool);

  const int threads = pool.threads();
  for (int worker = 0; worker < threads; worker++) pool.arena(worker).reset();
  const bool direct = p.out.dtype == DType::Float32 && p.out.columnStride == 1;
  const int64_t rowsAtOnce = minOf(kRows, p.m);
  GemmWorkspace shared = allocateWorkspace<T>(p, pool);
  for (int worker = 0; worker < threads; worker++) {
    shared.rows[worker] = pool.arena(worker).allocate<float>(rowsAtOnce * minOf(kDepth, p.k));
  }
  const bool small = p.m * p.n * p.k < kParallelProducts;
  if (threads == 1 || (small && batch.count == 1) || batch.count < threads) {
    float* wide = direct ? nullptr : pool.arena(0).allocate<float>(wideTileRows(p) * p.n);
    constexpr int64_t high = GemmTile<T>::rows;
    const int64_t share = ceilDiv(ceilDiv(p.m, 4 * threads), high) * high;
    for (int64_t index = 0; index < batch.count; index++) {
      const Product each = productAt(batch, index);
      if (threads == 1 || small) {
        multiplyInto<T>(each, shared, wide, rowsAtOnce, SingleThread{0});
      } else {
        multiplyInto<T>(each, shared, wide, minOf(share, rowsAtOnce), PooledThreads{pool});
      }
    }
    return;
  }
  // Many products: one worker each, with memory of its own.
  float** packed = pool.arena(0).allocate<float*>(threads);
  float** wide = pool.arena(0).allocate<float*>(threads);
  for (int worker = 0; worker < threads; worker++) {
    packed[worker] = pool.arena(worker).allocate<float>(packedFloats<T>(p.n, p.k));
    wide[worker] = direct ? nullptr : pool.arena(worker).allocate<float>(wideTileRows(p) * p.n);
  }
  pool.parallelFor(batch.count, [&](int64_t index, int worker) {
    const GemmWorkspace own{packed[worker], shared.rows};
    multiplyInto<T>(productAt(batch, index), own, wide[worker], rowsAtOnce, SingleThread{worker});
  });
}

}  // namespace
}  // namespace mosaic
