// The gradients of one block of rows against one block of keys.
#pragma once

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "attention/call_modifiers.h"
#include "attention/tile_visibility.h"
#include "pool/pool.h"

namespace mosaic {

/// One call: its arguments, the kernels for it and what modifies its scores.
struct BackwardCall {
  const AttendBackwardArguments& args;
  const AttentionKernels& kernels;
  const CallModifiers& modifiers;
};

struct GradientTask {
  int64_t batch, head, keyHead;
  Range rows, keys;
};

/// Rows that are worked on at once; their panels and weights fit the second-level cache.
int64_t gradientGroupRows(const BackwardCall& call);

/// Adds what the rows and keys of the task contribute to dq, dk and dv. Resets the arena.
void runGradientTask(const BackwardCall& call, const PanelSegments& segments, const GradientTask& task, Arena& arena);

}  // namespace mosaic
