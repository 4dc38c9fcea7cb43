// lse of the rows of a panel at the end of the forward.
#pragma once

#include <cstdint>

#include "attention/attention_kernels.h"
#include "simd/inline.h"

namespace mosaic {

/// For panels of N vectors.
template <class V, int N>
struct RowLse {
  /// lse[r] ← the natural logarithm of Σ e^s of row r; any value for a row that has attended to no key.
  MOSAIC_NOINLINE void compute(const ForwardPanel& panel, double* lse) {
    constexpr double kLn2 = 0.69314718055994531;
    const double maxScale = panel.isLargeMode ? 1 : kLn2;
    for (int r = 0; r < N * V::lanes; ++r) {  // compiled to vectors
      const float sum = panel.sum[r];
      int32_t bits;
      __builtin_memcpy(&bits, &sum, sizeof bits);
      // sum = m · 2^exponent with √½ ≤ m < √2, and ln m = 2 artanh x. The first term left out is 2e-12 of x.
      const int32_t exponent = (bits - 0x3f3504f3) >> 23, mantissaBits = bits - exponent * (1 << 23);
      float m;
      __builtin_memcpy(&m, &mantissaBits, sizeof m);
      const double x = (m - 1.0) / (m + 1.0), y = x * x;
      double p = 1.0 / 13;
      p = p * y + 1.0 / 11;
      p = p * y + 1.0 / 9;
      p = p * y + 1.0 / 7;
      p = p * y + 1.0 / 5;
      p = p * y + 1.0 / 3;
      p = p * y + 1;
      const double logarithm = exponent * kLn2 + 2 * x * p;
      const bool isFinite = sum - sum == 0;
      lse[r] = (isFinite ? logarithm : sum) - panel.negMax[r] * maxScale;
    }
  }
};

}  // namespace mosaic
