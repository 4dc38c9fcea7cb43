// Softmax over the last axis.
#pragma once

#include "kernels/math.h"
#include "kernels/rows.h"

namespace mosaic {
namespace {

/// y ← exp(x − max) / Σ; 0 if the whole row is −∞.
template <class T>
MOSAIC_NOINLINE void softmaxRow(float* y, const float* x, int64_t n) {
  using V = typename T::Vec;
  const float rowMax = maxOver<T>(x, n);
  if (rowMax == -__builtin_inff()) {
    for (int64_t i = 0; i < n; i++) y[i] = 0;
    return;
  }
  map1<T>(y, x, n, [&](V v) { return expOf<T>(v - T::set1(rowMax)); });
  const float scale = 1.0f / sumRow<T>(y, y, n, [](V v, V) { return v; });
  map1<T>(y, y, n, [&](V v) { return v * T::set1(scale); });
}

template <class T>
void softmax(const SoftmaxArguments& args, Pool& pool) {
  const auto& [out, x] = args;
  const View views[2] = {dropLastAxis(out), dropLastAxis(x)};
  const Loop<2> outerLoop = makeLoop<2>({&views[0], &views[1]});
  const Row rowOut = rowOf(out), rowX = rowOf(x);
  if (rowX.length == 0) return;
  forEachRow<2>(outerLoop, rowX.length, pool, [&](char* const(&data)[2], float* const(&buffers)[2]) {
    softmaxRow<T>(buffers[0], fetchRow<T>(rowX, data[1], buffers[1]), rowX.length);
    flushRow<T>(rowOut, data[0], buffers[0]);
  });
}

/// dx ← out · (dOut − Σ out · dOut)
template <class T>
void softmaxBackward(const SoftmaxBackwardArguments& args, Pool& pool) {
  const auto& [dx, out, dOut] = args;
  const View views[3] = {dropLastAxis(dx), dropLastAxis(out), dropLastAxis(dOut)};
  const Loop<3> outerLoop = makeLoop<3>({&views[0], &views[1], &views[2]});
  const Row rows[3] = {rowOf(dx), rowOf(out), rowOf(dOut)};
  if (rows[0].length == 0) return;
  forEachRow<3>(outerLoop, rows[0].length, pool, [&](char* const(&data)[3], float* const(&buffers)[3]) {
    using V = typename T::Vec;
    const float* y = fetchRow<T>(rows[1], data[1], buffers[1]);
    const float* dy = fetchRow<T>(rows[2], data[2], buffers[2]);
    const float dot = sumRow<T>(y, dy, rows[0].length, [](V u, V v) { return u * v; });
    map2<T>(buffers[0], y, dy, rows[0].length, [&](V u, V v) { return u * (v - T::set1(dot)); });
    flushRow<T>(rows[0], data[0], buffers[0]);
  });
}

}  // namespace
}  // namespace mosaic
