// Tiles as TMA brings them and wgmma takes them, rings of them between the warp that loads and those that compute, and
// the two products made of them.
//
// A tile of ROWS × D consists of panels, 64 columns each: rows of 128 bytes whose 16-byte chunks are permuted within 8
// rows. Nobody but TMA and wgmma looks inside.
#pragma once

#include "kernels/hopper.h"
#include "kernels/ptx_sm90.cuh"
#include "kernels/walk.cuh"

namespace mosaic::cuda {

/// Named barriers: 0 is the block's, warpgroups take turns by 1 to 3.
constexpr int kClearBarrier = 4;

constexpr int kLineBytes = 2 * kPanelColumns, kEightLines = 8 * kLineBytes;

template <int ROWS, int D>
constexpr int kPanelsBytes = ROWS * D * 2;

/// Sets up the barrier that the block's own tiles arrive at, and what else `init` does, before any thread goes its way.
template <class Init>
DEVICE void beginBlock(SharedAddress ownFull, Init init) {
  if (threadIdx.x == 0) {
    if (sharedBase() % kEightLines) stop();  // the permutation repeats there
    initBarrier(ownFull, 1);
    init();
    fenceBarriers();
  }
  syncBlock();
}

/// 0 loads, the others compute. Taken from one lane, for the compiler to know that all have the same.
DEVICE int warpgroup() { return shuffle(static_cast<int>(threadIdx.x) / 128, 0); }

/// Starts loading rows [row, row + ROWS) of a head; for one thread, after `bar` expects their bytes.
template <int ROWS, int D>
DEVICE void loadPanels(SharedAddress tile, const TensorMap& map, BoxAt at, SharedAddress bar) {
#pragma unroll
  for (int panel = 0; panel < D / kPanelColumns; panel++) {
    copyBox(tile + panel * ROWS * kLineBytes, map, {panel * kPanelColumns, at.row, at.head, at.batch}, bar);
  }
}

/// Rows [seen, ROWS) of a tile become 0: TMA brings whatever lies beyond those that a block sees, and 0 · NaN is NaN.
/// For all threads that compute, which are GROUPS warpgroups; then awaitCleared.
template <int ROWS, int D, int GROUPS>
DEVICE void clearRows(SharedAddress tile, int seen) {
  constexpr int kWords = kLineBytes / 4;  // a row is a line of each panel, however permuted
#pragma unroll
  for (int panel = 0; panel < D / kPanelColumns; panel++) {
    const SharedAddress lines = tile + panel * ROWS * kLineBytes;
    for (int i = seen * kWords + static_cast<int>(threadIdx.x) - 128; i < ROWS * kWords; i += GROUPS * 128) {
      storeSharedBits(lines + i * 4, 0);
    }
  }
}
template <int GROUPS>
DEVICE void awaitCleared() {
  fenceAsyncProxy();
  syncNamed(kClearBarrier, GROUPS * 128);
}

/// Tiles of BYTES in turn, one for each step: one is filled while another is used.
template <int BYTES>
struct Ring {
  SharedAddress tiles, barriers;

  DEVICE SharedAddress tile(int step) const { return tiles + step % kStages * BYTES; }
  DEVICE SharedAddress full(int step) const { return barriers + step % kStages * 16; }
  DEVICE SharedAddress free(int step) const { return full(step) + 8; }

  /// For one thread, once. `fillers` threads arrive when they fill, one lane of each of `users` warps when it is done.
  DEVICE void init(int fillers, int users) const {
    for (int stage = 0; stage < kStages; stage++) {
      initBarrier(full(stage), fillers);
      initBarrier(free(stage), users);
    }
  }
  DEVICE void awaitFree(int step) const { awaitPhase(free(step), (step / kStages & 1) ^ 1); }
  DEVICE void awaitFull(int step) const { awaitPhase(full(step), step / kStages & 1); }
  DEVICE void release(int step) const {
    if ((threadIdx.x & 31) == 0) arrive(free(step));
  }
};

/// Warpgroups take turns at starting products: while one's are computed, the other does its softmax.
template <int GROUPS>
struct Turns {
  int group;

  DEVICE void begin() const {
    if (group == 0) arriveNamed(1, 256);
  }
  DEVICE void take() const { syncNamed(1 + group, 256); }
  DEVICE void pass() const { arriveNamed(1 + (group + 1 == GROUPS ? 0 : group + 1), 256); }
};

/// Starts s = A · Bᵀ: 64 rows of a tile of ROWS_A, from rowA on, and all N · 8 of another.
template <class T, int D, int ROWS_A, int N>
DEVICE void startTransposed(float (&s)[N][4], SharedAddress a, int rowA, SharedAddress b) {
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    const int panel = k / 4, inside = k % 4 * 32;  // 16 columns are 32 bytes
    const uint64_t left = describe(a + (panel * ROWS_A + rowA) * kLineBytes + inside, 16, kEightLines);
    const uint64_t right = describe(b + panel * N * 8 * kLineBytes + inside, 16, kEightLines);
    multiplyShared<T, N, false>(s, left, right, k > 0);
  }
}

/// Starts acc += P · B, B's tile with K · 16 rows.
template <class T, int K, int N>
DEVICE void startProduct(float (&acc)[N][4], const uint32_t (&p)[K][4], SharedAddress b) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    const uint64_t right = describe(b + k * 2 * kEightLines, K * 16 * kLineBytes, kEightLines);
    multiplyLoaded<T, N, true>(acc, p[k], right, true);
  }
}

/// Accumulators as a left operand: both have the layout of mma.m16n8k16.
template <class T, int K>
DEVICE void packRows(uint32_t (&a)[K / 2][4], const float (&s)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    a[k / 2][k % 2 * 2] = pack2<T>(s[k][0], s[k][1]);
    a[k / 2][k % 2 * 2 + 1] = pack2<T>(s[k][2], s[k][3]);
  }
}

}  // namespace mosaic::cuda
