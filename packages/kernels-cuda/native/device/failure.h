// How work on a CUDA device says that it failed, in the codes that JavaScript knows.
#pragma once

#include <exception>
#include <string>

#include "mosaic/stream.h"

namespace mosaic::cuda {

/// Its code decides which error class a program sees.
class Failure : public std::exception {
 public:
  Failure(MosaicFailureCode code, std::string message) : code_(code), message_(std::move(message)) {}
  MosaicFailureCode code() const { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  MosaicFailureCode code_;
  std::string message_;
};

}  // namespace mosaic::cuda
