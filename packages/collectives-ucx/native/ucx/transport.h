// The transport of CPU ranks on several hosts.
#pragma once

#include "mosaic/transport.h"
#include "ucx/worker.h"

namespace mosaic::ucx {

/// Returns a transport for one rank, over the loaded library. Its `free` frees it.
const MosaicTransport* openTransport(const Settings& settings);

}  // namespace mosaic::ucx
