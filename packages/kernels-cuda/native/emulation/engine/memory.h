// The host memory that represents device memory. Kernels and copies may access these ranges only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace emulated {

class AllocationMap {
 public:
  void add(const void* base, size_t bytes) {
    const std::unique_lock lock(mutex_);
    epoch_++;
    ranges_[reinterpret_cast<uintptr_t>(base)] = bytes;
  }

  /// Removes a range and returns its bytes, 0 if none starts at `base`.
  size_t remove(const void* base) {
    const std::unique_lock lock(mutex_);
    const auto entry = ranges_.find(reinterpret_cast<uintptr_t>(base));
    if (entry == ranges_.end()) return 0;
    const size_t bytes = entry->second;
    epoch_++;
    ranges_.erase(entry);
    return bytes;
  }

  /// Called for every access of every thread, so each host thread caches the range that it found last.
  bool contains(const void* pointer, size_t bytes) const {
    static thread_local Allocation lastFoundAllocation;
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    const uint64_t epoch = epoch_.load(std::memory_order_acquire);
    if (lastFoundAllocation.epoch != epoch || at < lastFoundAllocation.base || at >= lastFoundAllocation.end) {
      lastFoundAllocation = find(at);
      lastFoundAllocation.epoch = epoch;
    }
    return at >= lastFoundAllocation.base && at + bytes <= lastFoundAllocation.end;
  }

 private:
  struct Allocation {
    uintptr_t base = 1, end = 0;
    uint64_t epoch = 0;
  };

  Allocation find(uintptr_t at) const {
    const std::shared_lock lock(mutex_);
    auto nextRange = ranges_.upper_bound(at);
    if (nextRange == ranges_.begin()) return {};
    const auto& [base, length] = *--nextRange;
    return {base, base + length, 0};
  }

  std::atomic<uint64_t> epoch_{1};
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

inline AllocationMap& deviceMemory() {
  static AllocationMap& ranges = *new AllocationMap;  // never destroyed: streams may still run at exit
  return ranges;
}

}  // namespace emulated
