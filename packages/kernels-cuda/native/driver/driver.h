// Finds the CUDA driver at run time, so that everything builds, installs and loads where there is none.
#pragma once

#include <stdexcept>
#include <string>

#include "driver/api.h"

namespace mosaic::cuda {

/// The driver is missing or of no use; reports why and what to do.
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

/// As cuDriverGetVersion gives it: CUDA 12.0, the oldest that can load what nvcc 12 compiles for Hopper.
constexpr int kMinDriverVersion = 12000;

/// The process's driver, initialised. The library is $MOSAIC_CUDA_LIBRARY, else libcuda.so.1.
/// Throws DriverError; once it has succeeded it always does.
const Driver& driver();

/// Version as cuDriverGetVersion gives it, 12040 for CUDA 12.4; and the library's name.
int driverVersion();
const std::string& driverLibrary();

/// Null where the driver has none.
TensorMapEncodeTiled tensorMapEncodeTiled();

/// Whether the driver is a stand-in for tests (native/emulation); the image of kernels that it brings along, if any.
bool isEmulated();
const void* emulatedKernelImage();

/// "12.4" for 12040.
std::string versionText(int version);

/// What was tried, and what the driver reports of it.
std::string formatError(CUresult code, const char* operation);

/// Throws CallError with the name of what was tried and what the driver reports of it, unless `code` is success.
void check(CUresult code, const char* operation);

}  // namespace mosaic::cuda
