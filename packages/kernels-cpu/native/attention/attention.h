// Flash attention on the CPU: the forward fold, its backward, and the algebra of states.
//
// Sources: online softmax, Milakov and Gimelshein 2018; blocks and the backward, FlashAttention-2 (Dao 2023); the
// state (out, lse) and its merge, FlashInfer (Ye et al. 2025); slices, MagiAttention.
#pragma once

#include <span>

#include "mosaic/kernel_arguments.h"
#include "pool/pool.h"
#include "simd/isa.h"

namespace mosaic {

/// Folds the keys k, v into the state (out, lse): q and k with heads of 1 ≤ D ≤ 256, v and out with 1 ≤ Dv ≤ 256, H a
/// multiple of Hkv. lse is the
/// natural logarithm; −∞ marks a row that has seen nothing, whose `out` is then not read. Rows that see no key of this
/// tile are neither read nor written. Slices are disjoint; spans add up to the lengths of q and k. NaN reaches the rows
/// that see it and no other. The cost grows with the slices that meet this tile, not with their number. The result
/// does not depend on the number of threads. With sample masks each batch element sees its own slices, too: those
/// of number origin.batch + b. Throws std::bad_alloc.
void attend(const AttendArguments& args, Isa isa, Pool& pool);

/// Adds this tile's share of the gradients to dq, dk, dv; dk and dv of a key head sum over its group of query heads.
/// `lse` and `delta` are those of the whole row, over all its keys on all ranks. The result does not depend on the
/// number of threads. Throws std::bad_alloc.
void attendBackward(const AttendBackwardArguments& args, Isa isa, Pool& pool);

/// into ← the state over the keys of all, merged in order: exact when a side has seen nothing (lse = −∞), NaN only from
/// NaN.
void mergeStates(const AttentionState& into, std::span<const AttentionState> from, Pool& pool);

}  // namespace mosaic
