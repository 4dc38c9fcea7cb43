// The gradients of one block of rows against one block of keys.
#pragma once

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "attention/call_modifiers.h"
#include "attention/tile_visibility.h"
#include "pool/pool.h"

namespace mosaic {

/// One call: its arguments, its kernels and its score modifiers.
struct BackwardCall {
  const AttendBackwardArguments& args;
  const AttentionKernels& kernels;
  const CallModifiers& modifiers;
};

struct GradientTask {
  int64_t batch, head, keyHead;
  Range rows, keys;
};

/// Returns the number of rows processed together; their panels and weights fit the L2 cache.
int64_t gradientGroupRows(const BackwardCall& call);

/// Adds the contributions of the task's rows and keys to dq, dk and dv. Resets the arena. Makes a step of `prefetch`
/// for each register tile of the weights.
void runGradientTask(const BackwardCall& call, const PanelSegments& segments, const GradientTask& task, Arena& arena,
                     RowPrefetch& prefetch);

}  // namespace mosaic
