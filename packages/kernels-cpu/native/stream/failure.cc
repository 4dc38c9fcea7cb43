#include "stream/failure.h"

#include <new>

namespace mosaic {

void fillFromCurrentException(MosaicFailure& failure) {
  try {
    throw;
  } catch (const Failure& error) {
    failure = recordOf(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    failure = recordOf(MOSAIC_FAILURE_OUT_OF_MEMORY, "no memory for a kernel to work in; use smaller tensors");
  } catch (const std::exception& error) {
    failure = recordOf(MOSAIC_FAILURE_DEVICE, error.what());
  } catch (...) {
    failure = recordOf(MOSAIC_FAILURE_DEVICE, "unknown native exception");
  }
}

}  // namespace mosaic
