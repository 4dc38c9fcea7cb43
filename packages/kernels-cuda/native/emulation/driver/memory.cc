// Entry points of the emulated driver for memory: pools, pinned memory, copies.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/memory.h"
#include "state.h"

using namespace emulated;
using namespace mosaic::cuda;

namespace {

/// Bytes in use, bytes freed but retained, and the limit for retained bytes.
struct Pool {
  size_t usedBytes = 0, keptBytes = 0;
  uint64_t maxKeptBytes = 0;
};

/// Accounting of the GPU's memory. Freed memory can be reused at once, as in stream order; the host memory behind it is
/// freed when the stream reaches that point.
class GpuMemory {
 public:
  CUmemoryPool create() {
    const std::lock_guard lock(mutex_);
    auto* pool = new Pool;
    pools_[handleOf(pool)] = pool;
    return handleOf(pool);
  }
  bool destroy(CUmemoryPool handle) {
    const std::lock_guard lock(mutex_);
    const auto entry = pools_.find(handle);
    if (entry == pools_.end()) return false;
    delete entry->second;
    pools_.erase(entry);
    return true;
  }
  template <class Body>
  CUresult withPool(CUmemoryPool handle, Body body) {
    const std::lock_guard lock(mutex_);
    const auto entry = pools_.find(handle);
    if (entry == pools_.end()) return CUDA_ERROR_INVALID_VALUE;
    return body(*entry->second), CUDA_SUCCESS;
  }
  /// Returns false if the GPU has no memory left.
  bool allocate(CUmemoryPool handle, const void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    Pool& pool = *pools_.at(handle);
    const size_t reusedBytes = std::min(pool.keptBytes, bytes);
    if (usedBytes() + bytes - reusedBytes > memoryBytes()) return false;
    pool.keptBytes -= reusedBytes;
    pool.usedBytes += bytes;
    owners_[memory] = {handle, bytes};
    return true;
  }
  bool release(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto entry = owners_.find(memory);
    if (entry == owners_.end()) return false;
    const auto [handle, bytes] = entry->second;
    owners_.erase(entry);
    if (pools_.contains(handle)) {
      Pool& pool = *pools_[handle];
      pool.usedBytes -= bytes;
      pool.keptBytes = std::min<uint64_t>(pool.keptBytes + bytes, pool.maxKeptBytes);
    }
    return true;
  }
  size_t free() {
    const std::lock_guard lock(mutex_);
    return memoryBytes() - usedBytes();
  }

 private:
  static CUmemoryPool handleOf(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }
  size_t usedBytes() const {
    size_t bytes = 0;
    for (const auto& [handle, pool] : pools_) bytes += pool->usedBytes + pool->keptBytes;
    return bytes;
  }

  std::mutex mutex_;
  std::map<CUmemoryPool, Pool*> pools_;                                   // under mutex_
  std::map<const void*, std::pair<CUmemoryPool, size_t>> owners_;  // under mutex_
};

GpuMemory& gpuMemory() {
  static auto& memory = *new GpuMemory;
  return memory;
}

/// Copies in stream order. The device side of the copy must be allocated.
CUresult copy(void* to, const void* from, size_t bytes, CUstream stream, const void* device) {
  if (const CUresult code = checkReady()) return code;
  streamOf(stream).enqueue([=] {
    if (bytes > 0 && !deviceMemory().contains(device, bytes)) {
      return setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS,
                   "a copy of " + std::to_string(bytes) + " bytes is out of bounds of its allocation");
    }
    std::memmove(to, from, bytes);
  });
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, const MemPoolProperties* properties) {
  if (const CUresult code = checkReady()) return code;
  const bool isPinnedDeviceMemory = properties->allocationType == MEM_ALLOCATION_TYPE_PINNED &&
                                    properties->locationType == MEM_LOCATION_TYPE_DEVICE &&
                                    properties->locationId < devices();
  if (!isPinnedDeviceMemory) return CUDA_ERROR_INVALID_VALUE;
  *pool = gpuMemory().create();
  return liveResources().pools++, CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (!gpuMemory().destroy(pool)) return CUDA_ERROR_INVALID_VALUE;
  return liveResources().pools--, CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  if (attribute != MEMPOOL_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  return gpuMemory().withPool(
      pool, [&](Pool& lockedPool) { lockedPool.maxKeptBytes = *static_cast<uint64_t*>(value); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  if (attribute != MEMPOOL_RESERVED_MEM_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  return gpuMemory().withPool(pool, [&](Pool& lockedPool) {
    *static_cast<uint64_t*>(value) = lockedPool.usedBytes + lockedPool.keptBytes;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  return gpuMemory().withPool(pool, [&](Pool& lockedPool) {
    lockedPool.keptBytes = std::min(lockedPool.keptBytes, keep - std::min(keep, lockedPool.usedBytes));
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream) {
  if (const CUresult code = checkReady()) return code;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kAlignment = 256;
  if (bytes > memoryBytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!gpuMemory().allocate(pool, memory, bytes)) return std::free(memory), CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kPoisonByte, bytes);
  deviceMemory().add(memory, bytes);
  *address = reinterpret_cast<uintptr_t>(memory);
  return liveResources().allocations++, CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  auto* memory = pointer<void>(address);
  if (!gpuMemory().release(memory)) return CUDA_ERROR_INVALID_VALUE;
  liveResources().allocations--;
  const auto release = [memory] {
    std::memset(memory, kPoisonByte, deviceMemory().remove(memory));
    std::free(memory);
  };
  streamOf(stream).enqueue(release, true);
  return contextStatus().get();
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = memoryBytes();
  *free = gpuMemory().free();
  return checkReady();
}

CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
  if (const CUresult code = checkReady()) return code;
  static std::atomic<long> pinnedAllocations{0};
  if (++pinnedAllocations == failingPinnedAllocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = std::malloc(std::max<size_t>(bytes, 1));
  return *memory ? (liveResources().pinned++, CUDA_SUCCESS) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void* memory) {
  if (!hasContext()) return CUDA_ERROR_INVALID_CONTEXT;
  std::free(memory);
  return liveResources().pinned--, contextStatus().get();
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(pointer<void>(to), from, bytes, stream, pointer<void>(to));
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, pointer<void>(from), bytes, stream, pointer<void>(from));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (!deviceMemory().contains(pointer<void>(from), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return copy(pointer<void>(to), pointer<void>(from), bytes, stream, pointer<void>(to));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  if (const CUresult code = checkReady()) return code;
  streamOf(stream).enqueue([memory = pointer<void>(to), value, bytes] {
    const bool isInside = deviceMemory().contains(memory, bytes);
    if (!isInside) {
      return setStickyError(CUDA_ERROR_ILLEGAL_ADDRESS,
                            "a memset of " + std::to_string(bytes) + " bytes is out of bounds of its allocation");
    }
    std::memset(memory, value, bytes);
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
