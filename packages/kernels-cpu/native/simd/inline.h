// For functions that must be inlined into their caller. Passing a vector through memory costs more than the arithmetic
// on it, and an out-of-line copy compiled for one instruction set must never be shared with another (see isa.h).
#pragma once

#define MOSAIC_INLINE static inline __attribute__((always_inline))
#define MOSAIC_NOINLINE static __attribute__((noinline))
