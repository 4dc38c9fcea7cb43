#include "device/pinned.h"

#include <algorithm>
#include <bit>

#include "driver/driver.h"

namespace mosaic::cuda {

namespace {

/// Bytes that are kept at most; a larger block is unpinned at once.
constexpr size_t kMostKept = size_t{256} << 20;

/// Powers of two, and from a mebibyte on whole mebibytes.
size_t sizeClass(size_t bytes) {
  constexpr size_t kPage = 4096, kMebibyte = size_t{1} << 20;
  if (bytes > kMebibyte) return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
  return std::max(kPage, std::bit_ceil(bytes));
}

}  // namespace

PinnedCache::~PinnedCache() {
  for (const auto& [bytes, block] : spare_) driver().memFreeHost(block);
}

std::shared_ptr<void> PinnedCache::take(size_t bytes) {
  size_t size = sizeClass(bytes);
  void* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = spare_.lower_bound(size);
    if (found != spare_.end() && found->first <= 2 * size) {
      size = found->first;
      block = found->second;
      kept_ -= size;
      spare_.erase(found);
    }
  }
  if (!block) check(driver().memAllocHost(&block, size), "pinning host memory");
  return {block, [this, size](void* given) { giveBack(given, size); }};
}

void PinnedCache::giveBack(void* block, size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_ + bytes <= kMostKept) {
      kept_ += bytes;
      spare_.emplace(bytes, block);
      return;
    }
  }
  driver().memFreeHost(block);
}

}  // namespace mosaic::cuda
