// Reading and writing float32 rows: out, the gradients, and the numbers that each row has one of.
#pragma once

#include "kernels/attend.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

DEVICE float* rowOf(const Sum& x, int batch, int head, int row) {
  return x.data + batch * x.batch + head * x.head + row * x.row;
}
DEVICE float* rowOf(const PerRow& x, int batch, int head, int row) {
  return x.data + batch * x.batch + head * x.head + row * x.row;
}

/// Columns c and c + 1 of a row; 0 right of the last.
DEVICE float2 loadPair(const Sum& x, const float* row, int c, int columns) {
  if (x.paired) return c < columns ? load(reinterpret_cast<const float2*>(row + c)) : make_float2(0.f, 0.f);
  return make_float2(c < columns ? load(row + c * x.column) : 0.f,
                     c + 1 < columns ? load(row + (c + 1) * x.column) : 0.f);
}
DEVICE void storePair(const Sum& x, float* row, int c, int columns, float2 value) {
  if (x.paired) {
    if (c < columns) store(reinterpret_cast<float2*>(row + c), value);
    return;
  }
  if (c < columns) store(row + c * x.column, value.x);
  if (c + 1 < columns) store(row + (c + 1) * x.column, value.y);
}

/// lse for base 2; +∞ where a row has seen nothing or is none, so that its probabilities become 0.
DEVICE float exponentOf(const PerRow& lse, int batch, int head, int row, int rows) {
  const float value = row < rows ? load(rowOf(lse, batch, head, row)) : -infinity();
  return value == -infinity() ? infinity() : value * kLog2e;
}
DEVICE float deltaOf(const PerRow& delta, int batch, int head, int row, int rows) {
  return row < rows ? load(rowOf(delta, batch, head, row)) : 0.f;
}

}  // namespace mosaic::cuda
