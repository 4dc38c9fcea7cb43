// Converts views into loops for kernels: broadcast, with neighboring axes merged where all operands allow it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>

#include "device/device.h"
#include "kernels/operand.h"
#include "kernels/rows.h"
#include "mosaic/view.h"

namespace mosaic::cuda {

/// The order in which a loop visits the elements.
enum class LoopOrder { Index, Memory };

/// Returns the axes of a view. For memory order they are sorted by descending stride, so that the axes of a dense view
/// merge in any permutation.
inline std::array<int, kMaxAxes> orderAxes(const View& view, LoopOrder order) {
  std::array<int, kMaxAxes> axes{};
  std::iota(axes.begin(), axes.end(), 0);
  if (order == LoopOrder::Memory)
    std::stable_sort(axes.begin(), axes.begin() + view.rank,
                     [&](int a, int b) { return view.stride[a] > view.stride[b]; });
  return axes;
}

/// Whether vectors of kVectorLength elements are aligned at all offsets that the `axes` strides can produce.
inline bool areVectorsAligned(const void* data, DType dtype, const int64_t* strides, int axes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(kVectorLength * dtypeBytes(dtype)) == 0 &&
         std::all_of(strides, strides + axes, [](int64_t stride) { return stride % kVectorLength == 0; });
}

/// Whether every operand has kVectorLength contiguous, aligned elements along the last axis at all offsets of the loop.
template <int N>
bool isVectorizable(const Loop<N>& loop) {
  const int last = loop.extent.rank - 1;
  if (last < 0 || loop.extent.length[last] % kVectorLength != 0) return false;
  return std::all_of(std::begin(loop.operand), std::end(loop.operand), [&](const Operand& x) {
    return x.stride[last] == 1 && areVectorsAligned(x.data, x.dtype, x.stride, last);
  });
}

/// Returns a loop. The first view is the output and sets the shape; the others broadcast to it (NumPy's rule).
template <int N>
Loop<N> makeLoop(const View* const (&views)[N], LoopOrder order = LoopOrder::Index) {
  Loop<N> loop{};
  const View& out = *views[0];
  const std::array<int, kMaxAxes> axes = orderAxes(out, order);
  Extent& extent = loop.extent;
  extent.count = 1;
  for (int i = 0; i < N; i++) {
    loop.operand[i].data = views[i]->data;
    loop.operand[i].dtype = views[i]->dtype;
  }
  for (int i = 0; i < out.rank; i++) {
    const int axis = axes[static_cast<size_t>(i)];
    extent.count *= out.shape[axis];
    if (out.shape[axis] == 1) continue;
    int64_t stride[N];
    bool canMergeAxis = extent.rank > 0;
    for (int n = 0; n < N; n++) {
      const int operandAxis = axis - out.rank + views[n]->rank;
      stride[n] = operandAxis < 0 || views[n]->shape[operandAxis] == 1 ? 0 : views[n]->stride[operandAxis];
      canMergeAxis = canMergeAxis && loop.operand[n].stride[extent.rank - 1] == stride[n] * out.shape[axis];
    }
    if (!canMergeAxis) extent.length[extent.rank++] = 1;
    const int last = extent.rank - 1;
    extent.length[last] *= out.shape[axis];
    for (int n = 0; n < N; n++) loop.operand[n].stride[last] = stride[n];
  }
  loop.isVectorized = isVectorizable(loop);
  return loop;
}

/// Returns a dense float32 view with the shape of `source`.
inline View makeDenseView(CUdeviceptr data, const View& source) {
  View view = source;
  view.data = reinterpret_cast<void*>(static_cast<uintptr_t>(data));
  view.dtype = DType::Float32;
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; axis--) {
    view.stride[axis] = stride;
    stride *= view.shape[axis];
  }
  return view;
}

inline View dropLastAxis(const View& view) {
  View rows = view;
  rows.rank -= 1;
  return rows;
}

inline int64_t lastStride(const View& view) { return view.shape[view.rank - 1] == 1 ? 0 : view.stride[view.rank - 1]; }

/// Converts a view to an operand; an absent view becomes an operand without memory.
inline Operand makeOperand(const View& view) {
  Operand operand{};
  operand.data = view.data;
  operand.dtype = view.dtype;
  for (int axis = 0; axis < view.rank; axis++) operand.stride[axis] = view.stride[axis];
  return operand;
}

/// Returns a grid for `count` elements, limited to a few waves of blocks; threads iterate over the rest.
inline Grid makeGrid(const Device& device, int64_t count) {
  const int64_t maxBlocks = int64_t{device.multiprocessors()} * 16;
  const int64_t blocks = std::min((count + kBlockThreads - 1) / kBlockThreads, maxBlocks);
  return {{static_cast<unsigned>(blocks)}, {kBlockThreads}};
}

/// Returns a grid with one warp per row.
inline Grid makeRowGrid(const Device& device, int64_t rows) { return makeGrid(device, rows * 32); }

// Conversion of views into rows, for kernels in which each warp processes one row.

/// Whether vectors of kVectorLength elements of a row are contiguous and aligned.
inline bool hasVectorRows(const View& view) {
  const int last = view.rank - 1;
  return view.stride[last] == 1 && areVectorsAligned(view.data, view.dtype, view.stride, last);
}

/// Returns the rows of several views. Their last axes have one common length, or length 1 for one element per row.
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
  int64_t length = 0;
  for (const View* view : views) length = std::max(length, view->shape[view->rank - 1]);
  // Kernels index the elements of a row with 32 bits, and their indices exceed its end by up to one stride of a warp.
  constexpr int64_t kMaxLength = INT32_MAX - 1024;
  if (length > kMaxLength) {
    throw std::invalid_argument("expected rows of fewer than 2^31 - 1024 elements, received " + std::to_string(length));
  }
  rows.length = static_cast<int32_t>(length);
  rows.rows = makeLoop<N>(viewPointers);
  rows.isVectorized =
      rows.length % kVectorLength == 0 && std::all_of(std::begin(views), std::end(views), [](const View* view) {
        return view->shape[view->rank - 1] == 1 || hasVectorRows(*view);
      });
  return rows;
}

/// Returns a view with one element per row: [..] as [.., 1].
inline View asRows(const View& view) {
  View rowView = view;
  rowView.shape[rowView.rank] = 1;
  rowView.stride[rowView.rank++] = 0;
  return rowView;
}

/// Converts attention's tensor view; rows have a last axis of length 1.
inline View makeView(const TensorView& tensor) {
  View view{tensor.data, tensor.dtype, 4, {}, {}};
  for (int axis = 0; axis < view.rank; axis++) {
    view.shape[axis] = tensor.shape[axis];
    view.stride[axis] = tensor.stride[axis];
  }
  return view;
}

}  // namespace mosaic::cuda
