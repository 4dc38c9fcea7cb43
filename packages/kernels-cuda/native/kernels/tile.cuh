// Tiles of 16-bit elements in shared memory, and the two products of tiles.
//
// A tile is ROWS × D; a row has D·2 bytes. Its 16-byte chunks are permuted so that ldmatrix, which reads 8 consecutive
// rows of one column of chunks, accesses every bank once.
#pragma once

#include "kernels/tile_iterator.cuh"

namespace mosaic::cuda {

template <int D>
DEVICE SharedAddress chunkAddress(SharedAddress tile, int row, int chunk) {
  const int swizzledChunk = D == 32 ? chunk ^ (row >> 1 & 3) : chunk ^ (row & 7);  // two rows of 32 share the banks
  return tile + row * (D * 2) + (swizzledChunk << 4);
}
template <int ROWS, int D>
constexpr int kTileBytes = ROWS * D * 2;

/// Copies eight elements one by one, for rows that 16-byte copies do not support.
DEVICE void copyElements(SharedAddress to, const uint16_t* from, int count) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32_t low = i < count ? load(from + i) : 0, high = i + 1 < count ? load(from + i + 1) : 0;
    storeSharedBits(to + i * 2, low | high << 16);
  }
}

/// The source of rows: `length` rows of `columns` elements.
struct Source {
  const uint16_t* data;
  int64_t stride;
  int length, columns;
  bool isAligned;
};

DEVICE Source makeSource(const Matrix& x, const RowRange& run, int columns) {
  const auto* data = static_cast<const uint16_t*>(x.data);
  data += run.batch * x.batch + run.head * x.head + run.first * x.row;
  return {data, x.row, run.length, columns, x.isAligned};
}

/// Starts copying rows [row0, row0 + ROWS); elements past the end or past the last column are set to 0.
template <int ROWS, int D, int THREADS>
DEVICE void loadTile(SharedAddress tile, const Source& source, int row0) {
  constexpr int kChunksPerRow = D / 8;
  static_assert(ROWS * kChunksPerRow % THREADS == 0);
#pragma unroll
  for (int i = 0; i < ROWS * kChunksPerRow / THREADS; i++) {
    const int n = i * THREADS + threadIdx.x, r = n / kChunksPerRow, column = n % kChunksPerRow * 8;
    const bool isInBounds = row0 + r < source.length && column < source.columns;
    const uint16_t* from = source.data + (isInBounds ? (row0 + r) * source.stride + column : 0);
    const SharedAddress to = chunkAddress<D>(tile, r, n % kChunksPerRow);
    if (source.isAligned) copyAsync16(to, from, isInBounds);
    else copyElements(to, from, isInBounds ? source.columns - column : 0);
  }
}

/// Accumulators are M × N tiles of 16 × 8. Of each tile, lane t holds rows t/4 and t/4 + 8 (h = 0, 1) and columns t%4·2
/// and t%4·2 + 1 (e = 0, 1), at index h·2 + e.
template <int N>
DEVICE void clear(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] = 0.f;
  }
}
template <int M, int N>
DEVICE void clear(float (&c)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; m++) clear(c[m]);
}

/// c[16·M × 8·N] += A[rowA…, D] · B[0…, D]ᵀ; A and B are tiles.
template <class T, int D, int M, int N>
DEVICE void multiplyTransposed(float (&c)[M][N][4], SharedAddress tileA, int rowA, SharedAddress tileB) {
  static_assert(N % 2 == 0);
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
      loadMatrix(a[m], chunkAddress<D>(tileA, rowA + m * 16 + (lane & 15), k * 2 + (lane >> 4)));
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      loadMatrix(b, chunkAddress<D>(tileB, n * 8 + (lane & 7) + (lane >> 4 << 3), k * 2 + (lane >> 3 & 1)));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma16x8x16<T>(c[m][n], a[m], b[0], b[1]);
        mma16x8x16<T>(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// c[16·M × 8·N] += P[16·M × 8·K] · B[0…8·K, columns chunk0·8…]. P is in accumulators and is rounded to T here.
template <class T, int D, int M, int K, int N>
DEVICE void multiply(float (&c)[M][N][4], const float (&p)[M][K][4], SharedAddress tileB, int chunk0 = 0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < K; k += 2) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
      a[m][0] = pack2<T>(p[m][k][0], p[m][k][1]);
      a[m][1] = pack2<T>(p[m][k][2], p[m][k][3]);
      a[m][2] = pack2<T>(p[m][k + 1][0], p[m][k + 1][1]);
      a[m][3] = pack2<T>(p[m][k + 1][2], p[m][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      loadMatrixTransposed(b, chunkAddress<D>(tileB, k * 8 + (lane & 15), chunk0 + n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma16x8x16<T>(c[m][n], a[m], b[0], b[1]);
        mma16x8x16<T>(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace mosaic::cuda
