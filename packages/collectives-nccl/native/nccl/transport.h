// The transport between ranks on NVIDIA GPUs.
#pragma once

#include "mosaic/transport.h"
#include "nccl/communicator.h"

namespace mosaic::nccl {

/// A transport for one rank, over the library that was loaded; its `free` frees it. `shouldWarmUp`: see `warm_up` in
/// mosaic/transport.h.
const MosaicTransport* openTransport(const Settings& settings, bool shouldWarmUp);

}  // namespace mosaic::nccl
