// Where TMA finds a tensor: encoded by the driver, given to a kernel by value, never looked into.
#pragma once

#include <cstdint>

namespace mosaic::cuda {

/// A CUtensorMap, aligned as its header has it. Dimensions here are always (columns, rows, heads, batch), a box is
/// kPanelColumns × some rows.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

/// Columns of 16 bits in the 128 bytes that TMA's and wgmma's widest permutation works on.
constexpr int kPanelColumns = 64;

}  // namespace mosaic::cuda
