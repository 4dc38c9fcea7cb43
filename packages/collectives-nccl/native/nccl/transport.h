// The transport between ranks on NVIDIA GPUs.
#pragma once

#include "mosaic/transport.h"
#include "nccl/communicator.h"

namespace mosaic::nccl {

/// Returns a transport for one rank, over the loaded library. Its `free` frees it. `shouldWarmUp`: see `warm_up` in
/// mosaic/transport.h.
const MosaicTransport* openTransport(const Settings& settings, bool shouldWarmUp);

}  // namespace mosaic::nccl
