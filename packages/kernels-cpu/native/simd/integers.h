// Integer arithmetic of sizes and positions. Files compiled per instruction set must not use that of the standard
// library (isa.h). These functions are always inlined, so that the linker has no copies to choose from.
#pragma once

#include <cstdint>

namespace mosaic {

__attribute__((always_inline)) constexpr int64_t minOf(int64_t a, int64_t b) { return a < b ? a : b; }
__attribute__((always_inline)) constexpr int64_t maxOf(int64_t a, int64_t b) { return a > b ? a : b; }
__attribute__((always_inline)) constexpr int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
__attribute__((always_inline)) constexpr int64_t roundUp(int64_t x, int64_t multiple) {
  return ceilDiv(x, multiple) * multiple;
}

}  // namespace mosaic
