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
    float* to = targetRow(rowOut, data[0], buffers[0]);
    map3<T>(to, row, weight, bias, n, [&](V v, V w, V b) { return (v - mean) * rstd * w + b; });
    flushRow<T>(rowOut, data[0], to);
    flushElement<T>(outerLoop.dtype[2], data[2], statistics.rstd);
    if (isCentered) flushElement<T>(outerLoop.dtype[3], data[3], statistics.mean);
  });
}

/// A row of the backward. `products` is scratch memory; `partial` receives dWeight and dBias.
struct NormGradientRow {
  float* dx;
  const float *x, *dy, *weight;
  float* products;
  float* const (&partial)[2];
  int64_t length;
};

/// products ← normalized x · dy, which is added to dWeight; dBias += dy.
template <class T>
MOSAIC_INLINE void addParameterTerms(const NormGradientRow& row, typename T::Vec mean, typename T::Vec rstd) {
  using V = typename T::Vec;
  const auto addVector = [&](int64_t i, int count) __attribute__((always_inline)) {
    const auto load = [&](const float* from) __attribute__((always_inline)) {
      return count == T::lanes ? T::load(from + i) : T::loadPartial(from + i, count);
    };
    const auto store = [&](float* to, V v) __attribute__((always_inline)) {
      count == T::lanes ? T::store(to + i, v) : T::storePartial(to + i, v, count);
    };
    const V dy = load(row.dy), product = (load(row.x) - mean) * rstd * dy;
    store(row.products, product);
    store(row.partial[0], T::add(load(row.partial[0]), product));
    store(row.partial[1], T::add(load(row.partial[1]), dy));
  };
  int64_t i = 0;
  for (; i + T::lanes <= row.length; i += T::lanes) addVector(i, T::lanes);
  if (i < row.length) addVector(i, static_cast<int>(row.length - i));
}

/// Computes the backward of one row: writes dx, and adds to this chunk's dWeight and dBias.
template <class T>
MOSAIC_NOINLINE void normBackwardRow(const NormGradientRow& row, const RowStatistics& statistics, bool isCentered) {
  using V = typename T::Vec;
  const int64_t n = row.length;
  const V mean = T::set1(statistics.mean), rstd = T::set1(statistics.rstd);
  addParameterTerms<T>(row, mean, rstd);
  const auto dotWeight = [&](const float* values) __attribute__((always_inline)) {
    return sumRow<T>(values, row.weight, n, [](V v, V w) { return v * w; }) / static_cast<float>(n);
  };
  const V xProjection = T::set1(dotWeight(row.products));
  const V gradientMean = T::set1(isCentered ? dotWeight(row.dy) : 0.0f);
  map3<T>(row.dx, row.dy, row.weight, row.x, n, [&](V g, V w, V v) {
    return rstd * (g * w - gradientMean - (v - mean) * rstd * xProjection);
  });
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
    float* buffers[4];
    for (float*& buffer : buffers) buffer = arena.allocate<float>(n);
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
      float* dx = targetRow(rows[0], cursor.data[0], buffers[0]);
      normBackwardRow<T>({dx, fetchRow<T>(rows[1], cursor.data[1], buffers[1]),
                          fetchRow<T>(rows[2], cursor.data[2], buffers[2]), scale, buffers[3], partial, n},
                         statistics, isCentered);
      flushRow<T>(rows[0], cursor.data[0], dx);
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
