// Integer arithmetic of sizes and positions. The functions of the standard library must not be used in files compiled
// per instruction set (isa.h).
#pragma once

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {
namespace {

MOSAIC_INLINE int64_t minOf(int64_t a, int64_t b) { return a < b ? a : b; }
MOSAIC_INLINE int64_t maxOf(int64_t a, int64_t b) { return a > b ? a : b; }
MOSAIC_INLINE int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
MOSAIC_INLINE int64_t roundUp(int64_t x, int64_t multiple) { return ceilDiv(x, multiple) * multiple; }

}  // namespace
}  // namespace mosaic
