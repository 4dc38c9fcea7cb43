// The transport of CPU ranks on several hosts.
#pragma once

#include "mosaic/transport.h"
#include "ucx/worker.h"

namespace mosaic::ucx {

/// A transport for one rank, over the library that was loaded; its `free` frees it.
const MosaicTransport* openTransport(const Settings& settings);

}  // namespace mosaic::ucx
