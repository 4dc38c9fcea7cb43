// Access to the rows [B, H, S, ·] of one batch element and head of a view, from row `first` on.
#pragma once

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "simd/prefetch.h"

namespace mosaic {

/// Whether a view has no elements.
inline bool isEmpty(const TensorView& view) {
  return view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3] == 0;
}

struct HeadRows {
  int64_t batch, head, first;
};

inline Rows rowsOf(const TensorView& view, const HeadRows& headRows) {
  const int64_t offset =
      headRows.batch * view.stride[0] + headRows.head * view.stride[1] + headRows.first * view.stride[2];
  return {static_cast<const char*>(view.data) + offset * dtypeBytes(view.dtype), view.dtype, view.stride[2],
          view.stride[3]};
}

/// Returns a view's rows for prefetching; none if their elements are not contiguous.
inline RowPrefetch::Matrix upcomingRows(const TensorView& view, const HeadRows& headRows) {
  if (view.stride[3] != 1) return {};
  const Rows rows = rowsOf(view, headRows);
  const int64_t bytes = dtypeBytes(rows.dtype);
  return {static_cast<const char*>(rows.data), rows.rowStride * bytes, view.shape[3] * bytes};
}

struct FloatRow {
  float* data;
  int64_t stride;
};

/// Access to element [first + row, column] of a float32 view.
struct FloatRows {
  float* data;
  int64_t rowStride, columnStride;

  FloatRows(const TensorView& view, const HeadRows& headRows)
      : data(static_cast<float*>(view.data) + headRows.batch * view.stride[0] + headRows.head * view.stride[1] +
             headRows.first * view.stride[2]),
        rowStride(view.stride[2]),
        columnStride(view.stride[3]) {}
  float& operator()(int64_t row, int64_t column = 0) const { return data[row * rowStride + column * columnStride]; }
  FloatRow row(int64_t row) const { return {data + row * rowStride, columnStride}; }
};

}  // namespace mosaic
