// A device's memory, allocated and freed in stream order.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "device/context.h"

namespace mosaic::cuda {

/// Sizes in bytes.
struct MemoryStats {
  size_t allocated = 0, reserved = 0, peak = 0;
  size_t scratch = 0;  // working memory of kernels and collectives, not included in `reserved`
};

/// A memory pool of the driver that keeps freed memory for reuse without calls to the system. Not thread-safe unless
/// stated. The limit, if any, applies to tensors and scratch memory together.
class Memory {
 public:
  /// `limit` 0: the GPU's memory. Throws CallError.
  Memory(const Context& context, CUstream stream, size_t limit);
  /// Frees all allocations.
  ~Memory();
  Memory(const Memory&) = delete;

  /// Returns null beyond the limit or the GPU's memory; an allocation of zero bytes takes one. Before it fails, it
  /// waits for the stream and returns the unused memory of all pools of the process. Throws CallError if the device has
  /// failed.
  CUdeviceptr allocate(size_t bytes);
  void free(CUdeviceptr address, size_t bytes);
  /// Allocates a few bytes for the lifetime of the device; they do not count as scratch. Null if there is no memory.
  CUdeviceptr allocatePersistent(size_t bytes);
  /// Like `allocatePersistent`, for scratch memory of kernels. Returns null also beyond the limit.
  CUdeviceptr reserveScratch(size_t bytes);
  /// Allocates scratch memory in the order of another stream, until it is released. May be called from any thread.
  /// If the pool is out of memory, returns the unused memory of all pools of the process to the system and retries,
  /// without waiting for a stream. Returns out-of-memory if that fails, and beyond the limit.
  CUresult allocateScratch(CUdeviceptr* address, size_t bytes, CUstream stream);
  /// May be called from any thread.
  CUresult release(CUdeviceptr address, CUstream stream);
  /// May be called from another thread.
  MemoryStats stats() const;
  void resetPeak() { peakBytes_ = allocatedBytes_.load(); }
  /// Returns unused memory to the system. May be called from another thread.
  void trim();
  size_t limit() const { return limit_; }

 private:
  CUresult allocateFromPool(CUdeviceptr* address, size_t bytes);
  /// Counts `bytes` as scratch memory if they are within the limit; returns whether they are.
  bool tryAddScratch(size_t bytes);

  CUstream stream_;
  CUmemoryPool pool_ = nullptr;
  size_t limit_, effectiveLimit_ = 0;
  std::atomic<size_t> allocatedBytes_{0}, peakBytes_{0}, scratchBytes_{0};
  std::unordered_set<CUdeviceptr> allocations_;
  std::mutex mutex_;
  std::unordered_map<CUdeviceptr, size_t> scratchSizes_;  // bytes; under mutex_
};

// Host memory that the GPU accesses directly, for asynchronous copies.

/// Pinning takes as long as a copy, and unpinning may wait for the GPU, so blocks are cached. May be used by any thread
/// that has entered the context.
class PinnedCache {
 public:
  PinnedCache() = default;
  /// All blocks must have been released.
  ~PinnedCache();
  PinnedCache(const PinnedCache&) = delete;

  /// Returns a block of at least `bytes`, which is recycled when its last owner releases it. Throws CallError.
  std::shared_ptr<void> acquire(size_t bytes);

 private:
  void recycle(void* block, size_t bytes);

  std::mutex mutex_;
  std::multimap<size_t, void*> freeBlocks_;    // by size; under mutex_
  size_t cachedBytes_ = 0;                     // under mutex_
};

}  // namespace mosaic::cuda
