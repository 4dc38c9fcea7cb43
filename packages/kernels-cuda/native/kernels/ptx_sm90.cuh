// The only file with PTX specific to Hopper (sm_90a): barriers in shared memory, TMA, wgmma. Like ptx.cuh, it has one
// half for the device and one for the emulation (../emulation/engine/instructions_sm90.h).
//
// PTX ISA 8.0: §9.7.12.15 (mbarrier), §9.7.8.24 (bulk tensor copies), §9.7.15 (wgmma), §9.7.18 (setmaxnreg).
#pragma once

#include "kernels/ptx.cuh"
#include "kernels/tensor_map.h"

using mosaic::cuda::TensorMap;

#if !defined(__CUDACC__)

#include "engine/instructions_sm90.h"

#else

// ── barriers in shared memory, 8 bytes each: a phase ends when `count` threads have arrived and all expected bytes

DEVICE void initBarrier(SharedAddress bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/// Makes the initialization of barriers visible to TMA, by PTX's fence for barriers and by the proxy fence of the CUDA
/// Programming Guide, "Asynchronous Data Copies", which treats a barrier like any other word that TMA will write.
DEVICE void fenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void arrive(SharedAddress bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEVICE void arriveExpectTx(SharedAddress bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/// Waits until the phase of that parity has completed; returns at once for parity 1 of a new barrier.
DEVICE void awaitPhase(SharedAddress bar, unsigned parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// ── TMA

struct TmaCoordinates {
  int column, row, head, batch;
};
/// Starts copying a box, for one thread; zeros outside the tensor. The bytes are counted by `bar`.
DEVICE void tmaLoad(SharedAddress to, const TensorMap& map, TmaCoordinates at, SharedAddress bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(bar)
      : "memory");
}

// ── warpgroups: four warps, the index of the first divisible by four

/// Sets the number of registers per thread from now on. Must be executed by all four warps.
template <int N>
DEVICE void allocateRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEVICE void releaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/// Makes this thread's stores to shared memory visible to TMA and wgmma.
DEVICE void fenceAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Required before products, after the last access to the registers that they use.
DEVICE void fenceWgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commitWgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Makes accumulators depend on this point, because the compiler might otherwise use them earlier.
template <int K>
DEVICE void fenceOperand(float (&c)[K][4]) {
#pragma unroll
  for (int n = 0; n < K; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}
/// Waits until at most N groups are pending; `done` lists the outputs of the completed groups.
template <int N, class... Sums>
DEVICE void waitWgmma(Sums&... done) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
  (fenceOperand(done), ...);
}

// c[64 × N] = A[64 × 16] · B[16 × N], or += if `add`. Every warp has 16 rows in the layout of mma16x8x16; c[n] are
// columns 8n…. A is given by descriptor, or as the warp's rows in registers in that layout. B is stored as [n][k], or,
// if TRANSPOSED, as [k][n].
template <class T, int N, int TRANSPOSED>
struct Wgmma;
#define C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C32(n) C4(n), C4(n + 1), C4(n + 2), C4(n + 3), C4(n + 4), C4(n + 5), C4(n + 6), C4(n + 7)
#define R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define R32                                                                                                          \
  R8(0, 1, 2, 3, 4, 5, 6, 7)                                                                                         \
  "," R8(8, 9, 10, 11, 12, 13, 14, 15) "," R8(16, 17, 18, 19, 20, 21, 22, 23) "," R8(24, 25, 26, 27, 28, 29, 30, 31)
#define R64                                                                                                          \
  R32 "," R8(32, 33, 34, 35, 36, 37, 38, 39) "," R8(40, 41, 42, 43, 44, 45, 46, 47) "," R8(                          \
      48, 49, 50, 51, 52, 53, 54, 55) "," R8(56, 57, 58, 59, 60, 61, 62, 63)
#define R128                                                                                                         \
  R64 "," R8(64, 65, 66, 67, 68, 69, 70, 71) "," R8(72, 73, 74, 75, 76, 77, 78, 79) "," R8(                          \
      80, 81, 82, 83, 84, 85, 86, 87) "," R8(88, 89, 90, 91, 92, 93, 94, 95) "," R8(96, 97, 98, 99, 100, 101, 102,   \
                                                                                    103) ","                         \
      R8(104, 105, 106, 107, 108, 109, 110, 111) "," R8(112, 113, 114, 115, 116, 117, 118, 119) "," R8(              \
          120, 121, 122, 123, 124, 125, 126, 127)
// a, b, add, order: the operands after the accumulators; a1…: the registers of A.
#define MOSAIC_WGMMA(T, NAME, N, REGISTERS, SHARED, SHARED_ADD, LOADED, LOADED_ADD, ...)                             \
  template <int TRANSPOSED>                                                                                          \
  struct Wgmma<T, N, TRANSPOSED> {                                                                                   \
    static DEVICE void startFromShared(float (&c)[N / 8][4], uint64_t a, uint64_t b, bool add) {                     \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " SHARED_ADD                                                    \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGISTERS "}, " SHARED \
                   ";\n}"                                                                                            \
                   : __VA_ARGS__                                                                                     \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(TRANSPOSED));                                   \
    }                                                                                                                \
    static DEVICE void startFromRegisters(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool add) {      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " LOADED_ADD                                                    \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGISTERS "}, " LOADED \
                   ";\n}"                                                                                            \
                   : __VA_ARGS__                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),                 \
                     "n"(TRANSPOSED));                                                                               \
    }                                                                                                                \
  };
