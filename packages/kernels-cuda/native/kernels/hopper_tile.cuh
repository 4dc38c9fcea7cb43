// Tiles in the layout of TMA and wgmma, ring buffers of them between the loading warp and the computing warpgroups, and
// the two products of tiles.
//
// A tile of ROWS × D consists of panels of 64 columns: rows of 128 bytes whose 16-byte chunks are permuted within 8
// rows. Only TMA and wgmma depend on the permutation.
#pragma once

#include "kernels/hopper.h"
#include "kernels/ptx_sm90.cuh"
#include "kernels/tile_iterator.cuh"

namespace mosaic::cuda {

/// Named barriers: 0 is the block's; warpgroups use 1 to 3 for taking turns.
constexpr int kZeroedBarrierId = 4;

constexpr int kSwizzleRowBytes = 2 * kPanelColumns, kSwizzleAtomBytes = 8 * kSwizzleRowBytes;

template <int ROWS, int D>
constexpr int kPanelsBytes = ROWS * D * 2;

/// Initializes the barrier for the block's own tiles, and runs `init`, before the threads take different roles.
template <class Init>
DEVICE void initBlockBarrier(SharedAddress ownFullBarrier, Init init) {
  if (threadIdx.x == 0) {
    if (sharedBase() % kSwizzleAtomBytes) trap();  // the permutation has this period
    initBarrier(ownFullBarrier, 1);
    init();
    fenceBarriers();
  }
  syncBlock();
}

/// Returns 0 for the warpgroup that loads; the others compute. Read from one lane, so that the compiler can assume it
/// is uniform.
DEVICE int warpgroupIndex() { return shuffle(static_cast<int>(threadIdx.x) / 128, 0); }

/// Starts loading rows [row, row + ROWS) of a head. Called by one thread, after `bar` is set to expect their bytes.
template <int ROWS, int D>
DEVICE void loadPanels(SharedAddress tile, const TensorMap& map, TmaCoordinates at, SharedAddress bar) {
#pragma unroll
  for (int panel = 0; panel < D / kPanelColumns; panel++) {
    tmaLoad(tile + panel * ROWS * kSwizzleRowBytes, map, {panel * kPanelColumns, at.row, at.head, at.batch}, bar);
  }
}

/// Sets rows [validRows, ROWS) of a tile to 0. TMA also loads rows that are not visible to the block, and 0 · NaN is
/// NaN. Called by all computing threads, which are GROUPS warpgroups; must be followed by syncAfterZeroing.
template <int ROWS, int D, int GROUPS>
DEVICE void zeroRowsFrom(SharedAddress tile, int validRows) {
  constexpr int kWordsPerRow = kSwizzleRowBytes / 4;  // one line per row in each panel, in any permutation
#pragma unroll
  for (int panel = 0; panel < D / kPanelColumns; panel++) {
    const SharedAddress lines = tile + panel * ROWS * kSwizzleRowBytes;
    const int first = validRows * kWordsPerRow + static_cast<int>(threadIdx.x) - 128;
    for (int i = first; i < ROWS * kWordsPerRow; i += GROUPS * 128) {
      storeSharedBits(lines + i * 4, 0);
    }
  }
}
template <int GROUPS>
DEVICE void syncAfterZeroing() {
  fenceAsyncProxy();
  syncNamedBarrier(kZeroedBarrierId, GROUPS * 128);
}

/// A ring of tiles of BYTES, one per step: one is filled while another is used.
template <int BYTES>
struct TmaPipeline {
  SharedAddress tiles, barriers;

  DEVICE SharedAddress tile(int step) const { return tiles + step % kStages * BYTES; }
  DEVICE SharedAddress fullBarrier(int step) const { return barriers + step % kStages * 16; }
  DEVICE SharedAddress emptyBarrier(int step) const { return fullBarrier(step) + 8; }

  /// Called once, by one thread. `producers` threads arrive when they fill a tile; one lane of each of `consumers`
  /// warps arrives when it has finished with it.
  DEVICE void init(int producers, int consumers) const {
    for (int stage = 0; stage < kStages; stage++) {
      initBarrier(fullBarrier(stage), producers);
      initBarrier(emptyBarrier(stage), consumers);
    }
  }
  DEVICE void producerAcquire(int step) const { awaitPhase(emptyBarrier(step), (step / kStages & 1) ^ 1); }
  DEVICE void consumerWait(int step) const { awaitPhase(fullBarrier(step), step / kStages & 1); }
  DEVICE void consumerRelease(int step) const {
    syncWarp();  // orders the other lanes' reads before the arrival
    if ((threadIdx.x & 31) == 0) arrive(emptyBarrier(step));
  }
};

/// Lets warpgroups take turns at starting products: while the products of one are computed, the other computes its
/// softmax.
template <int GROUPS>
struct OrderBarrier {
  int group;

  DEVICE void init() const {
    if (group == 0) arriveNamedBarrier(1, 256);
  }
  DEVICE void wait() const { syncNamedBarrier(1 + group, 256); }
  DEVICE void arrive() const { arriveNamedBarrier(1 + (group + 1 == GROUPS ? 0 : group + 1), 256); }
};

/// Starts s = A · Bᵀ, for 64 rows of a tile of ROWS_A rows, from rowA on, and all N · 8 rows of tile b.
template <class T, int D, int ROWS_A, int N>
DEVICE void startMatmulTransposed(float (&s)[N][4], SharedAddress a, int rowA, SharedAddress b) {
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
    const int panel = k / 4, inside = k % 4 * 32;  // 16 columns are 32 bytes
    const uint64_t left =
        makeDescriptor(a + (panel * ROWS_A + rowA) * kSwizzleRowBytes + inside, 16, kSwizzleAtomBytes);
    const uint64_t right = makeDescriptor(b + panel * N * 8 * kSwizzleRowBytes + inside, 16, kSwizzleAtomBytes);
    wgmmaShared<T, N, false>(s, left, right, k > 0);
  }
}

/// Starts acc += P · B, where the tile of B has K · 16 rows.
template <class T, int K, int N>
DEVICE void startMatmul(float (&acc)[N][4], const uint32_t (&p)[K][4], SharedAddress b) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    const uint64_t right = makeDescriptor(b + k * 2 * kSwizzleAtomBytes, K * 16 * kSwizzleRowBytes, kSwizzleAtomBytes);
    wgmmaRegisters<T, N, true>(acc, p[k], right, true);
  }
}

/// Converts accumulators to a left operand; both have the layout of mma.m16n8k16.
template <class T, int K>
DEVICE void packRows(uint32_t (&a)[K / 2][4], const float (&s)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    a[k / 2][k % 2 * 2] = pack2<T>(s[k][0], s[k][1]);
    a[k / 2][k % 2 * 2 + 1] = pack2<T>(s[k][2], s[k][3]);
  }
}

}  // namespace mosaic::cuda
