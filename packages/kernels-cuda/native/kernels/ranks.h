// Reductions over ranks.
#pragma once

#include "kernels/operand.h"
#include "mosaic/device_port.h"

namespace mosaic::cuda {

/// out ← the operands of all ranks, in rank order. `own` is that of `rank`; the others lie one behind the other.
struct ReduceRanksParameters {
  Operand out, own, others;
  int64_t count;
  int32_t ranks, rank;
  MosaicReduceOp op;
};

}  // namespace mosaic::cuda
