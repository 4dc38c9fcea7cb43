// Reads what JavaScript wrote into the argument buffer; the writer is packages/runtime/src/argument-buffer.ts.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "mosaic/view.h"

namespace mosaic {

class ArgumentReader {
 public:
  explicit ArgumentReader(const double* next) : next_(next) {}

  /// Reads the fields in order.
  template <class... Fields>
  void operator()(Fields&... fields) {
    (read(fields), ...);
  }

  double number() { return *next_++; }
  /// Throws std::invalid_argument for NaN and numbers outside of int64, whose conversion would be undefined behavior.
  int64_t integer() {
    const double value = *next_++;
    if (value >= -0x1p63 && value < 0x1p63) return static_cast<int64_t>(value);
    throw std::invalid_argument("expected a number in the range of int64, received " + std::to_string(value));
  }
  View view() {
    View view;
    read(view);
    return view;
  }

 private:
  /// Reads a number, a value of an enumeration, or a structure that has a `read` function.
  template <class T>
  void read(T& value) {
    if constexpr (std::is_class_v<T>) {
      value.read(*this);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(integer());
    } else {
      value = static_cast<T>(number());
    }
  }

  void read(bool& value) { value = number() != 0; }
  void read(uint64_t& value) { value = static_cast<uint64_t>(integer()); }

  void read(View& view) {
    view.data = reinterpret_cast<void*>(static_cast<uintptr_t>(number()));
    view.dtype = static_cast<DType>(integer());
    view.rank = readRank();
    for (int axis = 0; axis < view.rank; axis++) view.shape[axis] = integer();
    for (int axis = 0; axis < view.rank; axis++) view.stride[axis] = integer();
  }

  int32_t readRank() {
    const int64_t rank = integer();
    if (rank >= 0 && rank <= kMaxAxes) return static_cast<int32_t>(rank);
    throw std::invalid_argument("expected from 0 to " + std::to_string(kMaxAxes) + " axes, received " +
                                std::to_string(rank));
  }

  void read(OptionalView& view) {
    if (number() != 0) return read(static_cast<View&>(view));
    view.data = nullptr;
    view.dtype = DType::Float32;
    view.rank = 0;
  }

  /// A tensor of rank 3 holds one value per row. It is read with an additional last axis of length 1.
  void read(TensorView& view) {
    View stridedView;
    read(stridedView);
    view = {stridedView.data, stridedView.dtype, {1, 1, 1, 1}, {0, 0, 0, 1}};
    for (int axis = 0; axis < stridedView.rank && axis < 4; axis++) {
      view.shape[axis] = stridedView.shape[axis];
      view.stride[axis] = stridedView.stride[axis];
    }
  }

  void read(Strides& strides) {
    strides.rank = readRank();
    for (int axis = 0; axis < strides.rank; axis++) strides.stride[axis] = integer();
  }

  // JavaScript checks arguments of callers (checkTile). These checks protect the process, because kernels divide by
  // steps and index by spans.
  void read(Span& span) {
    (*this)(span.start, span.length, span.step);
    const bool isInRange = span.start >= 0 && span.start <= kMaxPosition && span.length >= 0 && span.step >= 1 &&
                           span.step <= kMaxPosition;
    if (isInRange && (span.length <= 1 || span.step <= (kMaxPosition - span.start) / (span.length - 1))) return;
    throw std::invalid_argument(
        "expected a span of start ≥ 0, length ≥ 0 and step ≥ 1 with steps and positions up to 2^53, received start " +
        std::to_string(span.start) + ", length " + std::to_string(span.length) + ", step " + std::to_string(span.step));
  }
  void read(Slice& slice) {
    (*this)(slice.q0, slice.q1, slice.k0, slice.k1, slice.type);
    const bool hasOrderedRanges = slice.q0 >= 0 && slice.q0 <= slice.q1 && slice.k0 >= 0 && slice.k0 <= slice.k1;
    if (hasOrderedRanges && slice.q1 <= kMaxPosition && slice.k1 <= kMaxPosition && slice.type >= 0 && slice.type <= 3)
      return;
    throw std::invalid_argument(
        "expected a slice with 0 ≤ q0 ≤ q1 ≤ 2^53, 0 ≤ k0 ≤ k1 ≤ 2^53 and a type from 0 to 3, received q0 " +
        std::to_string(slice.q0) + ", q1 " + std::to_string(slice.q1) + ", k0 " + std::to_string(slice.k0) + ", k1 " +
        std::to_string(slice.k1) + ", type " + std::to_string(slice.type));
  }

  template <class T>
  void read(std::vector<T>& values) {
    values.resize(static_cast<size_t>(integer()));
    for (T& element : values) read(element);
  }

  template <class T>
  void read(std::optional<T>& value) {
    if (number() != 0) read(value.emplace());
  }

  static constexpr int64_t kMaxPosition = int64_t{1} << 53;

  const double* next_;
};

}  // namespace mosaic
