// The stand-in driver's descriptions of tensors for TMA.
#include <cstring>

#include "driver/api.h"
#include "engine/encoded_map.h"

using namespace emulated;
using namespace mosaic::cuda;

extern "C" CUresult cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base, const uint64_t* lengths,
                                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                                           int interleave, int swizzle, int, int fill) {
  // What the driver's reference demands; and of what it allows, what the emulation of TMA takes.
  bool right = reinterpret_cast<uintptr_t>(base) % 16 == 0 && rank == 4 && interleave == TENSOR_MAP_INTERLEAVE_NONE;
  right = right && reinterpret_cast<uintptr_t>(map) % 64 == 0 && strides[0] >= lengths[0] * 2;
  right = right && (type == TENSOR_MAP_BFLOAT16 || type == TENSOR_MAP_FLOAT16) && fill == TENSOR_MAP_FILL_ZEROS;
  right = right && swizzle == TENSOR_MAP_SWIZZLE_128B && box[0] == kPanelColumns && box[2] == 1 && box[3] == 1;
  for (unsigned axis = 0; axis < 4; axis++) {
    right = right && lengths[axis] > 0 && lengths[axis] <= uint64_t{1} << 32;
    right = right && box[axis] > 0 && box[axis] <= 256 && steps[axis] == 1;
    right = right && (axis == 3 || (strides[axis] % 16 == 0 && strides[axis] < uint64_t{1} << 40));
  }
  if (!right) return CUDA_ERROR_INVALID_VALUE;
  EncodedMap encoded{static_cast<const char*>(base), {}, {2}, static_cast<int>(box[1])};
  for (int axis = 0; axis < 4; axis++) encoded.length[axis] = static_cast<int64_t>(lengths[axis]);
  for (int axis = 0; axis < 3; axis++) encoded.stride[axis + 1] = static_cast<int64_t>(strides[axis]);
  std::memcpy(map, &encoded, sizeof encoded);
  return CUDA_SUCCESS;
}
