// Compares our driver declarations with the toolkit's cuda.h. Compiled if that header is available; nothing runs.
#include <cstddef>
#include <cstdint>

namespace check {

/// Compares names at compile time, to check the version of a function that the header's macros link.
constexpr bool areEqual(const char* a, const char* b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

}  // namespace check

#define CHECK_TEXT(name) #name
/// Expands to the name after the header's macros are applied.
#define CHECK_LINKED(name) CHECK_TEXT(name)

namespace ours {
#include "driver/api.h"
#include "kernels/tensor_map.h"
}
using namespace ours::mosaic::cuda;
namespace mosaic = ours::mosaic;

#include <cuda.h>

#include "mosaic/same_abi.h"

#define CHECK_VALUE(mine, theirs) static_assert(static_cast<int>(mine) == static_cast<int>(theirs), #theirs);

CHECK_VALUE(ours::mosaic::cuda::CUDA_SUCCESS, ::CUDA_SUCCESS)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_VALUE, ::CUDA_ERROR_INVALID_VALUE)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_OUT_OF_MEMORY, ::CUDA_ERROR_OUT_OF_MEMORY)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NOT_INITIALIZED, ::CUDA_ERROR_NOT_INITIALIZED)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NO_DEVICE, ::CUDA_ERROR_NO_DEVICE)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_DEVICE, ::CUDA_ERROR_INVALID_DEVICE)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_IMAGE, ::CUDA_ERROR_INVALID_IMAGE)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_CONTEXT, ::CUDA_ERROR_INVALID_CONTEXT)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NO_BINARY_FOR_GPU, ::CUDA_ERROR_NO_BINARY_FOR_GPU)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_PTX, ::CUDA_ERROR_INVALID_PTX)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, ::CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_INVALID_HANDLE, ::CUDA_ERROR_INVALID_HANDLE)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NOT_FOUND, ::CUDA_ERROR_NOT_FOUND)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NOT_READY, ::CUDA_ERROR_NOT_READY)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_ILLEGAL_ADDRESS, ::CUDA_ERROR_ILLEGAL_ADDRESS)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, ::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_LAUNCH_FAILED, ::CUDA_ERROR_LAUNCH_FAILED)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_NOT_PERMITTED, ::CUDA_ERROR_NOT_PERMITTED)
CHECK_VALUE(ours::mosaic::cuda::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, ::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)

CHECK_VALUE(MAX_GRID_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)
CHECK_VALUE(MAX_GRID_DIM_Z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)
CHECK_VALUE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
CHECK_VALUE(MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
CHECK_VALUE(COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CHECK_VALUE(COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CHECK_VALUE(MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
CHECK_VALUE(MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
CHECK_VALUE(MEMPOOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
CHECK_VALUE(MEMPOOL_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
CHECK_VALUE(MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)
CHECK_VALUE(MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
CHECK_VALUE(STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
CHECK_VALUE(EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC)
CHECK_VALUE(EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
CHECK_VALUE(TENSOR_MAP_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
CHECK_VALUE(TENSOR_MAP_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
CHECK_VALUE(TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_INTERLEAVE_NONE)
CHECK_VALUE(TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B)
CHECK_VALUE(TENSOR_MAP_L2_PROMOTION_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
CHECK_VALUE(TENSOR_MAP_FILL_ZEROS, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)

static_assert(sizeof(MemPoolProperties) == sizeof(CUmemPoolProps));
static_assert(offsetof(MemPoolProperties, allocationType) == offsetof(CUmemPoolProps, allocType));
static_assert(offsetof(MemPoolProperties, handleTypes) == offsetof(CUmemPoolProps, handleTypes));
static_assert(offsetof(MemPoolProperties, locationType) == offsetof(CUmemPoolProps, location.type));
static_assert(offsetof(MemPoolProperties, locationId) == offsetof(CUmemPoolProps, location.id));
static_assert(offsetof(MemPoolProperties, maxSize) == offsetof(CUmemPoolProps, maxSize));

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));
static_assert(check::hasSameAbi<std::remove_pointer_t<TensorMapEncodeTiled>, decltype(cuTensorMapEncodeTiled)>);

// Each function has the same signature as in the toolkit.
#define CHECK_SIGNATURE(name, symbol, parameters) \
  static_assert(check::hasSameAbi<std::remove_pointer_t<decltype(Driver::name)>, decltype(symbol)>, #symbol);
MOSAIC_CUDA_DRIVER(CHECK_SIGNATURE)

// Each is the version that the toolkit would link, except one that was renamed in 12.8 and still exists by its old
// name.
#define CHECK_VERSION(name, symbol, parameters)                                                                  \
  static_assert(check::areEqual(#symbol, "cuEventElapsedTime") || check::areEqual(#symbol, CHECK_LINKED(symbol)), \
                #symbol " is not the current version of the function");
MOSAIC_CUDA_DRIVER(CHECK_VERSION)
