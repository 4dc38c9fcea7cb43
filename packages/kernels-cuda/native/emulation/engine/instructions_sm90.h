// kernels/ptx_sm90.cuh for a host compiler: the same functions, emulated and checked.
#pragma once

#include "engine/hopper.h"

// ── barriers in shared memory

inline void initBarrier(SharedAddress bar, int count CALL_SITE) {
  emulated::current->site = site;
  emulated::HopperUnit::getCurrent().init(bar, count);
}
DEVICE void fenceBarriers() { emulated::HopperUnit::getCurrent().fenceInit(); }
inline void arrive(SharedAddress bar CALL_SITE) {
  emulated::current->site = site;
  emulated::HopperUnit::getCurrent().arrive(bar, 0);
}
inline void arriveExpectTx(SharedAddress bar, int bytes CALL_SITE) {
  emulated::current->site = site;
  emulated::HopperUnit::getCurrent().arrive(bar, bytes);
}
inline void awaitPhase(SharedAddress bar, unsigned parity CALL_SITE) {
  emulated::current->site = site;
  emulated::HopperUnit::getCurrent().waitForPhase(bar, parity);
}

// ── TMA

struct TmaCoordinates {
  int column, row, head, batch;
};
inline void tmaLoad(SharedAddress to, const TensorMap& map, TmaCoordinates at, SharedAddress bar CALL_SITE) {
  emulated::current->site = site;
  emulated::TmaCopy box{{}, to, bar, {at.column, at.row, at.head, at.batch}, {}};
  std::memcpy(&box.map, &map, sizeof box.map);
  emulated::HopperUnit::getCurrent().copy(box);
}

// ── warpgroups

template <int N>
inline void allocateRegisters(CALL_SITE_ONLY) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  emulated::HopperUnit::getCurrent().groups.allocateRegisters(N, site);
}
template <int N>
inline void releaseRegisters(CALL_SITE_ONLY) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  emulated::HopperUnit::getCurrent().groups.releaseRegisters(N, site);
}

DEVICE void fenceAsyncProxy() { emulated::block->fenceAsyncProxy(); }
DEVICE void fenceWgmma() { emulated::HopperUnit::getCurrent().groups.fence(); }
DEVICE void commitWgmma() { emulated::HopperUnit::getCurrent().groups.commit(); }
template <int N, int K>
inline void waitWgmma(float (&a)[K][4] CALL_SITE) {
  emulated::HopperUnit::getCurrent().groups.wait(N, {a[0]}, site);
}
template <int N, int K, int L>
inline void waitWgmma(float (&a)[K][4], float (&b)[L][4] CALL_SITE) {
  emulated::HopperUnit::getCurrent().groups.wait(N, {a[0], b[0]}, site);
}
template <int N, int K, int L, int M>
inline void waitWgmma(float (&a)[K][4], float (&b)[L][4], float (&c)[M][4] CALL_SITE) {
  emulated::HopperUnit::getCurrent().groups.wait(N, {a[0], b[0], c[0]}, site);
}

template <class T, int N, bool TRANSPOSED>
inline void wgmmaShared(float (&c)[N][4], uint64_t a, uint64_t b, bool add CALL_SITE) {
  emulated::HopperUnit::getCurrent().groups.start({N * 8, a, b, nullptr, {}, TRANSPOSED, add, c[0], &widen<T>}, site);
}
template <class T, int N, bool TRANSPOSED>
inline void wgmmaRegisters(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool add CALL_SITE) {
  emulated::HopperUnit::getCurrent().groups.start({N * 8, 0, b, a, {}, TRANSPOSED, add, c[0], &widen<T>}, site);
}
