#pragma once

#include <algorithm>
#include <cstdint>

namespace mosaic::cuda {

/// The largest power of two, up to 256, that divides an address: what cuBLASLt may rely on.
inline uint32_t alignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

}  // namespace mosaic::cuda
