// What modifies the scores of an attention call, as kernels take it.
#pragma once

#include <optional>

#include "kernels/score_modifiers.h"
#include "mosaic/kernel_arguments.h"

namespace mosaic::cuda {

/// Where a grid begins in the tensors of its call.
struct GridOrigin {
  int64_t batch, head;
};

/// None for a call that modifies no scores: sample masks and the origin do not. Throws std::invalid_argument for
/// positions that 31 bits do not hold, where they count.
std::optional<ScoreModifiers> makeScoreModifiers(const Tile& tile, const GridOrigin& origin);

}  // namespace mosaic::cuda
