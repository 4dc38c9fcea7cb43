// How kernels say that they failed, and how that becomes the stream's failure.
#pragma once

#include "mosaic/failure.h"

namespace mosaic {

/// Writes a failure, cutting the message to what fits; allocates nothing.
void fillFailure(MosaicFailure& failure, MosaicFailureCode code, const char* message);

/// Turns the exception in flight into a failure; call from a catch block.
void fillFromCurrentException(MosaicFailure& failure);

}  // namespace mosaic
