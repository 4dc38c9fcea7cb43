// Failures as they travel: between ranks, onto devices, into JavaScript.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>

#include "mosaic/stream.h"

namespace mosaic {

/// Its code decides which error class a program sees.
class Failure : public std::runtime_error {
 public:
  Failure(MosaicFailureCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  explicit Failure(const MosaicFailure& record)
      : Failure(static_cast<MosaicFailureCode>(record.code), record.message) {}
  MosaicFailureCode code() const { return code_; }

 private:
  MosaicFailureCode code_;
};

inline MosaicFailure recordOf(MosaicFailureCode code, const std::string& message) {
  MosaicFailure failure{};
  failure.code = code;
  std::snprintf(failure.message, sizeof failure.message, "%s", message.c_str());
  return failure;
}

}  // namespace mosaic
