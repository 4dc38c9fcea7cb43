// What kernels are given: raw memory, shapes and strides.
#pragma once

#include <cstdint>

namespace mosaic {

/// How the elements of a tensor are stored. Arithmetic is float32 throughout.
enum class DType : uint8_t { Float32, BFloat16, Float16 };

constexpr int64_t dtypeBytes(DType dtype) { return dtype == DType::Float32 ? 4 : 2; }

constexpr const char* dtypeName(DType dtype) {
  return dtype == DType::Float32 ? "float32" : dtype == DType::BFloat16 ? "bfloat16" : "float16";
}

constexpr int kMaxAxes = 12;

/// A strided view of up to 12 axes, outermost first; strides count elements and may be 0 (broadcast) for an input.
/// Plain data: files compiled for one instruction set must not share functions with others (simd/isa.h).
struct View {
  void* data;
  DType dtype;
  int32_t rank;
  int64_t shape[kMaxAxes];
  int64_t stride[kMaxAxes];
};

/// A view that may be absent: its data is then null, and its rank 0.
struct OptionalView : View {};

/// One stride for each of `rank` axes.
struct Strides {
  int32_t rank;
  int64_t stride[kMaxAxes];
};

/// A strided 4-d view, of attention's tensors. Strides count elements and may be anything for an input (0 broadcasts);
/// an output must not
/// overlap itself. Rows [B, H, S] have shape {B, H, S, 1}.
struct TensorView {
  void* data;
  DType dtype;
  int64_t shape[4];
  int64_t stride[4];
};

/// Global positions start, start + step, … of consecutive local rows; step ≥ 1.
struct Span {
  int64_t start, length, step;
};

/// Row q of [q0, q1) sees the keys [k0 + (type & 2 ? q − q0 : 0), k1 − (type & 1 ? q1 − 1 − q : 0)); all positions are
/// global.
struct Slice {
  int64_t q0, q1, k0, k1;
  int32_t type;
};

}  // namespace mosaic
