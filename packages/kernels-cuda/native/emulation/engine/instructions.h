// kernels/ptx.cuh for a host compiler: the same functions, emulated and checked.
#pragma once

#include <bit>
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/launch.h"

#define DEVICE __forceinline__
// The source location of a call. Collectives compare it between lanes, and errors report it.
#define CALL_SITE , emulated::CallSite site = emulated::CallSite::current()
#define CALL_SITE_ONLY emulated::CallSite site = emulated::CallSite::current()

using std::max;
using std::min;

/// CUDA's normcdff, the standard normal distribution function, which the host's math library lacks.
inline float normcdff(float x) { return static_cast<float>(0.5 * std::erfc(-0.70710678118654752 * x)); }

DEVICE SharedAddress sharedBase() { return emulated::kSharedBase; }

inline void trap(CALL_SITE_ONLY) {
  emulated::current->site = site;
  emulated::fail("trap executed");
}

// ── memory

template <class T>
inline T load(const T* p CALL_SITE) {
  emulated::current->site = site;
  emulated::checkGlobal(p, sizeof(T), sizeof(T), "read");
  return *p;
}
template <class T>
inline void store(T* p, T v CALL_SITE) {
  emulated::current->site = site;
  emulated::checkGlobal(p, sizeof(T), sizeof(T), "write");
  *p = v;
}
inline uint4 loadWords(const void* p, bool isWide CALL_SITE) {
  emulated::current->site = site;
  const size_t bytes = isWide ? 16 : 8;
  emulated::checkGlobal(p, bytes, bytes, "read");
  uint4 v{};
  std::memcpy(&v, p, bytes);
  return v;
}
inline uint32_t loadWord(const void* p, bool isWide CALL_SITE) {
  emulated::current->site = site;
  const size_t bytes = isWide ? 4 : 2;
  emulated::checkGlobal(p, bytes, bytes, "read");
  uint32_t v = 0;
  std::memcpy(&v, p, bytes);
  return v;
}
inline bool atomicTestAndSet(uint32_t* p CALL_SITE) {
  emulated::current->site = site;
  emulated::checkGlobal(p, sizeof(uint32_t), sizeof(uint32_t), "atomic");
  return std::atomic_ref<uint32_t>(*p).exchange(1) == 0;
}

namespace emulated {

template <class T>
inline T loadWord(SharedAddress a, CallSite site) {
  current->site = site;
  const char* p = block->at(a, sizeof(T), sizeof(T));
  block->onRead(a, sizeof(T), static_cast<uint32_t>(current->thread));
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
template <class T>
inline void storeWord(SharedAddress a, T v, CallSite site) {
  current->site = site;
  char* p = block->at(a, sizeof(T), sizeof(T));
  block->onWrite(a, sizeof(T), static_cast<uint32_t>(current->thread));
  std::memcpy(p, &v, sizeof(T));
}

}  // namespace emulated

DEVICE float loadShared(SharedAddress a CALL_SITE) { return emulated::loadWord<float>(a, site); }
DEVICE float2 loadShared2(SharedAddress a CALL_SITE) { return emulated::loadWord<float2>(a, site); }
DEVICE void storeShared(SharedAddress a, float v CALL_SITE) { emulated::storeWord(a, v, site); }
DEVICE void storeSharedBits(SharedAddress a, uint32_t v CALL_SITE) { emulated::storeWord(a, v, site); }

/// Poisons the slot and marks it in flight; the bytes are written at the wait.
inline void copyAsync16(SharedAddress to, const void* p, bool isInBounds CALL_SITE) {
  emulated::current->site = site;
  char* slot = emulated::block->at(to, 16, 16);
  if (isInBounds) emulated::checkGlobal(p, 16, 16, "cp.async read");
  emulated::block->onWrite(to, 16, static_cast<uint32_t>(emulated::current->thread), true);
  std::memset(slot, 0xff, 16);
  emulated::current->uncommittedCopies.push_back({to, p, isInBounds ? 16 : 0});
}
DEVICE void commitCopies() {
  emulated::current->groups.push_back(std::move(emulated::current->uncommittedCopies));
  emulated::current->uncommittedCopies.clear();
}
template <int N>
inline void waitCopies(CALL_SITE_ONLY) {
  emulated::current->site = site;
  for (auto& groups = emulated::current->groups; groups.size() > N; groups.pop_front()) {
    for (const emulated::Copy& copy : groups.front()) {
      char* slot = emulated::block->at(copy.to, 16, 16);
      std::memset(slot, 0, 16);
      if (copy.bytes) std::memcpy(slot, copy.from, static_cast<size_t>(copy.bytes));
      emulated::block->onWrite(copy.to, 16, static_cast<uint32_t>(emulated::current->thread));
    }
  }
}

// ── numbers

namespace emulated {

/// .ftz: denormal numbers are flushed to zero.
inline float flushSubnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }

}  // namespace emulated

