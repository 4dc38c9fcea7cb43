// Failures as they travel: between ranks, onto streams, into JavaScript.
#pragma once

#include <mosaic/stream.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace mosaic {

inline MosaicFailure makeFailure(MosaicFailureCode code, const std::string& message) {
  MosaicFailure failure{};
  failure.code = code;
  std::snprintf(failure.message, sizeof failure.message, "%s", message.c_str());
  return failure;
}

/// A failure on its way to the caller of a native function.
struct FailureError : std::runtime_error {
  explicit FailureError(const MosaicFailure& failure) : std::runtime_error(failure.message), code(failure.code) {}
  FailureError(MosaicFailureCode code, const std::string& message) : std::runtime_error(message), code(code) {}
  int32_t code;
};

}  // namespace mosaic
