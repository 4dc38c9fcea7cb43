// Turns views into rows, for kernels whose warps own one each.
#pragma once

#include "binding/loop.h"
#include "kernels/rows.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// Rows of several views; `length` is that of the first's last axis.
template <int N>
Rows<N> rowsOf(const View* const (&views)[N]) {
  View leads[N];
  const View* pointers[N];
  Rows<N> rows;
  for (int i = 0; i < N; i++) {
    leads[i] = withoutLast(*views[i]);
    pointers[i] = &leads[i];
    rows.step[i] = lastStep(*views[i]);
  }
  rows.length = views[0]->shape[views[0]->rank - 1];
  rows.rows = loopOf<N>(pointers);
  return rows;
}

/// A view with one element a row: [..] as [.., 1].
inline View perRow(const View& view) {
  View wide = view;
  wide.shape[wide.rank] = 1;
  wide.stride[wide.rank++] = 0;
  return wide;
}

/// Rows have a last axis of length 1.
inline View viewOf(const TensorView& tensor) {
  View view{tensor.data, tensor.dtype, 4, {}, {}};
  for (int axis = 0; axis < view.rank; axis++) {
    view.shape[axis] = tensor.shape[axis];
    view.stride[axis] = tensor.stride[axis];
  }
  return view;
}

}  // namespace mosaic::cuda
