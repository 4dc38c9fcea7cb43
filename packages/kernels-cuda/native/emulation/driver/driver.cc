// An emulated libcuda: the entry points of driver/api.h on host memory and threads. Kernels are those compiled for the
// host, looked up by name. For tests: the shipped addon runs on it unchanged. This file has the driver itself, its
// devices, contexts and kernels; memory.cc and stream.cc have the rest.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <mutex>

#include "driver/api.h"
#include "engine/emulator.h"
#include "state.h"

using namespace emulated;
using namespace mosaic::cuda;

namespace {

std::atomic<long> launches{0};

/// A kernel in a module. The caller sets how much shared memory its blocks may use.
struct Function {
  std::string name;
  Kernel kernel;
  std::atomic<unsigned> maxDynamicSharedBytes{48 * 1024};
};

Function* findFunction(const char* name) {
  static auto& mutex = *new std::mutex;
  static auto& functions = *new std::map<std::string, Function>;
  const auto kernelEntry = kernels().find(name);
  if (kernelEntry == kernels().end()) return nullptr;
  const std::lock_guard lock(mutex);
  Function& function = functions[name];
  function.name = name;
  function.kernel = kernelEntry->second;
  return &function;
}

int maxSharedBytes() { return (capability() >= 90 ? 227 : 163) * 1024; }

struct ErrorText {
  CUresult code;
  const char *name, *text;
};

const ErrorText errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
};

CUresult describe(CUresult code, const char** out, const char* ErrorText::*field) {
  const auto* found = std::find_if(std::begin(errors), std::end(errors), [&](const auto& e) { return e.code == code; });
  *out = found == std::end(errors) ? nullptr : found->*field;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

/// Signals to the addon that this driver provides kernels, so that the addon works even if it was built without nvcc.
const void* mosaicEmulatedImage() { return hasKernels() ? "kernels compiled for the host" : nullptr; }

// ── the driver and its devices

CUresult cuInit(unsigned) {
  if (initResult() != CUDA_SUCCESS) return initResult();
  if (devices() == 0) return CUDA_ERROR_NO_DEVICE;
  isInitialized() = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) { return *version = driverVersion(), CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult code, const char** name) { return describe(code, name, &ErrorText::name); }
CUresult cuGetErrorString(CUresult code, const char** text) { return describe(code, text, &ErrorText::text); }
CUresult cuDeviceGetCount(int* count) { return *count = devices(), CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<size_t>(length), "Emulated GPU (compute capability %d.%d)", capability() / 10,
                capability() % 10);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  switch (attribute) {
    case COMPUTE_CAPABILITY_MAJOR: *value = capability() / 10; break;
    case COMPUTE_CAPABILITY_MINOR: *value = capability() % 10; break;
    case MULTIPROCESSOR_COUNT: *value = 4; break;
    case MAX_GRID_DIM_Y:
    case MAX_GRID_DIM_Z: *value = maxGridDim(); break;
    case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = maxSharedBytes(); break;
    case MEMORY_POOLS_SUPPORTED: *value = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = memoryBytes(), CUDA_SUCCESS; }

CUresult cuDeviceGetPCIBusId(char* name, int length, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!isInitialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return liveResources().contexts++, CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  if (--liveResources().contexts > 0 || !reportsLeaks()) return CUDA_SUCCESS;
  const LiveResourceCounts& remaining = liveResources();
  std::fprintf(stderr,
               "leaked: %ld streams, %ld events, %ld modules, %ld pools, %ld allocations, %ld pinned allocations\n",
               remaining.streams.load(), remaining.events.load(), remaining.modules.load(), remaining.pools.load(),
               remaining.allocations.load(), remaining.pinned.load());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (!isInitialized()) return CUDA_ERROR_NOT_INITIALIZED;
  return hasContext() = context != nullptr, CUDA_SUCCESS;
}

// ── kernels

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (const CUresult code = checkReady()) return code;
  if (moduleLoadResult() != CUDA_SUCCESS) return moduleLoadResult();
  if (!image) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(uintptr_t{1});
  return liveResources().modules++, CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) { return liveResources().modules--, contextStatus().get(); }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(findFunction(name));
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value > maxSharedBytes()) return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Function*>(function)->maxDynamicSharedBytes = static_cast<unsigned>(value);
  return checkReady();
}

CUresult cuLaunchKernel(CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                        unsigned blockY, unsigned blockZ, unsigned sharedBytes, CUstream stream, void** parameters,
                        void**) {
  if (const CUresult code = checkReady()) return code;
  const Function& kernelFunction = *reinterpret_cast<const Function*>(function);
  const Dimensions grid{gridX, gridY, gridZ}, block{blockX, blockY, blockZ};
  const auto maxDim = static_cast<unsigned>(maxGridDim());
  if (gridX == 0 || gridY == 0 || gridZ == 0 || gridX > 0x7fffffff || gridY > maxDim || gridZ > maxDim) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (size_t{blockX} * blockY * blockZ > 1024 || blockX == 0) return CUDA_ERROR_INVALID_VALUE;
  if (sharedBytes > kernelFunction.maxDynamicSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  const long number = ++launches;
  if (number == rejectedLaunch()) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  auto arguments = kernelFunction.kernel.copyParameters(parameters[0]);
  streamOf(stream).enqueue([=, run = kernelFunction.kernel.run, name = kernelFunction.name] {
    if (number == failingLaunchNumber()) return setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS, name + ": injected failure");
    if (number == endlessLaunchNumber()) std::promise<void>().get_future().wait();
    try {
      run({grid, block, sharedBytes, arguments.get()});
    } catch (const std::exception& error) {
      setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS, name + ": " + error.what());
    }
  });
  return CUDA_SUCCESS;
}

}  // extern "C"

// The emulated driver's TMA descriptors.

extern "C" CUresult cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base, const uint64_t* lengths,
                                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                                           int interleave, int swizzle, int, int fill) {
  // The requirements of the driver's reference, restricted to what the emulation of TMA supports.
  bool isSupported =
      reinterpret_cast<uintptr_t>(base) % 16 == 0 && rank == 4 && interleave == TENSOR_MAP_INTERLEAVE_NONE;
  isSupported = isSupported && reinterpret_cast<uintptr_t>(map) % 64 == 0 && strides[0] >= lengths[0] * 2;
  isSupported =
      isSupported && (type == TENSOR_MAP_BFLOAT16 || type == TENSOR_MAP_FLOAT16) && fill == TENSOR_MAP_FILL_ZEROS;
  isSupported =
      isSupported && swizzle == TENSOR_MAP_SWIZZLE_128B && box[0] == kPanelColumns && box[2] == 1 && box[3] == 1;
  for (unsigned axis = 0; axis < 4; axis++) {
    isSupported = isSupported && lengths[axis] > 0 && lengths[axis] <= uint64_t{1} << 32;
    isSupported = isSupported && box[axis] > 0 && box[axis] <= 256 && steps[axis] == 1;
    isSupported = isSupported && (axis == 3 || (strides[axis] % 16 == 0 && strides[axis] < uint64_t{1} << 40));
  }
  if (!isSupported) return CUDA_ERROR_INVALID_VALUE;
  EncodedTensorMap encodedMap{static_cast<const char*>(base), {}, {2}, static_cast<int>(box[1])};
  for (int axis = 0; axis < 4; axis++) encodedMap.length[axis] = static_cast<int64_t>(lengths[axis]);
  for (int axis = 0; axis < 3; axis++) encodedMap.stride[axis + 1] = static_cast<int64_t>(strides[axis]);
  std::memcpy(map, &encodedMap, sizeof encodedMap);
  return CUDA_SUCCESS;
}
