// Failures, as passed between ranks, to devices and to JavaScript.
#pragma once

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "mosaic/stream.h"
#include "mosaic/text.h"

namespace mosaic {

/// An exception whose code determines the error class in JavaScript.
class Failure : public std::runtime_error {
 public:
  Failure(MosaicFailureCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  explicit Failure(const MosaicFailure& record)
      : Failure(static_cast<MosaicFailureCode>(record.code), record.message) {}
  MosaicFailureCode code() const { return code_; }

 private:
  MosaicFailureCode code_;
};

/// Truncates the message to the whole characters that fit in the record. Does not allocate.
inline MosaicFailure failureRecord(MosaicFailureCode code, const char* message) {
  MosaicFailure failure{};
  failure.code = code;
  std::memcpy(failure.message, message, truncatedLength(message, sizeof failure.message - 1));
  return failure;
}

inline MosaicFailure failureRecord(MosaicFailureCode code, const std::string& message) {
  return failureRecord(code, message.c_str());
}

/// Runs `body` and returns 0, or 1 with the exception in `failure`: how functions of C tables report. `context` is
/// prepended to the texts of exceptions other than Failure.
template <typename Body>
int captureFailure(MosaicFailure* failure, const std::string& context, Body body) {
  try {
    body();
    return 0;
  } catch (const Failure& exception) {
    *failure = failureRecord(exception.code(), exception.what());
  } catch (const std::bad_alloc&) {
    *failure = failureRecord(MOSAIC_FAILURE_OUT_OF_MEMORY, context + ": out of host memory");
  } catch (const std::exception& exception) {
    *failure = failureRecord(MOSAIC_FAILURE_DEVICE, context + ": " + exception.what());
  }
  return 1;
}

}  // namespace mosaic
