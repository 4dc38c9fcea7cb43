// Filling and copying, for any strides and dtypes.
#pragma once

#include "kernels/lanes.h"

namespace mosaic {
namespace {

template <class T>
void fill(const FillArguments& args, Pool& pool) {
  const auto& [out, value] = args;
  const Loop<1> loop = makeLoop<1>({&out});
  const int64_t stride = loop.stride[0][loop.rank - 1];
  float values[kChunkElements];
  const int64_t maxLength = minOf(kChunkElements, loop.shape[loop.rank - 1]);
  for (int64_t i = 0; i < maxLength; i++) values[i] = value;
  forEachChunk(loop, pool, [&](const Chunk<1>& chunk) {
    flush<T>(loop.dtype[0], chunk.data[0], stride, chunk.length, values);
  });
}

/// Side of the square blocks of a transposing copy.
constexpr int64_t kTransposeTileSide = 32;

/// Copies one square block: reads along x's dense axis, transposes in cache, writes along out's dense axis.
template <class T>
MOSAIC_INLINE void transposeTile(const Loop<2>& loop, char* const data[2], int denseAxis, const int64_t size[2]) {
  const int innerAxis = loop.rank - 1;
  float rows[kTransposeTileSide][kTransposeTileSide], transposed[kTransposeTileSide][kTransposeTileSide];
  for (int64_t i = 0; i < size[1]; i++) {
    const char* from = data[1] + i * loop.stride[1][innerAxis] * dtypeBytes(loop.dtype[1]);
    const float* row = fetch<T>(loop.dtype[1], from, 1, size[0], rows[i]);
    if (row != rows[i]) __builtin_memcpy(rows[i], row, static_cast<size_t>(size[0]) * sizeof(float));
  }
  if (size[0] == kTransposeTileSide && size[1] == kTransposeTileSide) {
    for (int64_t r = 0; r < kTransposeTileSide; r += T::lanes) {
      for (int64_t c = 0; c < kTransposeTileSide; c += T::lanes)
        T::transpose(&rows[r][c], kTransposeTileSide, &transposed[c][r], kTransposeTileSide);
    }
  } else {
    for (int64_t r = 0; r < size[1]; r++) {
      for (int64_t c = 0; c < size[0]; c++) transposed[c][r] = rows[r][c];
    }
  }
  for (int64_t j = 0; j < size[0]; j++) {
    char* to = data[0] + j * loop.stride[0][denseAxis] * dtypeBytes(loop.dtype[0]);
    flush<T>(loop.dtype[0], to, loop.stride[0][innerAxis], size[1], transposed[j]);
  }
}

/// Copies x, dense along axis `denseAxis`, to out, dense along the innermost axis, in square blocks over the two axes.
template <class T>
MOSAIC_NOINLINE void copyTransposed(const Loop<2>& loop, int denseAxis, Pool& pool) {
  const int innerAxis = loop.rank - 1;
  const int64_t tileRows = ceilDiv(loop.shape[denseAxis], kTransposeTileSide),
                tileColumns = ceilDiv(loop.shape[innerAxis], kTransposeTileSide);
  const int64_t planeCount = loop.size / (loop.shape[denseAxis] * loop.shape[innerAxis]);
  auto copyStrip = [&](int64_t task, int) {
    int64_t plane = task / tileRows;
    const int64_t j = task % tileRows * kTransposeTileSide;
    char* data[2] = {loop.data[0], loop.data[1]};
    for (int axis = loop.rank - 2; axis >= 0; axis--) {
      if (axis == denseAxis) continue;
      for (int i = 0; i < 2; i++) {
        data[i] += plane % loop.shape[axis] * loop.stride[i][axis] * dtypeBytes(loop.dtype[i]);
      }
      plane /= loop.shape[axis];
    }
    for (int i = 0; i < 2; i++) data[i] += j * loop.stride[i][denseAxis] * dtypeBytes(loop.dtype[i]);
    for (int64_t square = 0; square < tileColumns; square++) {
      const int64_t i0 = square * kTransposeTileSide;
      const int64_t size[2] = {minOf(kTransposeTileSide, loop.shape[denseAxis] - j),
                               minOf(kTransposeTileSide, loop.shape[innerAxis] - i0)};
      char* tileData[2];
      for (int i = 0; i < 2; i++) {
        tileData[i] = data[i] + i0 * loop.stride[i][innerAxis] * dtypeBytes(loop.dtype[i]);
      }
      transposeTile<T>(loop, tileData, denseAxis, size);
    }
  };
  if (loop.size <= kMinParallelElements) {
    for (int64_t task = 0; task < planeCount * tileRows; task++) copyStrip(task, 0);
  } else {
    pool.parallelFor(planeCount * tileRows, copyStrip);
  }
}

/// Returns the axis along which x is dense if out is dense along another axis, else −1.
MOSAIC_INLINE int transposedAxis(const Loop<2>& loop) {
  const int innerAxis = loop.rank - 1;
  if (magnitude(loop.stride[1][innerAxis]) <= 1 || loop.shape[innerAxis] < 8) return -1;
  for (int axis = 0; axis < innerAxis; axis++) {
    if (loop.stride[1][axis] == 1 && loop.shape[axis] >= 8) return axis;
  }
  return -1;
}

template <class T>
void copy(const CopyArguments& args, Pool& pool) {
  const Loop<2> loop = makeLoop<2>({&args.out, &args.x});
  if (loop.size == 0) return;
  if (const int denseAxis = transposedAxis(loop); denseAxis >= 0) return copyTransposed<T>(loop, denseAxis, pool);
  const int64_t to = loop.stride[0][loop.rank - 1], from = loop.stride[1][loop.rank - 1];
  const DType dtype = loop.dtype[0];
  const bool isMemcpy = dtype == loop.dtype[1] && to == 1 && from == 1;
  forEachChunk(loop, pool, [&](const Chunk<2>& chunk) {
    if (isMemcpy) {
      __builtin_memmove(chunk.data[0], chunk.data[1], static_cast<size_t>(chunk.length * dtypeBytes(dtype)));
      return;
    }
    float buffer[kChunkElements];
    const float* values = fetch<T>(loop.dtype[1], chunk.data[1], from, chunk.length, buffer);
    flush<T>(dtype, chunk.data[0], to, chunk.length, values);
  });
}

}  // namespace
}  // namespace mosaic
