// Reading and writing float32 rows: out, the gradients, and values with one element per row.
#pragma once

#include "kernels/tile_iterator.cuh"

namespace mosaic::cuda {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// Returns row `row` of the run.
template <class Rows>
DEVICE float* rowOf(const Rows& x, const RowRange& run, int row) {
  return x.data + run.batch * x.batch + run.head * x.head + (run.first + row) * x.row;
}

/// Loads columns c and c + 1 of a row; 0 past the last column.
DEVICE float2 loadPair(const Accumulator& x, const float* row, int c, int columns) {
  if (x.isFloat2Aligned) return c < columns ? load(reinterpret_cast<const float2*>(row + c)) : make_float2(0.f, 0.f);
  return make_float2(c < columns ? load(row + c * x.column) : 0.f,
                     c + 1 < columns ? load(row + (c + 1) * x.column) : 0.f);
}
DEVICE void storePair(const Accumulator& x, float* row, int c, int columns, float2 value) {
  if (x.isFloat2Aligned) {
    if (c < columns) store(reinterpret_cast<float2*>(row + c), value);
    return;
  }
  if (c < columns) store(row + c * x.column, value.x);
  if (c + 1 < columns) store(row + (c + 1) * x.column, value.y);
}

/// Returns lse, or +∞ for rows without visible keys or past the end, so that their probabilities are 0.
DEVICE float loadLse(const RowValues& lse, const RowRange& run, int row) {
  const float value = row < run.length ? load(rowOf(lse, run, row)) : -infinity();
  return value == -infinity() ? infinity() : value;
}
/// A large m or lse is not multiplied by log2 e, because at 1e9 the rounding error would be an exponent of up to 64.
/// Instead it is subtracted from the score, which is rounded like m, and the difference is scaled for base 2. For an
/// ordinary m or lse, the rounding changes a probability by less than 2^-13, a quarter of the maximum error of its own
/// rounding to 16 bits, and scaling and subtraction are one multiply-add.
constexpr float kLargeThreshold = 1024;
DEVICE bool isLarge(float x) { return fabsf(x) > kLargeThreshold && fabsf(x) < infinity(); }

/// Returns exp(scale · s − m), for m of any size; at most 1 even if another kernel rounded the score differently.
DEVICE float scaledExp(float s, float scale, float m) {
  const float exponent = roundedProduct(s, scale) - m;
  return fastExp2((exponent > 0.f ? 0.f : exponent) * kLog2e);
}

DEVICE float loadDelta(const RowValues& delta, const RowRange& run, int row) {
  return row < run.length ? load(rowOf(delta, run, row)) : 0.f;
}

}  // namespace mosaic::cuda
