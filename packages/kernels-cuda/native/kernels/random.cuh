// Counter-based random numbers, bitwise equal to those of the CPU device: multiplications and additions are not fused,
// and logarithm, sine and cosine are polynomials defined here. CPU version: packages/kernels-cpu/native/kernels/math.h.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

// Each operation is rounded; nvcc would fuse operators. The emulation is compiled without fusing.
#if defined(__CUDACC__)
DEVICE float mulRounded(float a, float b) { return __fmul_rn(a, b); }
DEVICE float addRounded(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sqrtRounded(float x) { return __fsqrt_rn(x); }
DEVICE float floatFromBits(uint32_t bits) { return __uint_as_float(bits); }
#else
DEVICE float mulRounded(float a, float b) { return a * b; }
DEVICE float addRounded(float a, float b) { return a + b; }
DEVICE float sqrtRounded(float x) { return sqrtf(x); }
DEVICE float floatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
#endif

/// Returns c[0] xⁿ⁻¹ + … + c[n − 1], by Horner's method.
template <int N>
DEVICE float evaluatePolynomial(float x, const float (&c)[N]) {
  float p = c[0];
#pragma unroll
  for (int i = 1; i < N; i++) p = addRounded(mulRounded(p, x), c[i]);
  return p;
}

/// Returns the natural logarithm of a normal number. Moshier's Cephes library.
DEVICE float naturalLog(float x) {
  const uint32_t bits = bitsOf(x);
  float m = floatFromBits((bits & 0x7fffff) | 0x3f000000);  // in [½, 1)
  int e = static_cast<int>(bits >> 23 & 0xff) - 126;
  const bool isBelowSqrtHalf = m < 0.707106781186547524f;
  e -= isBelowSqrtHalf;
  m = addRounded(isBelowSqrtHalf ? addRounded(m, m) : m, -1.f);
  const float n = static_cast<float>(e), z = mulRounded(m, m);
  const float p = evaluatePolynomial(
      m, {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
          -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f});
  const float y =
      addRounded(addRounded(mulRounded(mulRounded(p, m), z), mulRounded(n, -2.12194440e-4f)), -mulRounded(0.5f, z));
  return addRounded(addRounded(m, y), mulRounded(n, 0.693359375f));
}

struct SinCos {
  float sine, cosine;
};

/// Returns sin and cos of 2πu for 0 ≤ u < 1.
DEVICE SinCos sinCos2Pi(float u) {
  const float magic = 12582912.f;  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
  const float quarters = mulRounded(u, 4.f), shiftedQuarters = addRounded(quarters, magic);
  const float angle = mulRounded(addRounded(quarters, -addRounded(shiftedQuarters, -magic)), 1.57079632679489662f);
  const float z = mulRounded(angle, angle);
  const float p = evaluatePolynomial(z, {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f});
  const float s = addRounded(mulRounded(mulRounded(p, z), angle), angle);
  const float q = evaluatePolynomial(z, {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f});
  const float c = addRounded(addRounded(mulRounded(mulRounded(q, z), z), -mulRounded(0.5f, z)), 1.f);
  const uint32_t quarter = bitsOf(shiftedQuarters);
  const bool isOddQuarter = quarter & 1;
  return {floatFromBits(bitsOf(isOddQuarter ? c : s) ^ (quarter & 2) << 30),
          floatFromBits(bitsOf(isOddQuarter ? s : c) ^ ((quarter + 1) & 2) << 30)};
}

/// Computes the four words of a block of four elements by encrypting the counter (block, stream) under the key `seed`.
/// Salmon, Moraes, Dror and Shaw 2011.
DEVICE void philoxBlock(const Philox& philox, uint64_t block, uint32_t (&words)[4]) {
  words[0] = static_cast<uint32_t>(block);
  words[1] = static_cast<uint32_t>(block >> 32);
  words[2] = static_cast<uint32_t>(philox.stream);
  words[3] = static_cast<uint32_t>(philox.stream >> 32);
  uint32_t key0 = static_cast<uint32_t>(philox.seed), key1 = static_cast<uint32_t>(philox.seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xD2511F53u} * words[0], b = uint64_t{0xCD9E8D57u} * words[2];
    words[0] = static_cast<uint32_t>(b >> 32) ^ words[1] ^ key0;
    words[1] = static_cast<uint32_t>(b);
    words[2] = static_cast<uint32_t>(a >> 32) ^ words[3] ^ key1;
    words[3] = static_cast<uint32_t>(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// Returns the upper 24 bits, plus `offset`, as k · 2⁻²⁴.
DEVICE float toFraction(uint32_t word, uint32_t offset) {
  return static_cast<float>((word >> 8) + offset) * 5.9604644775390625e-8f;
}

DEVICE float drawUniform(const Philox& philox, uint64_t index, float low, float high) {
  uint32_t words[4];
  philoxBlock(philox, index / 4, words);
  const float value = addRounded(low, mulRounded(toFraction(words[index % 4], 0), high - low));
  return value < high ? value : low;  // low if rounded up to high
}

/// Box and Muller 1958, on the pairs (0, 1) and (2, 3) of a block.
DEVICE float drawNormal(const Philox& philox, uint64_t index, float mean, float std) {
  uint32_t words[4];
  philoxBlock(philox, index / 4, words);
  const uint64_t pair = index % 4 / 2 * 2;
  const float radius = sqrtRounded(mulRounded(-2.f, naturalLog(toFraction(words[pair], 1))));  // of (0, 1]
  const SinCos sinCos = sinCos2Pi(toFraction(words[pair + 1], 0));
  return addRounded(mean, mulRounded(std, mulRounded(radius, index % 2 == 0 ? sinCos.cosine : sinCos.sine)));
}

}  // namespace mosaic::cuda
