// Rows of a table selected by an index: embedding and its gradient.
#pragma once

#include "kernels/rows.h"

namespace mosaic {
namespace {

/// Loads the single element at `data`.
template <class T>
MOSAIC_INLINE float loadScalar(DType dtype, const char* data) {
  float buffer[T::lanes];
  return *fetch<T>(dtype, data, 1, 1, buffer);
}

/// The valid indices: integers in [0, count), and `ignored`, which is NaN if no index is ignored.
struct ValidIndices {
  int64_t count;
  float ignored;
};

/// Fails the kernel's work at the first element of `index` that is not valid.
template <class T>
MOSAIC_NOINLINE void throwIfIndexInvalid(const char* kernel, const View& index, const ValidIndices& validIndices) {
  const auto& [count, ignored] = validIndices;
  const Loop<1> loop = makeLoop<1>({&index});
  if (loop.size == 0) return;
  const int innerAxis = loop.rank - 1;
  visitRows(loop, 0, loop.size / loop.shape[innerAxis], [&](const Chunk<1>& chunk) {
    float buffer[kChunkElements];
    const float* values = fetch<T>(loop.dtype[0], chunk.data[0], loop.stride[0][innerAxis], chunk.length, buffer);
    for (int64_t i = 0; i < chunk.length; i++) {
      const float value = values[i];
      // Compared as integers, because `count` may be rounded down as a float. The conversion is defined below 2^63.
      const bool isInteger = value >= 0 && value < 0x1p63f && value == static_cast<float>(static_cast<int64_t>(value));
      const bool isValidIndex = isInteger && static_cast<int64_t>(value) < count;
      if (!isValidIndex && value != ignored) throwIndexError(kernel, value, count);
    }
  });
}

constexpr float kNoIgnoredIndex = __builtin_nanf("");

template <class T>
void gatherRows(const GatherRowsArguments& args, Pool& pool) {
  const auto& [out, table, index] = args;
  throwIfIndexInvalid<T>("gatherRows", index, {table.shape[0], kNoIgnoredIndex});
  const View outerView = dropLastAxis(out);
  const Loop<2> loop = makeLoop<2>({&outerView, &index});
  const Row rowOut = rowOf(out), rowTable = rowOf(table);
  const int64_t stride = table.stride[0] * dtypeBytes(table.dtype);
  if (loop.size == 0 || rowOut.length == 0) return;
  forEachRow<1>(loop, rowOut.length, pool, [&](char* const(&data)[2], float* const(&buffers)[1]) {
    const auto rowIndex = static_cast<int64_t>(loadScalar<T>(loop.dtype[1], data[1]));
    flushRow<T>(rowOut, data[0], fetchRow<T>(rowTable, static_cast<char*>(table.data) + rowIndex * stride, buffers[0]));
  });
}

/// Each thread adds a disjoint range of columns, row after row, so that sums are in row order for any number of
/// threads.
template <class T>
void scatterAddRows(const ScatterAddRowsArguments& args, Pool& pool) {
  const auto& [into, x, index] = args;
  throwIfIndexInvalid<T>("scatterAddRows", index, {into.shape[0], kNoIgnoredIndex});
  using V = typename T::Vec;
  const View outerView = dropLastAxis(x);
  const Loop<2> loop = makeLoop<2>({&outerView, &index});
  const Row rowInto = rowOf(into), rowX = rowOf(x);
  const int innerAxis = loop.rank - 1;
  const int64_t columns = rowX.length, width = loop.shape[innerAxis];
  if (loop.size == 0 || columns == 0) return;
  const int64_t minTasks =
      loop.size * columns <= kMinParallelElements ? 1 : minOf(pool.threads(), ceilDiv(columns, 64));
  const int64_t columnsPerTask = minOf(kChunkElements, ceilDiv(columns, minTasks));
  pool.parallelFor(ceilDiv(columns, columnsPerTask), [&](int64_t task, int) {
    const int64_t start = task * columnsPerTask, n = minOf(columnsPerTask, columns - start);
    float buffers[2][kChunkElements];
    Cursor<2> cursor = cursorAt(loop, 0);
    for (int64_t row = 0; row < loop.size / width; row++) {
      for (int64_t column = 0; column < width; column++) {
        const char* indexData = cursor.data[1] + column * loop.stride[1][innerAxis] * dtypeBytes(loop.dtype[1]);
        const auto rowIndex = static_cast<int64_t>(loadScalar<T>(loop.dtype[1], indexData));
        const int64_t readOffset = column * loop.stride[0][innerAxis] + start * rowX.stride;
        const int64_t writeOffset = rowIndex * into.stride[0] + start * rowInto.stride;
        const char* from = cursor.data[0] + readOffset * dtypeBytes(rowX.dtype);
        char* to = static_cast<char*>(into.data) + writeOffset * dtypeBytes(into.dtype);
        const float* values = fetch<T>(rowX.dtype, from, rowX.stride, n, buffers[0]);
        const float* oldValues = fetch<T>(into.dtype, to, rowInto.stride, n, buffers[1]);
        float* sum = target(into.dtype, to, rowInto.stride, buffers[1]);
        map2<T>(sum, oldValues, values, n, [](V a, V b) { return T::add(a, b); });
        flush<T>(into.dtype, to, rowInto.stride, n, sum);
      }
      advance(loop, cursor);
    }
  });
}

}  // namespace
}  // namespace mosaic
