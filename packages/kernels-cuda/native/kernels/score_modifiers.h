// What modifies the scores and weights of attention between its two products, as the host passes it to kernels.
//
// Kernels that do so are instances of their own, and take more arguments: those of plain calls stay as they were.
#pragma once

#include "kernels/attend.h"
#include "kernels/elementwise.h"

namespace mosaic::cuda {

/// What is 0 or null is off.
struct ScoreModifiers {
  float softcap;        // s ← softcap · tanh(s / softcap), of the scaled score
  const float* slopes;  // of the grid's first head; then s ← s − slope · |query − key|
  int64_t slopeStride;
  Philox dropout;      // seed and stream of the call
  uint32_t dropoutThreshold;  // weights whose 24 random bits are less become 0
  float dropoutScale;  // what the others count: 1 / (1 − probability)
  uint32_t batch, head;  // numbers of the grid's first batch element and head among all, by which weights are dropped
};

/// Arguments of a kernel that modifies scores.
template <class Parameters>
struct WithModifiers {
  Parameters base;
  ScoreModifiers modifiers;
  PartPositions positions[kMaxParts];  // of base.parts
};
using AttendModifiedParameters = WithModifiers<AttendParameters>;
using AttendBackwardModifiedParameters = WithModifiers<AttendBackwardParameters>;
static_assert(sizeof(AttendModifiedParameters) <= kMaxArgumentBytes);
static_assert(sizeof(AttendBackwardModifiedParameters) <= kMaxArgumentBytes);

}  // namespace mosaic::cuda
