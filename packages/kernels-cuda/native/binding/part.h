// Cuts what attention is asked for into parts, and parts into launches.
#pragma once

#include <vector>

#include "kernels/visible.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// What each slice lets each span of rows see of each span of keys; empty parts left out.
/// Throws where a part reaches over 2³⁰ positions or more.
std::vector<Part> partsOf(const std::vector<Span>& q, const std::vector<Span>& k, const std::vector<Slice>& mask);

/// What a block owns.
enum class Owner { Rows, Keys };

struct PartLaunch {
  Parts parts;
  unsigned blocks;
};

/// Parts, cut so that those that overlap in what blocks own have exactly that in common; the longest work first. A
/// block owns `own` rows or keys.
std::vector<PartLaunch> launchesOf(const std::vector<Part>& parts, Owner owner, int own);

}  // namespace mosaic::cuda
