// The only file with PTX for every GPU since sm_80 (for Hopper's, see ptx_sm90.cuh). With nvcc it is inline assembly;
// with a host compiler it is the emulation, which performs checks that the device does not
// (../emulation/engine/instructions.h).
//
// Shared memory is accessed by 32-bit addresses of the shared window, only through these functions, so that the
// emulation can observe every access. Instructions: PTX ISA 8.0, §9.7.9 (copies), §9.7.12 (barriers), §9.7.14 (mma).
#pragma once

#include <cstdint>

using SharedAddress = uint32_t;

/// Storage types that require no header of the toolkit.
struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

#if !defined(__CUDACC__)

#include "engine/instructions.h"

#else

#define DEVICE __device__ __forceinline__

constexpr unsigned kAllLanes = 0xffffffffu;

extern __shared__ __align__(1024) unsigned char dynamicShared[];
DEVICE SharedAddress sharedBase() { return static_cast<SharedAddress>(__cvta_generic_to_shared(dynamicShared)); }

/// Ends the kernel with an error.
DEVICE void trap() { asm volatile("trap;"); }

// ── memory

template <class T>
DEVICE T load(const T* p) {
  return *p;
}
template <class T>
DEVICE void store(T* p, T v) {
  *p = v;
}
// Loads without a branch on the width, so that several can be in flight before the first result is used.

/// Loads 16 bytes if `isWide`, else 8 bytes, to x and y.
DEVICE uint4 loadWords(const void* p, bool isWide) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n"
      "@p ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n@!p ld.global.v2.u32 {%0,%1}, [%4];\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(isWide))
      : "memory");
  return v;
}
/// Loads 4 bytes if `isWide`, else 2.
DEVICE uint32_t loadWord(const void* p, bool isWide) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b16 half;\nsetp.ne.s32 p, %2, 0;\n"
      "@p ld.global.u32 %0, [%1];\n@!p ld.global.u16 half, [%1];\n@!p cvt.u32.u16 %0, half;\n}"
      : "=r"(v)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(isWide))
      : "memory");
  return v;
}

/// Sets *p to 1; returns true for the one thread that found 0.
DEVICE bool atomicTestAndSet(uint32_t* p) { return atomicExch(p, 1u) == 0; }

DEVICE float loadShared(SharedAddress a) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}
DEVICE float2 loadShared2(SharedAddress a) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a) : "memory");
  return v;
}
DEVICE void storeShared(SharedAddress a, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory");
}
DEVICE void storeSharedBits(SharedAddress a, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}

/// Copies 16 bytes from global to shared memory. If not `isInBounds`, stores 16 zero bytes and does not read p.
DEVICE void copyAsync16(SharedAddress to, const void* p, bool isInBounds) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(p)),
               "r"(isInBounds ? 16 : 0)
               : "memory");
}
DEVICE void commitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most N groups of this thread's copies are pending.
template <int N>
DEVICE void waitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ── numbers

DEVICE float fastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float fastLog2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float fastReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE uint32_t bitsOf(float x) { return __float_as_uint(x); }
DEVICE float floatOf(uint32_t bits) { return __uint_as_float(bits); }
/// Returns a · b, rounded: never fused into a multiply-add.
DEVICE float roundedProduct(float a, float b) { return __fmul_rn(a, b); }

/// Packs two values, rounded to nearest even, with `low` in the lower half.
template <class T>
DEVICE uint32_t pack2(float low, float high);
template <>
DEVICE uint32_t pack2<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
DEVICE uint32_t pack2<fp16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <class T>
DEVICE uint16_t narrow(float x) {
  return static_cast<uint16_t>(pack2<T>(x, 0.f));
}
template <class T>
DEVICE float widen(uint16_t bits);
template <>
DEVICE float widen<bf16>(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
template <>
DEVICE float widen<fp16>(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// ── cooperation of threads

DEVICE void syncBlock() { __syncthreads(); }
DEVICE void syncWarp() { __syncwarp(); }
DEVICE void syncNamedBarrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
DEVICE void arriveNamedBarrier(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <class T>
DEVICE T shuffleXor(T v, int mask) {
  return __shfl_xor_sync(kAllLanes, v, mask);
}
template <class T>
DEVICE T shuffle(T v, int lane) {
  return __shfl_sync(kAllLanes, v, lane);
}
/// Whether the condition holds in any lane of the warp.
DEVICE bool anyLane(bool condition) { return __any_sync(kAllLanes, condition); }

// ── tensor cores: lane t of a warp holds rows t/4 and t/4+8 and columns t%4*2, +1 (and +8) of each operand

/// Loads four 8×8 matrices of 16-bit elements; lane t passes the address of row t%8 of matrix t/8.
DEVICE void loadMatrix(uint32_t (&r)[4], SharedAddress a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
DEVICE void loadMatrixTransposed(uint32_t (&r)[4], SharedAddress a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}

/// c[16×8] += a[16×16] · b[16×8], with float32 sums.
template <class T>
DEVICE void mma16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define MOSAIC_MMA(T, NAME)                                                                                          \
  template <>                                                                                                        \
  DEVICE void mma16x8x16<T>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME                                              \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                        \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                    \
  }
MOSAIC_MMA(bf16, "bf16")
MOSAIC_MMA(fp16, "f16")
#undef MOSAIC_MMA

#define EMULATED_KERNEL(kernel, Parameters)

#endif
