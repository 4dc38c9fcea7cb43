// Reads what JavaScript wrote into the scratch array; the writer is src/native/scratch.ts.
#pragma once

#include <cstdint>
#include <vector>

#include "mosaic/tile.h"
#include "mosaic/view.h"

namespace mosaic {

class Reader {
 public:
  explicit Reader(const double* next) : next_(next) {}

  double number() { return *next_++; }
  int64_t integer() { return static_cast<int64_t>(*next_++); }
  void* address() { return reinterpret_cast<void*>(static_cast<uintptr_t>(*next_++)); }

  View view() {
    View view;
    view.data = address();
    view.dtype = static_cast<DType>(integer());
    view.rank = static_cast<int32_t>(integer());
    for (int axis = 0; axis < view.rank; axis++) view.shape[axis] = integer();
    for (int axis = 0; axis < view.rank; axis++) view.stride[axis] = integer();
    return view;
  }

  /// A view of rank 4; one of rank 3 stands for rows and gets a last axis of length 1.
  TensorView tensor() {
    const View wide = view();
    TensorView view{wide.data, wide.dtype, {1, 1, 1, 1}, {0, 0, 0, 1}};
    for (int axis = 0; axis < wide.rank && axis < 4; axis++) {
      view.shape[axis] = wide.shape[axis];
      view.stride[axis] = wide.stride[axis];
    }
    return view;
  }

  std::vector<Span> spans() {
    std::vector<Span> spans(static_cast<size_t>(integer()));
    for (Span& span : spans) {
      span.start = integer();
      span.length = integer();
      span.step = integer();
    }
    return spans;
  }

  std::vector<Slice> slices() {
    std::vector<Slice> slices(static_cast<size_t>(integer()));
    for (Slice& slice : slices) {
      slice.q0 = integer();
      slice.q1 = integer();
      slice.k0 = integer();
      slice.k1 = integer();
      slice.type = static_cast<int32_t>(integer());
    }
    return slices;
  }

 private:
  const double* next_;
};

}  // namespace mosaic
