// The roof that kernels are measured against.
#pragma once

#include "mosaic/view.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// Billions of operations per second that `isa` reaches on all threads of the pool in a loop of independent products on
/// vector registers: the peak that kernels are measured against. Of float32, and where an instruction set has no
/// products of bfloat16 pairs, multiply-adds (Scalar: multiply and add); of bfloat16 else those products. Tile
/// registers do not count: what surrounds a product of them takes longer than it does.
double peakGflops(Isa isa, DType dtype, Pool& pool);

/// Billions of bytes per second that all threads of the pool read of a working set of so many bytes, over and over: the
/// other roof. Throws std::bad_alloc.
double measureReadBandwidth(int64_t bytes, Isa isa, Pool& pool);

}  // namespace mosaic
