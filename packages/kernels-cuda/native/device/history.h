// Which kernels were started lately: a GPU reports that one of them failed, not which.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

namespace mosaic::cuda {

class History {
 public:
  /// `kernel` has static lifetime.
  void note(const char* kernel);
  /// How many were started so far.
  uint64_t count() const;
  /// The first `count` are done, and well.
  void settle(uint64_t count);
  /// "matmul", or "one of fill, matmul": what was started after that. "" if nothing was.
  std::string suspects() const;

 private:
  static constexpr uint64_t kKept = 16;
  mutable std::mutex mutex_;
  std::array<const char*, kKept> kernels_{};  // all under mutex_
  uint64_t started_ = 0, settled_ = 0;
};

}  // namespace mosaic::cuda
