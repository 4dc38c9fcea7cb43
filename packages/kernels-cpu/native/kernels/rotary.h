// Rotary position embedding (Su et al. 2021).
#pragma once

#include "kernels/rows.h"

namespace mosaic {
namespace {

/// out ← a · cos + sign · b · sin, dense.
template <class T>
MOSAIC_INLINE void rotatePairs(float* out, const float* a, const float* b, const float* cos, const float* sin,
                               float sign, int64_t n) {
  const auto factor = T::set1(sign);
  int64_t i = 0;
  for (; i + T::lanes <= n; i += T::lanes) {
    T::store(out + i, T::load(a + i) * T::load(cos + i) + factor * (T::load(b + i) * T::load(sin + i)));
  }
  for (; i < n; i++) out[i] = a[i] * cos[i] + sign * (b[i] * sin[i]);
}

template <class T>
void rotary(const RotaryArguments& args, Pool& pool) {
  const auto& [out, x, angles] = args;
  const auto& [cos, sin, interleaved, inverse] = angles;
  const View views[4] = {dropLastAxis(out), dropLastAxis(x), dropLastAxis(cos), dropLastAxis(sin)};
  const Loop<4> outerLoop = makeLoop<4>({&views[0], &views[1], &views[2], &views[3]});
  const Row rows[4] = {rowOf(out), rowOf(x), rowOf(cos), rowOf(sin)};
  const int64_t pairs = rows[2].length, step = interleaved ? 2 : 1, secondHalfStep = interleaved ? 1 : pairs;
  const auto getFirstHalf = [=](const Row& row) { return Row{row.dtype, step * row.stride, pairs}; };
  const auto getSecondHalfOffset = [=](const Row& row) { return secondHalfStep * row.stride * dtypeBytes(row.dtype); };
  const Row to = getFirstHalf(rows[0]), from = getFirstHalf(rows[1]);
  const int64_t outSecondHalfOffset = getSecondHalfOffset(rows[0]), inSecondHalfOffset = getSecondHalfOffset(rows[1]);
  const float sign = inverse ? -1.0f : 1.0f;
  forEachRow<6>(outerLoop, pairs, pool, [&](char* const(&data)[4], float* const(&buffers)[6]) {
    const float* a = fetchRow<T>(from, data[1], buffers[0]);
    const float* b = fetchRow<T>(from, data[1] + inSecondHalfOffset, buffers[1]);
    const float* c = fetchRow<T>(rows[2], data[2], buffers[2]);
    const float* s = fetchRow<T>(rows[3], data[3], buffers[3]);
    rotatePairs<T>(buffers[4], a, b, c, s, -sign, pairs);
    rotatePairs<T>(buffers[5], b, a, c, s, sign, pairs);
    flushRow<T>(to, data[0], buffers[4]);
    flushRow<T>(to, data[0] + outSecondHalfOffset, buffers[5]);
  });
}

}  // namespace
}  // namespace mosaic
