#include "stream/failure.h"

#include <cstdio>
#include <new>

namespace mosaic {

void fillFailure(MosaicFailure& failure, MosaicFailureCode code, const char* message) {
  failure.code = code;
  std::snprintf(failure.message, sizeof failure.message, "%s", message);
}

void fillFromCurrentException(MosaicFailure& failure) {
  try {
    throw;
  } catch (const Failure& error) {
    fillFailure(failure, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fillFailure(failure, MOSAIC_FAILURE_OUT_OF_MEMORY, "no memory for a kernel to work in; use smaller tensors");
  } catch (const std::exception& error) {
    fillFailure(failure, MOSAIC_FAILURE_DEVICE, error.what());
  } catch (...) {
    fillFailure(failure, MOSAIC_FAILURE_DEVICE, "unknown native exception");
  }
}

}  // namespace mosaic