#define MOSAIC_WGMMAS(T, NAME)                                                                                       \
  MOSAIC_WGMMA(T, NAME, 64, R32, "%32, %33, p, 1, 1, 0, %35", "%34", "{%32,%33,%34,%35}, %36, p, 1, 1, %38", "%37",  \
               C32(0))                                                                                               \
  MOSAIC_WGMMA(T, NAME, 128, R64, "%64, %65, p, 1, 1, 0, %67", "%66", "{%64,%65,%66,%67}, %68, p, 1, 1, %70", "%69", \
               C32(0), C32(8))                                                                                       \
  MOSAIC_WGMMA(T, NAME, 256, R128, "%128, %129, p, 1, 1, 0, %131", "%130",                                           \
               "{%128,%129,%130,%131}, %132, p, 1, 1, %134", "%133", C32(0), C32(8), C32(16), C32(24))
MOSAIC_WGMMAS(bf16, "bf16")
MOSAIC_WGMMAS(fp16, "f16")
#undef MOSAIC_WGMMAS
#undef MOSAIC_WGMMA
#undef R128
#undef R64
#undef R32
#undef R8
#undef C32
#undef C4

template <class T, int N, bool TRANSPOSED>
DEVICE void wgmmaShared(float (&c)[N][4], uint64_t a, uint64_t b, bool add) {
  Wgmma<T, N * 8, TRANSPOSED>::startFromShared(c, a, b, add);
}
template <class T, int N, bool TRANSPOSED>
DEVICE void wgmmaRegisters(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  Wgmma<T, N * 8, TRANSPOSED>::startFromRegisters(c, a, b, add);
}

#endif

/// Returns the descriptor of a matrix of 16-bit elements in swizzled 128-byte rows. `stride` is the distance between
/// groups of 8 rows. For [n][k], `panel` is not used. For [k][n], it is the distance between groups of 64 columns.
DEVICE uint64_t makeDescriptor(SharedAddress at, int panel, int stride) {
  constexpr uint64_t kSwizzle128B = 1ull << 62;
  return static_cast<uint64_t>(at >> 4 & 0x3fff) | static_cast<uint64_t>(panel >> 4 & 0x3fff) << 16 |
         static_cast<uint64_t>(stride >> 4 & 0x3fff) << 32 | kSwizzle128B;
}
