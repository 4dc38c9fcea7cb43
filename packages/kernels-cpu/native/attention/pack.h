// Packing: from rows of any storage type and stride to rows of the product dtype, and from rows to panels and back.
#pragma once

#include "attention/attention_kernels.h"
#include "kernels/lanes.h"
#include "simd/elements.h"
#include "simd/inline.h"
#include "simd/integers.h"
#include "simd/pair_packing.h"
#include "simd/register_tile.h"

namespace mosaic {

/// Float32 panels and their rows.
template <class V, int width>
struct ResultPanel {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes;

  MOSAIC_NOINLINE void load(const void* matrix, int64_t stride, int64_t count, int64_t depth, float factor,
                            void* elements) {
    const auto* rows = static_cast<const float*>(matrix);
    auto* panel = static_cast<float*>(elements);
    const Vec scale = V::set1(factor);
    for (int64_t r = 0; r < width; r += L) {
      for (int64_t d = 0; d < depth; d += L) {
        const auto row = [&](int i) __attribute__((always_inline)) {
          return r + i < count ? V::load(rows + (r + i) * stride + d) : V::zero();
        };
        V::transposeRows(row, [&](int k, Vec column) __attribute__((always_inline)) {
          if (d + k < depth) V::store(panel + (d + k) * width + r, V::mul(column, scale));
        });
      }
    }
  }

  MOSAIC_NOINLINE void store(const float* panel, const float* factor, int64_t depth, float* rows, int64_t stride) {
    for (int64_t r = 0; r < width; r += L) {
      const auto scale = V::load(factor + r);
      for (int64_t d = 0; d < depth; d += L) {
        const auto row = [&](int k) __attribute__((always_inline)) {
          return d + k < depth ? V::mul(V::load(panel + (d + k) * width + r), scale) : V::zero();
        };
        V::transposeRows(row, [&](int i, Vec column) __attribute__((always_inline)) {
          V::store(rows + (r + i) * stride + d, column);
        });
      }
    }
  }
};

/// Packing for panels of N vectors.
template <class V, class E, int N>
struct Pack;

template <class V, int N>
struct Pack<V, Float32Operands, N> {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, width = N * L;
  static constexpr int32_t depthMultiple = L, keyMultiple = 1;

  MOSAIC_NOINLINE void unpack(const Rows& rows, int64_t count, int64_t columns, void* dst, int64_t stride) {
    if (rows.columnStride == 1 && columns % L == 0) {
      auto* to = static_cast<float*>(dst);
      if (rows.dtype == DType::Float32) return copyRows<DType::Float32>(rows, count, columns, to, stride);
      if (rows.dtype == DType::BFloat16) return copyRows<DType::BFloat16>(rows, count, columns, to, stride);
      if (rows.dtype == DType::Float16) return copyRows<DType::Float16>(rows, count, columns, to, stride);
    }
    const bool isDense = rows.dtype == DType::Float32 && rows.columnStride == 1;
    for (int64_t r = 0; r < count; ++r) {
      float* to = static_cast<float*>(dst) + r * stride;
      const char* data = static_cast<const char*>(rows.data) + r * rows.rowStride * dtypeBytes(rows.dtype);
      if (isDense) {
        copyRow(reinterpret_cast<const float*>(data), columns, to);
        continue;
      }
      fetch<V>(rows.dtype, data, rows.columnStride, columns, to);
      for (int64_t c = columns; c % L != 0; ++c) to[c] = 0;
    }
  }

  MOSAIC_NOINLINE bool isFinite(const void* matrix, int64_t stride, int64_t count, int64_t columns) {
    const auto* rows = static_cast<const float*>(matrix);
    constexpr int chains = 4;
    Vec zeroOrNan[chains];  // x · 0 is 0 or NaN
#pragma GCC unroll 4
    for (Vec& sum : zeroOrNan) sum = V::zero();
    for (int64_t c = 0; c < columns; c += L) {
      const auto load = [&](const float* from) __attribute__((always_inline)) {
        return c + L <= columns ? V::load(from + c) : V::loadPartial(from + c, static_cast<int>(columns - c));
      };
      const float* row = rows;
      int64_t r = 0;
      for (; r + chains <= count; r += chains) {
#pragma GCC unroll 4
        for (int i = 0; i < chains; ++i, row += stride) zeroOrNan[i] = V::fma(load(row), V::zero(), zeroOrNan[i]);
      }
      for (; r < count; ++r, row += stride) zeroOrNan[0] = V::fma(load(row), V::zero(), zeroOrNan[0]);
    }
    return V::sum(V::add(V::add(zeroOrNan[0], zeroOrNan[1]), V::add(zeroOrNan[2], zeroOrNan[3]))) == 0;
  }

  MOSAIC_NOINLINE void toPanel(const void* rows, int64_t stride, int64_t count, int64_t depth, float factor,
                               void* panel) {
    ResultPanel<V, width>::load(rows, stride, count, depth, factor, panel);
  }

