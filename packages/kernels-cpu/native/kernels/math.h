// Elementary functions of float32 vectors, accurate to about 2 units in the last place.
//
// The kernels of this folder are compiled without contraction: only `fma` fuses. Every instruction set then computes
// the same bits, except Scalar, whose `fma` rounds twice. Epilogues of products and attention are compiled with
// contraction, and may fuse more. Polynomials: Moshier's Cephes library (single precision), except where stated.
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

/// Returns c[0] + c[1] x + c[2] x² + …
template <class T, int size>
MOSAIC_INLINE typename T::Vec polynomial(const float (&c)[size], typename T::Vec x) {
  typename T::Vec p = T::set1(c[size - 1]);
#pragma GCC unroll 16
  for (int i = size - 2; i >= 0; i--) p = T::fma(p, x, T::set1(c[i]));
  return p;
}

/// Returns e^(scale · x) for a constant power of two `scale` and |scale · x| ≤ 120; NaN for NaN. The scale is part of
/// the constants and rounds nothing. The polynomial is minimax in relative error (4e-9).
template <class T>
MOSAIC_INLINE typename T::Vec boundedExpOf(float scale, typename T::Vec x) {
  using V = typename T::Vec;
  const V magic = T::set1(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
  const V n = T::fma(x, T::set1(scale * 1.44269504088896341f), magic) - magic;
  const V r = T::fma(n, T::set1(2.12194440e-4f / scale), T::fma(n, T::set1(-0.693359375f / scale), x));
  const float square = scale * scale, fourth = square * square;
  V p = T::set1(0.0013865442f * square * fourth);
  p = T::fma(p, r, T::set1(0.00836758222f * scale * fourth));
  p = T::fma(p, r, T::set1(0.0416672193f * fourth));
  p = T::fma(p, r, T::set1(0.166665331f * scale * square));
  p = T::fma(p, r, T::set1(0.5f * square));
  p = T::fma(p, r, T::set1(scale));
  return scaleByPowerOfTwo<T>(T::fma(p, r, T::set1(1.0f)), n);
}

template <class T>
MOSAIC_INLINE typename T::Vec expOf(typename T::Vec x) {
  return boundedExpOf<T>(1, T::min(T::set1(89.0f), T::max(T::set1(-104.0f), x)));
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

/// tanh(√z) = √z + z √z p(z) for z < 0.625².
inline constexpr float kTanhCoefficients[5] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                                               2.06390887954e-2f, -5.70498872745e-3f};

template <class T>
MOSAIC_INLINE typename T::Vec tanhOf(typename T::Vec x) {
  using V = typename T::Vec;
  const V one = T::set1(1.0f), magnitude = absOf<T>(x), z = x * x;
  const V near = T::fma(polynomial<T>(kTanhCoefficients, z) * z, magnitude, magnitude);
  const V e = boundedExpOf<T>(2, T::min(T::set1(44.5f), magnitude));
  const V far = one - T::set1(2.0f) / (e + one);
  const V result = T::select(T::lessThan(magnitude, T::set1(0.625f)), near, far);
  return fromBits<T>(intBits<T>(result) | (intBits<T>(x) & static_cast<int32_t>(0x80000000u)));
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
  const V one = T::set1(1.0f), e = boundedExpOf<T>(-1, T::min(T::set1(104.0f), absOf<T>(x)));
  const V s = one / (one + e);
  return {T::select(T::lessThan(x, T::zero()), e * s, s), e * s * s};
}

/// The standard normal distribution function Φ(x) and density φ(x).
template <class T>
struct Normal {
  typename T::Vec cdf, density;
};

/// (1 − Φ(a)) · exp(a² / 2), the Mills ratio divided by √(2π), as a rational function, minimax in relative error
/// (2e-8) for 0 ≤ a < 14.7. All coefficients are positive, so that no sum loses digits.
inline constexpr float kTailNumerator[5] = {0.5f, 0.438695997f, 0.1835327f, 0.0407336615f, 0.00413125195f};
inline constexpr float kTailDenominator[6] = {1.0f,         1.67527699f, 1.20373809f,
                                              0.470256269f, 0.10211046f, 0.0103553962f};

/// Computes both from one exponential, e = exp(−x² / 2), which is 0 from |x| = 14.5 on. The relative error of cdf is
/// below 1.5e-6 for x > −6.
template <class T>
MOSAIC_INLINE Normal<T> computeNormal(typename T::Vec x) {
  using V = typename T::Vec;
  const V a = T::min(T::set1(15.0f), absOf<T>(x)), e = boundedExpOf<T>(-0.5f, a * a);
  const V tail = e * (polynomial<T>(kTailNumerator, a) / polynomial<T>(kTailDenominator, a));
  return {T::select(T::lessThan(x, T::zero()), tail, T::set1(1.0f) - tail), T::set1(0.398942280401432678f) * e};
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
