// The bits of vectors, through the vector extensions of GCC and Clang, which know all widths.
#pragma once

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {
namespace {

template <class T>
struct Lanes {
  typedef int32_t Int __attribute__((vector_size(T::lanes * 4)));
  typedef uint32_t Bits __attribute__((vector_size(T::lanes * 4)));
};

template <class T>
using Int = typename Lanes<T>::Int;
template <class T>
using Bits = typename Lanes<T>::Bits;

template <class T>
MOSAIC_INLINE Int<T> intBits(typename T::Vec v) {
  return reinterpret_cast<Int<T>>(v);
}

template <class T>
MOSAIC_INLINE typename T::Vec fromBits(Int<T> bits) {
  return reinterpret_cast<typename T::Vec>(bits);
}

/// All bits of a lane where it is NaN.
template <class T>
MOSAIC_INLINE Int<T> isNan(typename T::Vec v) {
  return reinterpret_cast<Int<T>>((intBits<T>(v) & 0x7fffffff) > 0x7f800000);
}

/// m ? a : b; m is 0 or −1 in each lane.
template <class T>
MOSAIC_INLINE typename T::Vec blend(Int<T> m, typename T::Vec a, typename T::Vec b) {
  return fromBits<T>((m & intBits<T>(a)) | (~m & intBits<T>(b)));
}

}  // namespace
}  // namespace mosaic