DEVICE float fastExp2(float x) { return emulated::flushSubnormal(std::exp2(emulated::flushSubnormal(x))); }
DEVICE float fastLog2(float x) { return std::log2(emulated::flushSubnormal(x)); }
DEVICE float fastReciprocal(float x) { return emulated::flushSubnormal(1.f / emulated::flushSubnormal(x)); }
DEVICE float infinity() { return INFINITY; }
DEVICE uint32_t bitsOf(float x) { return std::bit_cast<uint32_t>(x); }
DEVICE float floatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
/// The emulation is compiled without contraction.
DEVICE float roundedProduct(float a, float b) { return a * b; }

template <class T>
DEVICE uint16_t narrow(float x);
template <>
DEVICE uint16_t narrow<bf16>(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
template <>
DEVICE uint16_t narrow<fp16>(float x) {
  const auto half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
template <class T>
DEVICE float widen(uint16_t bits);
template <>
DEVICE float widen<bf16>(uint16_t bits) {
  const uint32_t u = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}
template <>
DEVICE float widen<fp16>(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
template <class T>
DEVICE uint32_t pack2(float low, float high) {
  return narrow<T>(low) | uint32_t{narrow<T>(high)} << 16;
}

// ── cooperation of threads

DEVICE void syncBlock(CALL_SITE_ONLY) {
  emulated::barrier(0, static_cast<int>(emulated::block->fibers.size()), true, site);
}
DEVICE void syncNamedBarrier(int id, int threads CALL_SITE) { emulated::barrier(id, threads, true, site); }
DEVICE void arriveNamedBarrier(int id, int threads CALL_SITE) { emulated::barrier(id, threads, false, site); }
DEVICE void syncWarp(CALL_SITE_ONLY) {
  struct Lane {
  } ownLane;
  const auto warp = static_cast<size_t>(emulated::current->warp);
  emulated::combineLanes("__syncwarp", site, ownLane, [warp](Lane**) { emulated::block->warps[warp].clocks[warp]++; });
}

namespace emulated {

template <class T>
struct Shuffled {
  T value, out;
  int source;
};
template <class T>
inline T exchange(T value, int source, const char* operation, CallSite site) {
  Shuffled<T> ownLane{value, {}, source};
  combineLanes(operation, site, ownLane, [](Shuffled<T>** lanes) {
    for (int i = 0; i < 32; i++) lanes[i]->out = lanes[lanes[i]->source & 31]->value;
  });
  return ownLane.out;
}

}  // namespace emulated

template <class T>
DEVICE T shuffleXor(T v, int mask CALL_SITE) {
  return emulated::exchange(v, emulated::current->lane ^ mask, "shfl.xor", site);
}
template <class T>
DEVICE T shuffle(T v, int lane CALL_SITE) {
  return emulated::exchange(v, lane, "shfl.idx", site);
}
DEVICE bool anyLane(bool condition CALL_SITE) {
  struct Vote {
    bool condition, isAnyLaneTrue;
  } ownLane{condition, false};
  emulated::combineLanes("vote.any", site, ownLane, [](Vote** lanes) {
    bool isAnyLaneTrue = false;
    for (int i = 0; i < 32; i++) isAnyLaneTrue = isAnyLaneTrue || lanes[i]->condition;
    for (int i = 0; i < 32; i++) lanes[i]->isAnyLaneTrue = isAnyLaneTrue;
  });
  return ownLane.isAnyLaneTrue;
}

// ── tensor cores

namespace emulated {

struct MatrixLane {
  SharedAddress address;
  uint32_t* registers;
};

inline void readMatrices(MatrixLane** lanes, bool isTransposed) {
  stats.ldmatrix.fetch_add(1, std::memory_order_relaxed);
  for (int matrix = 0; matrix < 4; matrix++) {
    uint16_t x[8][8];
    unsigned banks = 0;
    for (int i = 0; i < 8; i++) {
      const SharedAddress row = lanes[matrix * 8 + i]->address;
      std::memcpy(x[i], block->at(row, 16, 16), 16);
      block->onRead(row, 16, kWarpActor + static_cast<uint32_t>(current->warp));
      banks |= 1u << (row / 16 & 7);
    }
    if (banks != 0xff) stats.conflicts.fetch_add(8u - static_cast<unsigned>(__builtin_popcount(banks)));
    for (int t = 0; t < 32; t++) {
      const int i = t / 4, j = t % 4 * 2;
      lanes[t]->registers[matrix] =
          isTransposed ? x[j][i] | uint32_t{x[j + 1][i]} << 16 : x[i][j] | uint32_t{x[i][j + 1]} << 16;
    }
  }
}

inline void loadMatrices(uint32_t* r, SharedAddress a, bool isTransposed, CallSite site) {
  MatrixLane ownLane{a, r};
  combineLanes(isTransposed ? "ldmatrix.trans" : "ldmatrix", site, ownLane,
             [isTransposed](MatrixLane** lanes) { readMatrices(lanes, isTransposed); });
}

struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

template <class T>
inline void multiplyAll(Product** lanes) {
  float a[16][16], b[16][8], c[16][8];
  for (int t = 0; t < 32; t++) {
    const int g = t / 4, j = t % 4 * 2;
    for (int i = 0; i < 4; i++) {
      float* p = &a[g + (i & 1) * 8][j + (i >> 1) * 8];
      p[0] = widen<T>(static_cast<uint16_t>(lanes[t]->a[i]));
      p[1] = widen<T>(static_cast<uint16_t>(lanes[t]->a[i] >> 16));
      c[g + (i >> 1) * 8][j + (i & 1)] = lanes[t]->c[i];
    }
    for (int i = 0; i < 2; i++) {
      b[j + i * 8][g] = widen<T>(static_cast<uint16_t>(lanes[t]->b[i]));
      b[j + i * 8 + 1][g] = widen<T>(static_cast<uint16_t>(lanes[t]->b[i] >> 16));
    }
  }
  for (int m = 0; m < 16; m++) {
    for (int k = 0; k < 16; k++) {
      for (int n = 0; n < 8; n++) c[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int t = 0; t < 32; t++) {
    for (int i = 0; i < 4; i++) lanes[t]->c[i] = c[t / 4 + (i >> 1) * 8][t % 4 * 2 + (i & 1)];
  }
  stats.mma.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace emulated

DEVICE void loadMatrix(uint32_t (&r)[4], SharedAddress a CALL_SITE) { emulated::loadMatrices(r, a, false, site); }
DEVICE void loadMatrixTransposed(uint32_t (&r)[4], SharedAddress a CALL_SITE) {
  emulated::loadMatrices(r, a, true, site);
}

template <class T>
inline void mma16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 CALL_SITE) {
  emulated::Product ownLane{c, a, {b0, b1}};
  emulated::combineLanes("mma.m16n8k16", site, ownLane,
                       [](emulated::Product** lanes) { emulated::multiplyAll<T>(lanes); });
}
