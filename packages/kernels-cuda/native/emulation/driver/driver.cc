// A stand-in for libcuda: the entry points of driver/api.h over host memory and threads. Kernels are those compiled for
// the host, looked up by name. For tests: the addon that is shipped runs on it unchanged.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "driver/api.h"
#include "engine/memory.h"
#include "engine/registry.h"
#include "knobs.h"
#include "stream.h"

using namespace emulated;
using namespace mosaic::cuda;

namespace {

std::atomic<bool> initialised{false};
std::atomic<size_t> allocatedBytes{0};
std::atomic<long> launches{0};

/// Poison of fresh memory and of memory that was given back: NaN in every floating-point type.
constexpr int kPoison = 0xff;

Stream& streamOf(CUstream handle) {
  static Stream standard;
  return handle ? *reinterpret_cast<Stream*>(handle) : standard;
}

std::shared_ptr<Event>& eventOf(CUevent handle) { return *reinterpret_cast<std::shared_ptr<Event>*>(handle); }

CUresult ready() { return initialised ? health().get() : CUDA_ERROR_NOT_INITIALIZED; }

void fault(CUresult code, const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  health().fail(code);
}

/// Copies in stream order; what lies on the device must be allocated there.
CUresult copy(void* to, const void* from, size_t bytes, CUstream stream, const void* device, const void* device2) {
  if (const CUresult code = ready()) return code;
  streamOf(stream).enqueue([=] {
    for (const void* side : {device, device2}) {
      if (side && bytes > 0 && !deviceMemory().contain(side, bytes)) {
        return fault(CUDA_ERROR_ILLEGAL_ADDRESS, "a copy of " + std::to_string(bytes) + " bytes leaves its allocation");
      }
    }
    std::memmove(to, from, bytes);
  });
  return CUDA_SUCCESS;
}

template <class T>
T* pointer(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

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
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
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

/// Tells the addon that kernels come with this driver, so that it works when it was built without nvcc.
extern const char mosaicEmulatedImage[] = "kernels compiled for the host";

// ── the driver and its devices

CUresult cuInit(unsigned) {
  if (initResult() != CUDA_SUCCESS) return initResult();
  if (devices() == 0) return CUDA_ERROR_NO_DEVICE;
  initialised = true;
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
    case MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = (capability() >= 90 ? 227 : 163) * 1024; break;
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
  if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

// ── memory

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) {
  *pool = reinterpret_cast<CUmemoryPool>(uintptr_t{1});
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool, int, void*) { return CUDA_SUCCESS; }

CUresult cuMemPoolGetAttribute(CUmemoryPool, int attribute, void* value) {
  if (attribute != MEMPOOL_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  *static_cast<uint64_t*>(value) = allocatedBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  if (const CUresult code = ready()) return code;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (allocatedBytes + bytes > memoryBytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  constexpr size_t kAlignment = 256;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kPoison, bytes);
  deviceMemory().add(memory, bytes);
  allocatedBytes += bytes;
  *address = reinterpret_cast<uintptr_t>(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  auto* memory = pointer<void>(address);
  streamOf(stream).enqueue(
      [memory] {
        const size_t bytes = deviceMemory().remove(memory);
        if (bytes == 0) return fault(CUDA_ERROR_ILLEGAL_ADDRESS, "memory was freed that is not allocated");
        allocatedBytes -= bytes;
        std::memset(memory, kPoison, bytes);
        std::free(memory);
      },
      true);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = memoryBytes();
  *free = *total - allocatedBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
  *memory = std::malloc(std::max<size_t>(bytes, 1));
  return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void* memory) { return std::free(memory), CUDA_SUCCESS; }

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(pointer<void>(to), from, bytes, stream, pointer<void>(to), nullptr);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, pointer<void>(from), bytes, stream, pointer<void>(from), nullptr);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(pointer<void>(to), pointer<void>(from), bytes, stream, pointer<void>(to), pointer<void>(from));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  if (const CUresult code = ready()) return code;
  streamOf(stream).enqueue([memory = pointer<void>(to), value, bytes] {
    const bool inside = deviceMemory().contain(memory, bytes);
    if (!inside) return fault(CUDA_ERROR_ILLEGAL_ADDRESS, "memset leaves its allocation");
    std::memset(memory, value, bytes);
  });
  return CUDA_SUCCESS;
}

// ── streams and events

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult code = ready()) return code;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) { return delete reinterpret_cast<Stream*>(stream), CUDA_SUCCESS; }

CUresult cuStreamQuery(CUstream stream) {
  if (const CUresult code = health().get()) return code;
  return streamOf(stream).idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
  streamOf(stream).synchronize();
  return health().get();
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  std::shared_ptr<Event> waited = eventOf(event);
  uint64_t wanted;
  {
    const std::lock_guard lock(waited->mutex);
    wanted = waited->recorded;
  }
  streamOf(stream).enqueue([waited, wanted] { waited->await(wanted); }, true);
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  // Unlike a GPU after a failure, which may drop it: an emulated one tells whoever waits, so that tests end.
  streamOf(stream).enqueue([function, data] { function(data); }, true);
  return health().get();
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new std::shared_ptr<Event>(std::make_shared<Event>()));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) { return delete &eventOf(event), CUDA_SUCCESS; }

CUresult cuEventRecord(CUevent event, CUstream stream) {
  std::shared_ptr<Event> marked = eventOf(event);
  uint64_t number;
  {
    const std::lock_guard lock(marked->mutex);
    number = ++marked->recorded;
  }
  streamOf(stream).enqueue([marked, number] { marked->reach(number); }, true);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  Event& asked = *eventOf(event);
  const std::lock_guard lock(asked.mutex);
  if (asked.done < asked.recorded) return CUDA_ERROR_NOT_READY;
  return health().get();
}

CUresult cuEventSynchronize(CUevent event) {
  Event& awaited = *eventOf(event);
  uint64_t wanted;
  {
    const std::lock_guard lock(awaited.mutex);
    wanted = awaited.recorded;
  }
  awaited.await(wanted);
  return health().get();
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = static_cast<float>(eventOf(end)->nanoseconds - eventOf(start)->nanoseconds) / 1e6f;
  return health().get();
}

// ── kernels

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (!image) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(uintptr_t{1});
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(const_cast<void*>(static_cast<const void*>(&*found)));
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, int, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                        unsigned blockY, unsigned blockZ, unsigned sharedBytes, CUstream stream, void** parameters,
                        void**) {
  if (const CUresult code = ready()) return code;
  const auto& [name, kernel] = *reinterpret_cast<const std::pair<const std::string, Kernel>*>(function);
  const Dimensions grid{gridX, gridY, gridZ}, block{blockX, blockY, blockZ};
  if (gridX == 0 || gridY == 0 || gridZ == 0 || gridY > 65535 || gridZ > 65535) return CUDA_ERROR_INVALID_VALUE;
  if (size_t{blockX} * blockY * blockZ > 1024 || blockX == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool fails = ++launches == failingLaunch();
  auto arguments = kernel.take(parameters[0]);
  streamOf(stream).enqueue([=, run = kernel.run, name = name] {
    if (fails) return fault(CUDA_ERROR_ILLEGAL_ADDRESS, name + ": told to fail");
    try {
      run({grid, block, sharedBytes, arguments.get()});
    } catch (const std::exception& error) {
      fault(CUDA_ERROR_ILLEGAL_ADDRESS, name + ": " + error.what());
    }
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
