#include "kernels/state.h"

#include "kernels/row.cuh"

using namespace mosaic;
using namespace mosaic::cuda;

extern "C" {

/// With m the larger lse: out = Σ exp(lse − m) out / Σ exp(lse − m), lse = m + log Σ exp(lse − m). Rows of −∞ have seen
/// nothing, and their out is not looked at.
__global__ void merge(const __grid_constant__ MergeParameters p) {
  const auto& [out, lse, otherOut, otherLse] = p.over.rows.operand;
  const auto& step = p.over.step;
  forEachRow(p.over, [&](const int64_t(&at)[4]) {
    const float mine = loadElement(lse, at[1]), theirs = loadElement(otherLse, at[3]);
    if (theirs == -infinity()) return;
    const float top = fmaxf(mine, theirs);
    const float a = mine == -infinity() ? 0.f : expf(mine - top), b = expf(theirs - top), inverse = 1.f / (a + b);
    forEachPlace(p.over.length, [&](int64_t i) {
      const int64_t to = at[0] + i * step[0];
      const float own = a == 0.f && mine == -infinity() ? 0.f : a * loadElement(out, to);
      storeElement(out, to, (own + b * loadElement(otherOut, at[2] + i * step[2])) * inverse);
    });
    syncWarp();  // all lanes have read the old lse
    if (threadIdx.x % 32 == 0) storeElement(lse, at[1], top + logf(a + b));
  });
}

}  // extern "C"

EMULATED_KERNEL(merge, MergeParameters)
