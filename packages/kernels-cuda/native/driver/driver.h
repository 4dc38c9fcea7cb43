// Loads the CUDA driver at run time, so that everything builds, installs and loads without one.
#pragma once

#include <stdexcept>
#include <string>

#include "driver/api.h"

namespace mosaic::cuda {

/// The driver is missing or unusable; the message reports the cause and a remedy.
struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A driver call failed.
class CallError : public std::runtime_error {
 public:
  CallError(CUresult code, const std::string& message) : std::runtime_error(message), code_(code) {}
  CUresult code() const { return code_; }

 private:
  CUresult code_;
};

/// Version in the format of cuDriverGetVersion: CUDA 12.0, the oldest that can load code compiled for Hopper by nvcc
/// 12.
constexpr int kMinDriverVersion = 12000;

/// Returns the process's driver, initialized. The library is $MOSAIC_CUDA_LIBRARY, else libcuda.so.1. Throws
/// DriverError; after one success it never throws.
const Driver& driver();

/// Version in the format of cuDriverGetVersion, 12040 for CUDA 12.4; and the library's name.
int driverVersion();
const std::string& driverLibrary();

/// Returns null if the driver does not have the function.
TensorMapEncodeTiled tensorMapEncodeTiled();

/// Whether the driver is the emulation for tests (native/emulation); and the kernel image that it provides, or null.
bool isEmulated();
const void* emulatedKernelImage();

/// Formats a version: "12.4" for 12040.
std::string versionText(int version);

/// Formats the failed operation and the driver's error text.
std::string formatError(CUresult code, const char* operation);

/// Throws CallError with the operation and the driver's error text, unless `code` is success.
void check(CUresult code, const char* operation);

}  // namespace mosaic::cuda
