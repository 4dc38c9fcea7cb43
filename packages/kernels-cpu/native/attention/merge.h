// The algebra of states, row by row: two of them over disjoint keys make one over all of the keys.
#pragma once

#include <cmath>

#include "attention/rows.h"

namespace mosaic {

struct MergeWeights {
  float targetWeight, sourceWeight, lse;
  bool isTargetEmpty;  // whether the target row has attended to no key; its `out` may then be uninitialized
};

/// exp(lse − merged lse) of both sides. The larger side has weight 1 without a subtraction, which is NaN for
/// infinities.
inline MergeWeights mergeWeights(double targetLse, double sourceLse) {
  // The formulas below give the same for an empty target, but take as long as several columns of a row.
  if (targetLse == -INFINITY && sourceLse > -INFINITY) return {0, 1, static_cast<float>(sourceLse), true};
  const double maxLse = std::fmax(targetLse, sourceLse);
  if (std::isnan(targetLse) || std::isnan(sourceLse)) return {NAN, NAN, NAN, false};
  if (maxLse == -INFINITY) return {1, 0, -INFINITY, false};
  const double a = targetLse == maxLse ? 1 : std::exp(targetLse - maxLse),
               b = sourceLse == maxLse ? 1 : std::exp(sourceLse - maxLse);
  const auto normalize = [&](double x) { return static_cast<float>(x / (a + b)); };
  return {normalize(a), normalize(b), static_cast<float>(maxLse + std::log(a + b)), targetLse == -INFINITY};
}

/// target ← target · weight.targetWeight + source · weight.sourceWeight
inline void mergeRow(const MergeWeights& weight, const FloatRow& target, const FloatRow& source, int64_t depth) {
  if (target.stride != 1 || source.stride != 1) {
    for (int64_t d = 0; d < depth; ++d) {
      float& x = target.data[d * target.stride];
      x = (weight.isTargetEmpty ? 0 : weight.targetWeight * x) + weight.sourceWeight * source.data[d * source.stride];
    }
  } else if (weight.isTargetEmpty) {
    for (int64_t d = 0; d < depth; ++d) target.data[d] = weight.sourceWeight * source.data[d];
  } else {
    for (int64_t d = 0; d < depth; ++d)
      target.data[d] = weight.targetWeight * target.data[d] + weight.sourceWeight * source.data[d];
  }
}

}  // namespace mosaic
