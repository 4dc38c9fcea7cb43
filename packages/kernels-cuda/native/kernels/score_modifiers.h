// The modifiers of attention scores and weights between the two products, as the host passes them to kernels.
//
// Kernels that modify scores are separate instances with more arguments, so that those of plain calls are unaffected.
#pragma once

#include "kernels/attend.h"
#include "kernels/elementwise.h"

namespace mosaic::cuda {

/// Fields that are 0 or null are disabled.
struct ScoreModifiers {
  float softcap;        // s ← softcap · tanh(s / softcap), for the scaled score
  const float* slopes;  // starts at the grid's first head; s ← s − slope · |query − key|
  int64_t slopeStride;
  Philox dropout;      // seed and stream of the call
  uint32_t dropoutThreshold;  // a weight is dropped if its 24 random bits are below this
  float dropoutScale;  // factor of weights that are not dropped, 1 / (1 − probability)
  uint32_t batch, head;  // global indices of the grid's first batch element and head, on which dropout depends
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
