// Cross-entropy over the last axis. The softmax is never stored.
#pragma once

#include "kernels/indexed.h"
#include "kernels/math.h"

namespace mosaic {
namespace {

template <class T>
MOSAIC_INLINE float scalarLog(float x) {
  float lanes[T::lanes];
  T::store(lanes, logOf<T>(T::set1(x)));
  return lanes[0];
}

struct RowLoss {
  float loss, lse;
};

/// (1 − s)(lse − x[class]) + s (lse − mean x). Differences are relative to the largest x, which reduces cancellation.
template <class T>
MOSAIC_NOINLINE RowLoss computeRowLoss(const float* x, int64_t n, int64_t targetClass, float smoothing, float* buffer) {
  using V = typename T::Vec;
  const float maxLogit = maxOver<T>(x, n);
  map1<T>(buffer, x, n, [&](V v) { return expOf<T>(v - T::set1(maxLogit)); });
  const float logSum = scalarLog<T>(sumRow<T>(buffer, buffer, n, [](V v, V) { return v; }));
  float loss = (maxLogit - x[targetClass]) + logSum;
  if (smoothing > 0) {
    const float distanceSum = sumRow<T>(x, x, n, [&](V v, V) { return T::set1(maxLogit) - v; });
    loss = (1 - smoothing) * loss + smoothing * (distanceSum / static_cast<float>(n) + logSum);
  }
  return {loss, maxLogit + logSum};
}

template <class T>
void crossEntropy(const CrossEntropyArguments& args, Pool& pool) {
  const auto& [rows, x, target, spec] = args;
  const Row rowX = rowOf(x);
  throwIfIndexInvalid<T>("crossEntropy", target, {rowX.length, spec.ignored});
  const View outerView = dropLastAxis(x);
  const Loop<5> loop = makeLoop<5>({&rows.loss, &rows.lse, &rows.counted, &target, &outerView});
  if (loop.size == 0) return;
  forEachRow<2>(loop, rowX.length, pool, [&](char* const(&data)[5], float* const(&buffers)[2]) {
    const float targetClass = loadScalar<T>(loop.dtype[3], data[3]);
    const float counted = targetClass == spec.ignored ? 0.0f : 1.0f;
    RowLoss row{0, 0};
    if (counted != 0) {
      const float* values = fetchRow<T>(rowX, data[4], buffers[0]);
      row = computeRowLoss<T>(values, rowX.length, static_cast<int64_t>(targetClass), spec.smoothing, buffers[1]);
    }
    flush<T>(loop.dtype[0], data[0], 1, 1, &row.loss);
    flush<T>(loop.dtype[1], data[1], 1, 1, &row.lse);
    flush<T>(loop.dtype[2], data[2], 1, 1, &counted);
  });
}

/// Above this magnitude, lse in float32 has a rounding error of more than 1e-6: the relative error of exp(x − lse).
inline constexpr float kMaxAccurateLse = 16;

/// dx ← dLoss · (p − (1 − s) [class] − s / C) with p = exp(x − lse). For an lse that is not accurate, p is divided by
/// its sum over the row, which differs from 1 by the error of lse.
template <class T>
void crossEntropyBackward(const CrossEntropyBackwardArguments& args, Pool& pool) {
  using V = typename T::Vec;
  const auto& [dx, saved, dLoss, spec] = args;
  const Row rowX = rowOf(saved.x), rowDx = rowOf(dx);
  const int64_t n = rowX.length;
  throwIfIndexInvalid<T>("crossEntropyBackward", saved.target, {n, spec.ignored});
  const View outerViews[2] = {dropLastAxis(dx), dropLastAxis(saved.x)};
  const Loop<5> loop = makeLoop<5>({&outerViews[0], &outerViews[1], &saved.target, &saved.lse, &dLoss});
  if (loop.size == 0) return;
  forEachRow<2>(loop, n, pool, [&](char* const(&data)[5], float* const(&buffers)[2]) {
    const float targetClass = loadScalar<T>(loop.dtype[2], data[2]);
    float* to = buffers[1];
    if (targetClass == spec.ignored) {
      for (int64_t i = 0; i < n; i++) to[i] = 0;
    } else {
      const float* values = fetchRow<T>(rowX, data[1], buffers[0]);
      const float rowLse = loadScalar<T>(loop.dtype[3], data[3]);
      const V lse = T::set1(rowLse);
      const float scale = loadScalar<T>(loop.dtype[4], data[4]);
      const V factor = T::set1(scale), smoothingShare = T::set1(spec.smoothing / static_cast<float>(n));
      if (std::abs(rowLse) <= kMaxAccurateLse) {
        map1<T>(to, values, n, [&](V v) { return factor * (expOf<T>(v - lse) - smoothingShare); });
      } else {
        map1<T>(to, values, n, [&](V v) { return expOf<T>(v - lse); });
        const V inverseSum = T::set1(1.0f / sumRow<T>(to, to, n, [](V v, V) { return v; }));
        map1<T>(to, to, n, [&](V v) { return factor * (v * inverseSum - smoothingShare); });
      }
      to[static_cast<int64_t>(targetClass)] -= scale * (1 - spec.smoothing);
    }
    flushRow<T>(rowDx, data[0], to);
  });
}

}  // namespace
}  // namespace mosaic