 private:
  /// Copies rows of whole vectors.
  template <DType dtype>
  MOSAIC_INLINE void copyRows(const Rows& rows, int64_t count, int64_t columns, float* to, int64_t stride) {
    const auto* from = static_cast<const ElementOf<dtype>*>(rows.data);
    if (columns == L) {
#pragma GCC unroll 4
      for (int64_t r = 0; r < count; ++r) V::store(to + r * stride, loadVector<V, dtype>(from + r * rows.rowStride));
      return;
    }
    for (int64_t r = 0; r < count; ++r, from += rows.rowStride, to += stride) {
      for (int64_t c = 0; c < columns; c += L) V::store(to + c, loadVector<V, dtype>(from + c));
    }
  }

  /// Copies a row, padded with zeros to a whole vector. Rows of a head are too short to justify a call of memcpy.
  MOSAIC_INLINE void copyRow(const float* from, int64_t columns, float* to) {
    int64_t c = 0;
    for (; c + L <= columns; c += L) V::store(to + c, V::load(from + c));
    if (c < columns) V::store(to + c, V::loadPartial(from + c, static_cast<int>(columns - c)));
  }
};

template <class V, int N>
struct Pack<V, Bf16Operands, N> {
  using Vec = typename V::Vec;
  static constexpr int L = V::lanes, width = N * L;
  static constexpr int32_t depthMultiple = 2 * L, keyMultiple = 2 * L;

  /// Unpacks rows of bfloat16.
  MOSAIC_NOINLINE void unpack(const Rows& rows, int64_t count, int64_t columns, void* dst, int64_t stride) {
    const int64_t paddedColumns = roundUp(columns, depthMultiple);
    for (int64_t r = 0; r < count; ++r) {
      uint16_t* to = static_cast<uint16_t*>(dst) + r * stride;
      const uint16_t* from = static_cast<const uint16_t*>(rows.data) + r * rows.rowStride;
      if (rows.columnStride == 1) {
        __builtin_memcpy(to, from, static_cast<size_t>(columns) * sizeof *to);
      } else {
        for (int64_t c = 0; c < columns; ++c) to[c] = from[c * rows.columnStride];
      }
      for (int64_t c = columns; c < paddedColumns; ++c) to[c] = 0;
    }
  }

  MOSAIC_NOINLINE void transpose(const void* rows, int64_t rowStride, int64_t count, int64_t columns, void* dst,
                                 int64_t stride) {
    const auto* from = static_cast<const uint16_t*>(rows);
    auto* to = static_cast<uint16_t*>(dst);
    for (int64_t r = 0; r < count; r += 2 * L) {
      for (int64_t next = r + 2 * L; next < r + 4 * L && next < count; ++next) {
        for (int64_t c = 0; c < columns; c += 2 * L) __builtin_prefetch(from + next * rowStride + c, 0, 2);
      }
      for (int64_t c = 0; c < columns; c += L) {
        const auto row = [&](int64_t i) { return r + i < count ? from + (r + i) * rowStride + c : nullptr; };
        PairPacking<V>::transposeRows(row, to + c * stride + r, stride, L);
      }
    }
  }

  MOSAIC_NOINLINE bool isFinite(const void* matrix, int64_t stride, int64_t count, int64_t columns) {
    const auto* rows = static_cast<const uint16_t*>(matrix);
    Vec zeroOrNan = V::zero();  // x · 0 is 0 or NaN
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < columns; c += L)
        zeroOrNan = V::fma(V::loadBf16(rows + r * stride + c), V::zero(), zeroOrNan);
    }
    return V::sum(zeroOrNan) == 0;
  }

  /// Elements are pairs: [depth / 2][width].
  MOSAIC_NOINLINE void toPanel(const void* matrix, int64_t stride, int64_t count, int64_t depth, float,
                               void* elements) {
    const auto* rows = static_cast<const uint16_t*>(matrix);
    auto* panel = static_cast<uint32_t*>(elements);
    for (int64_t r = 0; r < width; r += L) {
      for (int64_t d = 0; d < depth; d += 2 * L) {
        const auto row = [&](int64_t i) { return r + i < count ? rows + (r + i) * stride + d : nullptr; };
        PairPacking<V>::transpose(row, panel + d / 2 * width + r, width);
      }
    }
  }

  MOSAIC_NOINLINE void pairRows(void* matrix, int64_t stride, int64_t depth) {
    auto* rows = static_cast<uint16_t*>(matrix);
    for (int64_t r = 0; r < width; r += 2) {
      uint16_t low[kMaxDepth], high[kMaxDepth];
      __builtin_memcpy(low, rows + r * stride, static_cast<size_t>(depth) * sizeof *low);
      __builtin_memcpy(high, rows + (r + 1) * stride, static_cast<size_t>(depth) * sizeof *high);
      PairPacking<V>::pairRows(low, high, reinterpret_cast<uint32_t*>(rows + r * stride), depth);
    }
  }

 private:
  static constexpr int64_t kMaxDepth = 256;
};

}  // namespace mosaic
