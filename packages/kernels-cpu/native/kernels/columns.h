// Sums over rows for every column: by chunks of rows in parallel, then pairwise over the chunks, so that the result
// neither depends on the number of threads nor loses accuracy with the number of rows.
#pragma once

#include "kernels/elementwise.h"

namespace mosaic {
namespace {

/// Rows summed one after the other before sums are added pairwise.
constexpr int64_t kChunkRows = 128;

/// partial[0] ← Σ partial[i], each a vector of `length`; `combine(to, from, n)` adds.
template <class Combine>
MOSAIC_INLINE void combineChunks(float* partial, int64_t chunks, int64_t length, Combine combine) {
  for (int64_t step = 1; step < chunks; step *= 2) {
    for (int64_t i = 0; i + step < chunks; i += 2 * step) {
      combine(partial + i * length, partial + (i + step) * length, length);
    }
  }
}

/// out [E], unless it is absent, += the vector `sum`.
template <class T>
MOSAIC_INLINE void addTo(const OptionalView& out, const float* sum) {
  if (!out.data) return;
  const int64_t stride = out.stride[out.rank - 1], length = out.shape[out.rank - 1];
  for (int64_t start = 0; start < length; start += kPiece) {
    const int64_t n = minOf(kPiece, length - start);
    char* data = static_cast<char*>(out.data) + start * stride * dtypeBytes(out.dtype);
    float before[kPiece], after[kPiece];
    const float* old = fetch<T>(out.dtype, data, stride, n, before);
    applyBinary<T>(BinaryOp::Add, after, old, sum + start, n);
    if (out.dtype == DType::Float32 && stride == 1) {
      __builtin_memcpy(data, after, static_cast<size_t>(n) * sizeof(float));
    } else {
      flush<T>(out.dtype, data, stride, n, after);
    }
  }
}

}  // namespace
}  // namespace mosaic
