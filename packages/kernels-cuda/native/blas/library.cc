#include "blas/api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "blas/library_search_paths.h"
#include "driver/driver.h"
#include "mosaic/failure.h"

namespace mosaic::cuda {

namespace {

/// Formats a version: "13.1.1" for 130101.
std::string formatVersion(size_t version) {
  const auto component = [&](size_t unit) { return std::to_string(version / unit % 100); };
  return component(10000) + "." + component(100) + "." + component(1);
}

/// The oldest version that has everything declared in api.h.
constexpr size_t kMinVersion = 120000;

/// Loads a library. Returns null, with the cause in `reason`, if it is not a usable cuBLASLt.
std::unique_ptr<BlasLibrary> load(const std::string& name, std::string& reason) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* text = dlerror();
    reason = text ? text : "unknown reason";
    return nullptr;
  }
  auto library = std::make_unique<BlasLibrary>();
  library->name = name;
  const char* missingSymbol = nullptr;
#define MOSAIC_CUBLASLT_FIND(function, symbol, result, parameters)                              \
  library->functions.function = reinterpret_cast<result(*) parameters>(dlsym(handle, #symbol)); \
  if (!library->functions.function && !missingSymbol) missingSymbol = #symbol;
  MOSAIC_CUBLASLT(MOSAIC_CUBLASLT_FIND)
#undef MOSAIC_CUBLASLT_FIND
  if (missingSymbol) return reason = std::string("missing symbol ") + missingSymbol, nullptr;
  const size_t version = library->functions.getVersion();
  library->version = formatVersion(version);
  if (version < kMinVersion) return reason = "version " + library->version + " is older than 12.0", nullptr;
  return library;
}

/// Returns the names to try. A library requires a driver of its own major version, or a newer one.
std::vector<std::string> defaultNames() {
  if (isEmulated()) return {};  // NVIDIA's library does not work with the emulated driver
  std::vector<std::string> names;
  for (const char* version : {"13", "12"}) {
    if (driverVersion() / 1000 < std::atoi(version)) continue;
    const std::string file = std::string("libcublasLt.so.") + version;
    names.push_back(file);
    for (std::string& path : librarySearchPaths(file)) names.push_back(std::move(path));
  }
  return names;
}

const BlasLibrary* findLibrary() {
  const char* environmentValue = std::getenv("MOSAIC_CUBLASLT_LIBRARY");
  const std::string requestedName = environmentValue ? environmentValue : "";
  std::string reason;
  if (requestedName == "none") return nullptr;
  if (!requestedName.empty()) {
    if (auto library = load(requestedName, reason)) return library.release();
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  "MOSAIC_CUBLASLT_LIBRARY: expected cuBLASLt 12.0 or newer, received " + requestedName + " (" +
                      reason +
                      "); set it to libcublasLt.so.12 or .13 of the CUDA Toolkit, to `none` to disable cuBLASLt, or "
                      "unset it");
  }
  for (const std::string& name : defaultNames()) {
    if (auto library = load(name, reason)) return library.release();
  }
  return nullptr;
}

}  // namespace

const BlasLibrary* blasLibrary() {
  static std::mutex mutex;
  static bool isLoaded = false;
  static const BlasLibrary* loadedLibrary = nullptr;
  const std::lock_guard lock(mutex);
  if (!isLoaded) loadedLibrary = findLibrary();
  isLoaded = true;
  return loadedLibrary;
}

}  // namespace mosaic::cuda
