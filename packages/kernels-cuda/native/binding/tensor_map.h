// Descriptors through which TMA addresses tensors.
#pragma once

#include "kernels/tensor_map.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// Whether TMA can: the driver can, elements are 16 bits, everything begins at multiples of 16 bytes, nothing is
/// broadcast, overlaps or runs backward.
bool suitsTma(const TensorView& x);

/// [B,H,S,D] in boxes of 64 columns and so many rows. Throws CallError.
TensorMap mapOf(const TensorView& x, int boxRows);

}  // namespace mosaic::cuda
