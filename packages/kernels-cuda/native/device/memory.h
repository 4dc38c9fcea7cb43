// A device's memory: taken and given back in the order of its stream.
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

/// Bytes.
struct MemoryStats {
  size_t allocated = 0, reserved = 0, peak = 0;
  size_t scratch = 0;  // what kernels and collectives work in, beside `reserved`
};

/// A pool of the driver that keeps what is freed, to hand it out again without asking the system. One thread at a time.
/// The limit, if any, is of what tensors have and of scratch.
class Memory {
 public:
  /// `limit` 0: what the GPU has. Throws CallError.
  Memory(const Context& context, CUstream stream, size_t limit);
  /// Gives back all that is allocated.
  ~Memory();
  Memory(const Memory&) = delete;

  /// Null beyond the limit or what the GPU has; zero bytes take one. Before it gives up, it waits for the stream and
  /// returns what all pools of the process keep unused. Throws CallError if the device has failed.
  CUdeviceptr allocate(size_t bytes);
  void free(CUdeviceptr address, size_t bytes);
  /// For as long as the device, freed with all else: a few bytes of its own, no scratch. Null if there are none.
  CUdeviceptr allocatePersistent(size_t bytes);
  /// The same for a kernel to work in: scratch. Null beyond the limit, too.
  CUdeviceptr reserveScratch(size_t bytes);
  /// Scratch in the order of another stream, by any thread, until it is released. Out of memory beyond the limit, too.
  /// Before it gives up, it returns what all pools of the process keep unused; it waits for no stream.
  CUresult allocateScratch(CUdeviceptr* address, size_t bytes, CUstream stream);
  /// Any thread.
  CUresult release(CUdeviceptr address, CUstream stream);
  /// May be called by another thread.
  MemoryStats stats() const;
  void resetPeak() { peakBytes_ = allocatedBytes_.load(); }
  /// Gives what is kept unused back to the system. May be called by another thread.
  void trim();
  size_t limit() const { return limit_; }

 private:
  CUresult allocateFromPool(CUdeviceptr* address, size_t bytes);
  /// Whether so much more is within the limit, as scratch from then on.
  bool tryAddScratch(size_t bytes);

  CUstream stream_;
  CUmemoryPool pool_ = nullptr;
  size_t limit_, effectiveLimit_ = 0;
  std::atomic<size_t> allocatedBytes_{0}, peakBytes_{0}, scratchBytes_{0};
  std::unordered_set<CUdeviceptr> allocations_;
  std::mutex mutex_;
  std::unordered_map<CUdeviceptr, size_t> scratchSizes_;  // bytes; under mutex_
};

// Host memory that the GPU reaches directly, for copies that the host does not wait for.

/// Pinning takes as long as a copy, and unpinning may wait for the GPU, so blocks are kept. For any thread that has
/// entered the context.
class PinnedCache {
 public:
  PinnedCache() = default;
  /// All blocks must have been given back.
  ~PinnedCache();
  PinnedCache(const PinnedCache&) = delete;

  /// At least `bytes`; given back when the last owner releases it. Throws CallError.
  std::shared_ptr<void> acquire(size_t bytes);

 private:
  void recycle(void* block, size_t bytes);

  std::mutex mutex_;
  std::multimap<size_t, void*> freeBlocks_;    // by size; under mutex_
  size_t cachedBytes_ = 0;                     // under mutex_
};

}  // namespace mosaic::cuda
