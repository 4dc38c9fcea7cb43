// Rows in and out: from any storage type and stride to float32 rows, and from rows to panels and back.
#pragma once

#include "attention/kernels.h"
#include "simd/inline.h"

namespace mosaic {

template <class V>
struct Pack {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, width = V::tileVectors * L;

  MOSAIC_NOINLINE void unpack(const Rows& rows, int64_t count, int64_t columns, float* dst, int64_t stride) {
    const bool plain = rows.columnStride == 1;
    const int64_t whole = plain ? columns / L * L : 0;
    for (int64_t r = 0; r < count; ++r) {
      float* to = dst + r * stride;
      const int64_t from = r * rows.rowStride;
      if (rows.dtype == DType::Float32) {
        const float* x = static_cast<const float*>(rows.data) + from;
        for (int64_t c = 0; c < whole; c += L) V::store(to + c, V::load(x + c));
      } else {
        const uint16_t* x = static_cast<const uint16_t*>(rows.data) + from;
        if (rows.dtype == DType::BFloat16) {
          for (int64_t c = 0; c < whole; c += L) V::store(to + c, V::loadBf16(x + c));
        } else {
          for (int64_t c = 0; c < whole; c += L) V::store(to + c, V::loadF16(x + c));
        }
      }
      for (int64_t c = whole; c < columns; ++c) to[c] = element(rows, from + c * rows.columnStride);
      for (int64_t c = columns; c % L != 0; ++c) to[c] = 0;
    }
  }

  MOSAIC_NOINLINE bool finite(const float* rows, int64_t stride, int64_t count, int64_t columns) {
    Vec bad = V::zero();  // x · 0 is 0 or NaN
    for (int64_t r = 0; r < count; ++r) {
      int64_t c = 0;
      for (; c + L <= columns; c += L) bad = V::fma(V::load(rows + r * stride + c), V::zero(), bad);
      if (c < columns) {
        bad = V::fma(V::loadPartial(rows + r * stride + c, static_cast<int>(columns - c)), V::zero(), bad);
      }
    }
    return V::sum(bad) == 0;
  }

  MOSAIC_NOINLINE void toPanel(const float* rows, int64_t stride, int64_t count, int64_t depth, float factor,
                               float* panel) {
    const Vec scale = V::set1(factor);
    for (int64_t r = 0; r < width; r += L) {
      for (int64_t d = 0; d < depth; d += L) {
        float block[L * L];
        const int64_t present = count - r;
        if (present >= L) {
          V::transpose(rows + r * stride + d, stride, block, L);
        } else {
          for (int i = 0; i < L * L; ++i) block[i] = 0;
          for (int64_t i = 0; i < present; ++i) {
            for (int k = 0; k < L; ++k) block[k * L + i] = rows[(r + i) * stride + d + k];
          }
        }
        for (int64_t k = 0; k < L && d + k < depth; ++k) {
          V::store(panel + (d + k) * width + r, V::mul(V::load(block + k * L), scale));
        }
      }
    }
  }

  MOSAIC_NOINLINE void fromPanel(const float* panel, const float* factor, int64_t depth, float* rows, int64_t stride) {
    for (int64_t r = 0; r < width; r += L) {
      const Vec scale = V::load(factor + r);
      for (int64_t d = 0; d < depth; d += L) {
        float block[L * L];
        for (int64_t k = 0; k < L; ++k) {
          const bool present = d + k < depth;
          V::store(block + k * L, present ? V::mul(V::load(panel + (d + k) * width + r), scale) : V::zero());
        }
        V::transpose(block, L, rows + r * stride + d, stride);
      }
    }
  }

 private:
  /// One element of any type, through a vector whose other lanes are zero.
  MOSAIC_INLINE float element(const Rows& rows, int64_t index) {
    if (rows.dtype == DType::Float32) return static_cast<const float*>(rows.data)[index];
    const uint16_t lane[L] = {static_cast<const uint16_t*>(rows.data)[index]};
    float converted[L];
    V::store(converted, rows.dtype == DType::BFloat16 ? V::loadBf16(lane) : V::loadF16(lane));
    return converted[0];
  }
};

}  // namespace mosaic
