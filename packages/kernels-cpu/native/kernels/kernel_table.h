// Every kernel, once per instruction set.
//
// Operands are strided and of any dtype; arithmetic is float32 and rounds once at the end. What is computed does not
// depend on the number of threads. Kernels block until done; they run on the stream's thread.
#pragma once

#include "mosaic/kernel_arguments.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// By name; arguments are those of the schema, and of them a kernel may use the data, no functions: see simd/isa.h.
struct Kernels {
#define MOSAIC_MEMBER(name, Arguments) void (*name)(const Arguments& args, Pool& pool);
  MOSAIC_KERNELS(MOSAIC_MEMBER)
#undef MOSAIC_MEMBER
};

const Kernels& getKernels(Isa isa);

/// Fails the work with a DeviceError: `value` is none of the integers from 0 to count − 1 that index something.
[[noreturn]] void throwIndexError(const char* kernel, float value, int64_t count);

}  // namespace mosaic
