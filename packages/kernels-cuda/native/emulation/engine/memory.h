// Which host memory plays the device's: kernels and copies may touch these ranges and nothing else.
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

  /// The bytes that were there, 0 if nothing began at `base`.
  size_t remove(const void* base) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(reinterpret_cast<uintptr_t>(base));
    if (found == ranges_.end()) return 0;
    const size_t bytes = found->second;
    epoch_++;
    ranges_.erase(found);
    return bytes;
  }

  /// Called for every access of every thread: each host thread caches the range that it found last.
  bool contain(const void* pointer, size_t bytes) const {
    static thread_local Allocation last;
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    const uint64_t epoch = epoch_.load(std::memory_order_acquire);
    if (last.epoch != epoch || at < last.base || at >= last.end) {
      last = find(at);
      last.epoch = epoch;
    }
    return at >= last.base && at + bytes <= last.end;
  }

 private:
  struct Allocation {
    uintptr_t base = 1, end = 0;
    uint64_t epoch = 0;
  };

  Allocation find(uintptr_t at) const {
    const std::shared_lock lock(mutex_);
    auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin()) return {};
    const auto& [base, length] = *--after;
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
