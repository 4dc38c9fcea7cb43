// Operands of kernels: raw memory, shapes and strides.
#pragma once

#include <cstdint>

namespace mosaic {

/// Storage format of a tensor's elements. Arithmetic is always float32.
enum class DType : uint8_t { Float32, BFloat16, Float16 };

constexpr int64_t dtypeBytes(DType dtype) { return dtype == DType::Float32 ? 4 : 2; }

constexpr const char* dtypeName(DType dtype) {
  return dtype == DType::Float32 ? "float32" : dtype == DType::BFloat16 ? "bfloat16" : "float16";
}

constexpr int kMaxAxes = 12;

/// A strided view of up to 12 axes, outermost first. Strides count elements and may be 0 (broadcast) for an input.
/// It has no member functions, because files compiled for one instruction set must not share functions with others
/// (simd/isa.h).
struct View {
  void* data;
  DType dtype;
  int32_t rank;
  int64_t shape[kMaxAxes];
  int64_t stride[kMaxAxes];
};

/// A view that may be absent. Then its data is null and its rank is 0.
struct OptionalView : View {};

/// One stride for each of `rank` axes.
struct Strides {
  int32_t rank;
  int64_t stride[kMaxAxes];
};

/// A strided 4-d view, for the tensors of attention. Strides count elements. They are arbitrary for an input (0
/// broadcasts); elements of an output must not overlap. Rows [B, H, S] have shape {B, H, S, 1}.
struct TensorView {
  void* data;
  DType dtype;
  int64_t shape[4];
  int64_t stride[4];
};

/// The global positions start, start + step, … of consecutive local rows; step ≥ 1.
struct Span {
  int64_t start, length, step;
};

/// Row q of [q0, q1) attends to the keys [k0 + (type & 2 ? q − q0 : 0), k1 − (type & 1 ? q1 − 1 − q : 0)). All
/// positions are global.
struct Slice {
  int64_t q0, q1, k0, k1;
  int32_t type;
};

}  // namespace mosaic
