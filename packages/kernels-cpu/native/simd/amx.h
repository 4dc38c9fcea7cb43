// The vector trait of machines with AMX-BF16: Avx512Bf16 plus a RegisterTile that computes in tile registers.
//
// A tile register holds 16 rows of 64 bytes. A product of bfloat16 pairs is `c [16][16] += a [16][16 pairs] · b [16
// pairs][16]`, in the layouts that the other traits read: rows of a, and a panel of b.
#pragma once

#if !defined(__AMX_BF16__)
#error "amx.h: expected a file compiled for AMX-BF16, received one without __AMX_BF16__"
#endif

#include "simd/avx512_bf16.h"
#include "simd/register_tile.h"

namespace mosaic {

struct Amx : Avx512Bf16 {
  static constexpr Isa isa = Isa::Amx;
};

template <>
struct PairShape<Amx> {
  static constexpr int rows = 32, vectors = 2, narrowRows = 32, wideRows = 32, wideVectors = 2;
};

/// The use of tile registers: four accumulators (0 to 3), two tiles of a (4, 5) and two of b (6, 7).
template <>
class MatrixUnit<Amx> {
 public:
  MatrixUnit() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t rowBytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    static_assert(sizeof config == 64);
    __asm__ volatile("" : : : "memory");
    _tile_loadconfig(&config);
  }
  ~MatrixUnit() { _tile_release(); }
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

/// A tile of 32 rows and 16 or 32 columns. Accumulators are transferred to vector registers through memory.
template <int N>
struct RegisterTile<Amx, Bf16Operands, 32, N> {
  static_assert(N == 1 || N == 2);
  using Vec = Amx::Vec;
  static constexpr bool isAsynchronous = true;
  alignas(64) float accumulators[32][16 * N];

  MOSAIC_INLINE Vec get(const RegisterTile& c, int r, int n) { return Amx::load(c.accumulators[r] + n * Amx::lanes); }

  MOSAIC_INLINE int32_t numSteps(int32_t depth) { return (depth + 1) / 2; }

  template <class P>
  MOSAIC_INLINE void product(RegisterTile& c, const Operand& a, const void* b, int64_t bStep, int32_t depth,
                             P& prefetch) {
    zeroTiles();
    multiply(a, b, bStep, depth, prefetch);
    finish(c);
  }
  MOSAIC_INLINE void product(RegisterTile& c, const Operand& a, const void* b, int64_t bStep, int32_t depth) {
    NoPrefetch prefetch;
    product(c, a, b, bStep, depth, prefetch);
  }

  /// The two halves of `product`. Code between them overlaps with the tile operations.
  MOSAIC_INLINE void begin(const Operand& a, const void* b, int64_t bStep, int32_t depth) {
    NoPrefetch prefetch;
    zeroTiles();
    multiply(a, b, bStep, depth, prefetch);
  }
  MOSAIC_INLINE void finish(RegisterTile& c) { storeAccumulators(&c.accumulators[0][0], 16 * N); }

  template <class P>
  MOSAIC_INLINE void addProduct(float* to, int64_t stride, const Operand& a, const void* b, int64_t bStep,
                                int32_t depth, P& prefetch) {
    auto sweep = prefetch.sweep(numSteps(depth));
    const int64_t rowBytes = stride * 4;
    __asm__ volatile("" : : : "memory");
    _tile_loadd(0, to, rowBytes);
    _tile_loadd(2, to + 16 * stride, rowBytes);
    if constexpr (N == 2) {
      _tile_loadd(1, to + 16, rowBytes);
      _tile_loadd(3, to + 16 * stride + 16, rowBytes);
    }
    multiply(a, b, bStep, depth, sweep);
    storeAccumulators(to, stride);
  }
  MOSAIC_INLINE void addProduct(float* to, int64_t stride, const Operand& a, const void* b, int64_t bStep,
                                int32_t depth) {
    NoPrefetch prefetch;
    addProduct(to, stride, a, b, bStep, depth, prefetch);
  }

 private:
  MOSAIC_INLINE void zeroTiles() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  template <class P>
  MOSAIC_INLINE void multiply(const Operand& a, const void* b, int64_t bStep, int32_t depth, P& prefetch) {
    const auto* row = static_cast<const uint16_t*>(a.data);
    const auto* panel = static_cast<const uint32_t*>(b);
    const int64_t rowBytes = a.rowStride * 2, stepBytes = bStep * 4;
    __asm__ volatile("" : : : "memory");  // the intrinsics below do not declare that they read memory
    for (int32_t t = 0; t < depth; t += 32) {
      for (int32_t step = 0; step < 16; ++step) prefetch.step();
      _tile_loadd(4, row + t, rowBytes);
      _tile_loadd(6, panel + t / 2 * bStep, stepBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, row + 16 * a.rowStride + t, rowBytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (N == 2) {
        _tile_loadd(7, panel + t / 2 * bStep + 16, stepBytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  MOSAIC_INLINE void storeAccumulators(float* to, int64_t stride) {
    _tile_stored(0, to, stride * 4);
    _tile_stored(2, to + 16 * stride, stride * 4);
    if constexpr (N == 2) {
      _tile_stored(1, to + 16, stride * 4);
      _tile_stored(3, to + 16 * stride + 16, stride * 4);
    }
    __asm__ volatile("" : : : "memory");
  }
};

}  // namespace mosaic
