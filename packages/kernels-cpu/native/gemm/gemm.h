// Matrix multiplication: out [.., M, N] ← a [.., M, K] · b [.., K, N].
#pragma once

#include "mosaic/kernel_arguments.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// Operands broadcast along leading axes. Sums are float32 and are rounded once, at the end; the order of summation
/// does not depend on the number of threads. Throws std::bad_alloc.
void matmul(const MatmulArguments& args, Isa isa, Pool& pool);

/// Computes a product with bias and activation applied to the sums before they are rounded and stored.
void linear(const LinearArguments& args, Isa isa, Pool& pool);

}  // namespace mosaic
