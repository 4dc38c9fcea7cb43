#include "binding/tensor_map.h"

#include "driver/driver.h"

namespace mosaic::cuda {

namespace {

constexpr int kAlignment = 16;
constexpr int64_t kMostStride = int64_t{1} << 40;

}  // namespace

bool suitsTma(const TensorView& x) {
  if (!tensorMapEncodeTiled() || x.dtype == DType::Float32 || x.stride[3] != 1) return false;
  if (reinterpret_cast<uintptr_t>(x.data) % kAlignment) return false;
  if (x.shape[2] > 1 && x.stride[2] < x.shape[3]) return false;  // rows that overlap
  for (int axis = 0; axis < 3; axis++) {
    const int64_t stride = x.stride[axis] * dtypeBytes(x.dtype);
    const bool fits = stride > 0 && stride < kMostStride && stride % kAlignment == 0;
    if (x.shape[axis] > 1 && !fits) return false;
  }
  return true;
}

TensorMap mapOf(const TensorView& x, int boxRows) {
  uint64_t lengths[4], strides[3];
  for (int i = 0; i < 4; i++) lengths[i] = static_cast<uint64_t>(x.shape[3 - i]);
  const auto bytes = static_cast<uint64_t>(dtypeBytes(x.dtype));
  const uint64_t row = (lengths[0] * bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (int i = 0; i < 3; i++) {
    // The stride of an axis of one is never used, but looked at: at least a row, as the driver's reference has it.
    strides[i] = x.shape[2 - i] > 1 ? static_cast<uint64_t>(x.stride[2 - i]) * bytes : row;
  }
  const uint32_t box[4] = {kPanelColumns, static_cast<uint32_t>(boxRows), 1, 1}, steps[4] = {1, 1, 1, 1};
  const int type = x.dtype == DType::BFloat16 ? TENSOR_MAP_BFLOAT16 : TENSOR_MAP_FLOAT16;
  TensorMap map;
  check(tensorMapEncodeTiled()(&map, type, 4, x.data, lengths, strides, box, steps, TENSOR_MAP_INTERLEAVE_NONE,
                               TENSOR_MAP_SWIZZLE_128B, TENSOR_MAP_L2_PROMOTION_256B, TENSOR_MAP_FILL_ZEROS),
        "describing a tensor to TMA");
  return map;
}

}  // namespace mosaic::cuda
