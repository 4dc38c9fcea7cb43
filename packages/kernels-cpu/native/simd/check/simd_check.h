// The check of one trait. Included by check_<isa>.cc only. Uses no std:: functions, for the reason given in simd/isa.h.
#pragma once

#include <cstdint>
#include <cstdio>

#include "simd/check/check.h"
#include "simd/isa.h"

namespace mosaic::check {

template <class V>
struct SimdCheck {
  static constexpr int L = V::lanes;
  using Vec = typename V::Vec;

  SimdReport report;
  uint32_t state = 12345;
  float a[L], b[L], c[L], got[L];

  void expect(bool ok, const char* name, int lane) {
    if (!ok && report.failures++ == 0)
      std::snprintf(report.firstFailure, sizeof report.firstFailure, "%s, lane %d", name, lane);
  }
  static uint32_t bitsOf(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float fromBits(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  static bool isSame(float x, float y) { return bitsOf(x) == bitsOf(y) || (x != x && y != y); }
  uint32_t next() { return state = state * 1664525u + 1013904223u; }

  /// Returns mostly ordinary numbers, and some with a random bit pattern: infinities, NaNs, denormals.
  float randomNumber() {
    const float boundedNumber = static_cast<float>(static_cast<int32_t>(next())) * 0x1p-29f;
    return next() >> 29 == 0 ? fromBits(next()) : boundedNumber;
  }
  void randomizeInputs() {
    for (int i = 0; i < L; ++i) a[i] = randomNumber(), b[i] = randomNumber(), c[i] = randomNumber();
  }

  template <class Expected>
  void checkLanes(const char* name, Vec v, Expected expectedLane) {
    V::store(got, v);
    for (int i = 0; i < L; ++i) expect(isSame(got[i], expectedLane(i)), name, i);
  }

  void checkArithmetic() {
    randomizeInputs();
    const Vec x = V::load(a), y = V::load(b), z = V::load(c);
    checkLanes("load", x, [&](int i) { return a[i]; });
    checkLanes("zero", V::zero(), [&](int) { return 0.0f; });
    checkLanes("set1", V::set1(a[0]), [&](int) { return a[0]; });
    checkLanes("add", V::add(x, y), [&](int i) { return a[i] + b[i]; });
    checkLanes("sub", V::sub(x, y), [&](int i) { return a[i] - b[i]; });
    checkLanes("mul", V::mul(x, y), [&](int i) { return a[i] * b[i]; });
    checkLanes("div", V::div(x, y), [&](int i) { return a[i] / b[i]; });
    checkLanes("max", V::max(x, y), [&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
    checkLanes("min", V::min(x, y), [&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
    checkLanes("fma", V::fma(x, y, z), [&](int i) {
      return V::isa == Isa::Scalar ? a[i] * b[i] + c[i] : __builtin_fmaf(a[i], b[i], c[i]);
    });
    checkLanes("select(less)", V::select(V::lessThan(x, y), x, z), [&](int i) { return a[i] < b[i] ? a[i] : c[i]; });
    bool any = false;
    for (int i = 0; i < L; ++i) any |= a[i] < b[i];
    expect(V::any(V::lessThan(x, y)) == any, "any", 0);
    expect(V::any(V::lessThan(V::zero(), V::set1(1))), "any of all-true lanes", 0);
    expect(!V::any(V::lessThan(V::set1(1), V::zero())), "any of all-false lanes", 0);
  }

  void checkMasks() {
    int32_t lo[L], hi[L];
    for (int i = 0; i < L; ++i) lo[i] = static_cast<int32_t>(next() >> 28), hi[i] = static_cast<int32_t>(next() >> 28);
    for (int32_t j = -1; j < 17; ++j) {
      checkLanes("inRange", V::select(V::inRange(lo, hi, j), V::set1(1), V::zero()),
                 [&](int i) { return lo[i] <= j && j < hi[i] ? 1.0f : 0.0f; });
    }
    for (int n = 0; n <= L; ++n) {
      randomizeInputs();
      checkLanes("loadPartial", V::loadPartial(a, n), [&](int i) { return i < n ? a[i] : 0.0f; });
      V::storePartial(b, V::load(c), n);
      for (int i = 0; i < n; ++i) expect(isSame(b[i], c[i]), "storePartial", i);
    }
    const float before = b[L - 1];
    V::storePartial(b, V::load(a), L - 1);
    expect(isSame(b[L - 1], before), "storePartial writes past its end", L - 1);
    float ones[L];
    for (int i = 0; i < L; ++i) ones[i] = static_cast<float>(i + 1);
    expect(V::sum(V::load(ones)) == L * (L + 1) / 2, "sum", 0);
    for (int largest = 0; largest < L; ++largest) {
      for (int i = 0; i < L; ++i) a[i] = static_cast<float>(-1 - (i + L - largest) % L);
      expect(V::maxLane(V::load(a)) == -1, "maxLane", largest);
    }
  }

  void checkTransposes() {
    constexpr int lds = L + 3, ldd = L + 5;
    float src[L * lds], dst[L * ldd];
    for (float& x : src) x = static_cast<float>(next() >> 8);
    V::transpose(src, lds, dst, ldd);
    for (int r = 0; r < L; ++r) {
      for (int k = 0; k < L; ++k) expect(dst[k * ldd + r] == src[r * lds + k], "transpose", r);
    }
  }

  /// Whether h is x rounded to nearest even, determined from the three candidates.
  template <class Decode>
  static bool isNearest(float x, uint16_t h, Decode decode) {
    const double difference = decode(h) - static_cast<double>(x);
    const double error = difference < 0 ? -difference : difference;
    for (int step : {-1, 1}) {
      const uint16_t other = static_cast<uint16_t>(h + step);
      const double otherDifference = decode(other) - static_cast<double>(x);
      if (!(otherDifference == otherDifference) || ((other ^ h) & 0x8000) != 0) continue;
      const double otherError = otherDifference < 0 ? -otherDifference : otherDifference;
      if (otherError < error || (otherError == error && (h & 1) != 0)) return false;
    }
    return true;
  }

  static double bf16ToDouble(uint16_t h) { return fromBits(uint32_t{h} << 16); }
  /// Decodes a float16. Infinity counts as the next power of two, as in rounding.
  static double f16ToDouble(uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31 && mantissa != 0) return __builtin_nan("");
    double x = exponent == 0 ? mantissa : mantissa + 1024;
    for (int e = exponent == 0 ? 1 : exponent; e > 25; --e) x *= 2;
    for (int e = exponent == 0 ? 1 : exponent; e < 25; ++e) x /= 2;
    return h >> 15 ? -x : x;
  }

  void checkConversions() {
    uint16_t half[L];
    for (uint32_t h = 0; h < 65536; h += L) {
      for (int i = 0; i < L; ++i) half[i] = static_cast<uint16_t>(h + static_cast<uint32_t>(i));
      checkLanes("loadBf16", V::loadBf16(half), [&](int i) { return static_cast<float>(bf16ToDouble(half[i])); });
      checkLanes("loadF16", V::loadF16(half), [&](int i) {
        const bool isInfinite = (half[i] & 0x7fff) == 0x7c00;
        return isInfinite ? (half[i] >> 15 ? -__builtin_inff() : __builtin_inff())
                          : static_cast<float>(f16ToDouble(half[i]));
      });
    }
    for (int t = 0; t < 20'000; ++t) {
      randomizeInputs();
      if (t % 2 == 0) {  // numbers in the range of float16, including its denormals and its limit
        for (int i = 0; i < L; ++i) a[i] = fromBits((next() & 0x80ffffffu) + 0x33000000u + (next() % 0x15u << 24));
      }
      V::storeBf16(half, V::load(a));
      for (int i = 0; i < L; ++i) {
        const bool high = (bitsOf(a[i]) & 0x7fffffffu) >= 0x7f7f8000u;  // rounds to infinity
        const bool isDenormal = (bitsOf(a[i]) & 0x7fffffffu) < 0x800000u;
        const bool ok = a[i] != a[i] ? bf16ToDouble(half[i]) != bf16ToDouble(half[i])
                        : isDenormal && !V::storesBf16Denormals ? half[i] == bitsOf(a[i]) >> 31 << 15
                        : high       ? (half[i] & 0x7fff) == 0x7f80
                                     : isNearest(a[i], half[i], bf16ToDouble);
        expect(ok, "storeBf16", i);
      }
      V::storeF16(half, V::load(a));
      for (int i = 0; i < L; ++i) {
        const float magnitude = a[i] < 0 ? -a[i] : a[i];
        const bool ok = a[i] != a[i]            ? f16ToDouble(half[i]) != f16ToDouble(half[i])
                        : magnitude >= 65520.0f ? (half[i] & 0x7fff) == 0x7c00
                                                : isNearest(a[i], half[i], f16ToDouble);
        expect(ok, "storeF16", i);
      }
    }
  }

  void checkExponential() {
    report.maxExp2Error = checkExp2([](auto x) { return V::exp2(x); });
    expect(report.maxExp2Error < 1e-7, "exp2: error of 1e-7 or more", 0);
    if constexpr (requires { V::exp2Bf16(V::zero()); }) {
      expect(checkExp2([](auto x) { return V::exp2Bf16(x); }) < 4e-6, "exp2Bf16: error of 4e-6 or more", 0);
    }
  }

  /// Returns the largest relative error of `exp2`, and checks its special values.
  template <class Exp2>
  double checkExp2(const Exp2& exp2) {
    double maxError = 0;
    for (double x = -125.4; x < 127.9; x += 0.0011) {
      for (int i = 0; i < L; ++i) a[i] = static_cast<float>(x + i * 1e-5);
      V::store(got, exp2(V::load(a)));
      for (int i = 0; i < L; ++i) {
        const double error = got[i] / __builtin_exp2(static_cast<double>(a[i])) - 1;
        const double magnitude = error < 0 ? -error : error;
        if (!(magnitude <= maxError)) maxError = magnitude;
      }
    }
    const float small[] = {-__builtin_inff(), -1e30f, -1000.0f, -127.0f, -125.6f};
    for (float x : small) checkLanes("exp2 underflow", exp2(V::set1(x)), [](int) { return 0.0f; });
    const uint32_t nans[] = {0x7fc00000u, 0xffffffffu, 0x7f800001u, 0xffc00123u};
    for (uint32_t x : nans) checkLanes("exp2 of NaN", exp2(V::set1(fromBits(x))), [&](int) { return fromBits(x); });
    checkLanes("exp2(0)", exp2(V::zero()), [](int) { return 1.0f; });
    return maxError;
  }

  /// Checks products of bfloat16 pairs, for the traits that have them.
  void checkPairs() {
    if constexpr (requires { typename V::Pairs; }) {
      uint32_t x[L], y[L], words[L];
      uint16_t low[L], high[L], lowBack[L], highBack[L];
      for (int t = 0; t < 2000; ++t) {
        for (int i = 0; i < L; ++i) {
          x[i] = ordinaryPair(), y[i] = ordinaryPair();
          c[i] = static_cast<float>(static_cast<int32_t>(next())) * 0x1p-29f;
          low[i] = static_cast<uint16_t>(next() >> 16), high[i] = static_cast<uint16_t>(next() >> 16);
        }
        V::store(got, V::dot(V::loadPairs(x), V::loadPairs(y), V::load(c)));
        for (int i = 0; i < L; ++i) {
          const double first = bf16ToDouble(lowHalf(x[i])) * bf16ToDouble(lowHalf(y[i]));
          const double second = bf16ToDouble(highHalf(x[i])) * bf16ToDouble(highHalf(y[i]));
          const double error = got[i] - (first + second + static_cast<double>(c[i]));
          const double size = absoluteValue(first) + absoluteValue(second) + absoluteValue(static_cast<double>(c[i]));
          expect(absoluteValue(error) <= 0x1p-22 * size, "dot", i);
        }
        V::storePairs(words, V::setPairs(x[0]));
        for (int i = 0; i < L; ++i) expect(words[i] == x[0], "setPairs", i);
        V::storePairs(words, V::interleave(V::joinRows(low, high)));
        for (int i = 0; i < L; ++i) expect(words[i] == (low[i] | uint32_t{high[i]} << 16), "interleave", i);
        V::storeRows(lowBack, highBack, V::joinRows(low, high));
        for (int i = 0; i < L; ++i) expect(lowBack[i] == low[i] && highBack[i] == high[i], "storeRows", i);
        for (int i = 0; i < L; ++i) a[i] = randomNormalNumber(), b[i] = randomNormalNumber();
        V::storeRows(lowBack, highBack, V::roundToPairs(V::load(a), V::load(b)));
        for (int i = 0; i < L; ++i) {
          expect(isNearest(a[i], lowBack[i], bf16ToDouble) && isNearest(b[i], highBack[i], bf16ToDouble), "round", i);
        }
      }
      checkLanes("rounded", V::preventFusion(V::load(a)), [&](int i) { return a[i]; });
      const uint32_t nan = 0x7fc00000u, one = 0x3f803f80u;
      V::store(got, V::dot(V::setPairs(nan), V::setPairs(one), V::zero()));
      for (int i = 0; i < L; ++i) expect(got[i] != got[i], "dot of NaN", i);
      const uint32_t pair = 0x40003f80u;  // 1 and 2
      V::store(got, V::dot(V::setPairs(pair), V::setPairs(one), V::zero()));
      for (int i = 0; i < L; ++i) expect(got[i] == 3, "dot with a constant", i);
    }
  }
  /// Returns two numbers of ordinary size.
  uint32_t ordinaryPair() { return (next() & 0x83ff83ffu) | 0x3c003c00u; }
  static uint16_t lowHalf(uint32_t pair) { return static_cast<uint16_t>(pair); }
  static uint16_t highHalf(uint32_t pair) { return static_cast<uint16_t>(pair >> 16); }
  static double absoluteValue(double x) { return x < 0 ? -x : x; }
  /// Returns a number that is not denormal, infinite or NaN, and that does not round to infinity.
  float randomNormalNumber() { return fromBits((next() & 0xbfffffffu) | 0x20000000u); }

  SimdReport run() {
    for (int t = 0; t < 2000; ++t) checkArithmetic();
    for (int t = 0; t < 20; ++t) checkMasks();
    checkTransposes();
    checkConversions();
    checkExponential();
    checkPairs();
    return report;
  }
};

}  // namespace mosaic::check
