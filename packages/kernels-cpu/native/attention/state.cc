#include <algorithm>

#include "attention/attention.h"
#include "attention/merge.h"

namespace mosaic {

void mergeState(const AttentionState& into, const AttentionState& from, Pool& pool) {
  const int64_t* shape = into.out.shape;
  constexpr int64_t kRows = 64;  // per task
  const int64_t perHead = (shape[2] + kRows - 1) / kRows;
  pool.parallelFor(shape[0] * shape[1] * perHead, [&](int64_t task, int) {
    const int64_t head = task / perHead, begin = task % perHead * kRows;
    const HeadRows at{head / shape[1], head % shape[1], begin};
    const FloatRows out(into.out, at), lse(into.lse, at), otherOut(from.out, at), otherLse(from.lse, at);
    for (int64_t r = 0; r < std::min(kRows, shape[2] - begin); ++r) {
      if (otherLse(r) == -INFINITY) continue;
      const MergeWeights weight = mergeWeights(lse(r), otherLse(r));
      lse(r) = weight.lse;
      mergeRow(weight, out.row(r), otherOut.row(r), shape[3]);
    }
  });
}

}  // namespace mosaic
