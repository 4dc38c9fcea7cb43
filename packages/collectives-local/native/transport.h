// The transport between ranks of one host.
#pragma once

#include "mosaic/transport.h"

namespace mosaic {

/// A transport for one rank; its `close` frees it.
const MosaicTransport* openSharedMemory();

}  // namespace mosaic
