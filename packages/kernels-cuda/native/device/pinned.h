// Host memory that the GPU reaches directly, for copies that nobody waits for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace mosaic::cuda {

/// Pinning takes as long as a copy, and unpinning may wait for the GPU, so blocks are kept. For any thread that has
/// entered the context.
class PinnedCache {
 public:
  PinnedCache() = default;
  /// All blocks must have been given back.
  ~PinnedCache();
  PinnedCache(const PinnedCache&) = delete;

  /// At least `bytes`; given back when the last owner lets go. Throws CallError.
  std::shared_ptr<void> take(size_t bytes);

 private:
  void giveBack(void* block, size_t bytes);

  std::mutex mutex_;
  std::multimap<size_t, void*> spare_;  // by size; under mutex_
  size_t kept_ = 0;                     // under mutex_
};

}  // namespace mosaic::cuda
