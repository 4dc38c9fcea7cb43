// Iterates over several strided operands together, in chunks that fit the L1 cache.
//
// Included by the files compiled per instruction set (simd/isa.h), so everything has internal linkage.
#pragma once

#include "mosaic/view.h"
#include "pool/pool.h"
#include "simd/inline.h"
#include "simd/integers.h"

namespace mosaic {
namespace {

/// Elements per chunk: three float32 buffers of this length take 24 KiB.
constexpr int64_t kChunkElements = 2048;
/// Number of elements below which waking another thread does not pay off.
constexpr int64_t kMinParallelElements = 32768;

/// The axes common to N operands, innermost last. The first operand is the output and sets the shape; the others
/// broadcast to it (NumPy's rule). Axes are ordered by the output's strides and merged where all operands allow it.
template <int N>
struct Loop {
  int rank;
  int64_t size;  // elements
  int64_t shape[kMaxAxes];
  int64_t stride[N][kMaxAxes];
  char* data[N];
  DType dtype[N];
};

template <int N>
MOSAIC_INLINE void swapAxes(Loop<N>& loop, int a, int b) {
  const int64_t length = loop.shape[a];
  loop.shape[a] = loop.shape[b];
  loop.shape[b] = length;
  for (int i = 0; i < N; i++) {
    const int64_t stride = loop.stride[i][a];
    loop.stride[i][a] = loop.stride[i][b];
    loop.stride[i][b] = stride;
  }
}

MOSAIC_INLINE int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

template <int N>
MOSAIC_NOINLINE void mergeAxes(Loop<N>& loop) {
  for (int i = 1; i < loop.rank; i++) {  // stable insertion sort: axes with smaller output strides move inwards
    for (int j = i; j > 0 && magnitude(loop.stride[0][j - 1]) < magnitude(loop.stride[0][j]); j--) {
      swapAxes(loop, j - 1, j);
    }
  }
  int last = 0;
  for (int axis = 1; axis < loop.rank; axis++) {
    bool isDense = true;
    for (int i = 0; i < N; i++) isDense &= loop.stride[i][last] == loop.stride[i][axis] * loop.shape[axis];
    if (isDense) {
      loop.shape[last] *= loop.shape[axis];
    } else {
      loop.shape[++last] = loop.shape[axis];
    }
    for (int i = 0; i < N; i++) loop.stride[i][last] = loop.stride[i][axis];
  }
  loop.rank = loop.rank == 0 ? 0 : last + 1;
}

template <int N>
MOSAIC_INLINE Loop<N> makeLoop(const View* const (&operands)[N]) {
  Loop<N> loop;
  const View& out = *operands[0];
  loop.rank = 0;
  loop.size = 1;
  for (int i = 0; i < N; i++) {
    loop.data[i] = static_cast<char*>(operands[i]->data);
    loop.dtype[i] = operands[i]->dtype;
  }
  for (int axis = 0; axis < out.rank; axis++) {
    loop.size *= out.shape[axis];
    if (out.shape[axis] == 1) continue;
    loop.shape[loop.rank] = out.shape[axis];
    for (int i = 0; i < N; i++) {
      const int axisIndex = axis - out.rank + operands[i]->rank;
      const bool isBroadcast = axisIndex < 0 || operands[i]->shape[axisIndex] == 1;
      loop.stride[i][loop.rank] = isBroadcast ? 0 : operands[i]->stride[axisIndex];
    }
    loop.rank++;
  }
  mergeAxes(loop);
  if (loop.rank == 0) {
    loop.rank = 1;
    loop.shape[0] = loop.size == 0 ? 0 : 1;
    for (int i = 0; i < N; i++) loop.stride[i][0] = 1;
  }
  return loop;
}

/// The location of a chunk: one pointer per operand.
template <int N>
struct Chunk {
  char* data[N];
  int64_t length;
};

/// The outer axes of a loop as a counter, with matching operand pointers.
template <int N>
struct Cursor {
  int64_t index[kMaxAxes];
  char* data[N];
};

template <int N>
MOSAIC_INLINE Cursor<N> cursorAt(const Loop<N>& loop, int64_t row) {
  Cursor<N> cursor;
  for (int i = 0; i < N; i++) cursor.data[i] = loop.data[i];
  for (int axis = loop.rank - 2; axis >= 0; axis--) {
    cursor.index[axis] = row % loop.shape[axis];
    row /= loop.shape[axis];
    for (int i = 0; i < N; i++) cursor.data[i] += cursor.index[axis] * loop.stride[i][axis] * dtypeBytes(loop.dtype[i]);
  }
  return cursor;
}

template <int N>
MOSAIC_INLINE void advance(const Loop<N>& loop, Cursor<N>& cursor) {
  for (int axis = loop.rank - 2; axis >= 0; axis--) {
    const bool isWrapped = ++cursor.index[axis] == loop.shape[axis];
    const int64_t steps = isWrapped ? 1 - loop.shape[axis] : 1;
    for (int i = 0; i < N; i++) cursor.data[i] += steps * loop.stride[i][axis] * dtypeBytes(loop.dtype[i]);
    if (!isWrapped) return;
    cursor.index[axis] = 0;
  }
}

/// Calls visit(chunk, worker) for rows [from, to), each cut into chunks of the inner axis.
template <int N, class Visit>
MOSAIC_INLINE void visitRows(const Loop<N>& loop, int64_t from, int64_t to, Visit&& visit) {
  const int64_t innerLength = loop.shape[loop.rank - 1];
  Cursor<N> cursor = cursorAt(loop, from);
  for (int64_t row = from; row < to; row++) {
    for (int64_t start = 0; start < innerLength; start += kChunkElements) {
      Chunk<N> chunk;
      chunk.length = minOf(kChunkElements, innerLength - start);
      for (int i = 0; i < N; i++) {
        chunk.data[i] = cursor.data[i] + start * loop.stride[i][loop.rank - 1] * dtypeBytes(loop.dtype[i]);
      }
      visit(chunk);
    }
    advance(loop, cursor);
  }
}

/// Calls visit(chunk) for every chunk, on several threads if that pays off. Visits are independent of one another.
template <int N, class Visit>
MOSAIC_INLINE void forEachChunk(const Loop<N>& loop, Pool& pool, Visit&& visit) {
  if (loop.size == 0) return;
  const int64_t innerLength = loop.shape[loop.rank - 1];
  const int64_t rows = loop.size / innerLength;
  if (loop.size <= kMinParallelElements || pool.threads() == 1) {
    visitRows(loop, 0, rows, visit);
  } else if (innerLength > 4 * kMinParallelElements) {  // long rows are split, too
    const int64_t partsPerRow = ceilDiv(innerLength, kMinParallelElements);
    pool.parallelFor(rows * partsPerRow, [&](int64_t task, int) {
      Loop<N> part = loop;
      const int64_t start = task % partsPerRow * kMinParallelElements;
      part.shape[loop.rank - 1] = minOf(kMinParallelElements, innerLength - start);
      for (int i = 0; i < N; i++) part.data[i] += start * loop.stride[i][loop.rank - 1] * dtypeBytes(loop.dtype[i]);
      visitRows(part, task / partsPerRow, task / partsPerRow + 1, visit);
    });
  } else {
    const int64_t grainSize = maxOf(1, kMinParallelElements / innerLength);
    pool.parallelFor(ceilDiv(rows, grainSize), [&](int64_t task, int) {
      visitRows(loop, task * grainSize, minOf(rows, (task + 1) * grainSize), visit);
    });
  }
}

}  // namespace
}  // namespace mosaic
