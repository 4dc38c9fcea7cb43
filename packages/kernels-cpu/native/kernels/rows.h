// Kernels that process each row (the last axis) as a unit: softmax, norms, dot products.
#pragma once

#include "kernels/elementwise.h"

namespace mosaic {
namespace {

MOSAIC_INLINE View dropLastAxis(const View& view) {
  View result = view;
  result.rank -= 1;
  return result;
}

/// The layout of a row operand.
struct Row {
  DType dtype;
  int64_t stride, length;
};

MOSAIC_INLINE Row rowOf(const View& view) {
  return {view.dtype, view.stride[view.rank - 1], view.shape[view.rank - 1]};
}

/// Returns a row as dense float32: in place, or in `buffer`.
template <class T>
MOSAIC_INLINE const float* fetchRow(const Row& row, const char* data, float* buffer) {
  if (row.dtype == DType::Float32 && row.stride == 1) return reinterpret_cast<const float*>(data);
  for (int64_t start = 0; start < row.length; start += kChunkElements) {
    const int64_t n = minOf(kChunkElements, row.length - start);
    const char* from = data + start * row.stride * dtypeBytes(row.dtype);
    const float* values = fetch<T>(row.dtype, from, row.stride, n, buffer + start);
    if (values != buffer + start) __builtin_memcpy(buffer + start, values, static_cast<size_t>(n) * sizeof(float));
  }
  return buffer;
}

/// Returns where to compute a row: in place if it is dense float32, else in `buffer`, stored by `flushRow`.
MOSAIC_INLINE float* targetRow(const Row& row, char* data, float* buffer) {
  return target(row.dtype, data, row.stride, buffer);
}

template <class T>
MOSAIC_INLINE void flushRow(const Row& row, char* data, const float* values) {
  for (int64_t start = 0; start < row.length; start += kChunkElements) {
    char* to = data + start * row.stride * dtypeBytes(row.dtype);
    flush<T>(row.dtype, to, row.stride, minOf(kChunkElements, row.length - start), values + start);
  }
}

/// Calls visit(data, buffers) for each row. data[i] is the start of operand i's row; each of the B buffers can hold a
/// row.
template <int B, int N, class Visit>
MOSAIC_INLINE void forEachRow(const Loop<N>& outerLoop, int64_t length, Pool& pool, Visit visit) {
  const int64_t grainSize = maxOf(1, kMinParallelElements / 2 / maxOf(length, 1));
  const int innerAxis = outerLoop.rank - 1;
  const int64_t width = outerLoop.shape[innerAxis];
  pool.parallelFor(ceilDiv(outerLoop.size, grainSize), [&](int64_t task, int worker) {
    Arena& arena = pool.arena(worker);
    arena.reset();
    float* buffers[B];
    for (float*& buffer : buffers) buffer = arena.allocate<float>(length);
    const int64_t from = task * grainSize, to = minOf(outerLoop.size, from + grainSize);
    Cursor<N> cursor = cursorAt(outerLoop, from / width);
    int64_t column = from % width;
    for (int64_t row = from; row < to; row++) {
      char* data[N];
      for (int i = 0; i < N; i++)
        data[i] = cursor.data[i] + column * outerLoop.stride[i][innerAxis] * dtypeBytes(outerLoop.dtype[i]);
      visit(data, buffers);
      if (++column < width) continue;
      column = 0;
      advance(outerLoop, cursor);
    }
  });
}

/// Returns Σ fn(a[i], b[i]) over dense rows, in four chains of vectors.
template <class T, class Fn>
MOSAIC_INLINE float sumOver(const float* a, const float* b, int64_t n, Fn fn) {
  typename T::Vec accumulators[4] = {T::zero(), T::zero(), T::zero(), T::zero()};
  int64_t i = 0;
  for (; i + 4 * T::lanes <= n; i += 4 * T::lanes) {
    for (int c = 0; c < 4; c++) {
      accumulators[c] = T::add(accumulators[c], fn(T::load(a + i + c * T::lanes), T::load(b + i + c * T::lanes)));
    }
  }
  for (; i + T::lanes <= n; i += T::lanes) {
    accumulators[0] = T::add(accumulators[0], fn(T::load(a + i), T::load(b + i)));
  }
  if (i < n) {  // lanes past the end must add 0, whatever fn(0, 0) is
    float tail[T::lanes] = {};
    const int count = static_cast<int>(n - i);
    T::store(tail, fn(T::loadPartial(a + i, count), T::loadPartial(b + i, count)));
    accumulators[1] = T::add(accumulators[1], T::loadPartial(tail, static_cast<int>(n - i)));
  }
  return T::sum(T::add(T::add(accumulators[0], accumulators[1]), T::add(accumulators[2], accumulators[3])));
}

/// Elements that are summed in float32 before the sum is continued in float64. Each lane of the four chains has at most
/// 16 rounded additions.
template <class T>
constexpr int64_t kFloat32RunLength = T::lanes < 8 ? 64 * T::lanes : 512;

/// Like `sumOver`, for rows of any length, accurate to float32.
template <class T, class Fn>
MOSAIC_INLINE double sumRun(const float* a, const float* b, int64_t n, Fn fn) {
  double sum = 0;
  for (int64_t start = 0; start < n; start += kFloat32RunLength<T>) {
    sum += static_cast<double>(sumOver<T>(a + start, b + start, minOf(kFloat32RunLength<T>, n - start), fn));
  }
  return sum;
}

template <class T, class Fn>
MOSAIC_INLINE float sumRow(const float* a, const float* b, int64_t n, Fn fn) {
  return static_cast<float>(sumRun<T>(a, b, n, fn));
}

template <class T>
MOSAIC_INLINE float maxOver(const float* a, int64_t n) {
  typename T::Vec maxVec = T::set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) maxVec = maxNan<T>(maxVec, T::load(a + i));
  float laneValues[T::lanes];
  T::store(laneValues, maxVec);
  float maxValue = laneValues[0];
  for (int lane = 1; lane < T::lanes; lane++)
    maxValue = maxValue > laneValues[lane] || maxValue != maxValue ? maxValue : laneValues[lane];
  for (; i < n; i++) maxValue = maxValue > a[i] || maxValue != maxValue ? maxValue : a[i];
  return maxValue;
}

/// out ← Σ over the last axis of a · b. That axis has length 1 in out, or is absent.
template <class T>
void rowDot(const RowDotArguments& args, Pool& pool) {
  const auto& [out, a, b] = args;
  const View views[3] = {out.rank == a.rank ? dropLastAxis(out) : out, dropLastAxis(a), dropLastAxis(b)};
  const Loop<3> outerLoop = makeLoop<3>({&views[0], &views[1], &views[2]});
  const Row rowA = rowOf(a), rowB = rowOf(b);
  forEachRow<2>(outerLoop, rowA.length, pool, [&](char* const(&data)[3], float* const(&buffers)[2]) {
    using V = typename T::Vec;
    const float* x = fetchRow<T>(rowA, data[1], buffers[0]);
    const float* y = fetchRow<T>(rowB, data[2], buffers[1]);
    const float sum = sumRow<T>(x, y, rowA.length, [](V u, V v) { return T::mul(u, v); });
    flushElement<T>(outerLoop.dtype[0], data[0], sum);
  });
}

}  // namespace
}  // namespace mosaic
