// The algebra of states, row by row: two of them over disjoint keys make one over all of the keys.
#pragma once

#include <cmath>

#include "attention/rows.h"

namespace mosaic {

struct MergeWeights {
  float into, from, lse;
  bool isIntoEmpty;  // whether the row merged into has seen no key: its `out` may hold anything
};

/// exp(lse − merged lse) of both sides. The larger side has weight 1 without a difference, which of infinities is NaN.
inline MergeWeights mergeWeights(double into, double from) {
  const double maxLse = std::fmax(into, from);
  if (std::isnan(into) || std::isnan(from)) return {NAN, NAN, NAN, false};
  if (maxLse == -INFINITY) return {1, 0, -INFINITY, false};
  const double a = into == maxLse ? 1 : std::exp(into - maxLse), b = from == maxLse ? 1 : std::exp(from - maxLse);
  const auto normalize = [&](double x) { return static_cast<float>(x / (a + b)); };
  return {normalize(a), normalize(b), static_cast<float>(maxLse + std::log(a + b)), into == -INFINITY};
}

/// into ← into · weight.into + from · weight.from
inline void mergeRow(const MergeWeights& weight, const FloatRow& into, const FloatRow& from, int64_t depth) {
  if (into.stride != 1 || from.stride != 1) {
    for (int64_t d = 0; d < depth; ++d) {
      float& x = into.data[d * into.stride];
      x = (weight.isIntoEmpty ? 0 : weight.into * x) + weight.from * from.data[d * from.stride];
    }
  } else if (weight.isIntoEmpty) {
    for (int64_t d = 0; d < depth; ++d) into.data[d] = weight.from * from.data[d];
  } else {
    for (int64_t d = 0; d < depth; ++d) into.data[d] = weight.into * into.data[d] + weight.from * from.data[d];
  }
}

}  // namespace mosaic
