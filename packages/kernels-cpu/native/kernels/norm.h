// LayerNorm (Ba, Kiros and Hinton 2016) and RMSNorm (Zhang and Sennrich 2019) over the last axis. RMSNorm is LayerNorm
// without a mean: `stats.mean` is absent.
#pragma once

#include "kernels/reduce.h"
#include "kernels/rows.h"

namespace mosaic {
namespace {

/// Loads a parameter [E], or `defaultValue`, as dense float32 into memory that arena resets inside forEachRow do not
/// affect.
template <class T>
MOSAIC_INLINE void fetchParameter(const OptionalView& view, float defaultValue, float* buffer, int64_t length) {
  for (int64_t i = 0; !view.data && i < length; i++) buffer[i] = defaultValue;
  if (!view.data) return;
  const float* values = fetchRow<T>(rowOf(view), static_cast<const char*>(view.data), buffer);
  if (values != buffer) __builtin_memcpy(buffer, values, static_cast<size_t>(length) * sizeof(float));
}

struct RowStatistics {
  float mean, rstd;
};

template <class T>
MOSAIC_INLINE RowStatistics rowStatistics(const float* x, int64_t n, bool isCentered, float epsilon) {
  using V = typename T::Vec;
  const float count = static_cast<float>(n);
  const float mean = isCentered ? sumRow<T>(x, x, n, [](V v, V) { return v; }) / count : 0.0f;
  const V center = T::set1(mean);
  const float variance = sumRow<T>(x, x, n, [&](V v, V) { return (v - center) * (v - center); }) / count;
  return {mean, 1.0f / __builtin_sqrtf(variance + epsilon)};
}

template <class T>
void layerNorm(const LayerNormArguments& args, Pool& pool) {
  using V = typename T::Vec;
  const auto& [out, x, norm, stats] = args;
  const int64_t n = x.shape[x.rank - 1];
  const bool isCentered = stats.mean.data != nullptr;
  const View views[4] = {dropLastAxis(out), dropLastAxis(x), dropLastAxis(stats.rstd),
                         dropLastAxis(isCentered ? stats.mean : stats.rstd)};
  const Loop<4> outerLoop = makeLoop<4>({&views[0], &views[1], &views[2], &views[3]});
  const Row rowOut = rowOf(out), rowX = rowOf(x);
  const ScratchBuffer parameters(2 * n);
  float *weight = parameters.data, *bias = parameters.data + n;
  fetchParameter<T>(norm.weight, 1.0f, weight, n);
  fetchParameter<T>(norm.bias, 0.0f, bias, n);
  forEachRow<2>(outerLoop, n, pool, [&](char* const(&data)[4], float* const(&buffers)[2]) {
    const float* row = fetchRow<T>(rowX, data[1], buffers[1]);
    const RowStatistics statistics = rowStatistics<T>(row, n, isCentered, norm.epsilon);
    const V mean = T::set1(statistics.mean), rstd = T::set1(statistics.rstd);
    map2<T>(buffers[0], row, weight, n, [&](V v, V w) { return (v - mean) * rstd * w; });
    applyBinary<T>(BinaryOp::Add, buffers[0], buffers[0], bias, n);
    flushRow<T>(rowOut, data[0], buffers[0]);
    flush<T>(outerLoop.dtype[2], data[2], 1, 1, &statistics.rstd);
    if (isCentered) flush<T>(outerLoop.dtype[3], data[3], 1, 1, &statistics.mean);
  });
}

/// Computes the backward of one row: writes dx, and adds to this chunk's dWeight and dBias.
template <class T>
MOSAIC_NOINLINE void normBackwardRow(float* dx, const float* x, const float* dy, const RowStatistics& statistics,
                                     bool isCentered, const float* weight, float* const (&partial)[2], int64_t n) {
  using V = typename T::Vec;
  const V mean = T::set1(statistics.mean), rstd = T::set1(statistics.rstd);
  map2<T>(dx, x, dy, n, [&](V v, V g) { return (v - mean) * rstd * g; });  // normalized x · dy
  applyBinary<T>(BinaryOp::Add, partial[0], partial[0], dx, n);
  applyBinary<T>(BinaryOp::Add, partial[1], partial[1], dy, n);
  const float count = static_cast<float>(n);
  const float xProjection = sumRow<T>(dx, weight, n, [](V v, V w) { return v * w; }) / count;
  const float gradientMean = isCentered ? sumRow<T>(dy, weight, n, [](V g, V w) { return g * w; }) / count : 0.0f;
  map2<T>(dx, dy, weight, n, [&](V g, V w) { return g * w - T::set1(gradientMean); });
  map2<T>(dx, dx, x, n, [&](V g, V v) { return rstd * (g - (v - mean) * rstd * T::set1(xProjection)); });
}

template <class T>
void layerNormBackward(const LayerNormBackwardArguments& args, Pool& pool) {
  const auto& [grads, x, dOut, weight, stats] = args;
  const int64_t n = x.shape[x.rank - 1];
  const bool isCentered = stats.mean.data != nullptr;
  const View views[5] = {dropLastAxis(grads.dx), dropLastAxis(x), dropLastAxis(dOut), dropLastAxis(stats.rstd),
                         dropLastAxis(isCentered ? stats.mean : stats.rstd)};
  const Loop<5> outerLoop = makeLoop<5>({&views[0], &views[1], &views[2], &views[3], &views[4]});
  const Row rows[3] = {rowOf(grads.dx), rowOf(x), rowOf(dOut)};
  const int64_t chunks = ceilDiv(outerLoop.size, kChunkRows);
  const ScratchBuffer memory(n + 2 * n * chunks);
  float *scale = memory.data, *partials = memory.data + n;
  fetchParameter<T>(weight, 1.0f, scale, n);
  const int64_t width = outerLoop.shape[outerLoop.rank - 1];
  pool.parallelFor(chunks, [&](int64_t chunk, int worker) {
    Arena& arena = pool.arena(worker);
    arena.reset();
    float* buffers[3] = {arena.allocate<float>(n), arena.allocate<float>(n), arena.allocate<float>(n)};
    float* const partial[2] = {partials + 2 * n * chunk, partials + 2 * n * chunk + n};
    for (int64_t i = 0; i < 2 * n; i++) partial[0][i] = 0;
    const int64_t end = minOf(outerLoop.size, (chunk + 1) * kChunkRows);
    for (int64_t row = chunk * kChunkRows; row < end; row++) {
      Cursor<5> cursor = cursorAt(outerLoop, row / width);
      for (int i = 0; i < 5; i++) {
        cursor.data[i] += row % width * outerLoop.stride[i][outerLoop.rank - 1] * dtypeBytes(outerLoop.dtype[i]);
      }
      float statBuffer[2];
      const RowStatistics statistics{
          isCentered ? *fetch<T>(outerLoop.dtype[4], cursor.data[4], 1, 1, &statBuffer[0]) : 0.0f,
          *fetch<T>(outerLoop.dtype[3], cursor.data[3], 1, 1, &statBuffer[1])};
      normBackwardRow<T>(buffers[0], fetchRow<T>(rows[1], cursor.data[1], buffers[1]),
                         fetchRow<T>(rows[2], cursor.data[2], buffers[2]), statistics, isCentered, scale, partial, n);
      flushRow<T>(rows[0], cursor.data[0], buffers[0]);
    }
  });
  if (chunks == 0) return;
  combineChunks(partials, chunks, 2 * n, [](float* to, const float* from, int64_t length) {
    applyBinary<T>(BinaryOp::Add, to, to, from, length);
  });
  addToOptional<T>(grads.dWeight, partials);
  addToOptional<T>(grads.dBias, partials + n);
}

template <class T>
void rmsNorm(const RmsNormArguments& args, Pool& pool) {
  layerNorm<T>(args, pool);
}

template <class T>
void rmsNormBackward(const RmsNormBackwardArguments& args, Pool& pool) {
  layerNormBackward<T>(args, pool);
}

}  // namespace
}  // namespace mosaic
