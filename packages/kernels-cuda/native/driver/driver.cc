#include "driver/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

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

/// $MOSAIC_CUDA_LIBRARY, else libcuda.so.1.
std::string libraryName() {
  const char* named = std::getenv("MOSAIC_CUDA_LIBRARY");
  return named && *named ? named : "libcuda.so.1";
}

std::string firstLine(const char* text) {
  const std::string all = text ? text : "unknown reason";
  return all.substr(0, all.find('\n'));
}

void* open(const std::string& library) {
  if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) return handle;
  throw DriverError("no CUDA driver: cannot load " + library + " (" + firstLine(dlerror()) +
                    "). Install NVIDIA's driver (libcuda.so.1 is part of the driver, not of the CUDA Toolkit); start a "
                    "container with the NVIDIA Container Toolkit (--gpus all); or set MOSAIC_CUDA_LIBRARY to its path");
}

Driver functionsOf(void* handle, const std::string& library) {
  Driver found;
  const char* missing = nullptr;  // the first symbol that is not there
#define MOSAIC_CUDA_FIND(name, symbol, parameters)                                \
  found.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol)); \
  if (!found.name && !missing) missing = #symbol;
  MOSAIC_CUDA_DRIVER(MOSAIC_CUDA_FIND)
#undef MOSAIC_CUDA_FIND
  if (!missing) return found;
  throw DriverError(library + " has no " + missing + ": this driver is older than CUDA " +
                    versionText(kMinDriverVersion) + ". Update NVIDIA's driver to 525 or newer");
}

LoadedDriver load() {
  LoadedDriver loaded;
  loaded.library = libraryName();
  void* handle = open(loaded.library);
  loaded.functions = functionsOf(handle, loaded.library);
  loaded.encodeTiled = reinterpret_cast<TensorMapEncodeTiled>(dlsym(handle, "cuTensorMapEncodeTiled"));
  const auto image = reinterpret_cast<const void* (*)()>(dlsym(handle, "mosaicEmulatedImage"));
  loaded.image = image ? image() : nullptr;
  loaded.isEmulated = image != nullptr;
  const Driver& found = loaded.functions;
  if (const CUresult code = found.init(0); code != CUDA_SUCCESS) {
    const char* text = nullptr;
    found.getErrorString(code, &text);
    const std::string reason = std::string(text ? text : "unknown error") + ", code " + std::to_string(code);
    if (code == CUDA_ERROR_NO_DEVICE) {
      throw DriverError("the CUDA driver finds no GPU (" + reason +
                        "). Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, pass the GPU (--gpus all)");
    }
    throw DriverError("the CUDA driver cannot be initialized (" + reason +
                      "). Check nvidia-smi; after an update of the driver, reboot or reload its kernel module");
  }
  found.driverGetVersion(&loaded.version);
  if (loaded.version < kMinDriverVersion) {
    throw DriverError("the CUDA driver is too old: it supports CUDA " + versionText(loaded.version) + ", required is " +
                      versionText(kMinDriverVersion) + ". Update NVIDIA's driver to 525 or newer");
  }
  return loaded;
}

/// Tried again after a failure: a driver may be installed meanwhile, a variable set.
const LoadedDriver& loaded() {
  static std::mutex mutex;
  static const LoadedDriver* loadedDriver = nullptr;
  const std::lock_guard lock(mutex);
  if (!loadedDriver) loadedDriver = new LoadedDriver(load());
  return *loadedDriver;
}

}  // namespace

const Driver& driver() { return loaded().functions; }

int driverVersion() { return loaded().version; }

const std::string& driverLibrary() { return loaded().library; }

TensorMapEncodeTiled tensorMapEncodeTiled() { return loaded().encodeTiled; }

const void* emulatedKernelImage() { return loaded().image; }

bool isEmulated() { return loaded().isEmulated; }

std::string versionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string messageOf(CUresult code, const char* what) {
  const char *name = nullptr, *text = nullptr;
  driver().getErrorName(code, &name);
  driver().getErrorString(code, &text);
  return std::string(what) + ": " + (text ? text : "unknown error") + " (" + (name ? name : "?") + ")";
}

void check(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS) throw CallError(code, messageOf(code, what));
}

}  // namespace mosaic::cuda
