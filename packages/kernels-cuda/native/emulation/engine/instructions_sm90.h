// kernels/ptx_sm90.cuh for a host compiler: the same functions, carried out and checked.
#pragma once

#include "engine/hopper.h"

// ── barriers in shared memory

inline void initBarrier(SharedAddress bar, int count SITE) {
  emulated::current->site = site;
  emulated::Hopper::ofBlock().init(bar, count);
}
DEVICE void fenceBarriers() { emulated::Hopper::ofBlock().announce(); }
inline void arrive(SharedAddress bar SITE) {
  emulated::current->site = site;
  emulated::Hopper::ofBlock().arrive(bar, 0);
}
inline void arriveExpecting(SharedAddress bar, int bytes SITE) {
  emulated::current->site = site;
  emulated::Hopper::ofBlock().arrive(bar, bytes);
}
inline void awaitPhase(SharedAddress bar, unsigned parity SITE) {
  emulated::current->site = site;
  emulated::Hopper::ofBlock().await(bar, parity);
}

// ── TMA

struct BoxAt {
  int column, row, head, batch;
};
inline void copyBox(SharedAddress to, const TensorMap& map, BoxAt at, SharedAddress bar SITE) {
  emulated::current->site = site;
  emulated::BoxCopy box{{}, to, bar, {at.column, at.row, at.head, at.batch}, {}};
  std::memcpy(&box.map, &map, sizeof box.map);
  emulated::Hopper::ofBlock().copy(box);
}

// ── warpgroups

template <int N>
inline void takeRegisters(ONLY_SITE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  emulated::Hopper::ofBlock().groups.takeRegisters(N, site);
}
template <int N>
inline void giveRegisters(ONLY_SITE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  emulated::Hopper::ofBlock().groups.giveRegisters(N, site);
}

inline void fenceAsyncProxy() {
  using namespace emulated;
  for (Shadow& word : block->shadow) {
    if (word.writer >> kClockBits == static_cast<uint32_t>(current->thread)) word.pending &= ~kUnfenced;
  }
}

DEVICE void fenceProducts() { emulated::Hopper::ofBlock().groups.fence(); }
DEVICE void commitProducts() { emulated::Hopper::ofBlock().groups.commit(); }
template <int N, int K>
inline void waitProducts(float (&a)[K][4] SITE) {
  emulated::Hopper::ofBlock().groups.wait(N, {a[0]}, site);
}
template <int N, int K, int L>
inline void waitProducts(float (&a)[K][4], float (&b)[L][4] SITE) {
  emulated::Hopper::ofBlock().groups.wait(N, {a[0], b[0]}, site);
}
template <int N, int K, int L, int M>
inline void waitProducts(float (&a)[K][4], float (&b)[L][4], float (&c)[M][4] SITE) {
  emulated::Hopper::ofBlock().groups.wait(N, {a[0], b[0], c[0]}, site);
}

template <class T, int N, bool TRANSPOSED>
inline void multiplyShared(float (&c)[N][4], uint64_t a, uint64_t b, bool add SITE) {
  emulated::Hopper::ofBlock().groups.start({N * 8, a, b, nullptr, {}, TRANSPOSED, add, c[0], &widen<T>}, site);
}
template <class T, int N, bool TRANSPOSED>
inline void multiplyLoaded(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool add SITE) {
  emulated::Hopper::ofBlock().groups.start({N * 8, 0, b, a, {}, TRANSPOSED, add, c[0], &widen<T>}, site);
}
