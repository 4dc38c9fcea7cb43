// How kernels say that they failed, and how that becomes the stream's failure.
#pragma once

#include <exception>
#include <string>

#include "mosaic/stream.h"

namespace mosaic {

/// Thrown by work; its code decides which error class a program sees.
class Failure : public std::exception {
 public:
  Failure(MosaicFailureCode code, std::string message) : code_(code), message_(std::move(message)) {}
  MosaicFailureCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  MosaicFailureCode code_;
  std::string message_;
};

/// Writes a failure, cutting the message to what fits.
void fillFailure(MosaicFailure& failure, MosaicFailureCode code, const char* message);

/// Turns the exception in flight into a failure; call from a catch block.
void fillFromCurrentException(MosaicFailure& failure);

}  // namespace mosaic
