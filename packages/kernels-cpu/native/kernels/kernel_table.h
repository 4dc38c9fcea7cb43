// All kernels, in one table per instruction set.
//
// Operands are strided and of any dtype; arithmetic is float32 and is rounded once, at the end. Results do not depend
// on the number of threads. Kernels block until done; they run on the stream's thread.
#pragma once

#include "mosaic/kernel_arguments.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// Kernels by name, with the arguments of the schema. A kernel may use the arguments' data, but not their functions:
/// see simd/isa.h.
struct Kernels {
#define MOSAIC_MEMBER(name, Arguments) void (*name)(const Arguments& args, Pool& pool);
  MOSAIC_KERNELS(MOSAIC_MEMBER)
#undef MOSAIC_MEMBER
};

const Kernels& getKernels(Isa isa);

/// Fails the work with a DeviceError: `value` is not an integer index in [0, count).
[[noreturn]] void throwIndexError(const char* kernel, float value, int64_t count);

}  // namespace mosaic
