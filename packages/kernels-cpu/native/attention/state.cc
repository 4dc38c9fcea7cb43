// The algebra of states: two of them over disjoint keys make one over all of the keys.
#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "attention/rows.h"

namespace mosaic {
namespace {

struct Weights {
  float into, from, lse;
};

/// exp(lse − merged lse) of both sides. The larger side has weight 1 without a difference, which of infinities is NaN.
Weights mergeWeights(float into, float from) {
  const double high = std::fmax(into, from);
  if (std::isnan(into) || std::isnan(from)) return {NAN, NAN, NAN};
  if (high == -INFINITY) return {1, 0, -INFINITY};
  const double a = into == high ? 1 : std::exp(into - high), b = from == high ? 1 : std::exp(from - high);
  return {static_cast<float>(a / (a + b)), static_cast<float>(b / (a + b)), static_cast<float>(high + std::log(a + b))};
}

/// into ← into · weight.into + from · weight.from, where a null `into` counts as zeros.
void mergeRow(const Weights& weight, const float* into, const float* from, float* out, int64_t depth) {
  if (into == nullptr) {
    for (int64_t d = 0; d < depth; ++d) out[d] = weight.from * from[d];
  } else {
    for (int64_t d = 0; d < depth; ++d) out[d] = weight.into * into[d] + weight.from * from[d];
  }
}

}  // namespace

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
      // `out` of a row without visible keys may hold anything: it is not read.
      const bool seen = lse(r) != -INFINITY;
      const Weights weight = mergeWeights(lse(r), otherLse(r));
      lse(r) = weight.lse;
      if (out.columnStride == 1 && otherOut.columnStride == 1) {
        mergeRow(weight, seen ? &out(r) : nullptr, &otherOut(r), &out(r), shape[3]);
      } else {
        for (int64_t d = 0; d < shape[3]; ++d) {
          mergeRow(weight, seen ? &out(r, d) : nullptr, &otherOut(r, d), &out(r, d), 1);
        }
      }
    }
  });
}

}  // namespace mosaic
