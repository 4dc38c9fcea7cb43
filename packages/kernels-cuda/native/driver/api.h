// The part of the CUDA driver API that is used, declared here so that the build requires nothing of CUDA. Types and
// values are those of NVIDIA's "CUDA Driver API" reference, version 12.0. If the toolkit's cuda.h is available, the
// build compares the two.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUmemPoolHandle_st* CUmemoryPool;
typedef void (*CUhostFn)(void* data);

}  // extern "C"

namespace mosaic::cuda {

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
};

/// CUdevice_attribute
enum Attribute : int {
  MAX_GRID_DIM_Y = 6,
  MAX_GRID_DIM_Z = 7,
  MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  MULTIPROCESSOR_COUNT = 16,
  COMPUTE_CAPABILITY_MAJOR = 75,
  COMPUTE_CAPABILITY_MINOR = 76,
  MEMORY_POOLS_SUPPORTED = 115,
};

/// CUfunction_attribute
constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
/// CUmemPool_attribute: bytes that the pool retains before it returns memory to the system.
constexpr int MEMPOOL_RELEASE_THRESHOLD = 4;
constexpr int MEMPOOL_RESERVED_MEM_CURRENT = 5;
constexpr int MEM_ALLOCATION_TYPE_PINNED = 1;
constexpr int MEM_LOCATION_TYPE_DEVICE = 1;

/// CUmemPoolProps: the location of a pool's memory. Fields not named here are 0.
struct MemPoolProperties {
  int allocationType, handleTypes;
  int locationType, locationId;
  void* securityAttributes;
  size_t maxSize;
  unsigned char reserved[56];
};

constexpr unsigned STREAM_NON_BLOCKING = 1;
constexpr unsigned EVENT_BLOCKING_SYNC = 1;
constexpr unsigned EVENT_DISABLE_TIMING = 2;

/// Name in the library (all return CUresult) and parameters, one line per function. The loader, the table and the
/// emulated driver share this list, so that they agree. X(name, symbol, parameters)
#define MOSAIC_CUDA_DRIVER(X)                                                                                        \
  X(init, cuInit, (unsigned flags))                                                                                  \
  X(driverGetVersion, cuDriverGetVersion, (int* version))                                                            \
  X(getErrorName, cuGetErrorName, (CUresult error, const char** name))                                               \
  X(getErrorString, cuGetErrorString, (CUresult error, const char** text))                                           \
  X(deviceGetCount, cuDeviceGetCount, (int* count))                                                                  \
  X(deviceGet, cuDeviceGet, (CUdevice * device, int ordinal))                                                        \
  X(deviceGetName, cuDeviceGetName, (char* name, int length, CUdevice device))                                       \
  X(deviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                          \
  X(deviceTotalMem, cuDeviceTotalMem_v2, (size_t* bytes, CUdevice device))                                           \
  X(deviceGetPCIBusId, cuDeviceGetPCIBusId, (char* name, int length, CUdevice device))                               \
  X(primaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                              \
  X(primaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                              \
  X(ctxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                                             \
  X(memPoolCreate, cuMemPoolCreate, (CUmemoryPool * pool, const mosaic::cuda::MemPoolProperties* properties))          \
  X(memPoolDestroy, cuMemPoolDestroy, (CUmemoryPool pool))                                                           \
  X(memPoolSetAttribute, cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void* value))                     \
  X(memPoolGetAttribute, cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void* value))                     \
  X(memPoolTrimTo, cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep))                                                \
  X(memAllocFromPoolAsync, cuMemAllocFromPoolAsync,                                                                  \
    (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))                                       \
  X(memFreeAsync, cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))                                            \
  X(memGetInfo, cuMemGetInfo_v2, (size_t* free, size_t* total))                                                      \
  X(memAllocHost, cuMemAllocHost_v2, (void** pointer, size_t bytes))                                                 \
  X(memFreeHost, cuMemFreeHost, (void* pointer))                                                                     \
  X(memcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))        \
  X(memcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))              \
  X(memcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))        \
  X(memsetD8Async, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))            \
  X(streamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))                                               \
  X(streamDestroy, cuStreamDestroy_v2, (CUstream stream))                                                            \
  X(streamQuery, cuStreamQuery, (CUstream stream))                                                                   \
  X(streamSynchronize, cuStreamSynchronize, (CUstream stream))                                                       \
  X(streamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                            \
  X(launchHostFunc, cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data))                              \
  X(eventCreate, cuEventCreate, (CUevent * event, unsigned flags))                                                   \
  X(eventDestroy, cuEventDestroy_v2, (CUevent event))                                                                \
  X(eventRecord, cuEventRecord, (CUevent event, CUstream stream))                                                    \
  X(eventQuery, cuEventQuery, (CUevent event))                                                                       \
  X(eventSynchronize, cuEventSynchronize, (CUevent event))                                                           \
  X(eventElapsedTime, cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end))                         \
  X(moduleLoadData, cuModuleLoadData, (CUmodule * module, const void* image))                                        \
  X(moduleUnload, cuModuleUnload, (CUmodule module))                                                                 \
  X(moduleGetFunction, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))              \
  X(funcSetAttribute, cuFuncSetAttribute, (CUfunction function, int attribute, int value))                           \
  X(launchKernel, cuLaunchKernel,                                                                                    \
    (CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,          \
     unsigned blockZ, unsigned sharedBytes, CUstream stream, void** parameters, void** extra))

/// The driver's functions, loaded at run time.
struct Driver {
#define MOSAIC_CUDA_POINTER(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  MOSAIC_CUDA_DRIVER(MOSAIC_CUDA_POINTER)
#undef MOSAIC_CUDA_POINTER
};

// CUtensorMapDataType and related enums, as far as they are used.
enum TensorMapType : int { TENSOR_MAP_FLOAT16 = 6, TENSOR_MAP_BFLOAT16 = 9 };
constexpr int TENSOR_MAP_INTERLEAVE_NONE = 0;
constexpr int TENSOR_MAP_SWIZZLE_128B = 3;
constexpr int TENSOR_MAP_L2_PROMOTION_256B = 3;
constexpr int TENSOR_MAP_FILL_ZEROS = 0;

/// cuTensorMapEncodeTiled: lengths, box and steps count elements, the fastest axis first. Strides count bytes and begin
/// with the second axis.
using TensorMapEncodeTiled = CUresult (*)(void* map, int type, unsigned rank, void* base, const uint64_t* lengths,
                                          const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                                          int interleave, int swizzle, int l2Promotion, int fill);

}  // namespace mosaic::cuda
