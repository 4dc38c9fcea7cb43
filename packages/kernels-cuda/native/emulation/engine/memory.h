// Which host memory plays the device's: kernels and copies may touch these ranges and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace emulated {

class Ranges {
 public:
  void add(const void* base, size_t bytes) {
    const std::unique_lock lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(base)] = bytes;
  }

  /// The bytes that were there, 0 if nothing began at `base`.
  size_t remove(const void* base) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(reinterpret_cast<uintptr_t>(base));
    if (found == ranges_.end()) return 0;
    const size_t bytes = found->second;
    ranges_.erase(found);
    return bytes;
  }

  bool contain(const void* pointer, size_t bytes) const {
    const std::shared_lock lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(pointer);
    auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin()) return false;
    const auto& [base, length] = *--after;
    return at + bytes <= base + length;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

inline Ranges& deviceMemory() {
  static Ranges ranges;
  return ranges;
}

}  // namespace emulated
