// Elementary functions of float32 vectors, accurate to about 2 units in the last place.
//
// The kernels of this folder are compiled without fusing products and sums, so that every instruction set computes the
// same bits. In the epilogues of products and in attention, compilers may fuse them. Polynomials: Moshier's Cephes
// library (single precision), except where stated.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstdint>

#include "simd/inline.h"

namespace mosaic {
namespace {

// The bits of vectors, through the vector extensions of GCC and Clang, which support all widths.

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

/// Returns all bits set in lanes that are NaN.
template <class T>
MOSAIC_INLINE Int<T> isNan(typename T::Vec v) {
  return reinterpret_cast<Int<T>>((intBits<T>(v) & 0x7fffffff) > 0x7f800000);
}

/// Returns m ? a : b; m is 0 or −1 in each lane.
template <class T>
MOSAIC_INLINE typename T::Vec blend(Int<T> m, typename T::Vec a, typename T::Vec b) {
  return fromBits<T>((m & intBits<T>(a)) | (~m & intBits<T>(b)));
}

template <class T>
MOSAIC_INLINE typename T::Vec sqrtOf(typename T::Vec x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
#if defined(__aarch64__)
  if constexpr (T::lanes == 4) return vsqrtq_f32(x);
#endif
  float laneValues[T::lanes];
  T::store(laneValues, x);
  for (float& value : laneValues) value = __builtin_sqrtf(value);
  return T::load(laneValues);
#endif
}

template <class T>
MOSAIC_INLINE typename T::Vec absOf(typename T::Vec x) {
  return fromBits<T>(intBits<T>(x) & 0x7fffffff);
}

/// Flips the sign, also of zeros and NaN.
template <class T>
MOSAIC_INLINE typename T::Vec negate(typename T::Vec x) {
  return fromBits<T>(intBits<T>(x) ^ static_cast<int32_t>(0x80000000u));
}

/// Returns all bits set where a < b; 0 where either is NaN.
template <class T>
MOSAIC_INLINE Int<T> lessThan(typename T::Vec a, typename T::Vec b) {
  return reinterpret_cast<Int<T>>(a < b);
}

/// Returns all bits set where a ≤ b; 0 where either is NaN.
template <class T>
MOSAIC_INLINE Int<T> lessOrEqual(typename T::Vec a, typename T::Vec b) {
  return reinterpret_cast<Int<T>>(a <= b);
}

/// 2^n for −126 ≤ n ≤ 127.
template <class T>
MOSAIC_INLINE typename T::Vec powerOfTwo(Int<T> n) {
  return fromBits<T>((n + 127) << 23);
}

/// Returns p · 2^n for integer n, including denormal and infinite results; NaN for NaN.
template <class T>
MOSAIC_INLINE typename T::Vec scaleByPowerOfTwo(typename T::Vec p, typename T::Vec n) {
#if defined(__AVX512F__)
  if constexpr (T::lanes == 16) return _mm512_scalef_ps(p, n);
#endif
  // In two steps, so that denormal results are possible.
  const Int<T> exponent = __builtin_convertvector(n, Int<T>), half = exponent >> 1;
  return p * powerOfTwo<T>(half) * powerOfTwo<T>(exponent - half);
}

template <class T>
MOSAIC_INLINE typename T::Vec expOf(typename T::Vec x) {
  using V = typename T::Vec;
  const V magic = T::set1(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
  x = T::min(T::set1(89.0f), T::max(T::set1(-104.0f), x));
  const V n = x * T::set1(1.44269504088896341f) + magic - magic;
  const V r = (x - n * T::set1(0.693359375f)) + n * T::set1(2.12194440e-4f);
  V p = T::set1(1.9875691500e-4f);
  p = p * r + T::set1(1.3981999507e-3f);
  p = p * r + T::set1(8.3334519073e-3f);
  p = p * r + T::set1(4.1665795894e-2f);
  p = p * r + T::set1(1.6666665459e-1f);
  p = p * r + T::set1(5.0000001201e-1f);
  return scaleByPowerOfTwo<T>(p * (r * r) + r + T::set1(1.0f), n);
}

template <class T>
MOSAIC_INLINE typename T::Vec logOf(typename T::Vec x) {
  using V = typename T::Vec;
  const Int<T> tiny = lessThan<T>(x, T::set1(1.17549435e-38f));
  const V scaled = blend<T>(tiny, x * T::set1(8388608.0f), x);
  const Int<T> bits = intBits<T>(scaled);
  V m = fromBits<T>((bits & 0x7fffff) | 0x3f000000);  // in [½, 1)
  Int<T> e = ((bits >> 23) & 0xff) - 126 - (tiny & 23);
  const Int<T> low = lessThan<T>(m, T::set1(0.707106781186547524f));
  e += low;  // −1 where low
  m = blend<T>(low, m + m, m) - T::set1(1.0f);
  const V n = __builtin_convertvector(e, V);
  const V z = m * m;
  V p = T::set1(7.0376836292e-2f);
  p = p * m + T::set1(-1.1514610310e-1f);
  p = p * m + T::set1(1.1676998740e-1f);
  p = p * m + T::set1(-1.2420140846e-1f);
  p = p * m + T::set1(1.4249322787e-1f);
  p = p * m + T::set1(-1.6668057665e-1f);
  p = p * m + T::set1(2.0000714765e-1f);
  p = p * m + T::set1(-2.4999993993e-1f);
  p = p * m + T::set1(3.3333331174e-1f);
  V y = p * m * z;
  y = y + n * T::set1(-2.12194440e-4f) - T::set1(0.5f) * z;
  y = (m + y) + n * T::set1(0.693359375f);
  const V infinity = T::set1(__builtin_inff());
  y = blend<T>(~lessThan<T>(x, infinity), x, y);  // infinity and NaN are returned unchanged
  y = blend<T>(lessThan<T>(x, T::zero()), T::set1(__builtin_nanf("")), y);
  return blend<T>(reinterpret_cast<Int<T>>(x == T::zero()), T::zero() - infinity, y);
}

template <class T>
MOSAIC_INLINE typename T::Vec tanhOf(typename T::Vec x) {
  using V = typename T::Vec;
  const V one = T::set1(1.0f), magnitude = absOf<T>(x), z = x * x;
  V p = T::set1(-5.70498872745e-3f);
  p = p * z + T::set1(2.06390887954e-2f);
  p = p * z + T::set1(-5.37397155531e-2f);
  p = p * z + T::set1(1.33314422036e-1f);
  p = p * z + T::set1(-3.33332819422e-1f);
  const V smallResult = p * z * x + x;
  const V far = one - (one + one) / (expOf<T>(magnitude + magnitude) + one);
  const V signedFar = fromBits<T>(intBits<T>(far) | (intBits<T>(x) & static_cast<int32_t>(0x80000000u)));
  return blend<T>(lessThan<T>(magnitude, T::set1(0.625f)), smallResult, signedFar);
}

/// The sigmoid and its derivative. Compilers omit the one that a caller of `computeSigmoid` does not use.
template <class T>
struct Sigmoid {
  typename T::Vec value, slope;
};

/// Computes both from one exponential, e = exp(−|x|). The derivative is e / (1 + e)², without the cancellation in
/// s (1 − s).
template <class T>
MOSAIC_INLINE Sigmoid<T> computeSigmoid(typename T::Vec x) {
  using V = typename T::Vec;
  const V one = T::set1(1.0f), e = expOf<T>(negate<T>(absOf<T>(x))), s = one / (one + e);
  return {blend<T>(lessThan<T>(x, T::zero()), e * s, s), e * s * s};
}

/// The standard normal distribution function Φ(x) and density φ(x).
template <class T>
struct Normal {
  typename T::Vec cdf, density;
};

/// Computes both from one exponential, e = exp(−x² / 2). The tail 1 − Φ(|x|) is e · t · p(t) with t = 1 / (1 + c |x|),
/// the form of Abramowitz and Stegun, 26.2.17. The coefficients are minimax in relative error (6e-8) for |x| < 14.6;
/// beyond, e is 0. The relative error of cdf is below 1.5e-6 for x > −6.
template <class T>
MOSAIC_INLINE Normal<T> computeNormal(typename T::Vec x) {
  using V = typename T::Vec;
  const V one = T::set1(1.0f), e = expOf<T>(T::set1(-0.5f) * x * x), t = one / (one + T::set1(0.28f) * absOf<T>(x));
  V p = T::set1(0.0231058206f);
  p = p * t + T::set1(-0.0849106833f);
  p = p * t + T::set1(0.0730096400f);
  p = p * t + T::set1(0.0171021484f);
  p = p * t + T::set1(0.0558781177f);
  p = p * t + T::set1(0.0909488127f);
  p = p * t + T::set1(0.101223171f);
  p = p * t + T::set1(0.111953251f);
  p = p * t + T::set1(0.111689739f);
  const V tail = e * (p * t);
  return {blend<T>(lessThan<T>(x, T::zero()), tail, one - tail), T::set1(0.398942280401432678f) * e};
}

/// Computes sin and cos of 2πu for 0 ≤ u < 1.
template <class T>
MOSAIC_INLINE void sinCos2Pi(typename T::Vec u, typename T::Vec& sine, typename T::Vec& cosine) {
  using V = typename T::Vec;
  const V magic = T::set1(12582912.0f);
  const V shiftedQuarters = u * T::set1(4.0f) + magic;
  const V angle = (u * T::set1(4.0f) - (shiftedQuarters - magic)) * T::set1(1.57079632679489662f);
  const V z = angle * angle;
  V s = T::set1(-1.9515295891e-4f);
  s = s * z + T::set1(8.3321608736e-3f);
  s = s * z + T::set1(-1.6666654611e-1f);
  s = s * z * angle + angle;
  V c = T::set1(2.443315711809948e-5f);
  c = c * z + T::set1(-1.388731625493765e-3f);
  c = c * z + T::set1(4.166664568298827e-2f);
  c = c * z * z - T::set1(0.5f) * z + T::set1(1.0f);
  const Int<T> quarter = intBits<T>(shiftedQuarters);
  const Int<T> odd = -(quarter & 1);
  const Int<T> sineSign = (quarter & 2) << 30, cosineSign = ((quarter + 1) & 2) << 30;
  sine = fromBits<T>(intBits<T>(blend<T>(odd, c, s)) ^ sineSign);
  cosine = fromBits<T>(intBits<T>(blend<T>(odd, s, c)) ^ cosineSign);
}

}  // namespace
}  // namespace mosaic
