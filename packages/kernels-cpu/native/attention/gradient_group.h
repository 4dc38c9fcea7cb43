// The gradients of one block of rows against one block of keys.
#pragma once

#include "attention/attention.h"
#include "attention/kernels.h"
#include "attention/tile_visibility.h"
#include "pool/pool.h"

namespace mosaic {

struct GradientTask {
  int64_t batch, head, keyHead;
  Range rows, keys;
};

/// Rows that are worked on at once; their panels and weights fit the second-level cache.
int64_t gradientGroupRows(const AttentionKernels& kernels, int64_t depth);

/// Adds what the rows and keys of the task contribute to dq, dk and dv. Resets the arena.
void gradientTask(const AttendBackwardArguments& args, const AttentionKernels& kernels, const PanelSegments& segments,
                  const GradientTask& task, Arena& arena);

}  // namespace mosaic
