// The algebra of states, row by row: two of them over disjoint keys make one over all of the keys.
#pragma once

#include <cmath>

#include "attention/rows.h"

namespace mosaic {

struct MergeWeights {
  float into, from, lse;
  bool isEmpty;  // whether the row merged into has seen no key: its `out` may hold anything
};

/// exp(lse − merged lse) of both sides. The larger side has weight 1 without a difference, which of infinities is NaN.
inline MergeWeights mergeWeights(double into, double from) {
  const double high = std::fmax(into, from);
  if (std::isnan(into) || std::isnan(from)) return {NAN, NAN, NAN, false};
  if (high == -INFINITY) return {1, 0, -INFINITY, false};
  const double a = into == high ? 1 : std::exp(into - high), b = from == high ? 1 : std::exp(from - high);
  const auto part = [&](double x) { return static_cast<float>(x / (a + b)); };
  return {part(a), part(b), static_cast<float>(high + std::log(a + b)), into == -INFINITY};
}

/// into ← into · weight.into + from · weight.from
inline void mergeRow(const MergeWeights& weight, const FloatRow& into, const FloatRow& from, int64_t depth) {
  if (into.stride != 1 || from.stride != 1) {
    for (int64_t d = 0; d < depth; ++d) {
      float& x = into.data[d * into.stride];
      x = (weight.isEmpty ? 0 : weight.into * x) + weight.from * from.data[d * from.stride];
    }
  } else if (weight.isEmpty) {
    for (int64_t d = 0; d < depth; ++d) into.data[d] = weight.from * from.data[d];
  } else {
    for (int64_t d = 0; d < depth; ++d) into.data[d] = weight.into * into.data[d] + weight.from * from.data[d];
  }
}

}  // namespace mosaic
