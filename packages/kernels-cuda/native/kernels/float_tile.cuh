// Tiles of float32 in shared memory and their products, without tensor cores, for float32 inputs and for inputs of
// mixed dtypes. 64 threads form an 8 × 8 grid: thread (y, x) has rows y + 8i and columns x + 8j of a product. Designed
// for correctness, not speed.
#pragma once

#include "kernels/attend.h"
#include "kernels/element.cuh"
#include "kernels/accumulator.cuh"
#include "kernels/score_modifiers.cuh"

namespace mosaic::cuda {

constexpr int kFloatThreads = 64;

template <int D>
struct FloatTile {
  static constexpr int kMicroTileSide = floatMicroTileSide(D), kSide = 8 * kMicroTileSide, kColumns = D / 8;
  /// Rows are padded by one element, so that 8 rows of one column are in 8 banks.
  static constexpr int kBytes = kSide * (D + 1) * 4, kSquareBytes = kSide * (kSide + 1) * 4;

  DEVICE static SharedAddress elementAddress(SharedAddress tile, int row, int column) {
    return tile + (row * (D + 1) + column) * 4;
  }
  DEVICE static SharedAddress squareAddress(SharedAddress square, int row, int column) {
    return square + (row * (kSide + 1) + column) * 4;
  }
};

DEVICE int threadY() { return static_cast<int>(threadIdx.x) / 8; }
DEVICE int threadX() { return static_cast<int>(threadIdx.x) % 8; }

/// Maps an element of a product to its query and key: rows are queries from row0 on, columns are keys.
struct FloatRowsOfQueries {
  int row0, key0;
  DEVICE Pair operator()(int i, int j) const { return {row0 + threadY() + 8 * i, key0 + threadX() + 8 * j}; }
};
/// The transposed mapping: rows are keys, columns are queries.
struct FloatRowsOfKeys {
  int key0, row0;
  DEVICE Pair operator()(int i, int j) const { return {row0 + threadX() + 8 * j, key0 + threadY() + 8 * i}; }
};

DEVICE float loadElement(const Matrix& x, int64_t at) {
  if (x.dtype == DType::Float32) return load(static_cast<const float*>(x.data) + at);
  const uint16_t bits = load(static_cast<const uint16_t*>(x.data) + at);
  return x.dtype == DType::BFloat16 ? widen<bf16>(bits) : widen<fp16>(bits);
}

/// Loads the kSide rows from row0 on; 0 past the run's end and past the last column.
template <int D>
DEVICE void loadFloatTile(SharedAddress tile, const Matrix& x, const RowRange& run, int row0, int columns) {
  const int64_t first = run.batch * x.batch + run.head * x.head + (run.first + row0) * x.row;
  for (int i = threadIdx.x; i < FloatTile<D>::kSide * D; i += kFloatThreads) {
    const int r = i / D, c = i % D;
    const bool isInBounds = row0 + r < run.length && c < columns;
    storeShared(FloatTile<D>::elementAddress(tile, r, c), isInBounds ? loadElement(x, first + r * x.row + c) : 0.f);
  }
}

/// s[i][j] = Σ over columns of a[y + 8i] · b[x + 8j].
template <int D, int R = floatMicroTileSide(D)>
DEVICE void dotRows(float (&s)[R][R], SharedAddress a, SharedAddress b, int columns) {
#pragma unroll
  for (int i = 0; i < R; i++) {
#pragma unroll
    for (int j = 0; j < R; j++) s[i][j] = 0.f;
  }
  for (int d = 0; d < columns; d++) {
    float left[R], right[R];
#pragma unroll
    for (int i = 0; i < R; i++) left[i] = loadShared(FloatTile<D>::elementAddress(a, threadY() + 8 * i, d));
#pragma unroll
    for (int j = 0; j < R; j++) right[j] = loadShared(FloatTile<D>::elementAddress(b, threadX() + 8 * j, d));
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
      for (int j = 0; j < R; j++) s[i][j] = fmaf(left[i], right[j], s[i][j]);
    }
  }
}

/// Stores a product to a square. Its rows are read by the 8 lanes that wrote them, after syncWarp.
template <int D, int R = floatMicroTileSide(D)>
DEVICE void storeSquare(SharedAddress square, const float (&s)[R][R]) {
#pragma unroll
  for (int i = 0; i < R; i++) {
#pragma unroll
    for (int j = 0; j < R; j++)
      storeShared(FloatTile<D>::squareAddress(square, threadY() + 8 * i, threadX() + 8 * j), s[i][j]);
  }
}

/// Returns the weight of a masked pair: −0, which products skip, because adding 0 · NaN would be NaN.
DEVICE float maskedWeight() { return -0.f; }
DEVICE bool isMasked(float weight) { return bitsOf(weight) == 0x80000000u; }

/// acc[i][n] += Σ over the first `length` columns of square[y + 8i] · tile[…][x + 8n], without masked pairs.
template <int D, int R = floatMicroTileSide(D)>
DEVICE void addProduct(float (&acc)[R][D / 8], SharedAddress square, SharedAddress tile, int length) {
  for (int k = 0; k < length; k++) {
    float weight[R];
#pragma unroll
    for (int i = 0; i < R; i++) weight[i] = loadShared(FloatTile<D>::squareAddress(square, threadY() + 8 * i, k));
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
      const float value = loadShared(FloatTile<D>::elementAddress(tile, k, threadX() + 8 * n));
#pragma unroll
      for (int i = 0; i < R; i++) acc[i][n] = isMasked(weight[i]) ? acc[i][n] : fmaf(weight[i], value, acc[i][n]);
    }
  }
}

/// Adds scale · acc to rows row0 + y + 8i.
template <int D, int R = floatMicroTileSide(D)>
DEVICE void addFloatRows(const Accumulator& into, const RowRange& ownRange, int row0, int columns,
                         const float (&acc)[R][D / 8], float scale) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = row0 + threadY() + 8 * i;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
      const int c = threadX() + 8 * n;
      if (r >= ownRange.length || c >= columns) continue;
      float* at = rowOf(into, ownRange, r) + c * into.column;
      store(at, load(at) + scale * acc[i][n]);
    }
  }
}

}  // namespace mosaic::cuda
