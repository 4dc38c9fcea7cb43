#include <algorithm>

#include "attention/attention.h"
#include "attention/merge.h"

namespace mosaic {

void mergeStates(const AttentionState& into, std::span<const AttentionState> from, Pool& pool) {
  const int64_t* shape = into.out.shape;
  constexpr int64_t kRows = 64;  // per task
  const int64_t rows = shape[0] * shape[1] * shape[2];
  pool.parallelFor((rows + kRows - 1) / kRows, [&](int64_t task, int) {
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      const int64_t head = row / shape[2];
      const HeadRows at{head / shape[1], head % shape[1], row % shape[2]};
      const FloatRows out(into.out, at), lse(into.lse, at);
      for (const AttentionState& state : from) {
        const FloatRows otherOut(state.out, at), otherLse(state.lse, at);
        if (otherLse(0) == -INFINITY) continue;
        const MergeWeights weight = mergeWeights(lse(0), otherLse(0));
        lse(0) = weight.lse;
        mergeRow(weight, out.row(0), otherOut.row(0), shape[3]);
      }
    }
  });
}

}  // namespace mosaic
