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

/// Folds the keys k, v into the state (out, lse). q and k have heads of 1 ≤ D ≤ 256, v and out of 1 ≤ Dv ≤ 256; H is a
/// multiple of Hkv. lse is the natural logarithm. lse = −∞ marks a row that has attended to no key so far; its `out` is
/// not read. Rows that attend to no key of this tile are neither read nor written. Slices are disjoint; spans add up to
/// the lengths of q and k. A NaN reaches only the rows that attend to it. The cost grows with the number of slices that
/// intersect this tile, not with their total number. The result does not depend on the number of threads. With sample
/// masks, batch element b also attends to its own slices, those of sample origin.batch + b. Throws std::bad_alloc.
void attend(const AttendArguments& args, Isa isa, Pool& pool);

/// Adds this tile's contribution to dq, dk and dv. dk and dv of a key head sum over its group of query heads. `lse` and
/// `delta` are those of the whole row, over all its keys on all ranks. The result does not depend on the number of
/// threads. Throws std::bad_alloc.
void attendBackward(const AttendBackwardArguments& args, Isa isa, Pool& pool);

/// into ← the state over the keys of `into` and all of `from`, merged in order. Exact when one side has no keys yet
/// (lse = −∞). The result is NaN only if an input is NaN.
void mergeStates(const AttentionState& into, std::span<const AttentionState> from, Pool& pool);

}  // namespace mosaic
