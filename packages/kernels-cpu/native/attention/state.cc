#include <algorithm>

#include "attention/attention.h"
#include "attention/merge.h"
#include "simd/integers.h"

namespace mosaic {

void mergeStates(const AttentionState& into, std::span<const AttentionState> from, Pool& pool) {
  const int64_t* shape = into.out.shape;
  constexpr int64_t kRowsPerTask = 64;  // per task
  const int64_t rows = shape[0] * shape[1] * shape[2];
  pool.parallelFor(ceilDiv(rows, kRowsPerTask), [&](int64_t task, int) {
    for (int64_t row = task * kRowsPerTask; row < std::min(rows, (task + 1) * kRowsPerTask); ++row) {
      const int64_t head = row / shape[2];
      const HeadRows headRows{head / shape[1], head % shape[1], row % shape[2]};
      const FloatRows out(into.out, headRows), lse(into.lse, headRows);
      for (const AttentionState& state : from) {
        const FloatRows otherOut(state.out, headRows), otherLse(state.lse, headRows);
        if (otherLse(0) == -INFINITY) continue;
        const MergeWeights weight = mergeWeights(lse(0), otherLse(0));
        lse(0) = weight.lse;
        mergeRow(weight, out.row(0), otherOut.row(0), shape[3]);
      }
    }
  });
}

}  // namespace mosaic
