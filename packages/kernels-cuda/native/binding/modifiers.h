// Score modifiers of an attention call, in the form that kernels take.
#pragma once

#include <optional>

#include "kernels/score_modifiers.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

/// The position of a grid's first batch element and head in the tensors of its call.
struct GridOrigin {
  int64_t batch, head;
};

/// Returns the score modifiers of a call; empty if it has none (sample masks and the origin do not count). Throws
/// std::invalid_argument for positions that do not fit 31 bits, if slopes or dropout use them.
std::optional<ScoreModifiers> makeScoreModifiers(const Tile& tile, const GridOrigin& origin);

}  // namespace mosaic::cuda
