#include "binding/attention.h"

#include "binding/loop.h"
#include "binding/rows.h"
#include "kernels/state.h"

namespace mosaic::cuda {

void attendOp(Device&, Reader) { throw Failure(MOSAIC_FAILURE_DEVICE, "attend: not on this device yet"); }
void attendBackwardOp(Device&, Reader) { throw Failure(MOSAIC_FAILURE_DEVICE, "attendBackward: not on this device yet"); }

void mergeOp(Device& device, Reader args) {
  const View out = args.view(), lse = perRow(args.view()), otherOut = args.view(), otherLse = perRow(args.view());
  const MergeParameters p{rowsOf<4>({&out, &lse, &otherOut, &otherLse})};
  device.launch("merge", gridForRows(device, p.over.rows.extent.count), p);
}

}  // namespace mosaic::cuda
