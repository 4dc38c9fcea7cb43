// Sums and maxima over any set of axes.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/rows.h"

namespace mosaic {
namespace {

/// Memory for a whole kernel call, separate from the arenas, which are reset for rows.
struct ScratchBuffer {
  float* data;
  explicit ScratchBuffer(int64_t count) : data(new float[static_cast<size_t>(count)]) {}
  ~ScratchBuffer() { delete[] data; }
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
};

// Sums over rows for every column: by chunks of rows in parallel, then pairwise over the chunks, so that the result
// neither depends on the number of threads nor loses accuracy with the number of rows.

/// Rows that are summed sequentially before sums are added pairwise.
constexpr int64_t kChunkRows = 128;

/// partial[0] ← Σ partial[i], each a vector of `length`; `combine(to, from, n)` adds two of them.
template <class Combine>
MOSAIC_INLINE void combineChunks(float* partial, int64_t chunks, int64_t length, Combine combine) {
  for (int64_t step = 1; step < chunks; step *= 2) {
    for (int64_t i = 0; i + step < chunks; i += 2 * step) {
      combine(partial + i * length, partial + (i + step) * length, length);
    }
  }
}

/// Adds the vector `sum` to out [E], unless out is absent.
template <class T>
MOSAIC_INLINE void addToOptional(const OptionalView& out, const float* sum) {
  if (!out.data) return;
  const int64_t stride = out.stride[out.rank - 1], length = out.shape[out.rank - 1];
  for (int64_t start = 0; start < length; start += kChunkElements) {
    const int64_t n = minOf(kChunkElements, length - start);
    char* data = static_cast<char*>(out.data) + start * stride * dtypeBytes(out.dtype);
    float oldBuffer[kChunkElements], newValues[kChunkElements];
    const float* oldValues = fetch<T>(out.dtype, data, stride, n, oldBuffer);
    applyBinary<T>(BinaryOp::Add, newValues, oldValues, sum + start, n);
    if (out.dtype == DType::Float32 && stride == 1) {
      __builtin_memcpy(data, newValues, static_cast<size_t>(n) * sizeof(float));
    } else {
      flush<T>(out.dtype, data, stride, n, newValues);
    }
  }
}

/// The axes of a reduction: `kept` iterates over x and out together, `reduced` over the reduced axes of x.
struct Reduction {
  Loop<2> kept;
  Loop<1> reduced;
};

MOSAIC_NOINLINE Reduction splitAxes(const View& out, const View& x) {
  View keptX = x, keptOut = out, reduced = x;
  keptX.rank = keptOut.rank = reduced.rank = 0;
  for (int axis = 0; axis < x.rank; axis++) {
    const int outAxis = axis - x.rank + out.rank;
    if (outAxis < 0 || (out.shape[outAxis] == 1 && x.shape[axis] != 1)) {
      reduced.shape[reduced.rank] = x.shape[axis];
      reduced.stride[reduced.rank++] = x.stride[axis];
      continue;
    }
    keptX.shape[keptX.rank] = x.shape[axis];
    keptX.stride[keptX.rank++] = x.stride[axis];
    keptOut.shape[keptOut.rank] = out.shape[outAxis];
    keptOut.stride[keptOut.rank++] = out.stride[outAxis];
  }
  return {makeLoop<2>({&keptX, &keptOut}), makeLoop<1>({&reduced})};
}

template <class T>
MOSAIC_INLINE void combineInto(ReduceKind kind, float* to, const float* from, int64_t n) {
  applyBinary<T>(kind == ReduceKind::Sum ? BinaryOp::Add : BinaryOp::Max, to, to, from, n);
}

/// Reduces the chunks [from, to) of x's reduced axes for one output element.
template <class T>
MOSAIC_NOINLINE float reduceChunks(ReduceKind kind, const Loop<1>& loop, int64_t from, int64_t to) {
  using V = typename T::Vec;
  const int64_t innerLength = loop.shape[loop.rank - 1], stride = loop.stride[0][loop.rank - 1];
  const int64_t chunksPerRow = ceilDiv(innerLength, kChunkElements);
  float buffer[kChunkElements];
  double sum = 0;
  float maxValue = -__builtin_inff();
  for (int64_t chunk = from; chunk < to; chunk++) {
    const int64_t start = chunk % chunksPerRow * kChunkElements, n = minOf(kChunkElements, innerLength - start);
    const char* data = cursorAt(loop, chunk / chunksPerRow).data[0] + start * stride * dtypeBytes(loop.dtype[0]);
    const float* values = fetch<T>(loop.dtype[0], data, stride, n, buffer);
    if (kind == ReduceKind::Sum) {
      sum += sumRun<T>(values, values, n, [](V v, V) { return v; });
    } else {
      const float rowMax = maxOver<T>(values, n);
      maxValue = maxValue > rowMax || maxValue != maxValue ? maxValue : rowMax;
    }
  }
  return kind == ReduceKind::Sum ? static_cast<float>(sum) : maxValue;
}

/// Returns the position of output element `index` and of its part of x.
MOSAIC_INLINE Cursor<2> elementAt(const Loop<2>& kept, int64_t index) {
  const int innerAxis = kept.rank - 1;
  Cursor<2> cursor = cursorAt(kept, index / kept.shape[innerAxis]);
  for (int i = 0; i < 2; i++) {
    cursor.data[i] += index % kept.shape[innerAxis] * kept.stride[i][innerAxis] * dtypeBytes(kept.dtype[i]);
  }
  return cursor;
}

/// Chunks per group. Groups of one output element may run on different threads; groups depend on the shape alone.
constexpr int64_t kChunksPerGroup = 16;

/// x is dense, or has its smallest stride, along reduced axes: each output element is a reduction of long runs.
template <class T>
MOSAIC_NOINLINE void reduceRuns(ReduceKind kind, const Reduction& axes, Pool& pool) {
  const Loop<1>& loop = axes.reduced;
  const int64_t innerLength = loop.shape[loop.rank - 1];
  const int64_t chunks = loop.size / innerLength * ceilDiv(innerLength, kChunkElements);
  const int64_t groups = ceilDiv(chunks, kChunksPerGroup);
  const int64_t grainSize = groups > 1 ? 1 : maxOf(1, kMinParallelElements / loop.size);
  const ScratchBuffer partials(axes.kept.size * groups);
  pool.parallelFor(ceilDiv(axes.kept.size * groups, grainSize), [&](int64_t task, int) {
    const int64_t end = minOf(axes.kept.size * groups, (task + 1) * grainSize);
    for (int64_t i = task * grainSize; i < end; i++) {
      Loop<1> keptLoop = loop;
      keptLoop.data[0] = elementAt(axes.kept, i / groups).data[0];
      const int64_t from = i % groups * kChunksPerGroup;
      partials.data[i] = reduceChunks<T>(kind, keptLoop, from, minOf(chunks, from + kChunksPerGroup));
    }
  });
  for (int64_t i = 0; i < axes.kept.size; i++) {
    float* partial = partials.data + i * groups;
    combineChunks(partial, groups, 1, [&](float* to, const float* from, int64_t n) {
      combineInto<T>(kind, to, from, n);
    });
    flush<T>(axes.kept.dtype[1], elementAt(axes.kept, i).data[1], 1, 1, partial);
  }
}

/// x is dense along a kept axis: reduces whole vectors of output elements at a time.
template <class T>
MOSAIC_NOINLINE void reduceColumns(ReduceKind kind, const Reduction& axes, Pool& pool) {
  const Loop<2>& kept = axes.kept;
  const int innerAxis = kept.rank - 1;
  const int64_t width = minOf(kept.shape[innerAxis], kChunkElements);
  const int64_t stripsPerRow = ceilDiv(kept.shape[innerAxis], width);
  const int64_t strips = kept.size / kept.shape[innerAxis] * stripsPerRow;
  Loop<1> rows = axes.reduced;  // the inner axis has length 1, so that every row is visited separately
  rows.shape[rows.rank] = 1;
  rows.stride[0][rows.rank++] = 1;
  const int64_t chunks = ceilDiv(rows.size, kChunkRows);
  const ScratchBuffer partials(strips * chunks * width);
  pool.parallelFor(strips * chunks, [&](int64_t task, int) {
    const int64_t strip = task / chunks, chunk = task % chunks, start = strip % stripsPerRow * width;
    const int64_t n = minOf(width, kept.shape[innerAxis] - start), bytes = dtypeBytes(kept.dtype[0]);
    Loop<1> keptLoop = rows;
    keptLoop.data[0] = cursorAt(kept, strip / stripsPerRow).data[0] + start * kept.stride[0][innerAxis] * bytes;
    float* sum = partials.data + task * width;
    for (int64_t i = 0; i < n; i++) sum[i] = kind == ReduceKind::Sum ? 0.0f : -__builtin_inff();
    float buffer[kChunkElements];
    visitRows(keptLoop, chunk * kChunkRows, minOf(rows.size, (chunk + 1) * kChunkRows), [&](const Chunk<1>& span) {
      combineInto<T>(kind, sum, fetch<T>(kept.dtype[0], span.data[0], kept.stride[0][innerAxis], n, buffer), n);
    });
  });
  pool.parallelFor(strips, [&](int64_t strip, int) {
    float* partial = partials.data + strip * chunks * width;
    const int64_t start = strip % stripsPerRow * width, n = minOf(width, kept.shape[innerAxis] - start);
    combineChunks(partial, chunks, width, [&](float* to, const float* from, int64_t) {
      combineInto<T>(kind, to, from, n);
    });
    char* data = cursorAt(kept, strip / stripsPerRow).data[1];
    data += start * kept.stride[1][innerAxis] * dtypeBytes(kept.dtype[1]);
    if (kept.dtype[1] == DType::Float32 && kept.stride[1][innerAxis] == 1) {
      __builtin_memcpy(data, partial, static_cast<size_t>(n) * sizeof(float));
    } else {
      flush<T>(kept.dtype[1], data, kept.stride[1][innerAxis], n, partial);
    }
  });
}

template <class T>
void reduce(const ReduceArguments& args, Pool& pool) {
  const auto& [kind, out, x] = args;
  const Reduction axes = splitAxes(out, x);
  if (axes.kept.size == 0) return;
  if (axes.reduced.size == 0) return fill<T>({out, kind == ReduceKind::Sum ? 0.0f : -__builtin_inff()}, pool);
  const Loop<1>& reduced = axes.reduced;
  const Loop<2>& kept = axes.kept;
  const int64_t reducedStride = magnitude(reduced.stride[0][reduced.rank - 1]);
  const int64_t keptStride = kept.size > 1 ? magnitude(kept.stride[0][kept.rank - 1]) : reducedStride + 1;
  const bool isReducedByRuns = reducedStride <= keptStride || kept.shape[kept.rank - 1] == 1;
  if (isReducedByRuns) {
    reduceRuns<T>(kind, axes, pool);
  } else {
    reduceColumns<T>(kind, axes, pool);
  }
}

}  // namespace
}  // namespace mosaic
