// The peak rates that kernels are compared with.
#pragma once

#include "mosaic/view.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// Returns the rate, in billions of operations per second, that `isa` reaches on all threads of the pool in a loop of
/// independent products on vector registers. For float32, and for instruction sets without products of bfloat16 pairs,
/// the products are multiply-adds (Scalar: multiply and add). Otherwise bfloat16 counts products of pairs. Tile
/// registers are excluded, because the code around their products takes longer than the products.
double peakGflops(Isa isa, DType dtype, Pool& pool);

/// Returns the bandwidth, in billions of bytes per second, with which all threads of the pool repeatedly read a working
/// set of `bytes`. Throws std::bad_alloc.
double measureReadBandwidth(int64_t bytes, Isa isa, Pool& pool);

}  // namespace mosaic
