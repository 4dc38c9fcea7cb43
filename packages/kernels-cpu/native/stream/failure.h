// How kernels report that they failed, and how that becomes the stream's failure.
#pragma once

#include "mosaic/failure.h"

namespace mosaic {

/// Turns the exception in flight into a failure; call from a catch block.
void fillFromCurrentException(MosaicFailure& failure);

}  // namespace mosaic
