// Kernels that a warp carries out on one row, the last axis, and their arguments.
#pragma once

#include "kernels/operand.h"

namespace mosaic::cuda {

/// `rows` walks over all axes but the last; an operand's `step` is the stride of its last axis, of `length` elements.
template <int N>
struct Rows {
  Loop<N> rows;
  int32_t length;
  int64_t step[N];
  /// Whether every row may be taken kVectorLength elements at a time. Operands of step 0 have one element a row.
  bool isVectorized;
};

struct SoftmaxParameters {
  Rows<2> layout;  // out, x
};
struct SoftmaxBackwardParameters {
  Rows<3> layout;  // dx, out, dOut
};
struct RowDotParameters {
  Rows<3> layout;  // out (one element a row), a, b
};

/// weight and bias, [E], are absent where data is null.
struct NormParameters {
  Rows<4> layout;  // out, x, mean, rstd; mean is absent for RMSNorm
  Operand weight, bias;
  float epsilon;
};
struct NormBackwardParameters {
  Rows<5> layout;  // dx, x, dOut, mean, rstd
  Operand weight;
};
/// dWeight and dBias [E] are added to; a block owns 32 columns.
struct NormColumnsParameters {
  Rows<4> layout;  // x, dOut, mean, rstd
  Operand dWeight, dBias;
};

/// Many, for there are few blocks.
constexpr unsigned kNormColumnsThreads = 512;

/// Kernels that are given indices.
enum class IndexKernel : int32_t { GatherRows, ScatterAddRows, CrossEntropy, CrossEntropyBackward };

/// What they report of the first bad one, if there is any: it should be an integer from 0 to count − 1.
struct BadIndex {
  uint32_t found;
  float value;
  int64_t count;
  IndexKernel kernel;
};

struct CrossEntropyParameters {
  Rows<5> layout;  // x, loss, lse, counted, target
  float smoothing, ignored;
  BadIndex* badIndex;
};
struct CrossEntropyBackwardParameters {
  Rows<5> layout;  // dx, x, target, lse, dLoss
  float smoothing, ignored;
  BadIndex* badIndex;
};

/// out [.., E] ← the rows of table [V, E] that index [..] names.
struct GatherRowsParameters {
  Rows<2> layout;  // out, index
  Operand table;
  int64_t count;
  BadIndex* badIndex;
};
/// into [V, E] += x [.., E]: a warp owns a row of `into` and takes its rows of x in their order.
struct ScatterAddRowsParameters {
  Rows<2> layout;  // x, index
  Operand into;
  int64_t count;
  BadIndex* badIndex;
};

// Merging attention states.

/// into ← the state over the keys of both; a warp owns a row. An out of the rows' length, an lse of one element a row.
struct MergeParameters {
  Rows<4> layout;  // into.out, into.lse, from.out, from.lse
};

}  // namespace mosaic::cuda
