// Flash attention on the CPU: the forward fold, its backward, and the algebra of states.
//
// Sources: online softmax, Milakov and Gimelshein 2018; blocks and the backward, FlashAttention-2 (Dao 2023); the
// state (out, lse) and its merge, FlashInfer (Ye et al. 2025); slices, MagiAttention.
#pragma once

#include <cstdint>
#include <span>

#include "pool/pool.h"
#include "mosaic/tile.h"
#include "simd/isa.h"

namespace mosaic {

/// Which rows and keys a block holds and which pairs of them count. Slices are disjoint; spans add up to the lengths of
/// q and k. Order of slices does not matter; cost grows with the slices that meet this tile, not with their number.
struct Tile {
  std::span<const Span> q, k;
  std::span<const Slice> mask;
  float scale;
};

struct AttendArgs {
  TensorView q;         // [B, H, Sq, D], any dtype, 1 ≤ D ≤ 256
  TensorView k, v;      // [B, Hkv, Sk, D], any dtype; H is a multiple of Hkv
  TensorView out, lse;  // [B, H, Sq, D] and [B, H, Sq, 1], float32: the state, read and written
  Tile tile;
};

/// Folds the keys k, v into the state (out, lse). lse is the natural logarithm; −∞ marks a row that has seen nothing,
/// whose `out` is then not read. Rows that see no key of this tile are neither read nor written. NaN reaches the rows
/// that see it and no other. The result does not depend on the number of threads. Throws std::bad_alloc.
void attend(const AttendArgs& args, Isa isa, Pool& pool);

struct AttendBackwardArgs {
  TensorView q, k, v;     // as forward
  TensorView dOut;        // [B, H, Sq, D], any dtype
  TensorView lse, delta;  // [B, H, Sq, 1] float32: of the whole row, over all its keys on all ranks
  TensorView dq, dk, dv;  // shaped like q, k, v, float32: added to
  Tile tile;
};

/// Adds this tile's share of the gradients to dq, dk, dv; dk and dv of a key head sum over its group of query heads.
/// The result does not depend on the number of threads. Throws std::bad_alloc.
void attendBackward(const AttendBackwardArgs& args, Isa isa, Pool& pool);

struct StateView {
  TensorView out, lse;
};

/// into ← the state over the keys of both: exact when either side has seen nothing (lse = −∞), NaN only from NaN.
void mergeState(const StateView& into, const StateView& from, Pool& pool);

/// Billions of float32 operations per second that `isa` reaches on all threads of the pool in a loop of fused
/// multiply-adds on registers (Scalar: multiply and add): the roof that kernels are measured against.
double fmaPeakGflops(Isa isa, Pool& pool);

}  // namespace mosaic
