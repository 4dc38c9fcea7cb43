// Merging attention states.
#pragma once

#include "kernels/rows.h"

namespace mosaic::cuda {

/// into ← the state over the keys of both; a warp owns a row. An out of the rows' length, an lse of one element a row.
struct MergeParameters {
  Rows<4> over;  // into.out, into.lse, from.out, from.lse
};

}  // namespace mosaic::cuda
