// The TMA descriptor of a tensor: encoded by the driver, passed to a kernel by value, and opaque.
#pragma once

#include <cstdint>

namespace mosaic::cuda {

/// A CUtensorMap, with the alignment of its header. Its dimensions are always (columns, rows, heads, batch). A box is
/// kPanelColumns columns × some rows.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

/// 16-bit columns in the 128 bytes of the widest swizzle of TMA and wgmma.
constexpr int kPanelColumns = 64;

}  // namespace mosaic::cuda
