// Turns views into what kernels walk over: broadcast, with neighbouring axes merged where all operands allow it.
#pragma once

#include <algorithm>

#include "device/device.h"
#include "kernels/operand.h"
#include "kernels/rows.h"
#include "mosaic/view.h"

namespace mosaic::cuda {

/// The first view is the output and sets the shape; the others broadcast to it, by NumPy's rule.
template <int N>
Loop<N> makeLoop(const View* const (&views)[N]) {
  Loop<N> loop{};
  const View& out = *views[0];
  Extent& extent = loop.extent;
  extent.count = 1;
  for (int i = 0; i < N; i++) {
    loop.operand[i].data = views[i]->data;
    loop.operand[i].dtype = views[i]->dtype;
  }
  for (int axis = 0; axis < out.rank; axis++) {
    extent.count *= out.shape[axis];
    if (out.shape[axis] == 1) continue;
    int64_t stride[N];
    bool canMergeAxis = extent.rank > 0;
    for (int i = 0; i < N; i++) {
      const int operandAxis = axis - out.rank + views[i]->rank;
      stride[i] = operandAxis < 0 || views[i]->shape[operandAxis] == 1 ? 0 : views[i]->stride[operandAxis];
      canMergeAxis = canMergeAxis && loop.operand[i].stride[extent.rank - 1] == stride[i] * out.shape[axis];
    }
    if (!canMergeAxis) extent.length[extent.rank++] = 1;
    const int last = extent.rank - 1;
    extent.length[last] *= out.shape[axis];
    for (int i = 0; i < N; i++) loop.operand[i].stride[last] = stride[i];
  }
  return loop;
}

inline View dropLastAxis(const View& view) {
  View rows = view;
  rows.rank -= 1;
  return rows;
}

inline int64_t lastStride(const View& view) { return view.shape[view.rank - 1] == 1 ? 0 : view.stride[view.rank - 1]; }

/// A view that is absent becomes an operand without memory.
inline Operand makeOperand(const View& view) {
  Operand operand{};
  operand.data = view.data;
  operand.dtype = view.dtype;
  for (int axis = 0; axis < view.rank; axis++) operand.stride[axis] = view.stride[axis];
  return operand;
}

constexpr unsigned kThreads = 256;

/// Enough threads for `count` elements, a few waves at most: they take turns.
inline Grid makeGrid(const Device& device, int64_t count) {
  const int64_t maxBlocks = int64_t{device.multiprocessors()} * 16;
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, maxBlocks);
  return {{static_cast<unsigned>(blocks)}, {kThreads}};
}

/// Warps for `rows` rows.
inline Grid makeRowGrid(const Device& device, int64_t rows) { return makeGrid(device, rows * 32); }

// Turns views into rows, for kernels whose warps own one each.

/// Rows of several views; `length` is that of the first's last axis.
template <int N>
Rows<N> rowsOf(const View* const (&views)[N]) {
  View leadingViews[N];
  const View* viewPointers[N];
  Rows<N> rows;
  for (int i = 0; i < N; i++) {
    leadingViews[i] = dropLastAxis(*views[i]);
    viewPointers[i] = &leadingViews[i];
    rows.step[i] = lastStride(*views[i]);
  }
  rows.length = views[0]->shape[views[0]->rank - 1];
  rows.rows = makeLoop<N>(viewPointers);
  return rows;
}

/// A view with one element a row: [..] as [.., 1].
inline View perRow(const View& view) {
  View rowView = view;
  rowView.shape[rowView.rank] = 1;
  rowView.stride[rowView.rank++] = 0;
  return rowView;
}

/// Rows have a last axis of length 1.
inline View makeView(const TensorView& tensor) {
  View view{tensor.data, tensor.dtype, 4, {}, {}};
  for (int axis = 0; axis < view.rank; axis++) {
    view.shape[axis] = tensor.shape[axis];
    view.stride[axis] = tensor.stride[axis];
  }
  return view;
}

}  // namespace mosaic::cuda
