// How elements of a dtype become a vector of float32.
#pragma once

#include <cstdint>

#include "mosaic/view.h"
#include "simd/inline.h"

namespace mosaic {

template <class V>
struct LoadFloat32 {
  using Element = float;
  MOSAIC_INLINE typename V::Vec load(const float* p) { return V::load(p); }
};
template <class V>
struct LoadBFloat16 {
  using Element = uint16_t;
  MOSAIC_INLINE typename V::Vec load(const uint16_t* p) { return V::loadBf16(p); }
};
template <class V>
struct LoadFloat16 {
  using Element = uint16_t;
  MOSAIC_INLINE typename V::Vec load(const uint16_t* p) { return V::loadF16(p); }
};

/// Calls fn.operator()<Load>() for the way to load a dtype.
template <class V, class Fn>
MOSAIC_INLINE void withLoad(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::Float32: return fn.template operator()<LoadFloat32<V>>();
    case DType::BFloat16: return fn.template operator()<LoadBFloat16<V>>();
    case DType::Float16: return fn.template operator()<LoadFloat16<V>>();
  }
}

}  // namespace mosaic
