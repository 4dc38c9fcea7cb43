#include "nccl/api.h"

#include <dlfcn.h>

#include <mutex>

#include "mosaic/failure.h"

namespace mosaic::nccl {

namespace {

constexpr const char* kInstallHint =
    "install NCCL 2.18 or newer: apt-get install libnccl2, or pip install nvidia-nccl-cu12 (or -cu13); or set "
    "MOSAIC_NCCL_LIBRARY to the library's path";

std::string firstLine(const char* text) {
  const std::string message = text ? text : "unknown reason";
  return message.substr(0, message.find('\n'));
}

/// Fills in `library`; else returns why that library cannot be used.
std::string resolveSymbols(void* handle, Library& library) {
  const char* missingSymbol = nullptr;
  Functions& functions = library.functions;
#define MOSAIC_NCCL_FIND(type, name, symbol, parameters)                         \
  functions.name = reinterpret_cast<type(*) parameters>(dlsym(handle, #symbol)); \
  if (!functions.name && !missingSymbol) missingSymbol = #symbol;
  MOSAIC_NCCL(MOSAIC_NCCL_FIND)
#undef MOSAIC_NCCL_FIND
  if (functions.getVersion) {
    functions.getVersion(&library.version);
    if (library.version < kMinVersion) {
      return library.path + " version " + versionText(library.version) + ", which is too old";
    }
  }
  return missingSymbol ? library.path + " without the symbol " + missingSymbol : "";
}

/// The first that can be used.
Library findLibrary(const std::vector<std::string>& candidates) {
  std::string loadErrors, unsupportedReasons;
  const auto appendReason = [](std::string& reasons, const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + reason;
  };
  for (const std::string& candidate : candidates) {
    void* const handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      appendReason(loadErrors, firstLine(dlerror()));
      continue;
    }
    Library library;
    library.path = candidate;
    const std::string reason = resolveSymbols(handle, library);
    if (reason.empty()) return library;
    appendReason(unsupportedReasons, reason);
    dlclose(handle);
  }
  throw Failure(MOSAIC_FAILURE_DEVICE,
                "nccl: expected NCCL, received " +
                    (unsupportedReasons.empty() ? "none (" + loadErrors + ")" : unsupportedReasons) + "; " +
                    kInstallHint);
}

std::mutex mutex;
const Library* loadedLibrary = nullptr;

}  // namespace

const Library& load(const std::vector<std::string>& candidates) {
  const std::lock_guard lock(mutex);
  if (loadedLibrary) return *loadedLibrary;
  Library library = findLibrary(candidates);
  // Where it was found, if the system's search found it.
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(library.functions.getVersion), &info) && info.dli_fname)
    library.path = info.dli_fname;
  return *(loadedLibrary = new Library(std::move(library)));
}

const Library& library() {
  const std::lock_guard lock(mutex);
  if (!loadedLibrary) throw Failure(MOSAIC_FAILURE_DEVICE, "nccl: expected a loaded NCCL library, received none");
  return *loadedLibrary;
}

std::string versionText(int version) {
  // Up to 2.8 a version had one digit less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace mosaic::nccl
