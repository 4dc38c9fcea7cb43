#include "driver/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "mosaic/dynamic_library.h"

namespace mosaic::cuda {

namespace {

struct LoadedDriver {
  Driver functions;
  std::string library;
  int version = 0;
  TensorMapEncodeTiled encodeTiled = nullptr;
  const void* image = nullptr;
  bool isEmulated = false;
};

/// Returns $MOSAIC_CUDA_LIBRARY, else libcuda.so.1.
std::string libraryName() {
  const char* environmentValue = std::getenv("MOSAIC_CUDA_LIBRARY");
  return environmentValue && *environmentValue ? environmentValue : "libcuda.so.1";
}

void* openLibrary(const std::string& library) {
  if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) return handle;
  throw DriverError("no CUDA driver: cannot load " + library + " (" + firstLine(dlerror()) +
                    "). Install NVIDIA's driver (libcuda.so.1 is part of the driver, not of the CUDA Toolkit); start a "
                    "container with the NVIDIA Container Toolkit (--gpus all); or set MOSAIC_CUDA_LIBRARY to its path");
}

Driver loadFunctions(void* handle, const std::string& library) {
  Driver driver;
  const char* missingSymbol = nullptr;  // the first symbol not found
#define MOSAIC_CUDA_FIND(name, symbol, parameters)                                \
  driver.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol)); \
  if (!driver.name && !missingSymbol) missingSymbol = #symbol;
  MOSAIC_CUDA_DRIVER(MOSAIC_CUDA_FIND)
#undef MOSAIC_CUDA_FIND
  if (!missingSymbol) return driver;
  throw DriverError(library + " has no " + missingSymbol + ": this driver is older than CUDA " +
                    versionText(kMinDriverVersion) + ". Update NVIDIA's driver to 525 or newer");
}

LoadedDriver loadDriver() {
  LoadedDriver loadedDriver;
  loadedDriver.library = libraryName();
  void* handle = openLibrary(loadedDriver.library);
  loadedDriver.functions = loadFunctions(handle, loadedDriver.library);
  loadedDriver.encodeTiled = reinterpret_cast<TensorMapEncodeTiled>(dlsym(handle, "cuTensorMapEncodeTiled"));
  const auto image = reinterpret_cast<const void* (*)()>(dlsym(handle, "mosaicEmulatedImage"));
  loadedDriver.image = image ? image() : nullptr;
  loadedDriver.isEmulated = image != nullptr;
  const Driver& cuda = loadedDriver.functions;
  if (const CUresult code = cuda.init(0); code != CUDA_SUCCESS) {
    const char* text = nullptr;
    cuda.getErrorString(code, &text);
    const std::string reason = std::string(text ? text : "unknown error") + ", code " + std::to_string(code);
    if (code == CUDA_ERROR_NO_DEVICE) {
      throw DriverError("the CUDA driver finds no GPU (" + reason +
                        "). Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, pass the GPU (--gpus all)");
    }
    throw DriverError("the CUDA driver cannot be initialized (" + reason +
                      "). Check nvidia-smi; after an update of the driver, reboot or reload its kernel module");
  }
  cuda.driverGetVersion(&loadedDriver.version);
  if (loadedDriver.version < kMinDriverVersion) {
    throw DriverError("the CUDA driver is too old: expected CUDA " + versionText(kMinDriverVersion) +
                      " or newer, received CUDA " + versionText(loadedDriver.version) +
                      ". Update NVIDIA's driver to 525 or newer");
  }
  return loadedDriver;
}

/// Loading is retried after a failure, because a driver may have been installed or a variable set in the meantime.
const LoadedDriver& getLoadedDriver() {
  static std::mutex mutex;
  static const LoadedDriver* loadedDriver = nullptr;
  const std::lock_guard lock(mutex);
  if (!loadedDriver) loadedDriver = new LoadedDriver(loadDriver());
  return *loadedDriver;
}

}  // namespace

const Driver& driver() { return getLoadedDriver().functions; }

int driverVersion() { return getLoadedDriver().version; }

const std::string& driverLibrary() { return getLoadedDriver().library; }

TensorMapEncodeTiled tensorMapEncodeTiled() { return getLoadedDriver().encodeTiled; }

const void* emulatedKernelImage() { return getLoadedDriver().image; }

bool isEmulated() { return getLoadedDriver().isEmulated; }

std::string versionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string formatError(CUresult code, const char* operation) {
  const char *name = nullptr, *text = nullptr;
  driver().getErrorName(code, &name);
  driver().getErrorString(code, &text);
  return std::string(operation) + ": " + (text ? text : "unknown error") + " (" + (name ? name : "?") + ")";
}

void check(CUresult code, const char* operation) {
  if (code != CUDA_SUCCESS) throw CallError(code, formatError(code, operation));
}

}  // namespace mosaic::cuda
