#include "device/memory.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <set>
#include <string>

#include "driver/driver.h"

namespace mosaic::cuda {

namespace {

/// The memory pools of the process. If one is out of memory, others may hold unused memory.
class Pools {
 public:
  void add(CUmemoryPool pool) {
    const std::lock_guard lock(mutex_);
    pools_.insert(pool);
  }
  void remove(CUmemoryPool pool) {
    const std::lock_guard lock(mutex_);
    pools_.erase(pool);
  }
  void trim() {
    const std::lock_guard lock(mutex_);
    for (const CUmemoryPool pool : pools_) driver().memPoolTrimTo(pool, 0);
  }

 private:
  std::mutex mutex_;
  std::set<CUmemoryPool> pools_;  // under mutex_
};

Pools& pools() {
  static auto& instance = *new Pools;  // never destroyed: threads that close devices may outlive main
  return instance;
}

}  // namespace

Memory::Memory(const Context& context, CUstream stream, size_t limit) : stream_(stream), limit_(limit) {
  MemPoolProperties properties{};
  properties.allocationType = MEM_ALLOCATION_TYPE_PINNED;
  properties.locationType = MEM_LOCATION_TYPE_DEVICE;
  properties.locationId = context.device();
  check(driver().memPoolCreate(&pool_, &properties), "creating a memory pool");
  uint64_t releaseThreshold = UINT64_MAX;
  check(driver().memPoolSetAttribute(pool_, MEMPOOL_RELEASE_THRESHOLD, &releaseThreshold),
        "configuring the memory pool");
  check(driver().deviceTotalMem(&effectiveLimit_, context.device()), "querying the GPU's memory");
  pools().add(pool_);
}

Memory::~Memory() {
  pools().remove(pool_);
  for (const CUdeviceptr address : allocations_) driver().memFreeAsync(address, stream_);
  driver().streamSynchronize(stream_);
  driver().memPoolDestroy(pool_);
}

CUresult Memory::allocateFromPool(CUdeviceptr* address, size_t bytes) {
  if (bytes > effectiveLimit_) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult code = driver().memAllocFromPoolAsync(address, std::max<size_t>(bytes, 1), pool_, stream_);
  if (code != CUDA_ERROR_OUT_OF_MEMORY) return code;
  // Memory freed last may still be in use by the stream; only after that can it be returned.
  driver().streamSynchronize(stream_);
  pools().trim();
  return driver().memAllocFromPoolAsync(address, std::max<size_t>(bytes, 1), pool_, stream_);
}

CUdeviceptr Memory::allocate(size_t bytes) {
  if (limit_ > 0 && allocatedBytes_ + scratchBytes_ + bytes > limit_) return 0;
  CUdeviceptr address = 0;
  const CUresult code = allocateFromPool(&address, bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  check(code, "allocating memory");
  allocations_.insert(address);
  allocatedBytes_ += bytes;
  peakBytes_ = std::max(peakBytes_.load(), allocatedBytes_.load());
  return address;
}

CUdeviceptr Memory::allocatePersistent(size_t bytes) {
  CUdeviceptr address = 0;
  const CUresult code = allocateFromPool(&address, bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  check(code, "allocating memory");
  allocations_.insert(address);
  return address;
}

bool Memory::tryAddScratch(size_t bytes) {
  scratchBytes_ += bytes;
  if (limit_ == 0 || allocatedBytes_ + scratchBytes_ <= limit_) return true;
  scratchBytes_ -= bytes;
  return false;
}

CUdeviceptr Memory::reserveScratch(size_t bytes) {
  if (!tryAddScratch(bytes)) return 0;
  const CUdeviceptr address = allocatePersistent(bytes);
  if (address == 0) scratchBytes_ -= bytes;
  return address;
}

CUresult Memory::allocateScratch(CUdeviceptr* address, size_t bytes, CUstream stream) {
  if (!tryAddScratch(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto allocate = [&] {
    return driver().memAllocFromPoolAsync(address, std::max<size_t>(bytes, 1), pool_, stream);
  };
  CUresult code = allocate();
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    // Trims without synchronizing the compute stream, which may be waiting for this collective.
    pools().trim();
    code = allocate();
  }
  if (code != CUDA_SUCCESS) return scratchBytes_ -= bytes, code;
  const std::lock_guard lock(mutex_);
  scratchSizes_[*address] = bytes;
  return code;
}

CUresult Memory::release(CUdeviceptr address, CUstream stream) {
  {
    // Before the driver can reuse the address.
    const std::lock_guard lock(mutex_);
    const auto entry = scratchSizes_.find(address);
    if (entry != scratchSizes_.end()) {
      scratchBytes_ -= entry->second;
      scratchSizes_.erase(entry);
    }
  }
  return driver().memFreeAsync(address, stream);
}

void Memory::free(CUdeviceptr address, size_t bytes) {
  if (allocations_.erase(address) == 0) return;
  driver().memFreeAsync(address, stream_);
  allocatedBytes_ -= bytes;
}

MemoryStats Memory::stats() const {
  uint64_t reserved = 0;
  driver().memPoolGetAttribute(pool_, MEMPOOL_RESERVED_MEM_CURRENT, &reserved);
  const size_t scratch = scratchBytes_, otherBytes = reserved > scratch ? reserved - scratch : 0;
  return {allocatedBytes_, std::max<size_t>(otherBytes, allocatedBytes_), peakBytes_, scratch};
}

void Memory::trim() { driver().memPoolTrimTo(pool_, 0); }

namespace {

/// Maximum number of cached bytes; blocks that exceed it are unpinned at once.
constexpr size_t kMaxCachedBytes = size_t{256} << 20;

/// Rounds up to a power of two, or, above one mebibyte, to whole mebibytes.
size_t sizeClass(size_t bytes) {
  constexpr size_t kPageBytes = 4096, kMebibyte = size_t{1} << 20;
  if (bytes > kMebibyte) return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
  return std::max(kPageBytes, std::bit_ceil(bytes));
}

}  // namespace

PinnedCache::~PinnedCache() {
  for (const auto& [bytes, block] : freeBlocks_) driver().memFreeHost(block);
}

std::shared_ptr<void> PinnedCache::acquire(size_t bytes) {
  size_t size = sizeClass(bytes);
  void* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = freeBlocks_.lower_bound(size);
    if (entry != freeBlocks_.end() && entry->first <= 2 * size) {
      size = entry->first;
      block = entry->second;
      cachedBytes_ -= size;
      freeBlocks_.erase(entry);
    }
  }
  if (!block) {
    const std::string operation = "pinning " + std::to_string(size) + " bytes of host memory";
    check(driver().memAllocHost(&block, size), operation.c_str());
  }
  return {block, [this, size](void* allocation) { recycle(allocation, size); }};
}

void PinnedCache::recycle(void* block, size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (cachedBytes_ + bytes <= kMaxCachedBytes) {
      cachedBytes_ += bytes;
      freeBlocks_.emplace(bytes, block);
      return;
    }
  }
  driver().memFreeHost(block);
}

}  // namespace mosaic::cuda
